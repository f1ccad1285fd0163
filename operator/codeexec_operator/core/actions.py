"""What a decision can ask for: the actions, and the plan that lists them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from codeexec_api import CodeExecutionStatus, CodeSessionStatus, SandboxPoolStatus
from codeexec_operator.core.findings import Ending, Proven
from codeexec_operator.core.payload import Payload


@dataclass(frozen=True)
class ReadPolicy:
    """Read the policy of the namespace."""


@dataclass(frozen=True)
class ReadLease:
    """Read the Lease that the client of a session renews."""

    name: str


@dataclass(frozen=True)
class ReadRequest:
    """Read all that an execution refers to: the policy, the payload, and its session if that is not known."""


@dataclass(frozen=True)
class ReadApprovals:
    """Read what was decided about executions of the namespace."""


@dataclass(frozen=True, repr=False)
class PublishCode:
    """Put code that came sealed into a Secret, so that whoever decides about it can read it."""

    payload: Payload


@dataclass(frozen=True)
class WithdrawCode:
    """Delete that Secret."""


@dataclass(frozen=True)
class CreatePod:
    """Create the sandbox pod; a pod of that name which exists already is the same pod."""

    manifest: Mapping[str, Any]
    network_policy: Mapping[str, Any] | None = None
    """Opens what is permitted to the pod. Created before it; without it there is no pod."""


@dataclass(frozen=True)
class DeletePayload:
    """Delete these Secrets of the payload, each by name and UID."""

    secrets: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Attach:
    """Connect to the runner, and ask it what it has found out about its pod."""


@dataclass(frozen=True, repr=False)
class StartCode:
    """Hand the job to the runner. Only after the status that says so was written."""

    messages: tuple[Mapping[str, Any], ...]
    """The files, in pieces, and then the job."""


@dataclass(frozen=True)
class ReadPod:
    """Look for the pod of an execution, which may still belong to the pool that it comes from."""


@dataclass(frozen=True)
class ResumeCode:
    """Ask the runner to tell of the code again, from where the transcript ends."""


@dataclass(frozen=True)
class CancelStray:
    """Tell the runner of a session to end a job that no execution claims."""

    uid: str


@dataclass(frozen=True)
class CancelCode:
    """Tell the runner to end the code now."""


@dataclass(frozen=True)
class DeletePod:
    """Delete the sandbox pod at once."""


@dataclass(frozen=True)
class CloseEgress:
    """Delete the NetworkPolicy that has opened what was permitted."""


@dataclass(frozen=True)
class GiveUpSession:
    """The session's runner did not do as it was told: nothing may run there any more."""

    why: str


@dataclass(frozen=True)
class Forget:
    """Nothing is left to do for this execution, ever."""


@dataclass(frozen=True)
class AskPool:
    """Find the pool that has pods such as this execution needs, and get in line there."""

    image: str
    runtime_class_name: str | None


@dataclass(frozen=True)
class AdoptPod:
    """Make the pod that came from a pool the execution's own; nothing waits for it."""

    patch: Mapping[str, Any]


@dataclass(frozen=True)
class ReadPool:
    """Read the policy of the namespace, and list the pods that the pool has already."""


@dataclass(frozen=True)
class CreateMember:
    """Create a pod of the pool."""

    name: str
    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class AttachMember:
    """Connect to the runner of a pod of the pool, and ask it for its report."""

    name: str


@dataclass(frozen=True)
class AdmitMember:
    """From now on the pod can be handed out."""

    name: str
    proven: Proven


@dataclass(frozen=True)
class PingMember:
    """Ask the runner of a pod that waits whether it is still there."""

    name: str


@dataclass(frozen=True)
class DropMember:
    """Delete a pod that was never handed out."""

    name: str
    problem: Ending | None = None
    """Why, if that is a fault; one that lasts would make it happen again and again."""


Action = (
    ReadPolicy
    | ReadLease
    | ReadRequest
    | ReadApprovals
    | PublishCode
    | WithdrawCode
    | CreatePod
    | DeletePayload
    | Attach
    | StartCode
    | ReadPod
    | ResumeCode
    | CancelStray
    | CancelCode
    | DeletePod
    | CloseEgress
    | GiveUpSession
    | AskPool
    | AdoptPod
    | ReadPool
    | CreateMember
    | AttachMember
    | AdmitMember
    | PingMember
    | DropMember
    | Forget
)


@dataclass(frozen=True)
class Plan:
    """What to do now: write this status, take these actions, look again at `wake_at` at the latest."""

    status: CodeExecutionStatus | CodeSessionStatus | SandboxPoolStatus | None = None
    actions: tuple[Action, ...] = ()
    wake_at: datetime | None = None
