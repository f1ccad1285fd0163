"""The connections of a client: one for each event loop, opened when it is first needed."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Self, TypeAlias
from weakref import WeakKeyDictionary

import asyncio_atexit

from executor_client.client.calls import Calls
from executor_client.client.lease import ClientLease
from executor_client.client.request import ClusterRef
from executor_client.runtime import forks
from executor_client.runtime.asyncio_tasks import SingleFlight
from executor_client.transport.cluster import Transport
from executor_client.transport.protocol import ClusterTransport

_Transports: TypeAlias = WeakKeyDictionary[asyncio.AbstractEventLoop, ClusterTransport]


class Connected:
    """What has connections to a cluster, and a Lease as long as somebody needs it; see `CodeExecutionClient`."""

    def __init__(
        self,
        cluster: ClusterRef | None = None,
        *,
        transport: Callable[[], Awaitable[ClusterTransport]] | None = None,
    ) -> None:
        self.cluster: Final = None if transport else cluster or ClusterRef()
        """The cluster that this client connects to by itself; None if it was given its transport."""
        self._connect: Callable[[], Awaitable[ClusterTransport]]
        self._lease: ClientLease | None = None
        if self.cluster:
            connect = partial(_connect, self.cluster)
            self._connect, self._lease = connect, ClientLease(connect)
            forks.finalize(self, self._lease.release)
        elif transport:
            self._connect = transport
        self.begin_anew()
        forks.begins_anew(self)

    def begin_anew(self) -> None:
        """Use no connection that there is; see `executor_client.runtime.forks`."""
        self._transports: _Transports = WeakKeyDictionary()
        self._connecting: WeakKeyDictionary[asyncio.AbstractEventLoop, SingleFlight[ClusterTransport]] = (
            WeakKeyDictionary()
        )
        self._calls: WeakKeyDictionary[asyncio.AbstractEventLoop, Calls] = WeakKeyDictionary()
        self._at_exit = partial(_close_connection, self._transports)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def check(self) -> None:
        """Make sure that the cluster answers and that codeexec is installed there.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        await (await self.connect()).check()

    async def close(self) -> None:
        """End the calls of the running event loop, close its connections, and stop keeping sessions alive.

        The code of `execute` calls is stopped, and these calls raise ClusterUnreachable. What was submitted runs on. A
        later call opens connections again. Idle sessions that don't outlive the client end within a minute, or if
        other event loops use the client, within a minute of the last `close`. If the caller is cancelled meanwhile,
        this goes on in the background, and a further `close` waits for it.
        """
        await self.calls.closed(self._close)

    async def _close(self) -> None:
        try:
            await self.calls.end()
        finally:  # whatever breaks it off, such as the end of the event loop: nothing stays open
            asyncio_atexit.unregister(self._at_exit)
            try:
                await self._at_exit()
            finally:
                if self._lease and not self._transports:  # else sessions of other event loops still need it
                    await self._lease.close()

    @property
    def calls(self) -> Calls:
        """What is under way in the running event loop."""
        return self._calls.setdefault(asyncio.get_running_loop(), Calls())

    async def connect(self) -> ClusterTransport:
        """The connection of the running event loop; it is opened if there is none.

        Raises:
            ClusterUnreachable: there is no usable configuration.
        """
        loop = asyncio.get_running_loop()
        if transport := self._transports.get(loop):
            return transport
        if loop not in self._connecting:
            self._connecting[loop] = SingleFlight(partial(_open, self._connect, self._transports, self._at_exit))
        return await self._connecting[loop]()


async def _open(
    connect: Callable[[], Awaitable[ClusterTransport]], transports: _Transports, at_exit: Callable[[], Awaitable[None]]
) -> ClusterTransport:
    """Open the connection of the running event loop. Holds on to nothing that holds the client."""
    transport = transports[asyncio.get_running_loop()] = await connect()
    asyncio_atexit.register(at_exit)
    return transport


async def _close_connection(transports: _Transports) -> None:
    """Close the connection of the running event loop, if there is one. A transport holds the loop: it must not stay."""
    if transport := transports.pop(asyncio.get_running_loop(), None):
        await transport.close()


async def _connect(ref: ClusterRef) -> Transport:
    return await Transport.connect(
        kubeconfig=ref.kubeconfig, context=ref.context, namespace=ref.namespace, output_store=ref.output_store
    )
