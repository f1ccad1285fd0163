"""The AutoGen executor: a thin face on `CodeExecutionClient`."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, get_args

from autogen_core import CancellationToken, Component
from pydantic import Field

from codeexec_api import Limits, Reason
from codeexec_api.v1alpha1.bounds import (
    DEFAULT_IDLE_SECONDS,
    DEFAULT_LIFETIME_SECONDS,
    MAX_SESSION_SECONDS,
    MAX_TIMEOUT_SECONDS,
)
from executor_client.autogen.base import (
    SandboxCodeResult,
    Settings,
    check_settings,
    despite_cancellation,
    event_of,
    to_autogen,
)
from executor_client.autogen.calls import Calls
from executor_client.autogen.files import FileTransfers
from executor_client.autogen.functions import UserFunction
from executor_client.client.approvals import ApprovalMode, ApprovalRequest, ApprovalWait
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import ClusterRef, OnOutput, Request, check_sleep
from executor_client.client.waiting import OnWait
from executor_client.exceptions import CodeExecError, SessionDenied
from executor_client.model.arguments import several, whole_seconds
from executor_client.model.blocks import Prepared
from executor_client.runtime import forks
from executor_client.workspace.session_finalizer import end_unattended
from executor_client.workspace.shared_session import SharedSession
from executor_client.workspace.transfers import keep_later, keep_source

logger = logging.getLogger(__name__)

SessionMode: TypeAlias = Literal["per-executor", "per-call"]

_CALLS_SECONDS: Final = 5
"""How long `stop` waits until calls have heard that the session is over; then it closes its client."""
_COMPONENT_VERSION: Final = 2
"""1: each call had a pod of its own, as `session="per-call"` has."""


class KubernetesCodeResult(SandboxCodeResult):
    """AutoGen's result, with what the record knows beyond it."""


class KubernetesCodeExecutorConfig(Settings):
    """Configuration of `KubernetesCodeExecutor`."""

    namespace: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    output_store: str | None = None
    image: str | None = None
    runtime_class_name: str | None = None
    egress: list[str] = Field(default_factory=list)
    mounts: list[str] = Field(default_factory=list)
    session: SessionMode = "per-executor"
    stateful: bool = False
    idle_timeout: int = DEFAULT_IDLE_SECONDS
    max_lifetime: int = DEFAULT_LIFETIME_SECONDS
    sleep_after: int | None = None
    approval: ApprovalMode = "wait"
    approval_timeout: int = 600


class KubernetesCodeExecutor(
    FileTransfers[KubernetesCodeExecutorConfig, KubernetesCodeResult], Component[KubernetesCodeExecutorConfig]
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
        output_store: URL of the store that the platform owner keeps large output in; default: CODEEXEC_OUTPUT_STORE.
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
        sleep_after: seconds without a call after which the workspace sleeps: its files are kept in the operator's
            output store, its pod goes, and the next call wakes it. The policy has to allow it. None: it never sleeps.
        approval: what a call does when a human has to approve it. `wait`: wait for that. `return`: return at once, with
            exit code 1 and what is waited for; the code runs when it is approved, and `result_of` gets its result.
        approval_timeout: how long to wait for approval, in seconds; then the execution is cancelled.
        on_approval_request: called in a worker thread when a human has to approve a call, to tell them.
        on_wait: called in a worker thread when a call waits for room or for its turn, with the reason and what to do;
            default: each reason is logged once.
        on_output: called with output as it comes, in a worker thread, one call after the other.
        client: use this instead of one made from namespace, kubeconfig, context and output_store. Its maker closes it.

    Raises:
        ValueError: a number is out of range, functions_module is not an identifier, the image is not named by digest,
            a permit or a mount is none, or settings contradict each other.
    """

    component_config_schema = KubernetesCodeExecutorConfig
    component_provider_override = "executor_client.KubernetesCodeExecutor"
    component_version: ClassVar[int] = _COMPONENT_VERSION
    _kind = KubernetesCodeResult

    def __init__(
        self,
        *,
        timeout: int = 60,
        namespace: str | None = None,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        output_store: str | None = None,
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
        idle_timeout: int = DEFAULT_IDLE_SECONDS,
        max_lifetime: int = DEFAULT_LIFETIME_SECONDS,
        sleep_after: int | None = None,
        approval: ApprovalMode = "wait",
        approval_timeout: int = 600,
        on_approval_request: Callable[[ApprovalRequest], None] | None = None,
        on_wait: OnWait | None = None,
        on_output: OnOutput | None = None,
        client: CodeExecutionClient | None = None,
    ) -> None:
        check_settings(timeout, functions_module, agent)
        for name, mode, modes in (("approval", approval, ApprovalMode), ("session", session, SessionMode)):
            if mode not in get_args(modes):
                raise ValueError(f"{name} is {mode!r}, but must be {' or '.join(map(repr, get_args(modes)))}")
        for name, seconds, most in (
            ("idle_timeout", idle_timeout, MAX_SESSION_SECONDS),
            ("max_lifetime", max_lifetime, MAX_SESSION_SECONDS),
            ("sleep_after", 1 if sleep_after is None else sleep_after, MAX_SESSION_SECONDS),
            ("approval_timeout", approval_timeout, MAX_TIMEOUT_SECONDS),
        ):
            whole_seconds(name, seconds, most)
        where: dict[str, Any] = {
            "namespace": namespace or None,
            "kubeconfig": str(kubeconfig) if kubeconfig else None,
            "context": context or None,
            "output_store": output_store,
        }
        given = {name: value for name, value in where.items() if value is not None}
        if client and given:
            raise ValueError(f"client was given beside {', '.join(given)}, which it has already: leave these out")
        if client and client.cluster:  # so that a loaded dump has the same cluster
            where = asdict(client.cluster)
        config = KubernetesCodeExecutorConfig(
            timeout=timeout,
            **where,
            image=image,
            runtime_class_name=runtime_class_name,
            work_dir=str(work_dir) if work_dir else None,
            upload_work_dir=upload_work_dir,
            functions_module=functions_module,
            agent=agent,
            limits=limits.model_dump(exclude_defaults=True) if limits else {},
            egress=list(several("egress", egress)),
            mounts=list(several("mounts", mounts)),
            session=session,
            stateful=stateful,
            idle_timeout=idle_timeout,
            max_lifetime=max_lifetime,
            sleep_after=sleep_after,
            approval=approval,
            approval_timeout=approval_timeout,
        )
        super().__init__(config, functions)
        _check(config, functions=bool(functions))
        self._calls = Calls(self._folder, self._module, upload_work_dir, on_output)
        self._owns_client = client is None
        self._client = client or CodeExecutionClient(ClusterRef(**given))
        self._request = Request(
            agent=agent,
            timeout_seconds=self._config.timeout,
            image=image,
            runtime_class_name=runtime_class_name,
            limits=limits or Limits(),
            egress=self._config.egress,
            mounts=self._config.mounts,
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
            sleep_after_seconds=self._config.sleep_after,
        )
        shared = SharedSession(new)
        if self._client.cluster:
            forks.finalize(self, end_unattended, shared, self._client.cluster)
        return shared

    async def _call(self, prepared: Prepared, token: CancellationToken) -> KubernetesCodeResult:
        code_file = keep_source(self._folder, prepared.runnable) or f"/workspace/{prepared.runnable[0].file}"
        cancelled = event_of(token)
        if self._shared:
            running = self._shared.run(partial(self._calls.run_in_session, prepared.runnable, cancelled))
        else:
            running = self._calls.run_alone(self._client, self._request, prepared.runnable, cancelled)
        try:
            result = await despite_cancellation(running, token)
        except SessionDenied as error:
            return KubernetesCodeResult(
                exit_code=1,
                output=f"Denied: {error}",
                code_file=code_file,
                reason=Reason.POLICY_VIOLATION.value,
            )
        note = self._shared.take_note() if self._shared else ""
        return to_autogen(self._kind, result, code_file, prepared.refusal, note)

    async def result_of(self, execution: str) -> KubernetesCodeResult:
        """Wait for the end of an execution, and return its result: of one that a call has left waiting for approval.

        Files that the code has made or changed are copied into work_dir. For code that ran in a session, this session
        must still be the open one of this executor.

        Args:
            execution: `execution` of the result that the call returned.

        Raises:
            NotFound: the namespace has no object with this name.
            CodeExecError: something other than the code failed; see `executor_client.exceptions`.
        """
        handle = self._client.attach(execution)
        result = await handle.result()
        if self._folder:
            result = await keep_later(self._folder, await handle.finished(), result, self._shared)
        return to_autogen(self._kind, result, code_file=None)

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
        await self._end_session(calls_seconds=_CALLS_SECONDS if self._owns_client else 0)
        if self._owns_client:
            await self._client.close()

    async def restart(self) -> None:
        """Delete the workspace; the next call gets a new one. Calls that wait for their turn raise SessionEnded."""
        await self._end_session()

    async def _end_session(self, *, calls_seconds: float = 0) -> None:
        """End the session, if there is one. That it can't be ended is no error of the caller's: it has limits."""
        try:
            if self._shared:
                await self._shared.end(calls_seconds=calls_seconds)
        except CodeExecError as error:
            logger.warning("could not end the session, which ends at its idle timeout: %s", error)

    def _to_config(self) -> KubernetesCodeExecutorConfig:
        if self._client.cluster is None:
            raise ValueError(
                "client names no cluster, as that of a FakeCluster, so the executor can't be dumped: a loaded one "
                "would run code in the cluster of the kubeconfig. Create the executor in code, or pass "
                "client=CodeExecutionClient(ClusterRef(...))"
            )
        return super()._to_config()

    @classmethod
    def _from_config_past_version(cls, config: dict[str, Any], version: int) -> Self:  # noqa: ARG003 - there was one
        """Version 1 knew no sessions: each call had a pod of its own. Dumps of the Docker executor have it, too."""
        known = {name: value for name, value in config.items() if name in KubernetesCodeExecutorConfig.model_fields}
        if ignored := sorted(config.keys() - known.keys()):
            logger.warning("these settings have no effect in a KubernetesCodeExecutor: %s", ", ".join(ignored))
        return cls._from_config(KubernetesCodeExecutorConfig.model_validate({"session": "per-call"} | known))


def _check(config: KubernetesCodeExecutorConfig, *, functions: bool) -> None:
    """Refuse settings that contradict each other.

    Raises:
        ValueError: it names the field, the value and what is allowed.
    """
    check_sleep(config.sleep_after, config.idle_timeout, stateful=config.stateful)
    if functions and config.approval == "return":
        raise ValueError(
            "functions need approval='wait': they are checked by an execution, which may need approval, too"
        )
    if config.stateful and config.session == "per-call":
        raise ValueError("stateful=True needs session='per-executor': variables live as long as a session")
    if config.sleep_after is not None and config.session == "per-call":
        raise ValueError(
            f"sleep_after is {config.sleep_after}, but session is 'per-call': leave sleep_after out, or pass "
            "session='per-executor', because only sessions sleep"
        )
    if (config.egress or config.mounts) and config.session != "per-call":
        raise ValueError(
            f"egress is {config.egress} and mounts is {config.mounts}, but session is {config.session!r}: pass "
            "session='per-call', because a call with egress or mounts needs its own pod"
        )
