"""A handle on one session: a workspace that several executions share, one after the other."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress

from typing_extensions import override

from codeexec_api import CodeSession, CodeSessionSpec, SessionPhase
from executor_client.client.execution import OPERATOR_SECONDS
from executor_client.client.request import Request
from executor_client.client.running import Running
from executor_client.client.session_handle import SessionHandle
from executor_client.exceptions import NotFound, NotInstalled, SessionEnded
from executor_client.model.results import session_failure
from executor_client.model.words import caller
from executor_client.runtime import telemetry
from executor_client.runtime.asyncio_tasks import created_or_undone
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
        creation = (await self._client.connect()).create_session(self.name, spec)
        await created_or_undone(creation, self.end)

    async def record(self) -> CodeSession:
        """The session as it stands on record.

        Raises:
            NotFound: the namespace has no object with this name.
            CodeExecError: see `executor_client.exceptions`.
        """
        return await (await self._client.connect()).get_session(self.name)

    async def ready(self) -> CodeSession:
        """Wait until executions can run in it, and return the record.

        Raises:
            NotInstalled: no operator takes it up.
            ExecutionNotStarted: it can't start; the text says why.
            SessionEnded: it is over.
            CodeExecError: see `executor_client.exceptions`.
        """
        transport = await self._client.connect()
        current = await transport.get_session(self.name)
        while current.status.phase not in _TAKES_CALLS:
            version = current.metadata.resource_version
            try:
                current = await self._watch_until_ready(transport, current)
            except NotFound:
                raise SessionEnded(f"session {self.name} was deleted") from None
            if current.metadata.resource_version == version:
                raise NotInstalled(
                    f"no operator took up session {self.name} within {OPERATOR_SECONDS} s; check "
                    f"that the codeexec operator runs and serves namespace {transport.namespace!r}"
                )
        return current

    async def _watch_until_ready(self, transport: ClusterTransport, current: CodeSession) -> CodeSession:
        """Follow changes until it is ready. If no operator takes it up in time, how the record is then.

        Raises:
            NotFound: it was deleted.
            CodeExecError: see `ready`.
        """
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(None if current.status.observed_generation else OPERATOR_SECONDS) as unnoticed,
                aclosing(transport.session_changes(current)) as changes,
            ):
                while current.status.phase not in _TAKES_CALLS:
                    if error := session_failure(current, caller()):
                        raise error
                    if current.status.observed_generation:
                        unnoticed.reschedule(None)
                    try:
                        current = await anext(changes)
                    except StopAsyncIteration:
                        raise NotFound(f"session {self.name} was deleted") from None
                return current
        return await transport.get_session(self.name)

    @override
    async def end(self) -> None:
        """End the session: what runs in it is stopped, and its workspace deleted. Can be called more than once.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        with suppress(NotFound):
            await (await self._client.connect()).end_session(self.name)
