"""A handle on one session: a workspace that several executions share, one after the other."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress

from typing_extensions import override

from codeexec_api import CodeSession, CodeSessionSpec, SessionPhase
from executor_client.client.execution import OPERATOR_SECONDS, no_operator
from executor_client.client.request import Request
from executor_client.client.running import Running
from executor_client.client.session_handle import SessionHandle
from executor_client.client.waiting import Waiting
from executor_client.exceptions import NotFound, SessionEnded
from executor_client.model.results import session_failure
from executor_client.model.words import caller
from executor_client.runtime import telemetry
from executor_client.transport.protocol import ClusterTransport

logger = logging.getLogger(__name__)

_TAKES_CALLS = (SessionPhase.READY, SessionPhase.ASLEEP)
"""An execution wakes a session that sleeps."""


class Session(SessionHandle):
    """A handle on one session; `end` ends the session, and so does `async with`.

    A session lives on when its handle is dropped. It ends soon after its client is gone, unless it `outlives_client`.
    Executions and transfers of files run one after the other, in the order in which they were asked for.
    """

    def __init__(
        self,
        client: Running,
        name: str,
        request: Request,
        spec: CodeSessionSpec,
        keep_alive: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(name, request, client)
        self._client = client
        self._spec = spec
        self._keep_alive = keep_alive

    @override
    async def create(self) -> None:
        """Ask for the session. Executions can be submitted before: they wait some seconds for it to be there.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        lease = self._keep_alive() if self._keep_alive else None
        spec = self._spec.model_copy(update={"traceparent": telemetry.traceparent(), "client_lease": lease})
        async with self._client.calls.call():
            transport = await self._client.connect()
            creation = transport.create_session(self.name, spec)
            await self._client.calls.created(creation, lambda: self._end_by(transport))

    async def record(self) -> CodeSession:
        """The session as it stands on record.

        Raises:
            NotFound: the namespace has no object with this name.
            CodeExecError: see `executor_client.exceptions`.
        """
        transport = await self._client.connect()
        return await transport.patiently(lambda: transport.get_session(self.name))

    async def ready(self) -> CodeSession:
        """Wait until executions can run in it, and return the record.

        While the session waits for room or for an operator, `on_wait` of its request hears why.

        Raises:
            NotInstalled: no operator takes it up.
            ExecutionNotStarted: it can't start; the text says why.
            SessionEnded: it is over.
            CodeExecError: see `executor_client.exceptions`.
        """
        transport, waiting = await self._client.connect(), Waiting(self.request.on_wait)
        current = await transport.patiently(lambda: transport.get_session(self.name))
        while current.status.phase not in _TAKES_CALLS:
            version = current.metadata.resource_version
            try:
                current = await self._watch_until_ready(transport, current, waiting)
            except NotFound:
                raise SessionEnded(
                    f"session {self.name} was deleted, and its files are gone. Nothing was run. Start a new session"
                ) from None
            if current.metadata.resource_version == version:
                raise no_operator(f"session {self.name}", transport.namespace)
        return current

    async def _watch_until_ready(
        self, transport: ClusterTransport, latest: CodeSession, waiting: Waiting
    ) -> CodeSession:
        """Follow changes until it is ready. If no operator takes it up in time, how the record is then.

        Raises:
            NotFound: it was deleted.
            CodeExecError: see `ready`.
        """
        try:
            async with (
                asyncio.timeout(None if latest.status.observed_generation else OPERATOR_SECONDS) as unnoticed,
                aclosing(waiting.versions(transport, latest, OPERATOR_SECONDS)) as versions,
            ):
                async for current in versions:
                    if current.status.phase in _TAKES_CALLS:
                        return current
                    if error := session_failure(current, caller()):
                        raise error
                    if current.status.observed_generation:
                        unnoticed.reschedule(None)
                    await waiting.see(current)
                raise NotFound(f"session {self.name} was deleted")
        except TimeoutError:
            if not unnoticed.expired():  # what the caller's own function raised
                raise
        return await transport.patiently(lambda: transport.get_session(self.name))

    @override
    async def end(self) -> None:
        """End the session: what runs in it is stopped, and its workspace deleted. Can be called more than once.

        If the caller is cancelled meanwhile, the session is ended in the background, and the client's `close` waits.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        await self._client.calls.undone(self._end)

    @override
    async def abandon(self) -> None:
        await self._client.calls.undone(super().abandon)

    @override
    async def _end(self) -> None:
        await self._end_by(await self._client.connect())

    async def _end_by(self, transport: ClusterTransport) -> None:
        with suppress(NotFound):
            await transport.patiently(lambda: transport.end_session(self.name))
