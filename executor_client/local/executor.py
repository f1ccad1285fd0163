"""The AutoGen executor that runs code on this machine, behind Landlock and seccomp."""

import asyncio
import importlib.util
import keyword
import os
import platform
import secrets
import shutil
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from autogen_core import CancellationToken, Component
from autogen_core.code_executor import CodeBlock, CodeExecutor
from pydantic import BaseModel, ConfigDict, Field

from codeexec_api import (
    CodeExecution,
    CodeExecutionSpec,
    CodeFinding,
    Decision,
    Event,
    ExecutionPolicySpec,
    Limits,
    Phase,
    Source,
    evaluate,
)
from codeexec_api.code_rules import find
from codeexec_api.languages import LANGUAGES
from codeexec_api.policy import policy_for
from codeexec_api.v1alpha1 import Approvable
from executor_client.autogen.base import (
    NO_MODULE,
    Described,
    SandboxCodeResult,
    check_timeout,
    despite_cancellation,
    event_of,
    prepare_blocks,
    to_autogen,
)
from executor_client.autogen.functions import (
    UserFunction,
    check_program,
    module_source,
)
from executor_client.exceptions import FileTransferError, LocalRunNotApproved, LocalSandboxUnavailable
from executor_client.local.approval import LocalApproval, demand_approval, signs_of_production
from executor_client.local.audit import LocalAuditLog
from executor_client.local.plan import Machine, check_endpoint, plan
from executor_client.local.record import Asked, BlockEnd, Happened, Output, begun, denied, finished, lost, unknown_here
from executor_client.local.supervised import Stop, run_block
from executor_client.local.workspace import Workspace, delete
from executor_client.model.blocks import PreparedBlock, check_size
from executor_client.model.code_reading import read_code
from executor_client.model.results import CANCELLED, NOTHING, Contents, ExecutionResult, result_of
from executor_client.runtime import forks, telemetry
from executor_client.workspace.transfers import keep_artifacts, keep_source
from executor_client.workspace.work_dir import Stamp, WorkDir

_MACHINES: Final = ("x86_64", "aarch64")
_NO_IMAGE: Final = f"none@sha256:{'0' * 64}"
"""Policies are about images, too, and must name one; here there is none."""
_NOBODY: Final = "this needs approval, and the local sandbox has nobody to ask"


class LocalCodeResult(SandboxCodeResult):
    """AutoGen's result, with what is known beyond it."""


class LocalSandboxExecutorConfig(BaseModel):
    """Configuration of `LocalSandboxExecutor`.

    It holds nothing that widens what code may do or where it may run: no approval, no endpoint, no policy.
    """

    model_config = ConfigDict(extra="forbid")

    timeout: int = 60
    work_dir: str | None = None
    upload_work_dir: bool = True
    functions_module: str = "functions"
    agent: str = "autogen"
    limits: dict[str, Any] = Field(default_factory=dict)


class _Scratch:
    """The workspace that calls share, and what is in it."""

    def __init__(self) -> None:
        self.workspace = Workspace()
        self.sent: dict[str, Stamp] = {}
        self.has_functions = False


class LocalSandboxExecutor(Described[LocalSandboxExecutorConfig], CodeExecutor, Component[LocalSandboxExecutorConfig]):
    """Runs code blocks on this machine, confined by Landlock and seccomp. For development, on Linux.

    All calls share a temporary workspace, which is deleted by `stop()`, by `restart()`, or when the executor is
    collected; calls at the same time run one after the other. Code sees the programs and libraries of this machine,
    the packages of this Python, its workspace, and nothing else. It needs the extra `local`. See docs/local-sandbox.md
    for what holds the code, and what doesn't.

    Where the environment says that this is production, a human's approval is needed. Nothing falls back to this
    executor: code runs here only where it is named.

    Args:
        timeout: limit of each block, in seconds, at least 1.
        work_dir: local folder in which the source of each block is kept, under its file name, and into which files are
            copied that the code makes or changes. Code itself can't reach it.
        upload_work_dir: files that the caller puts into work_dir or changes there are copied into the workspace with
            the next call. Hidden files go neither way.
        functions: functions that the code may import from `functions_module`.
        functions_module: name of that module, a Python identifier.
        agent: name recorded as the source of the code.
        limits: ceilings of each block, such as `Limits(memory="512Mi")`; ephemeral_storage is that of one file.
        policy: what may be asked for; default: what `ExecutionPolicy` has by default. Images count for nothing here.
        endpoints: what code may open TCP connections to, as `host:port`; default: nothing.
        approval: a human's, for production. Never from a component's JSON.
        audit_log: file that the same audit lines are appended to as the operator writes; default: none. What can't be
            written down there doesn't run.

    Raises:
        AuditLogUnavailable: audit_log can't be written.
        ValueError: a number is out of range, functions_module is not an identifier, an endpoint is none, or audit_log
            is in work_dir.
        LocalSandboxUnavailable: this machine can't confine code.
        LocalRunNotApproved: this is production, and there is no approval that holds.
    """

    component_config_schema = LocalSandboxExecutorConfig
    component_provider_override = "executor_client.LocalSandboxExecutor"

    def __init__(
        self,
        *,
        timeout: int = 60,
        work_dir: str | Path | None = None,
        upload_work_dir: bool = True,
        functions: Sequence[UserFunction] = (),
        functions_module: str = "functions",
        agent: str = "autogen",
        limits: Limits | None = None,
        policy: ExecutionPolicySpec | None = None,
        endpoints: Sequence[str] = (),
        approval: LocalApproval | None = None,
        audit_log: str | Path | None = None,
    ) -> None:
        check_timeout(timeout)
        if not functions_module.isidentifier() or keyword.iskeyword(functions_module):
            raise ValueError(f"{NO_MODULE} functions_module is {functions_module!r}")
        self._endpoints = tuple(map(check_endpoint, endpoints))
        _demand_platform()
        demand_approval(os.environ, approval, _now())
        self._config = LocalSandboxExecutorConfig(
            timeout=timeout,
            work_dir=str(work_dir) if work_dir else None,
            upload_work_dir=upload_work_dir,
            functions_module=functions_module,
            agent=agent,
            limits=limits.model_dump(exclude_defaults=True) if limits else {},
        )
        self._limits = limits or Limits()
        self._policy = policy
        self._approval = approval
        self._audit = LocalAuditLog(_beside(work_dir, audit_log), _now) if audit_log else None
        self._functions = tuple(functions)
        self._folder = WorkDir(self.work_dir) if self.work_dir else None
        self._machine = _this_machine()
        self.begin_anew()
        forks.begins_anew(self)

    def begin_anew(self) -> None:
        """Have no workspace, and run nothing; see `executor_client.runtime.forks`."""
        self._scratch: _Scratch | None = None
        self._deletion: weakref.finalize[..., Any] | None = None
        self._stops: set[Stop] = set()
        # One thread: calls of any loops and threads run in the order in which they came.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="codeexec-local")
        forks.finalize(self, self._thread.shutdown, wait=False)

    async def start(self) -> None:
        """Do nothing: the first call makes the workspace."""

    async def stop(self) -> None:
        """Kill what runs and delete the workspace. The executor can be used again, with a new one."""
        for stop in tuple(self._stops):
            stop.set()
        await asyncio.wrap_future(self._thread.submit(self._discard))

    async def restart(self) -> None:
        """Kill what runs, and give the next call a new workspace."""
        await self.stop()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> LocalCodeResult:
        """Run blocks in order, each confined by itself; the first that fails ends the call.

        What the code does, a refusal by policy, an unknown language and a cancellation are results. Exit codes: the
        block's own, 124 after a timeout, 137 when out of memory, 1 when cancelled or refused.

        Raises:
            ValueError: there is no block, the code is too large, its source can't be kept in work_dir, or the functions
                can't be loaded.
            LocalRunNotApproved: this is production, and there is no approval that holds.
            LocalSandboxUnavailable: this machine can't confine code.
            AuditLogUnavailable: the start can't be written down; nothing was run.
            CodeExecError: something other than the code failed; see `executor_client.exceptions`.
        """
        if not code_blocks:
            raise ValueError("No code blocks to execute.")
        if cancellation_token.is_cancelled():
            return LocalCodeResult(exit_code=1, output=CANCELLED)
        prepared = prepare_blocks(code_blocks, self._unknown)
        if not prepared.runnable:
            return LocalCodeResult(exit_code=1, output=prepared.refusal)
        check_size(prepared.runnable, ())
        asked = Asked(f"local-{secrets.token_hex(6)}", self._specify(prepared.runnable))
        with telemetry.execution_span() as span:
            telemetry.describe_request(span, namespace=None, name=asked.name, spec=asked.spec)
            cancelled = event_of(cancellation_token)
            try:
                demand_approval(os.environ, self._approval, _now())
            except LocalRunNotApproved as error:
                self._tell_the_end(Phase.PENDING, denied(asked, str(error)))
                raise
            if approver := self._approver():
                span.set_attribute("codeexec.approval.approver", approver)
            code_file = keep_source(self._folder, prepared.runnable)
            refusal, findings = await asyncio.to_thread(self._judge, asked.spec, prepared.runnable)
            asked = replace(asked, findings=findings)
            if refusal:
                ran = _Ran(denied(asked, refusal))
                self._tell_the_end(Phase.PENDING, ran.record)
            else:
                job = partial(self._run, asked, prepared.runnable)
                ran = await despite_cancellation(self._in_turn(job, asked, cancelled), cancellation_token)
            telemetry.describe_outcome(span, ran.record)
        result = ran.result()
        if self._folder:
            result = self._bring_back(self._folder, ran, result)
        return to_autogen(LocalCodeResult, result, code_file or ran.code_file, prepared.refusal)

    def _unknown(self, language: str, program: str = "") -> str:
        return unknown_here(language, program, [name for name in LANGUAGES if _command(name, self._machine)[0]])

    def _approver(self) -> str:
        """Who lets code run here although this is production; empty if it isn't."""
        return self._approval.approver if self._approval and signs_of_production(os.environ) else ""

    def _specify(self, blocks: Sequence[PreparedBlock]) -> CodeExecutionSpec:
        return CodeExecutionSpec(
            blocks=tuple(block.announce() for block in blocks),
            source=Source(agent=self._config.agent, executor="LocalSandboxExecutor"),
            timeout_seconds=self.timeout,
            limits=self._limits,
        )

    def _judge(self, spec: CodeExecutionSpec, blocks: Sequence[PreparedBlock]) -> tuple[str, tuple[CodeFinding, ...]]:
        """What the policy has against it, in words, or nothing; and what its rules for code have found."""
        policy = self._policy or ExecutionPolicySpec(images=(_NO_IMAGE,))
        policy = policy.model_copy(update={"with_approval": Approvable()})  # nobody is asked here
        reading = read_code(spec, policy, [block.content for block in blocks])
        verdict = evaluate(spec, policy, reading)
        asks = f"{_NOBODY}: {verdict.message}" if verdict.decision is Decision.NEEDS_APPROVAL else verdict.message
        return "" if verdict.allowed else asks, find(spec, policy_for(spec, policy).code_rules, reading)

    async def _in_turn(self, job: Callable[[Stop], "_Ran"], asked: Asked, cancelled: asyncio.Event) -> "_Ran":
        """Do a job in the thread of this executor, when its turn has come; it may be cancelled before."""
        stop = Stop()
        self._stops.add(stop)
        future = self._thread.submit(job, stop)
        canceller = asyncio.create_task(_stop_when(cancelled, stop, future))
        waiting = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if future.cancelled():
                return self._never_ran(asked)
            stop.set()
            if future.cancel():  # its turn has not come, so there is nothing to wait for
                self._never_ran(asked)
            else:
                await asyncio.wait([waiting])
            raise
        finally:
            canceller.cancel()
            self._stops.discard(stop)
            future.add_done_callback(lambda _: stop.close())

    def _run(self, asked: Asked, blocks: Sequence[PreparedBlock], stop: Stop) -> "_Ran":
        """Run an execution; in the executor's thread."""
        if stop.is_set:
            return self._never_ran(asked)
        if self._audit:
            self._audit.tell(Phase.PENDING, begun(asked, _now(), self._approver()))
        try:
            ran = self._run_blocks(asked, blocks, stop)
        except BaseException:
            self._tell_the_end(Phase.RUNNING, lost(asked))
            raise
        self._tell_the_end(Phase.RUNNING, ran.record)
        return ran

    def _never_ran(self, asked: Asked) -> "_Ran":
        ran = _Ran(finished(asked, Happened(Output(asked.spec.limits.output_bytes))))
        self._tell_the_end(Phase.PENDING, ran.record)
        return ran

    def _tell_the_end(self, before: Phase, record: CodeExecution) -> None:
        if self._audit:
            self._audit.tell_the_end(before, record)

    def _run_blocks(self, asked: Asked, blocks: Sequence[PreparedBlock], stop: Stop) -> "_Ran":
        happened = Happened(Output(asked.spec.limits.output_bytes))
        scratch = self._open()
        if self._functions and not scratch.has_functions and not self._load_functions(scratch, stop):
            return _Ran(finished(asked, happened))
        sent = self._upload(scratch, blocks)
        workspace = scratch.workspace
        before = workspace.survey()
        for block in blocks:
            _put(workspace, block.file, block.content)
            totals, started_at = dict(happened.output.totals), _now()
            end = self._run_one(workspace, block, happened.output, stop)
            happened.note(end, started_at, totals)
            if end.event is not Event.EXITED_ZERO:
                break
        sources = frozenset(block.file for block in blocks)
        happened.artifacts, happened.artifacts_omitted, files = workspace.changed(before, sources)
        scratch.sent |= sent
        code_file = str(workspace.files / blocks[0].file)
        return _Ran(finished(asked, happened), happened.output.contents(), files, code_file, scratch)

    def _open(self) -> _Scratch:
        if self._scratch is None:
            self._scratch = _Scratch()
            self._deletion = forks.finalize(self, delete, self._scratch.workspace.root)
        return self._scratch

    def _discard(self) -> None:
        self._scratch = None
        if self._deletion:
            self._deletion()

    def _run_one(self, workspace: Workspace, block: PreparedBlock, output: Output, stop: Stop) -> BlockEnd:
        program, *options = _command(block.language, self._machine)
        if not program:
            text = self._unknown(block.language, LANGUAGES[block.language].command[0])
            output.add("stderr", f"{text}\n".encode())
            return BlockEnd(Event.EXITED_NONZERO, 1)
        block_plan = plan(
            [program, *options, str(workspace.files / block.file)],
            machine=self._machine,
            workspace=workspace.files,
            temporary=workspace.temporary,
            limits=self._limits,
            endpoints=self._endpoints,
        )
        return run_block(self._machine.python, block_plan, self.timeout, output, stop)

    def _load_functions(self, scratch: _Scratch, stop: Stop) -> bool:
        """Put the functions into a workspace that is new, as a module that can be imported; False if cancelled.

        Raises:
            ValueError: they can't be loaded.
        """
        module = self.functions_module
        _put(scratch.workspace, f"{module}.py", module_source(self._functions).encode())
        check = PreparedBlock("python", check_program(self._functions, module, "this Python").encode())
        _put(scratch.workspace, check.file, check.content)
        output = Output(self._limits.output_bytes)
        end = self._run_one(scratch.workspace, check, output, stop)
        if end.event is Event.CANCEL:
            return False
        if end.event is not Event.EXITED_ZERO:
            written = b"".join(output.contents().values.values()).decode(errors="replace")
            raise ValueError(f"Functions failed to load: {written.strip() or end.event.value}")
        scratch.has_functions = True
        return True

    def _upload(self, scratch: _Scratch, blocks: Sequence[PreparedBlock]) -> dict[str, Stamp]:
        """Copy what the caller has put into work_dir or changed there, but sources, and return what that was."""
        if self._folder is None or not self._config.upload_work_dir:
            return {}
        sources = {block.file for block in blocks} | ({f"{self.functions_module}.py"} if self._functions else set())
        lacks = {name: one for name, one in self._folder.unsent(scratch.sent).items() if name not in sources}
        for file in self._folder.read(lacks):
            _put(scratch.workspace, file.path, file.content)
        return lacks

    @staticmethod
    def _bring_back(folder: WorkDir, ran: "_Ran", result: ExecutionResult) -> ExecutionResult:
        """Copy files that the code has made or changed into work_dir."""
        kept = keep_artifacts(folder, result, ran.files)
        if ran.scratch:
            ran.scratch.sent |= folder.stamps(one.path for one in kept.artifacts if one.fetched)
        return kept

    def _to_config(self) -> LocalSandboxExecutorConfig:
        for name, value in (("a policy", self._policy), ("an audit log", self._audit)):
            if value:
                raise ValueError(
                    f"an executor with {name} can't be dumped: a loaded one would lack it. Create the executor in code"
                )
        return self._config

    @classmethod
    def _from_config(cls, config: LocalSandboxExecutorConfig) -> Self:
        limits = Limits(**config.limits) if config.limits else None
        return cls(**config.model_dump(exclude={"limits"}), limits=limits)


@dataclass(frozen=True)
class _Ran:
    """An execution that has ended."""

    record: CodeExecution
    contents: Contents = NOTHING
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    code_file: str | None = None
    scratch: _Scratch | None = None

    def result(self) -> ExecutionResult:
        return result_of(self.record, self.contents)


async def _stop_when(cancelled: asyncio.Event, stop: Stop, future: Future[Any]) -> None:
    await cancelled.wait()
    stop.set()
    future.cancel()


def _put(workspace: Workspace, name: str, content: bytes) -> None:
    try:
        workspace.write(name, content)
    except (OSError, RuntimeError, ValueError) as error:
        raise FileTransferError(
            f"{name!r} can't be put into the workspace: {error}. Code left something in its place; call restart()"
        ) from error


def _command(language: str, machine: Machine) -> tuple[str, ...]:
    """Program and options that run a language here; an empty program if there is none."""
    if language == "python":
        return (machine.python,)
    program, *options = LANGUAGES[language].command
    return (shutil.which(program, path=machine.search_path()) or "", *options)


def _this_machine() -> Machine:
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix))
    return Machine(python=sys.executable, prefixes=tuple(prefixes), home=Path.home().resolve())


def _beside(work_dir: str | Path | None, audit_log: str | Path) -> Path:
    """Where the audit log is.

    Raises:
        ValueError: it is in work_dir, from where code gets files, and to where it puts its own.
    """
    path = Path(audit_log)
    if work_dir and path.resolve().is_relative_to(Path(work_dir).resolve()):
        raise ValueError(
            f"audit_log is {str(path)!r}, but must not be in work_dir ({str(work_dir)!r}): code puts files there"
        )
    return path


def _demand_platform() -> None:
    """Refuse a machine of which it is clear without trying that it can't confine code.

    Raises:
        LocalSandboxUnavailable: it says what is lacking.
    """
    lacking = ""
    if sys.platform != "linux":
        lacking = f"it runs {sys.platform}, and the local sandbox needs Linux"
    elif platform.machine() not in _MACHINES:
        lacking = f"its processor is {platform.machine()}, but must be one of {', '.join(_MACHINES)}"
    elif not sys.executable:
        lacking = "this Python doesn't know its own interpreter (sys.executable)"
    elif not _has_sandlock():
        lacking = "the package sandlock is not installed: install codeexec with the extra `local`"
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
