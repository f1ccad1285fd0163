"""The AutoGen executor: a thin face on `CodeExecutionClient`."""

import asyncio
import keyword
import logging
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar

from autogen_core import CancellationToken, Component
from autogen_core.code_executor import CodeBlock, CodeExecutor
from pydantic import BaseModel, ConfigDict, Field

from codeexec_api import Limits, Phase, Reason
from codeexec_api.v1alpha1.bounds import (
    MAX_ARTIFACTS,
    MAX_FETCH_BYTES,
    MAX_FILES,
    MAX_PAYLOAD_BYTES,
    MAX_SESSION_SECONDS,
    MAX_TIMEOUT_SECONDS,
)
from executor_client.autogen.base import (
    NO_MODULE,
    Described,
    SandboxCodeResult,
    check_range,
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
from executor_client.client.approvals import ApprovalMode, ApprovalRequest, ApprovalWait
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import DEFAULT_NAMESPACE, ClusterRef, OnOutput, Request
from executor_client.client.waiting import OnWait
from executor_client.exceptions import CodeExecError, FileMissing, FileTransferError, SessionDenied
from executor_client.model.blocks import PreparedBlock, WorkspaceFile
from executor_client.model.results import CANCELLED, ExecutionResult
from executor_client.runtime import forks
from executor_client.workspace.batches import groups
from executor_client.workspace.session_finalizer import end_unattended
from executor_client.workspace.shared_session import OpenSession, SharedSession
from executor_client.workspace.transfers import (
    bring_back,
    fetch,
    keep,
    keep_artifacts,
    keep_source,
    list_all,
    upload,
    without_sources,
)
from executor_client.workspace.unasked import acted_on
from executor_client.workspace.work_dir import Stamp, WorkDir, refusal

logger = logging.getLogger(__name__)

T = TypeVar("T")
SessionMode: TypeAlias = Literal["per-executor", "per-call"]

_NOT_RUN: Final = (Phase.CANCELLED, Phase.AWAITING_APPROVAL, Phase.EXPIRED)
"""How a call can end whose code has, or may have, not run at all."""
_COMPONENT_VERSION: Final = 2
"""1: each call had a pod of its own, as `session="per-call"` has."""


class KubernetesCodeResult(SandboxCodeResult):
    """AutoGen's result, with what the record knows beyond it."""


class KubernetesCodeExecutorConfig(BaseModel):
    """Configuration of `KubernetesCodeExecutor`. Holds references to credentials, never credentials."""

    model_config = ConfigDict(extra="forbid")

    timeout: int = 60
    namespace: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    image: str | None = None
    runtime_class_name: str | None = None
    work_dir: str | None = None
    upload_work_dir: bool = True
    functions_module: str = "functions"
    agent: str = "autogen"
    limits: dict[str, Any] = Field(default_factory=dict)
    egress: list[str] = Field(default_factory=list)
    mounts: list[str] = Field(default_factory=list)
    session: SessionMode = "per-executor"
    stateful: bool = False
    idle_timeout: int = 1800
    max_lifetime: int = 28_800
    approval: ApprovalMode = "wait"
    approval_timeout: int = 600


class KubernetesCodeExecutor(
    Described[KubernetesCodeExecutorConfig], CodeExecutor, Component[KubernetesCodeExecutorConfig]
):
    """Runs code blocks in hardened pods of a Kubernetes cluster.

    All calls share one workspace in one pod, which is made by the first call and ends with `stop()`, when the executor
    is collected, or when nothing has run for a while; then the next call gets a new one and its output says so.
    Construction does no I/O. Each call leaves a CodeExecution behind, its audit record.

    Args:
        timeout: limit of each block, in seconds, at least 1.
        namespace: sandbox namespace; default `codeexec-sandbox`.
        kubeconfig: path of a kubeconfig; default: the pod's service account, else as kubectl finds it.
        context: context in the kubeconfig; default: the current one.
        image: sandbox image by digest; default: the first image of the policy.
        runtime_class_name: RuntimeClass of the pod, such as `gvisor`, or `runc`; default: that of the policy.
        work_dir: local folder in which the source of each block is kept, under its file name, and into which files are
            copied that the code makes or changes.
        upload_work_dir: files that the caller puts into work_dir or changes there are copied into the workspace with
            the next call; not links, or with `session="per-call"`. Hidden files go neither way.
        functions: functions that the code may import from `functions_module`.
        functions_module: name of that module, a Python identifier.
        agent: name recorded as the source of the code.
        limits: ceilings of the pod, such as `Limits(memory="512Mi")`; default: those of `executor_client.Limits`.
        egress: ways out of the sandbox, such as `10.1.2.3/32:443`, which the policy or a human has to allow; with
            `session="per-call"` only.
        mounts: what code is to read besides its files, such as `pvc:data:/mnt/data`; the same holds.
        session: `per-executor` for one workspace for all calls, `per-call` for a new pod for each.
        stateful: Python blocks share one interpreter, so that variables live on between calls.
        idle_timeout: seconds without a call after which the workspace is deleted.
        max_lifetime: seconds after which it is deleted in any case.
        approval: what a call does when a human has to approve it. `wait`: wait for that. `return`: return at once, with
            exit code 1 and what is waited for; the code runs when it is approved, and `result_of` gets its result.
        approval_timeout: how long to wait for approval, in seconds; then the execution is cancelled.
        on_approval_request: called in a worker thread when a human has to approve a call, to tell them.
        on_wait: called in a worker thread when a call waits for room or for its turn, with the reason and what to do;
            default: each reason is logged once.
        on_output: called with output as it comes, in a worker thread, one call after the other.
        client: use this instead of one made from namespace, kubeconfig and context. Whoever made it closes it.

    Raises:
        ValueError: a number is out of range, functions_module is not an identifier, the image is not named by digest,
            a permit or a mount is none, or settings contradict each other.
    """

    component_config_schema = KubernetesCodeExecutorConfig
    component_provider_override = "executor_client.KubernetesCodeExecutor"
    component_version: ClassVar[int] = _COMPONENT_VERSION

    def __init__(
        self,
        *,
        timeout: int = 60,
        namespace: str | None = None,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        image: str | None = None,
        runtime_class_name: str | None = None,
        work_dir: str | Path | None = None,
        upload_work_dir: bool = True,
        functions: Sequence[UserFunction] = (),
        functions_module: str = "functions",
        agent: str = "autogen",
        limits: Limits | None = None,
        egress: Sequence[str] = (),
        mounts: Sequence[str] = (),
        session: SessionMode = "per-executor",
        stateful: bool = False,
        idle_timeout: int = 1800,
        max_lifetime: int = 28_800,
        approval: ApprovalMode = "wait",
        approval_timeout: int = 600,
        on_approval_request: Callable[[ApprovalRequest], None] | None = None,
        on_wait: OnWait | None = None,
        on_output: OnOutput | None = None,
        client: CodeExecutionClient | None = None,
    ) -> None:
        check_timeout(timeout)
        check_range("idle_timeout", idle_timeout, MAX_SESSION_SECONDS)
        check_range("max_lifetime", max_lifetime, MAX_SESSION_SECONDS)
        check_range("approval_timeout", approval_timeout, MAX_TIMEOUT_SECONDS)
        if approval not in ("wait", "return"):
            raise ValueError(f"approval is {approval!r}, but must be 'wait' or 'return'")
        if functions and approval == "return":
            raise ValueError(
                "functions need approval='wait': they are checked by an execution, which may need approval, too"
            )
        if not functions_module.isidentifier() or keyword.iskeyword(functions_module):
            raise ValueError(f"{NO_MODULE} functions_module is {functions_module!r}")
        if session not in ("per-executor", "per-call"):
            raise ValueError(f"session is {session!r}, but must be 'per-executor' or 'per-call'")
        if stateful and session == "per-call":
            raise ValueError("stateful=True needs session='per-executor': variables live as long as a session")
        if (egress or mounts) and session != "per-call":
            raise ValueError("egress and mounts need session='per-call': a call with them needs its own pod")
        if client and (namespace or kubeconfig or context):
            raise ValueError("give either client, or namespace, kubeconfig and context")
        self._config = KubernetesCodeExecutorConfig(
            timeout=timeout,
            namespace=namespace,
            kubeconfig=str(kubeconfig) if kubeconfig else None,
            context=context,
            image=image,
            runtime_class_name=runtime_class_name,
            work_dir=str(work_dir) if work_dir else None,
            upload_work_dir=upload_work_dir,
            functions_module=functions_module,
            agent=agent,
            limits=limits.model_dump(exclude_defaults=True) if limits else {},
            egress=list(egress),
            mounts=list(mounts),
            session=session,
            stateful=stateful,
            idle_timeout=idle_timeout,
            max_lifetime=max_lifetime,
            approval=approval,
            approval_timeout=approval_timeout,
        )
        self._functions = tuple(functions)
        self._functions_checked = False
        self._on_output = on_output
        self._folder = WorkDir(self.work_dir) if self.work_dir else None
        self._sending = threading.Lock()
        self._downloads: WorkDir | None = None
        self._owns_client = client is None
        self._client = client or CodeExecutionClient(
            ClusterRef(namespace or DEFAULT_NAMESPACE, self._config.kubeconfig, context)
        )
        self._request = Request(
            agent=agent,
            timeout_seconds=timeout,
            image=image,
            runtime_class_name=runtime_class_name,
            limits=limits or Limits(),
            egress=tuple(egress),
            mounts=tuple(mounts),
            executor="KubernetesCodeExecutor",
            approval=ApprovalWait(approval, approval_timeout, on_approval_request),
            on_wait=on_wait,
        )
        self._shared = self._share() if session == "per-executor" else None

    def _share(self) -> SharedSession:
        """The session of this executor, which ends with it. Holds on to nothing that holds the executor."""
        new = partial(
            self._client.new_session,
            self._request,
            idle_timeout_seconds=self._config.idle_timeout,
            max_lifetime_seconds=self._config.max_lifetime,
            stateful=self._config.stateful,
        )
        shared = SharedSession(new)
        if self._client.cluster:
            forks.finalize(self, end_unattended, shared, self._client.cluster)
        return shared

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> KubernetesCodeResult:
        """Run blocks in order in one pod; the first that fails ends the call.

        What the code does, a refusal by policy, an unknown language and a cancellation are results. Exit codes: the
        block's own, 124 after a timeout, 137 when out of memory, 1 when cancelled or refused.

        Raises:
            ValueError: there is no block, the code is too large, its source can't be kept in work_dir, or the functions
                can't be loaded.
            SessionEnded: `stop` or `restart` was called before the code began.
            CodeExecError: something other than the code failed; see `executor_client.exceptions`.
        """
        if not code_blocks:
            raise ValueError("No code blocks to execute.")
        if cancellation_token.is_cancelled():
            return KubernetesCodeResult(exit_code=1, output=CANCELLED)
        prepared = prepare_blocks(code_blocks)
        if not prepared.runnable:
            return KubernetesCodeResult(exit_code=1, output=prepared.refusal)
        code_file = keep_source(self._folder, prepared.runnable) or f"/workspace/{prepared.runnable[0].file}"
        cancelled = event_of(cancellation_token)
        if self._shared:
            running = self._shared.run(partial(self._run_in_session, prepared.runnable, cancelled))
        else:
            running = self._run_alone(prepared.runnable, cancelled)
        try:
            result = await despite_cancellation(running, cancellation_token)
        except SessionDenied as error:
            return KubernetesCodeResult(
                exit_code=1,
                output=f"Denied: {error}",
                code_file=code_file,
                reason=Reason.POLICY_VIOLATION.value,
            )
        note = self._shared.take_note() if self._shared else ""
        return to_autogen(KubernetesCodeResult, result, code_file, prepared.refusal, note)

    async def result_of(self, execution: str) -> KubernetesCodeResult:
        """Wait for the end of an execution, and return its result: of one that a call has left waiting for approval.

        Args:
            execution: `execution` of the result that the call returned.

        Raises:
            NotFound: there is none of this name.
            CodeExecError: something other than the code failed; see `executor_client.exceptions`.
        """
        result = await self._client.attach(execution).result()
        return to_autogen(KubernetesCodeResult, result, code_file=None, refusal="")

    async def upload_files(self, files: list[Path | str], cancellation_token: CancellationToken) -> None:
        """Copy local files into the workspace, each under its own name without folders.

        Args:
            files: local paths; if work_dir is set, relative ones are looked up there first.
            cancellation_token: stops the transfer.

        Raises:
            ValueError: each call has a workspace of its own, a file is no regular file, two have the same name, or one
                is too large.
            FileMissing: there is no such file; also a FileNotFoundError.
            FileTransferError: the workspace doesn't take a file, or the token was cancelled.
            CodeExecError: see `executor_client.exceptions`.
        """
        transfer = self._transfer("upload_files", cancellation_token)
        contents = self._read(files)
        sizes = {name: len(content) for name, content in contents.items()}
        for group in groups(sizes, MAX_PAYLOAD_BYTES, MAX_FILES):
            await transfer.run(partial(upload, {name: contents[name] for name in group}))

    async def download_files(
        self, files: list[Path | str], cancellation_token: CancellationToken, *, allow_names: Sequence[Path | str] = ()
    ) -> list[str]:
        """Copy files of the workspace into work_dir, or, if that isn't set, into a temporary folder of this executor.

        The temporary folder is deleted with the executor.

        Args:
            files: paths in the workspace.
            cancellation_token: stops the transfer.
            allow_names: those of them that you want although programs act on such names unasked, such as `.env`.

        Returns:
            The local path of each file, in the order of `files`.

        Raises:
            ValueError: each call has a workspace of its own.
            FileMissing: there is no such file in the workspace; the text says which there are.
            FileTransferError: a file is too large or can't be kept here, the token was cancelled, or programs act
                unasked on a name that is not in `allow_names`. Then nothing was saved.
            CodeExecError: see `executor_client.exceptions`.
        """
        transfer = self._transfer("download_files", cancellation_token)
        wanted = [Path(file).as_posix() for file in files]
        there = await transfer.run(list_all)
        sizes = {one.path: one.size_bytes for one in there}
        # Where not all are named, one that isn't may be there all the same, and of any size.
        unnamed = [name for name in wanted if name not in sizes] if len(there) == MAX_ARTIFACTS else []
        asked = {name: sizes[name] for name in wanted if name in sizes} | dict.fromkeys(unnamed, MAX_FETCH_BYTES)
        found = await transfer.run(partial(fetch, asked))
        if missing := [name for name in wanted if name not in found]:
            raise FileMissing(
                f"not in the workspace: {', '.join(missing)}; there are: "
                f"{', '.join(without_sources(sizes)) or 'no files'}"
            )
        folder, allowed = self._download_folder(), {Path(name).as_posix() for name in allow_names}
        for name in wanted:
            if name not in allowed and (why := refusal(folder.root, name)):
                raise FileTransferError(
                    f"{name!r} is not saved in {folder.root}: {why}. Leave the name out, or give it in allow_names, "
                    "too; nothing was saved"
                )
        return [str(keep(folder, name, found[name], any_name=name in allowed)) for name in wanted]

    async def get_file_list(self, cancellation_token: CancellationToken) -> list[str]:
        """Paths of the files in the workspace that `download_files` takes, sorted; of at most 256 files.

        Left out are the sources that this executor keeps there, and names that programs act on unasked, such as hidden
        ones.

        Raises:
            ValueError: each call has a workspace of its own.
            FileTransferError: the token was cancelled.
            CodeExecError: see `executor_client.exceptions`.
        """
        transfer = self._transfer("get_file_list", cancellation_token)
        return [
            path for path in without_sources(one.path for one in await transfer.run(list_all)) if not acted_on(path)
        ]

    async def start(self) -> None:
        """Connect and make sure that codeexec is installed. Optional: the first call connects by itself.

        Raises:
            CodeExecError: what is wrong and what to do; see `executor_client.exceptions`.
        """
        await self._client.check()

    async def stop(self) -> None:
        """End the workspace, and close the connections unless they are those of `client`.

        Calls that wait for their turn raise SessionEnded. The executor can be used again, with a new workspace.
        """
        await self._end_session()
        if self._owns_client:
            await self._client.close()

    async def restart(self) -> None:
        """Delete the workspace; the next call gets a new one. Calls that wait for their turn raise SessionEnded."""
        await self._end_session()

    async def _end_session(self) -> None:
        """End the session, if there is one. That it can't be ended is no error of the caller's: it has limits."""
        try:
            if self._shared:
                await self._shared.end()
        except CodeExecError as error:
            logger.warning("could not end the session, which ends at its idle timeout: %s", error)

    def _transfer(self, method: str, token: CancellationToken) -> "_Transfer":
        if self._shared is None:
            raise ValueError(f"{method} needs session='per-executor': with 'per-call' each call has its own workspace")
        if token.is_cancelled():
            raise FileTransferError(CANCELLED)
        return _Transfer(self._shared, token)

    async def _run_in_session(
        self, blocks: Sequence[PreparedBlock], cancelled: asyncio.Event, opened: OpenSession
    ) -> ExecutionResult:
        session = opened.session
        if self._functions and not opened.prepared:
            check, file = self._check()
            checked = await session.execute((check,), files=(file,), list_files="None", cancelled=cancelled)
            if checked.phase in _NOT_RUN:
                return checked
            _demand_functions(checked)
            opened.prepared = True
        if self._folder is None:
            return await session.execute(blocks, cancelled=cancelled, on_output=self._on_output)
        *before, last = await self._next_uploads(opened, blocks, cancelled)
        uploading = opened.uploading if before or last else None
        try:
            for group in before:
                files = self._folder.read(group)
                uploaded = await session.execute((), files=files, list_files="None", cancelled=cancelled)
                if uploaded.phase is not Phase.SUCCEEDED:
                    return uploaded
                opened.sent |= group
            files = self._folder.read(last)
            result = await session.execute(blocks, files=files, cancelled=cancelled, on_output=self._on_output)
            if result.phase not in (*_NOT_RUN, Phase.DENIED):
                opened.sent |= last
            return await bring_back(self._folder, opened, result, cancelled) if result.artifacts else result
        finally:
            if uploading:
                uploading.set_result(None)

    async def _next_uploads(
        self, opened: OpenSession, blocks: Sequence[PreparedBlock], cancelled: asyncio.Event
    ) -> list[dict[str, Stamp]]:
        """What this call has to send. One call sends at a time, so that none undoes what the code of another did."""
        while not cancelled.is_set():
            with self._sending:
                earlier = opened.uploading
                if earlier is None or earlier.done():
                    pieces = self._uploads(opened, blocks)
                    opened.uploading = Future() if any(pieces) else None
                    return pieces
            told = asyncio.create_task(cancelled.wait())
            either: set[asyncio.Future[Any]] = {asyncio.wrap_future(earlier), told}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                told.cancel()
        return [{}]

    def _uploads(self, opened: OpenSession, blocks: Sequence[PreparedBlock]) -> list[dict[str, Stamp]]:
        """What the caller has put into work_dir and the workspace lacks, in pieces; the last leaves room for blocks."""
        sources = {block.file for block in blocks} | ({f"{self.functions_module}.py"} if self._functions else set())
        lacks = self._folder.unsent(opened.sent) if self._folder and self._config.upload_work_dir else {}
        sizes = {name: stamp.size for name, stamp in lacks.items() if name not in sources}
        pieces = [{name: lacks[name] for name in group} for group in groups(sizes, MAX_PAYLOAD_BYTES, MAX_FILES)]
        code = sum(len(block.content) for block in blocks)
        if not pieces or sum(stamp.size for stamp in pieces[-1].values()) + code > MAX_PAYLOAD_BYTES:
            pieces.append({})
        return pieces

    async def _run_alone(self, blocks: Sequence[PreparedBlock], cancelled: asyncio.Event) -> ExecutionResult:
        files: tuple[WorkspaceFile, ...] = ()
        if self._functions:
            check, file = self._check()
            files = (file,)
            if not self._functions_checked:
                # Whether the functions can be loaded is found out without what only the code was to have.
                bare = replace(self._request, egress=(), mounts=())
                checked = await self._client.execute((check,), bare, files=files, cancelled=cancelled)
                if checked.phase in _NOT_RUN:
                    return checked
                _demand_functions(checked)
                self._functions_checked = True
        result = await self._client.execute(
            blocks,
            self._request,
            files=files,
            fetch=("*",) if self._folder else (),
            cancelled=cancelled,
            on_output=self._on_output,
        )
        if not self._folder:
            return result
        # All files match: also those that were sent.
        sent = {block.file for block in blocks} | {file.path for file in files}
        made = tuple(one for one in result.artifacts if one.path not in sent)
        contents = {path: content for path, content in result.files.items() if path not in sent}
        return keep_artifacts(self._folder, replace(result, artifacts=made), contents)

    def _download_folder(self) -> WorkDir:
        folder = self._folder or self._downloads
        if folder is None:
            root = Path(tempfile.mkdtemp(prefix="codeexec-"))
            folder = self._downloads = WorkDir(root)
            forks.finalize(self, shutil.rmtree, root, ignore_errors=True)
        return folder

    def _read(self, files: Sequence[Path | str]) -> dict[str, bytes]:
        """Content of local files by the name under which they go into the workspace."""
        contents: dict[str, bytes] = {}
        for file in files:
            places = [Path(file)] if self.work_dir is None else [self.work_dir / file, Path(file)]
            path = next((place for place in places if place.exists()), None)
            if path is None:
                raise FileMissing(f"{file} does not exist; looked at {', '.join(map(str, places))}")
            if not path.is_file():
                raise FileTransferError(f"{path} is not a regular file; upload the files in a folder one by one")
            if path.name in contents:
                raise FileTransferError(f"{path} would replace another file {path.name!r} of the same upload")
            if (size := path.stat().st_size) > MAX_PAYLOAD_BYTES:
                raise FileTransferError(
                    f"{path} has {size} bytes; at most {MAX_PAYLOAD_BYTES} can be uploaded: split or compress it"
                )
            contents[path.name] = path.read_bytes()
        return contents

    def _check(self) -> tuple[PreparedBlock, WorkspaceFile]:
        """The functions as a module, and what finds out whether it can be imported."""
        module = self.functions_module
        file = WorkspaceFile(f"{module}.py", module_source(self._functions).encode())
        return PreparedBlock("python", check_program(self._functions, module).encode()), file

    def _to_config(self) -> KubernetesCodeExecutorConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: KubernetesCodeExecutorConfig) -> Self:
        limits = Limits(**config.limits) if config.limits else None
        return cls(**config.model_dump(exclude={"limits"}), limits=limits)

    @classmethod
    def _from_config_past_version(cls, config: dict[str, Any], version: int) -> Self:  # noqa: ARG003 - there was one
        """Version 1 knew no sessions: each call had a pod of its own. Dumps of the Docker executor have it, too."""
        known = {name: value for name, value in config.items() if name in KubernetesCodeExecutorConfig.model_fields}
        if ignored := sorted(config.keys() - known.keys()):
            logger.warning("these settings have no effect in a KubernetesCodeExecutor: %s", ", ".join(ignored))
        return cls._from_config(KubernetesCodeExecutorConfig.model_validate({"session": "per-call"} | known))


class _Transfer:
    """Steps of one method that moves or lists files; its token stops whichever runs."""

    def __init__(self, shared: SharedSession, token: CancellationToken) -> None:
        self._shared, self._token, self._cancelled = shared, token, event_of(token)

    async def run(self, step: Callable[[asyncio.Event, OpenSession], Awaitable[T]]) -> T:
        return await despite_cancellation(self._shared.run(partial(step, self._cancelled)), self._token)


def _demand_functions(checked: ExecutionResult) -> None:
    if checked.exit_code != 0:
        raise ValueError(f"Functions failed to load: {checked.output.strip()}")
