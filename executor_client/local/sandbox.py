"""Runs blocks on this machine, behind Landlock and seccomp, one call after the other. Knows no agent framework."""

import asyncio
import importlib.util
import os
import platform
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from opentelemetry.trace import Span

from codeexec_api import (
    CodeExecution,
    CodeExecutionSpec,
    CodeFinding,
    Decision,
    Event,
    ExecutionPolicySpec,
    Phase,
    Reason,
    evaluate,
)
from codeexec_api.code_rules import find
from codeexec_api.languages import LANGUAGES
from codeexec_api.names import artifact_key
from codeexec_api.policy import policy_for
from codeexec_api.v1alpha1.policy import Approvable
from executor_client.exceptions import FileTransferError, LocalRunNotApproved, LocalSandboxUnavailable
from executor_client.local.approval import LocalApproval, demand_approval, signs_of_production
from executor_client.local.audit import LocalAuditLog
from executor_client.local.plan import Machine, check_endpoint, plan
from executor_client.local.record import (
    BlockEnd,
    Output,
    Progress,
    Submission,
    begun,
    denied,
    finished,
    lost,
    unknown_here,
)
from executor_client.local.supervised import Stop, run_block
from executor_client.local.system_calls import ARCHITECTURES
from executor_client.local.telling import Telling
from executor_client.local.workspace import Scratch, Workspace
from executor_client.model.arguments import several
from executor_client.model.blocks import PreparedBlock, WorkspaceFile
from executor_client.model.code_reading import read_code
from executor_client.model.results import NOTHING, Contents, ExecutionResult, OutputChunk, result_of
from executor_client.runtime import forks, telemetry
from executor_client.runtime.extras import how_to_install

_NO_IMAGE: Final = f"none@sha256:{'0' * 64}"
"""Policies are about images, too, and must name one; here there is none."""
_NOBODY: Final = "this needs approval, and the local sandbox has nobody to ask"


@dataclass(frozen=True)
class Ran:
    """An execution that has ended."""

    record: CodeExecution
    contents: Contents = NOTHING
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    code_file: str | None = None
    scratch: Scratch | None = None

    def result(self) -> ExecutionResult:
        """What the caller gets."""
        return result_of(self.record, self.contents)


@dataclass(frozen=True)
class Work:
    """What is done in the thread of the sandbox, when it is the turn of a call."""

    blocks: Sequence[PreparedBlock]
    open: Callable[[], AbstractContextManager[Scratch]]
    """The workspace to run in."""
    prepare: Callable[[Scratch, Stop], bool] = lambda _scratch, _stop: True
    """Makes it ready; False if it was stopped, so that nothing is run."""
    files: Sequence[WorkspaceFile] = ()
    """Put into it."""
    only_fetched: bool = False
    """Bring back only the files that the spec asks for, and not all that the code has changed."""
    tell: Callable[[OutputChunk], object] | None = None
    """Called with output as it comes. What it raises ends the call."""
    begin: Callable[[], object] = lambda: None
    """Called when it is the turn of this."""
    stops: set[Stop] = field(default_factory=set)
    """Holds what ends it, or has it not begin, while it runs or waits."""


class LocalSandbox:
    """Runs blocks on this machine, one call after the other.

    Args:
        policy: what may be asked for; default: what `ExecutionPolicy` has by default. Images count for nothing here.
        endpoints: what code may open TCP connections to, as `host:port`.
        approval: a human's, for production.
        audit_log: file that audit lines are appended to, if any.

    Raises:
        AuditLogUnavailable: audit_log can't be written.
        ValueError: an endpoint is none, or endpoints is one string.
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
        self._endpoints = tuple(map(check_endpoint, several("endpoints", endpoints)))
        _demand_platform()
        demand_approval(os.environ, approval, _now())
        self.policy: Final = policy
        self._approval = approval
        self.audit: Final = LocalAuditLog(Path(audit_log), _now) if audit_log else None
        self._machine = _this_machine()
        self.begin_anew()
        forks.begins_anew(self)

    def begin_anew(self) -> None:
        """Run nothing; see `executor_client.runtime.forks`."""
        self._stops: set[Stop] = set()
        # One thread: calls of any loops and threads run in the order in which they came.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="codeexec-local")
        forks.finalize(self, self._thread.shutdown, wait=False)

    def stop(self, last: Callable[[], None], over: str, only: Sequence[Stop] | None = None) -> "asyncio.Future[None]":
        """Kill all that runs, or only this, and do something in the thread when it has ended; to be awaited.

        It is done also if the caller does not wait for it. Calls that wait raise SessionEnded with the text `over`.
        """
        for stop in tuple(self._stops) if only is None else only:
            stop.set(over)
        return asyncio.shield(asyncio.wrap_future(self._thread.submit(last)))

    def unknown(self, language: str, program: str = "") -> str:
        """The message for a language that this machine doesn't run."""
        return unknown_here(language, program, [name for name in LANGUAGES if _command(name, self._machine)[0]])

    @contextmanager
    def admitted(self, spec: CodeExecutionSpec) -> Iterator[tuple[Submission, Span]]:
        """Inside is a call that may run on this machine, in its span.

        Raises:
            LocalRunNotApproved: this is production, and there is no approval that holds.
        """
        submission = Submission(f"local-{secrets.token_hex(6)}", spec)
        with telemetry.execution_span() as span:
            telemetry.describe_request(span, namespace=None, name=submission.name, spec=spec)
            try:
                demand_approval(os.environ, self._approval, _now())
            except LocalRunNotApproved as error:
                self._tell_the_end(Phase.PENDING, denied(submission, str(error)))
                raise
            if approver := self._approver():
                span.set_attribute("codeexec.approval.approver", approver)
            yield submission, span

    async def execute(self, submission: Submission, work: Work, cancelled: asyncio.Event) -> Ran:
        """Do some work in turn, if the policy allows it.

        Raises:
            AuditLogUnavailable: the start can't be written down; nothing was run.
            CodeExecError: something other than the code failed; see `executor_client.exceptions`.
        """
        with self._stoppable(work) as stop:
            refusal, findings = await asyncio.to_thread(self._judge, submission.spec, work)
            submission = replace(submission, findings=findings)
            if refusal:
                return self._never_ran(denied(submission, refusal))
            return await self._in_turn(submission, work, stop, cancelled)

    @contextmanager
    def _stoppable(self, work: Work) -> Iterator[Stop]:
        """Inside is what ends a call, from when it came."""
        stop = Stop()
        for stops in (self._stops, work.stops):
            stops.add(stop)
        try:
            yield stop
        finally:
            for stops in (self._stops, work.stops):
                stops.discard(stop)

    def _approver(self) -> str:
        """Who lets code run here although this is production; empty if it isn't."""
        return self._approval.approver if self._approval and signs_of_production(os.environ) else ""

    def _judge(self, spec: CodeExecutionSpec, work: Work) -> tuple[str, tuple[CodeFinding, ...]]:
        """What the policy has against it, in words, or nothing; and what its rules for code have found."""
        policy = self.policy or ExecutionPolicySpec(images=(_NO_IMAGE,))
        policy = policy.model_copy(update={"with_approval": Approvable()})  # nobody is asked here
        reading = read_code(
            spec, policy, [block.content for block in work.blocks], [file.content for file in work.files]
        )
        verdict = evaluate(spec, policy, reading)
        asks = f"{_NOBODY}: {verdict.message}" if verdict.decision is Decision.NEEDS_APPROVAL else verdict.message
        return "" if verdict.allowed else asks, find(spec, policy_for(spec, policy).code_rules, reading)

    async def _in_turn(self, submission: Submission, work: Work, stop: Stop, cancelled: asyncio.Event) -> Ran:
        """Do some work in the thread, when its turn has come; it may be cancelled before."""
        telling = Telling(work.tell) if work.tell else None
        in_thread = replace(work, tell=telling.add if telling else None)
        future = self._thread.submit(self._run, submission, in_thread, stop)
        canceller = asyncio.create_task(_stop_when(cancelled, stop, future))
        ended = asyncio.wrap_future(future)
        ended.add_done_callback(lambda _: future.cancelled() or ended.exception())  # looked at, whatever is raised here
        try:
            await (telling.until(ended) if telling else asyncio.wait([ended]))
        except BaseException:
            stop.set()
            if future.cancel():  # its turn has not come, so there is nothing to wait for
                self._never_ran(_unbegun(submission, stop))
            else:
                await asyncio.wait([ended])
            raise
        finally:
            canceller.cancel()
        return self._never_ran(_unbegun(submission, stop)) if future.cancelled() else future.result()

    def _run(self, submission: Submission, work: Work, stop: Stop) -> Ran:
        """Run an execution; in the sandbox's thread."""
        if stop.is_set:
            return self._never_ran(_unbegun(submission, stop))
        work.begin()
        if self.audit:
            self.audit.tell(Phase.PENDING, begun(submission, _now(), self._approver()))
        try:
            with work.open() as scratch:
                ran = self._run_blocks(scratch, submission, work, stop)
        except BaseException:
            self._tell_the_end(Phase.RUNNING, lost(submission))
            raise
        self._tell_the_end(Phase.RUNNING, ran.record)
        return ran

    def _never_ran(self, record: CodeExecution) -> Ran:
        self._tell_the_end(Phase.PENDING, record)
        return Ran(record)

    def _tell_the_end(self, before: Phase, record: CodeExecution) -> None:
        if self.audit:
            self.audit.tell_the_end(before, record)

    def _run_blocks(self, scratch: Scratch, submission: Submission, work: Work, stop: Stop) -> Ran:
        spec, progress = submission.spec, Progress(Output(submission.spec.limits.output_bytes, work.tell))
        if not work.prepare(scratch, stop):
            return Ran(finished(submission, progress))
        workspace = scratch.workspace
        for file in work.files:
            put(workspace, file.path, file.content)
        workspace.survey()
        for block in work.blocks:
            totals, started_at = progress.output.totals, _now()
            end = self.run_one(workspace, block, spec, progress.output, stop)
            progress.note(end, started_at, totals)
            if end.event is not Event.EXITED_ZERO:
                break
        progress.output.finish()
        if not work.blocks:
            progress.last = BlockEnd(Event.EXITED_ZERO, 0)
        found = workspace.selected(spec.artifacts) if work.only_fetched else workspace.changed()
        progress.artifacts, progress.artifacts_omitted, files = found
        code_file = str(workspace.files / work.blocks[0].file) if work.blocks else None
        output = progress.output.contents()
        fetched = {artifact_key(i): files[one.path] for i, one in enumerate(progress.artifacts) if one.fetched}
        contents = replace(output, values={**output.values, **fetched})
        return Ran(finished(submission, progress), contents, files, code_file, scratch)

    def run_one(
        self, workspace: Workspace, block: PreparedBlock, spec: CodeExecutionSpec, output: Output, stop: Stop
    ) -> BlockEnd:
        """Put the source of one block into the workspace and run it; in the sandbox's thread."""
        program, *options = _command(block.language, self._machine)
        if not program:
            text = self.unknown(block.language, LANGUAGES[block.language].command[0])
            output.add("stderr", f"{text}\n".encode())
            return BlockEnd(Event.EXITED_NONZERO, 1)
        try:
            workspace.write(block.file, block.content, anew=True)
        except OSError as error:
            command = " ".join(LANGUAGES[block.language].command)
            output.add("stderr", f"{command}: {error.strerror}: {block.file}\n".encode())
            return BlockEnd(Event.EXITED_NONZERO, 126)
        block_plan = plan(
            [program, *options, str(workspace.files / block.file)],
            machine=self._machine,
            workspace=workspace.files,
            temporary=workspace.temporary,
            limits=spec.limits,
            endpoints=self._endpoints,
        )
        return run_block(self._machine.python, block_plan, spec.timeout_seconds, output, stop)


def _unbegun(submission: Submission, stop: Stop) -> CodeExecution:
    """The record of a call that was stopped before its turn."""
    if stop.over:
        return denied(submission, stop.over, Reason.SESSION_ENDED)
    return finished(submission, Progress(Output(submission.spec.limits.output_bytes)))


async def _stop_when(cancelled: asyncio.Event, stop: Stop, future: Future[Any]) -> None:
    await cancelled.wait()
    stop.set()
    future.cancel()


def put(workspace: Workspace, name: str, content: bytes) -> None:
    """Put a file into a workspace.

    Raises:
        FileTransferError: code left something in its place.
    """
    try:
        workspace.write(name, content)
    except OSError as error:
        raise FileTransferError(
            f"{name!r} can't be put into the workspace: {error.strerror}. Code left something in its place: delete "
            "that with a block, or call restart() of the executor, or open another session"
        ) from error


def _command(language: str, machine: Machine) -> tuple[str, ...]:
    """Program and options that run a language here; an empty program if there is none."""
    if language == "python":
        return (machine.python,)
    program, *options = LANGUAGES[language].command
    return (shutil.which(program, path=machine.search_path()) or "", *options)


def _this_machine() -> Machine:
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix))
    return Machine(sys.executable, tuple(prefixes), home=Path.home().resolve(), processor=platform.machine())


def _demand_platform() -> None:
    """Refuse a machine of which it is clear without trying that it can't confine code.

    Raises:
        LocalSandboxUnavailable: it says what is lacking.
    """
    lacking = ""
    if sys.platform != "linux":
        lacking = f"it runs {sys.platform}, and the local sandbox needs Linux"
    elif platform.machine() not in ARCHITECTURES:
        lacking = f"its processor is {platform.machine()}, but must be one of {', '.join(ARCHITECTURES)}"
    elif not sys.executable:
        lacking = "this Python doesn't know its own interpreter (sys.executable)"
    elif not _has_sandlock():
        lacking = f"the package sandlock is not installed: {how_to_install('sandlock')}"
    if lacking:
        raise LocalSandboxUnavailable(
            f"this machine can't confine code: {lacking}; KubernetesCodeExecutor does not need this"
        )


def _has_sandlock() -> bool:
    with suppress(ValueError):  # what is loaded under this name isn't a package
        return importlib.util.find_spec("sandlock") is not None
    return False


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the one place where the local executor reads it
