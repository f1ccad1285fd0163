"""The client of a cluster. Knows no agent framework."""

import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TypeVar

from codeexec_api import CodeExecution, CodeSession, CodeSessionSpec, ExecutionPolicySpec, Phase
from codeexec_api.audit_records import Evidence
from codeexec_api.v1alpha1.bounds import DEFAULT_IDLE_SECONDS, DEFAULT_LIFETIME_SECONDS
from executor_client.client.execution import read_contents
from executor_client.client.request import Request, check_sleep
from executor_client.client.reviewing import Reviewing
from executor_client.client.running import Running
from executor_client.client.session import Session
from executor_client.model.arguments import phase_of
from executor_client.model.results import artifact_content

_Record = TypeVar("_Record", CodeExecution, CodeSession)


class CodeExecutionClient(Running, Reviewing):
    """Creates CodeExecutions and CodeSessions, and waits for results.

        async with CodeExecutionClient() as client:
            result = await client.execute([SourceBlock("python", "print(1)")], Request(agent="me"))

    Connections are opened when they are first needed, one for each event loop, and closed by `close()`, at the end of
    `async with` or with the loop. Concurrent calls are independent of each other.

    Args:
        cluster: which cluster and namespace; default: as the environment says.
        transport: makes the connection instead, for one event loop; see `executor_client.testing`.
    """

    async def get(self, name: str) -> CodeExecution:
        """The record of an execution.

        Raises:
            NotFound: the namespace has no object with this name.
            CodeExecError: see `executor_client.exceptions`.
        """
        return await (await self.connect()).get(name)

    async def list_executions(
        self,
        *,
        phase: Phase | str | None = None,
        takes: Callable[[CodeExecution], bool] = lambda _: True,
        limit: int | None = None,
    ) -> list[CodeExecution]:
        """The records of executions of the namespace, oldest first. What is not asked for is not held in memory.

        Args:
            phase: only those in this phase, such as `Phase.FAILED` or `Failed`.
            takes: only those for which this is true.
            limit: only so many, the newest.

        Raises:
            ValueError: there is no such phase.
            CodeExecError: see `executor_client.exceptions`.
        """
        return await _oldest_first((await self.connect()).list(phase_of(phase)), takes, limit)

    async def list_evidence(self) -> list[Evidence]:
        """All executions and sessions of the namespace, without output: what `codeexec_api.audit_check.verify` needs.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        return [Evidence.of(one) async for one in (await self.connect()).list_stored()]

    async def cancel(self, name: str) -> None:
        """Stop an execution. Nothing happens if it has ended.

        Raises:
            NotFound: the namespace has no object with this name.
            CodeExecError: see `executor_client.exceptions`.
        """
        await (await self.connect()).cancel(name)

    async def get_policy(self) -> ExecutionPolicySpec | None:
        """The policy of the namespace; None if it has none of its own, and the cluster's default counts.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        policy = await (await self.connect()).get_policy()
        return policy.spec if policy else None

    async def list_waiting(self) -> list[CodeExecution]:
        """The records of all executions of the namespace that wait for a human's decision, oldest first.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        return await self.list_executions(phase=Phase.AWAITING_APPROVAL)

    async def read_artifact(self, execution: CodeExecution, path: str) -> bytes:
        """The content of a file that a finished execution has fetched.

        Raises:
            FileTransferError: the execution has not fetched this file. The message lists the files that it has.
            OutputUnavailable: the content is gone, or isn't what the record says.
            CodeExecError: see `executor_client.exceptions`.
        """
        return artifact_content(execution, path, await read_contents(await self.connect(), execution))

    async def open_session(
        self,
        request: Request,
        *,
        idle_timeout_seconds: int = DEFAULT_IDLE_SECONDS,
        max_lifetime_seconds: int = DEFAULT_LIFETIME_SECONDS,
        stateful: bool = False,
        outlives_client: bool = False,
        sleep_after_seconds: int | None = None,
        wait: bool = False,
    ) -> Session:
        """Ask for a new workspace that several executions share.

        Executions can be submitted at once; they wait until the session is ready.

        Args:
            request: limits, image, runtime class and source of the session and of what runs in it.
            idle_timeout_seconds: the session ends when nothing has run in it for this long.
            max_lifetime_seconds: the session ends this long after it became ready.
            stateful: Python blocks share one interpreter, so that variables live as long as the session.
            outlives_client: the session stays when this client is closed or its process ends. Otherwise it ends within
                a minute of that, unless an execution is running in it.
            sleep_after_seconds: when nothing has run in it for this long, the session sleeps: its files are kept in the
                operator's output store, and its pod goes until the next execution. The policy has to allow it.
            wait: return when the session is ready.

        Raises:
            ValueError: the request has egress or mounts, or such a session can't sleep.
            CodeExecError: see `executor_client.exceptions`; with `wait` also if the session can't start.
        """
        session = self.new_session(
            request,
            idle_timeout_seconds=idle_timeout_seconds,
            max_lifetime_seconds=max_lifetime_seconds,
            stateful=stateful,
            outlives_client=outlives_client,
            sleep_after_seconds=sleep_after_seconds,
        )
        await session.create()
        try:
            if wait:
                await session.ready()
        except BaseException:  # the caller has no handle to end it by
            await session.abandon()
            raise
        return session

    def new_session(
        self,
        request: Request,
        *,
        idle_timeout_seconds: int = DEFAULT_IDLE_SECONDS,
        max_lifetime_seconds: int = DEFAULT_LIFETIME_SECONDS,
        stateful: bool = False,
        outlives_client: bool = False,
        sleep_after_seconds: int | None = None,
    ) -> Session:
        """A session that has its name but is not asked for yet: `Session.create` does that. Does no I/O.

        Raises:
            ValueError: the request has egress or mounts, or such a session can't sleep.
        """
        request.check_alone("")
        check_sleep(sleep_after_seconds, idle_timeout_seconds, stateful=stateful)
        spec = CodeSessionSpec(
            source=request.source,
            limits=request.limits,
            image=request.image,
            runtime_class_name=request.runtime_class_name,
            stateful=stateful,
            idle_timeout_seconds=idle_timeout_seconds,
            max_lifetime_seconds=max_lifetime_seconds,
            sleep_after_seconds=sleep_after_seconds,
        )
        keep_alive = self._lease.hold if self._lease and not outlives_client else None
        return Session(self, f"session-{secrets.token_hex(6)}", request, spec, keep_alive)

    async def join_session(self, name: str, request: Request) -> Session:
        """A session that exists already. Of `request`, limits, image and runtime class are replaced by the session's.

        Raises:
            ValueError: the request has egress or mounts.
            NotFound: the namespace has no object with this name.
            CodeExecError: see `executor_client.exceptions`.
        """
        request.check_alone(name)
        spec = (await self.get_session(name)).spec
        # Output is limited for each execution; the rest of the limits are the pod's.
        limits = spec.limits.model_copy(update={"output_bytes": request.limits.output_bytes})
        return Session(self, name, replace(request, limits=limits, image=None, runtime_class_name=None), spec)

    async def get_session(self, name: str) -> CodeSession:
        """The record of a session.

        Raises:
            NotFound: the namespace has no object with this name.
            CodeExecError: see `executor_client.exceptions`.
        """
        return await (await self.connect()).get_session(name)

    async def list_sessions(self) -> list[CodeSession]:
        """The records of all sessions of the namespace, oldest first.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        return await _oldest_first((await self.connect()).list_sessions())

    async def end_session(self, name: str) -> None:
        """End a session: what runs in it is stopped and its workspace deleted. Nothing happens if it has ended.

        Raises:
            NotFound: the namespace has no object with this name.
            CodeExecError: see `executor_client.exceptions`.
        """
        await (await self.connect()).end_session(name)


async def _oldest_first(
    records: AsyncIterator[_Record], takes: Callable[[_Record], bool] = lambda _: True, limit: int | None = None
) -> list[_Record]:
    found: list[_Record] = []
    async for one in records:
        if takes(one):
            found.append(one)
            if limit and len(found) >= 2 * limit:
                found = _by_age(found)[-limit:]
    return _by_age(found)[-limit if limit else 0 :]


def _by_age(records: list[_Record]) -> list[_Record]:
    return sorted(records, key=lambda one: (str(one.metadata.creation_timestamp), one.metadata.name))
