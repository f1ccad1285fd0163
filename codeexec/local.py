"""Runs code on this machine, confined by Landlock and seccomp: for development, on Linux.

    import codeexec
    from codeexec import local

    async with codeexec.Client(agent="analyst", backend=local.Sandbox()) as client:
        print((await client.run("print(6 * 7)")).stdout)
        async with client.session(stateful=False) as session:
            await session.files.write("data.csv", "1,2")
            print((await session.run("print(open('data.csv').read())")).stdout)

Nothing falls back to this: code runs here only where it is named. See docs/local-sandbox.md for what holds the code,
and what doesn't. It needs the extra `local`.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from typing_extensions import override

from codeexec_api import ArtifactRequest, CodeExecutionSpec, ExecutionPolicySpec, SessionRef
from codeexec_api.v1alpha1.bounds import DEFAULT_IDLE_SECONDS, DEFAULT_LIFETIME_SECONDS
from executor_client.client.approvals import ApprovalWait
from executor_client.client.request import ListFiles, OnOutput, Request
from executor_client.client.session_handle import SessionHandle
from executor_client.exceptions import CodeExecError, NotSupported, SessionEnded, Timeout
from executor_client.local.approval import LocalApproval
from executor_client.local.sandbox import LocalSandbox, Work
from executor_client.local.supervised import Stop
from executor_client.local.workspace import Scratch
from executor_client.model.blocks import PreparedBlock, SourceBlock, WorkspaceFile, all_prepared, check_size
from executor_client.model.results import ExecutionResult
from executor_client.runtime import forks, telemetry

__all__ = ["LocalApproval", "Sandbox"]


class Sandbox:
    """This machine as the backend of a client: `codeexec.Client(agent="a", backend=Sandbox())`.

    Calls run one after the other, in the order in which they came. What this machine can't do raises NotSupported:
    sessions that keep variables or have time limits, images, runtime classes, egress, mounts, approvals, `on_wait` and
    records. Where the environment says that this is production, a human's approval is needed.

    Args:
        policy: what may be asked for; default: what `ExecutionPolicy` has by default. Images count for nothing here.
        endpoints: what code may open TCP connections to, as `host:port`; default: nothing.
        approval: a human's, for production.
        audit_log: file that the same audit lines are appended to as the operator writes; default: none.

    Raises:
        AuditLogUnavailable: audit_log can't be written.
        ValueError: an endpoint is none.
        LocalSandboxUnavailable: this machine can't confine code.
        LocalRunNotApproved: this is production, and there is no approval that holds.
    """

    def __init__(
        self,
        *,
        policy: ExecutionPolicySpec | None = None,
        endpoints: Sequence[str] = (),
        approval: LocalApproval | None = None,
        audit_log: str | Path | None = None,
    ) -> None:
        self._sandbox = LocalSandbox(policy=policy, endpoints=endpoints, approval=approval, audit_log=audit_log)
        self.begin_anew()
        forks.begins_anew(self)

    def begin_anew(self) -> None:
        """Have no sessions; see `executor_client.runtime.forks`."""
        self._workspaces: dict[str, Scratch] = {}
        self._stops: dict[str, set[Stop]] = {}

    async def close(self) -> None:
        """End all sessions: what runs is killed, and the workspaces are deleted. A later call works."""
        for name in tuple(self._workspaces):
            await self.end(name)

    async def execute(
        self,
        blocks: Sequence[PreparedBlock | SourceBlock],
        request: Request,
        *,
        files: Sequence[WorkspaceFile] = (),
        fetch: Sequence[str] = (),
        list_files: ListFiles = "Changed",
        session: str | None = None,
        cancelled: asyncio.Event | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run blocks in order, in a workspace of their own or in that of a session; see `Client.run`.

        Raises:
            NotSupported: this machine can't do what is asked for.
            SessionEnded: the session is over; nothing was run.
            ValueError: a block can't be run, or blocks and files are too large.
            Timeout: the turn of this call did not come within `request.start_seconds`.
            Error: see `codeexec`.
        """
        _refuse(request)
        prepared = all_prepared(blocks)
        check_size(prepared, files)
        spec = CodeExecutionSpec(
            blocks=tuple(block.announce() for block in prepared),
            files=tuple(file.announce() for file in files) or None,
            artifacts=ArtifactRequest(list=list_files, fetch=tuple(fetch)),
            session_ref=SessionRef(name=session) if session else None,
            source=request.source,
            timeout_seconds=request.timeout_seconds,
            limits=request.limits,
        )
        if session:
            self._workspace(session)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(request.start_seconds) as starting:
                work = Work(
                    prepared,
                    open=lambda: nullcontext(self._workspace(session)) if session else Scratch.of_one_call(self),
                    files=files,
                    only_fetched=True,
                    tell=on_output,
                    begin=lambda: loop.call_soon_threadsafe(_has_begun, starting),
                    stops=self._stops.get(session or "", set()),
                )
                return await self._run(spec, work, cancelled or asyncio.Event())
        except TimeoutError:
            if not starting.expired():
                raise
            raise Timeout(f"the turn of this call did not come within {request.start_seconds} s") from None

    async def _run(self, spec: CodeExecutionSpec, work: Work, cancelled: asyncio.Event) -> ExecutionResult:
        with self._sandbox.admitted(spec) as (submission, span):
            ran = await self._sandbox.execute(submission, work, cancelled)
            telemetry.describe_outcome(span, ran.record)
            return ran.result()

    def new_session(
        self,
        request: Request,
        *,
        idle_timeout_seconds: int = DEFAULT_IDLE_SECONDS,
        max_lifetime_seconds: int = DEFAULT_LIFETIME_SECONDS,
        stateful: bool = False,
        outlives_client: bool = False,
        sleep_after_seconds: int | None = None,
    ) -> SessionHandle:
        """A session that is not there yet; see `Client.session`. It lives until it is ended, or with this object.

        Raises:
            NotSupported: this machine has no such sessions.
        """
        _refuse(request)
        if stateful:
            raise NotSupported(
                "stateful is True, but the local sandbox keeps no Python variables: pass stateful=False, and keep data "
                "in files"
            )
        if outlives_client:
            raise NotSupported(
                "outlives_client is True, but a session of the local sandbox ends with its process: leave it out"
            )
        for name, seconds, default in (
            ("idle_timeout", idle_timeout_seconds, DEFAULT_IDLE_SECONDS),
            ("max_lifetime", max_lifetime_seconds, DEFAULT_LIFETIME_SECONDS),
        ):
            if seconds != default:
                raise NotSupported(
                    f"{name} is {seconds}, but a session of the local sandbox lives until it is ended: leave it out"
                )
        if sleep_after_seconds is not None:
            raise NotSupported(
                f"sleep_after is {sleep_after_seconds}, but a session of the local sandbox holds no pod: leave it out"
            )
        return _Session(self, f"local-session-{secrets.token_hex(6)}", request)

    def begin(self, name: str) -> None:
        """Make the workspace of a session."""
        self._workspaces[name], self._stops[name] = Scratch(self), set()

    async def end(self, name: str) -> None:
        """End a session: what runs in it is killed, and its workspace deleted."""
        if scratch := self._workspaces.pop(name, None):
            over = f"session {name!r} is over: it was ended before this call ran. Start a new session. Nothing was run"
            stops = tuple(self._stops.pop(name, ()))
            await self._sandbox.stop(scratch.delete, over, stops)

    def _workspace(self, session: str) -> Scratch:
        if session not in self._workspaces:
            raise SessionEnded(f"session {session} is over, or was never started; nothing was run")
        return self._workspaces[session]


class _Session(SessionHandle):
    """A workspace on this machine."""

    def __init__(self, sandbox: Sandbox, name: str, request: Request) -> None:
        super().__init__(name, request, sandbox)
        self._sandbox = sandbox
        self._begun = False

    @override
    async def create(self) -> None:
        if self._begun:
            raise CodeExecError(f"session {self.name} was started already: open another one with client.session()")
        self._begun = True
        self._sandbox.begin(self.name)

    @override
    async def end(self) -> None:
        await self._sandbox.end(self.name)


def _refuse(request: Request) -> None:
    """Refuse what needs a cluster.

    Raises:
        NotSupported: it names the argument.
    """
    given = {
        "image": request.image,
        "runtime_class": request.runtime_class_name,
        "egress": request.egress,
        "mounts": request.mounts,
        "on_wait": request.on_wait,
        "approval": request.approval if request.approval != ApprovalWait() else None,
    }
    for name, value in given.items():
        if value:
            raise NotSupported(f"{name} is {value!r}, but the local sandbox has none: leave it out, or use a cluster")


def _has_begun(starting: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # it is over already
        starting.reschedule(None)
