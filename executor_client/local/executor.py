"""The AutoGen executor that runs code on this machine, behind Landlock and seccomp."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

from autogen_core import CancellationToken, Component

from codeexec_api import (
    CodeExecutionSpec,
    Event,
    ExecutionPolicySpec,
    Limits,
    Source,
)
from executor_client.autogen.base import (
    SandboxCodeResult,
    SandboxExecutor,
    Settings,
    check_settings,
    despite_cancellation,
    event_of,
    to_autogen,
)
from executor_client.autogen.functions import UserFunction
from executor_client.exceptions import NotSupported
from executor_client.local.approval import LocalApproval
from executor_client.local.record import Output
from executor_client.local.sandbox import LocalSandbox, Ran, Work, put
from executor_client.local.supervised import Stop
from executor_client.local.workspace import Scratch
from executor_client.model.blocks import Prepared, PreparedBlock, check_size
from executor_client.model.results import ExecutionResult
from executor_client.runtime import forks, telemetry
from executor_client.workspace.transfers import keep_artifacts, keep_source
from executor_client.workspace.work_dir import WorkDir

_CLUSTER_ONLY: Final = {
    **dict.fromkeys(
        ("namespace", "kubeconfig", "context", "output_store", "client"), "it connects to no cluster: leave it out"
    ),
    **dict.fromkeys(("image", "runtime_class_name"), "code runs on this machine: leave it out"),
    **dict.fromkeys(
        ("session", "idle_timeout", "max_lifetime", "sleep_after"), "its workspace lasts until stop(): leave it out"
    ),
    "stateful": "it keeps no Python variables: keep data in files",
    "egress": "name what code may connect to in endpoints",
    "mounts": "put the files into work_dir",
    **dict.fromkeys(("approval_timeout", "on_approval_request"), "nobody can be asked: leave it out"),
    **dict.fromkeys(("on_output", "on_wait"), "it returns output at the end: leave it out"),
    "upload_files": "put the files into work_dir",
    "download_files": "take the files from work_dir",
    "get_file_list": "look into work_dir",
    "result_of": "no execution waits for approval",
}
"""Arguments and methods of `KubernetesCodeExecutor` that need a cluster, and what to do here."""


class LocalCodeResult(SandboxCodeResult):
    """AutoGen's result, with what is known beyond it."""


class LocalSandboxExecutorConfig(Settings):
    """Configuration of `LocalSandboxExecutor`.

    It holds nothing that widens what code may do or where it may run: no approval, no endpoint, no policy.
    """


class LocalSandboxExecutor(
    SandboxExecutor[LocalSandboxExecutorConfig, LocalCodeResult], Component[LocalSandboxExecutorConfig]
):
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
        cluster_only: the other arguments of `KubernetesCodeExecutor`; each is refused by its name.

    Raises:
        NotSupported: an argument needs a cluster; the text says what to do.
        AuditLogUnavailable: audit_log can't be written.
        ValueError: a number is out of range, functions_module is not an identifier, an endpoint is none, or audit_log
            is in work_dir.
        LocalSandboxUnavailable: this machine can't confine code.
        LocalRunNotApproved: this is production, and there is no approval that holds.
    """

    component_config_schema = LocalSandboxExecutorConfig
    component_provider_override = "executor_client.LocalSandboxExecutor"
    _kind = LocalCodeResult
    _place = "this Python"

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
        **cluster_only: Any,
    ) -> None:
        _refuse(cluster_only)
        check_settings(timeout, functions_module, agent)
        config = LocalSandboxExecutorConfig(
            timeout=timeout,
            work_dir=str(work_dir) if work_dir else None,
            upload_work_dir=upload_work_dir,
            functions_module=functions_module,
            agent=agent,
            limits=limits.model_dump(exclude_defaults=True) if limits else {},
        )
        super().__init__(config, functions)
        self._sandbox = LocalSandbox(
            policy=policy,
            endpoints=endpoints,
            approval=approval,
            audit_log=_beside(work_dir, audit_log) if audit_log else None,
        )
        self._limits = limits or Limits()
        self.begin_anew()
        forks.begins_anew(self)

    def begin_anew(self) -> None:
        """Have no workspace; see `executor_client.runtime.forks`."""
        self._scratch: Scratch | None = None

    async def start(self) -> None:
        """Do nothing: the first call makes the workspace."""

    async def stop(self) -> None:
        """Kill what runs and delete the workspace. Calls that wait for their turn raise SessionEnded.

        The executor can be used again, with a new workspace.
        """
        await self._sandbox.stop(self._discard, "stop() or restart() was called before this call ran; nothing was run")

    async def restart(self) -> None:
        """Kill what runs, and give the next call a new workspace. Calls that wait for their turn raise SessionEnded."""
        await self.stop()

    async def _call(self, prepared: Prepared, token: CancellationToken) -> LocalCodeResult:
        check_size(prepared.runnable, ())
        with self._sandbox.admitted(self._specify(prepared.runnable)) as (submission, span):
            code_file = keep_source(self._folder, prepared.runnable)
            work = Work(prepared.runnable, self._open, partial(self._prepare, submission.spec, prepared.runnable))
            execution = self._sandbox.execute(submission, work, event_of(token))
            ran = await despite_cancellation(execution, token)
            telemetry.describe_outcome(span, ran.record)
        result = ran.result()
        if self._folder:
            result = self._bring_back(self._folder, ran, result)
        return to_autogen(self._kind, result, code_file or ran.code_file, prepared.refusal)

    def _unknown(self, language: str) -> str:
        return self._sandbox.unknown(language)

    async def upload_files(self, files: list[Path | str], cancellation_token: CancellationToken) -> None:  # noqa: ARG002
        """Raise NotSupported: put the files into work_dir."""
        raise _not_here("upload_files")

    async def download_files(
        self,
        files: list[Path | str],  # noqa: ARG002
        cancellation_token: CancellationToken,  # noqa: ARG002
        *,
        allow_names: Sequence[Path | str] = (),  # noqa: ARG002
    ) -> list[str]:
        """Raise NotSupported: take the files from work_dir."""
        raise _not_here("download_files")

    async def get_file_list(self, cancellation_token: CancellationToken) -> list[str]:  # noqa: ARG002
        """Raise NotSupported: look into work_dir."""
        raise _not_here("get_file_list")

    async def result_of(self, execution: str) -> LocalCodeResult:  # noqa: ARG002
        """Raise NotSupported: no execution waits for approval here."""
        raise _not_here("result_of")

    def _specify(self, blocks: Sequence[PreparedBlock]) -> CodeExecutionSpec:
        return CodeExecutionSpec(
            blocks=tuple(block.announce() for block in blocks),
            source=Source(agent=self._config.agent, executor="LocalSandboxExecutor"),
            timeout_seconds=self.timeout,
            limits=self._limits,
        )

    def _open(self) -> AbstractContextManager[Scratch]:
        self._scratch = self._scratch or Scratch(self)
        return nullcontext(self._scratch)

    def _discard(self) -> None:
        scratch, self._scratch = self._scratch, None
        if scratch:
            scratch.delete()

    def _prepare(self, spec: CodeExecutionSpec, blocks: Sequence[PreparedBlock], scratch: Scratch, stop: Stop) -> bool:
        """Put functions and files of work_dir into the workspace; False if cancelled.

        Raises:
            ValueError: the functions can't be loaded.
        """
        if self._module and not scratch.has_functions and not self._load_functions(spec, scratch, stop):
            return False
        if self._folder and self._config.upload_work_dir:
            lacks = self._module.unsent(self._folder, scratch.sent, blocks)
            for file in self._folder.read(lacks):
                put(scratch.workspace, file.path, file.content)
            scratch.sent |= lacks
        return True

    def _load_functions(self, spec: CodeExecutionSpec, scratch: Scratch, stop: Stop) -> bool:
        """Put the functions into a workspace that is new, as a module that can be imported; False if cancelled.

        Raises:
            ValueError: they can't be loaded.
        """
        file, check = self._module.file(), self._module.check()
        put(scratch.workspace, file.path, file.content)
        output = Output(self._limits.output_bytes)
        end = self._sandbox.run_one(scratch.workspace, check, spec, output, stop)
        if end.event is Event.CANCEL:
            return False
        if end.event is not Event.EXITED_ZERO:
            output.finish()
            written = b"".join(output.contents().values.values()).decode(errors="replace")
            raise self._module.failed(written.strip() or end.event.value)
        scratch.has_functions = True
        return True

    @staticmethod
    def _bring_back(folder: WorkDir, ran: Ran, result: ExecutionResult) -> ExecutionResult:
        """Copy files that the code has made or changed into work_dir."""
        kept = keep_artifacts(folder, result, ran.files)
        if ran.scratch:
            ran.scratch.sent |= folder.stamps(one.path for one in kept.artifacts if one.fetched)
        return kept

    def _to_config(self) -> LocalSandboxExecutorConfig:
        for name, value in (("a policy", self._sandbox.policy), ("an audit log", self._sandbox.audit)):
            if value:
                raise ValueError(
                    f"an executor with {name} can't be dumped: a loaded one would lack it. Create the executor in code"
                )
        return super()._to_config()


def _not_here(name: str) -> NotSupported:
    return NotSupported(
        f"{name} is not supported by LocalSandboxExecutor: {_CLUSTER_ONLY[name]}, or use KubernetesCodeExecutor"
    )


def _refuse(given: Iterable[str]) -> None:
    """Refuse what needs a cluster by its name.

    Raises:
        NotSupported: KubernetesCodeExecutor takes such an argument.
        TypeError: no executor does.
    """
    for name in given:
        if name in _CLUSTER_ONLY:
            raise _not_here(name)
        raise TypeError(f"LocalSandboxExecutor got an unexpected keyword argument {name!r}")


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
