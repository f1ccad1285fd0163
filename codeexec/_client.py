"""The client: runs code, opens sessions, and reads records."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from codeexec._backend import Backend
from codeexec._records import Approvals, Executions, Sessions
from codeexec._result import DISPLAY_PATTERN, Result
from codeexec._session import USE_DEFAULT, Session, UseDefault, asking, workspace_files
from codeexec_api import Limits, Mount, Permit
from codeexec_api.v1alpha1.bounds import DEFAULT_IDLE_SECONDS, DEFAULT_LIFETIME_SECONDS, MAX_SESSION_SECONDS
from executor_client.client.approvals import ApprovalWait
from executor_client.client.request import DEFAULT_NAMESPACE, ClusterRef, OnOutput, Request
from executor_client.client.waiting import OnWait
from executor_client.exceptions import NotSupported
from executor_client.model.arguments import to_fetch, whole_seconds
from executor_client.model.blocks import SourceBlock, all_prepared
from executor_client.runtime.extras import missing_extra

if TYPE_CHECKING:
    from executor_client.client.client import CodeExecutionClient


class Client:
    """Runs code of agents in the sandboxes of a Kubernetes cluster. Use it as `async with`, or call `close`.

        async with codeexec.Client(agent="analyst") as client:
            result = await client.run("print(6 * 7)")
            print(result.stdout)

    The constructor connects to nothing. Connections are opened when they are first needed, one for each event loop.
    Calls may run at the same time. A call that is cancelled stops its code.

    Args:
        agent: name recorded as the source of the code, 1 to 128 characters.
        namespace: the sandbox namespace; default: `codeexec-sandbox`.
        kubeconfig: path of the kubeconfig file; default: as kubectl, or the service account of the pod.
        context: context of the kubeconfig; default: its current one.
        timeout: how long code may run, in whole seconds, 1 to 86400. Code that runs longer is stopped by the sandbox,
            and its result says so.
        start_timeout: how long to wait for code to start, in seconds: for room on the nodes, its turn, and an approval.
            Then the call is cancelled and raises `codeexec.Timeout`. None: the client sets no limit.
        image: image of the sandbox, by digest; default: the policy's first.
        runtime_class: RuntimeClass of the sandbox; default: the policy's.
        limits: CPU, memory, disk, processes and output of the sandbox.
        approval: what to do when a human has to approve a call.
        on_wait: called in a worker thread when code waits for room or its turn, each time that there is something new
            to say. If the callback raises, the code is stopped, and the call raises that exception. None: the logger
            `executor_client.client.waiting` logs each reason once.
        backend: what runs the code instead of a cluster that namespace, kubeconfig and context name:
            `FakeCluster().client()` of `codeexec.testing`, `codeexec.local.Sandbox()`, or a `CodeExecutionClient`.
            `close` doesn't close it.

    Raises:
        ValueError: the agent has no name, the image is not named by digest, a number is out of range, or a cluster is
            named beside a backend.
    """

    def __init__(
        self,
        *,
        agent: str,
        namespace: str | None = None,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        timeout: float = 60,
        start_timeout: float | None = None,
        image: str | None = None,
        runtime_class: str | None = None,
        limits: Limits | None = None,
        approval: ApprovalWait | None = None,
        on_wait: OnWait | None = None,
        backend: Backend | None = None,
    ) -> None:
        given = {"namespace": namespace, "kubeconfig": kubeconfig, "context": context}
        if backend and (name := next((name for name, value in given.items() if value), None)):
            raise ValueError(
                f"{name} is {given[name]!r}, but backend says where code runs: give either backend, or namespace, "
                "kubeconfig and context"
            )
        self._ref = ClusterRef(namespace or DEFAULT_NAMESPACE, str(kubeconfig) if kubeconfig else None, context)
        request = Request(
            agent=agent,
            image=image,
            runtime_class_name=runtime_class,
            executor="codeexec",
            approval=approval or ApprovalWait(),
            on_wait=on_wait,
        )
        self._request: Final = asking(request, timeout, start_timeout, limits)
        self._owns_backend = backend is None
        self._opened: Final = {self._ref: backend} if backend else {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of the running event loop. Sessions that are still open end within a minute.

        Calls that still run there raise ClusterUnreachable, and their code is stopped. A later call opens connections
        again.
        """
        if self._owns_backend and (opened := self._opened.get(self._ref)):
            await opened.close()

    async def run(
        self,
        code: str,
        *,
        language: str = "python",
        timeout: float | None = None,
        start_timeout: float | UseDefault | None = USE_DEFAULT,
        limits: Limits | None = None,
        files: Mapping[str, bytes | str] | None = None,
        fetch: Sequence[str] = (),
        egress: Sequence[Permit | str] = (),
        mounts: Sequence[Mount | str] = (),
        on_output: OnOutput | None = None,
    ) -> Result:
        """Run code in a sandbox of its own, and return what came out.

        Args:
            code: the source; at most 1,000,000 bytes.
            language: `python`, `bash`, `sh`, or another language of the image. Aliases such as `py` work.
            timeout: how long the code may run, in whole seconds; default: that of the client.
            start_timeout: how long to wait for the start, in seconds; None: no limit; default: that of the client.
            limits: of the sandbox; default: those of the client.
            files: put into the workspace before; content by path. At most 64, and with the code 16,000,000 bytes.
            fetch: which files to bring back in `Result.files`: paths, or patterns with *, ? and [abc]. At most 63,
                and 16 MiB together, or 128 MiB if the cluster has an output store; what is larger stands only in
                `Result.artifacts`.
            egress: where code may connect to, such as `10.1.2.3/32:443`; see docs/egress.md.
            mounts: what code may read besides its files, such as `pvc:data:/mnt/data`.
            on_output: called in a worker thread with each piece of output as it comes.

        Raises:
            ValueError: the code can't be run: an unknown language, a path outside the workspace, or too large.
            Timeout: the code did not start within `start_timeout`; it was cancelled.
            Error: something other than the code failed; `codeexec` lists the kinds.
        """
        request = asking(self._request, timeout, start_timeout, limits)
        wanted = to_fetch(fetch)
        blocks, sent = all_prepared([SourceBlock(language, code)]), workspace_files(files)
        result = await self._backend.execute(
            blocks,
            replace(request, egress=egress, mounts=mounts),
            files=sent,
            fetch=(*wanted, DISPLAY_PATTERN),
            on_output=on_output,
        )
        return Result.of(result, wanted, (one.announce() for one in blocks), (one.announce() for one in sent))

    def session(
        self,
        *,
        stateful: bool = True,
        timeout: float | None = None,
        start_timeout: float | UseDefault | None = USE_DEFAULT,
        limits: Limits | None = None,
        idle_timeout: float = DEFAULT_IDLE_SECONDS,
        max_lifetime: float = DEFAULT_LIFETIME_SECONDS,
        outlives_client: bool = False,
        sleep_after: float | None = None,
    ) -> Session:
        """A workspace that several calls share, one after the other. Use it as `async with`, or call `start` and `end`.

        Does no I/O: the session is asked for when the `async with` block is entered.

        Args:
            stateful: Python code shares one interpreter, so that variables live as long as the session. False: calls
                share only files.
            timeout: how long code may run, in whole seconds; default: that of the client.
            start_timeout: how long to wait for code to start, in seconds; None: no limit; default: that of the client.
            limits: of the sandbox; default: those of the client.
            idle_timeout: the session ends when nothing has run in it for this long, in whole seconds.
            max_lifetime: the session ends this long after it became ready, in whole seconds.
            outlives_client: the session stays when this client is closed or its process ends. Otherwise it ends within
                a minute of that, unless code is running in it.
            sleep_after: when nothing has run in it for this long, in whole seconds, the session sleeps: its files are
                kept in the operator's output store, and its pod goes. The next call wakes it, with its files. Needs
                `stateful=False` and a policy that allows it; see docs/sleep.md. None: it never sleeps.

        Raises:
            ValueError: a number is out of range, or a stateful session was to sleep.
            NotSupported: what runs the code has no such sessions.
        """
        request = asking(self._request, timeout, start_timeout, limits)
        sleeps = None if sleep_after is None else whole_seconds("sleep_after", sleep_after, MAX_SESSION_SECONDS)
        handle = self._backend.new_session(
            request,
            idle_timeout_seconds=whole_seconds("idle_timeout", idle_timeout, MAX_SESSION_SECONDS),
            max_lifetime_seconds=whole_seconds("max_lifetime", max_lifetime, MAX_SESSION_SECONDS),
            stateful=stateful,
            outlives_client=outlives_client,
            sleep_after_seconds=sleeps,
        )
        return Session(self._backend, handle, request)

    @property
    def executions(self) -> Executions:
        """The records of what has run in the namespace.

        Raises:
            NotSupported: the code does not run in a cluster.
        """
        return Executions(self._cluster("executions"))

    @property
    def sessions(self) -> Sessions:
        """The sessions of the namespace.

        Raises:
            NotSupported: the code does not run in a cluster.
        """
        return Sessions(self._cluster("sessions"), self._request)

    @property
    def approvals(self) -> Approvals:
        """What waits for the decision of a human in the namespace.

        Raises:
            NotSupported: the code does not run in a cluster.
        """
        return Approvals(self._cluster("approvals"))

    @property
    def _backend(self) -> Backend:
        if opened := self._opened.get(self._ref):
            return opened
        return self._opened.setdefault(self._ref, _cluster_client()(self._ref))  # that of the first of several threads

    def _cluster(self, what: str) -> "CodeExecutionClient":
        backend = self._backend
        if isinstance(backend, _cluster_client()):
            return backend
        raise NotSupported(
            f"backend is a {type(backend).__name__}, which has no {what}: leave backend out to use a cluster, or pass "
            "FakeCluster().client() in tests"
        )


def _cluster_client() -> "type[CodeExecutionClient]":
    """The client of a cluster, which takes about a second to load."""
    try:
        from executor_client.client.client import CodeExecutionClient
    except ModuleNotFoundError as error:
        raise missing_extra("codeexec.Client", error) from None
    return CodeExecutionClient
