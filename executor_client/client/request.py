"""Where a client connects to, and what every execution of it has in common. Does no I/O."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypedDict, TypeVar

from codeexec_api import Limits, Mount, Permit, Source
from codeexec_api.permits import parse_mount, parse_permit
from codeexec_api.v1alpha1.bounds import MAX_TIMEOUT_SECONDS
from executor_client.client.approvals import ApprovalWait
from executor_client.client.waiting import OnWait
from executor_client.model.arguments import check_agent, seconds, several, whole_seconds
from executor_client.model.images import check_image
from executor_client.model.results import OutputChunk

DEFAULT_NAMESPACE: Final = "codeexec-sandbox"
ListFiles: TypeAlias = Literal["None", "Changed", "All"]
OnOutput: TypeAlias = Callable[[OutputChunk], None]


class KubeContext(TypedDict):
    """Arguments of `KubeApi.connect` and `KubeApi.opened`."""

    kubeconfig: str | None
    context: str | None
    namespace: str


@dataclass(frozen=True)
class ClusterRef:
    """Which cluster and namespace to use; None means: as the environment says."""

    namespace: str = DEFAULT_NAMESPACE
    kubeconfig: str | None = None
    context: str | None = None
    output_store: str | None = None
    """URL of the store that the platform owner keeps large output in. None: CODEEXEC_OUTPUT_STORE, if that is set."""

    def __post_init__(self) -> None:
        if self.kubeconfig is not None:
            object.__setattr__(self, "kubeconfig", os.fspath(self.kubeconfig))

    def kube_context(self, namespace: str | None = None) -> KubeContext:
        """The same cluster and user, with this namespace if one is given."""
        return {"kubeconfig": self.kubeconfig, "context": self.context, "namespace": namespace or self.namespace}


@dataclass(frozen=True)
class Request:
    """What every execution of a client has in common.

    Raises:
        ValueError: the image is not named by digest (see `model.images`), a number of seconds is none or out of range,
            a permit or a mount is none, or egress or mounts is one string.
    """

    agent: str
    timeout_seconds: int = 60
    image: str | None = None
    runtime_class_name: str | None = None
    limits: Limits = field(default_factory=Limits)
    executor: str = "executor_client"
    approval: ApprovalWait = field(default_factory=ApprovalWait)
    """What to do when a human has to approve what is asked for."""
    egress: Sequence[Permit | str] = ()
    """Ways out of the sandbox that are asked for, such as `10.1.2.3/32:443`; see `codeexec_api.permits.parse_permit`.

    Like mounts, these need a pod of the execution's own: there are none in a session."""
    mounts: Sequence[Mount | str] = ()
    """What code is to read besides its files, such as `pvc:data:/mnt/data`; see `codeexec_api.permits.parse_mount`."""
    on_wait: OnWait | None = None
    """Called in a worker thread when the code waits for room or for its turn, each time that there is something new to
    say. If the callback raises, the code is stopped, and the call raises that exception. None: each reason is logged
    once."""
    start_seconds: float | None = None
    """How long the caller waits for the code to start: for room, its turn and an approval. Then a call is cancelled and
    raises Timeout. None: the client sets no limit."""

    def __post_init__(self) -> None:
        check_agent(self.agent)
        timeout = whole_seconds("timeout_seconds", self.timeout_seconds, MAX_TIMEOUT_SECONDS)
        object.__setattr__(self, "timeout_seconds", timeout)
        seconds("start_seconds", self.start_seconds)
        if self.image is not None:
            check_image(self.image)
        object.__setattr__(self, "egress", tuple(_read(several("egress", self.egress), parse_permit)))
        object.__setattr__(self, "mounts", tuple(_read(several("mounts", self.mounts), parse_mount)))

    def check_alone(self, session: str | None) -> None:
        """Make sure that what is asked for can be had in this session.

        Raises:
            ValueError: it needs a pod of its own.
        """
        if session is not None and (self.egress or self.mounts):
            raise ValueError(
                "egress and mounts need a pod of their own, so they can't be used in a session: run this without a "
                "session, or leave them out"
            )

    @property
    def source(self) -> Source:
        """Who asks, as the record says."""
        return Source(agent=self.agent, executor=self.executor)


_Parsed = TypeVar("_Parsed", Permit, Mount)


def _read(given: Sequence[_Parsed | str], parse: Callable[[str], _Parsed]) -> Iterator[_Parsed]:
    yield from (parse(one) if isinstance(one, str) else one for one in given)


def check_sleep(sleep_after: int | None, idle_timeout: int, *, stateful: bool) -> None:
    """Refuse a session that was to sleep and can't.

    Raises:
        ValueError: it names the argument, its value and what is allowed.
    """
    if sleep_after is None:
        return
    if stateful:
        raise ValueError(
            f"sleep_after is {sleep_after}, but a stateful session can't sleep, because its variables would be lost: "
            "pass stateful=False, and keep data in files"
        )
    if not 1 <= sleep_after < idle_timeout:
        raise ValueError(
            f"sleep_after is {sleep_after}, but must be at least 1 and lower than idle_timeout ({idle_timeout}), which "
            "ends the session"
        )
