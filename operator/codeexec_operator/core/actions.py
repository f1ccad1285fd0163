"""What a decision can ask for: the actions, and the plan that lists them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from codeexec_api import CodeExecutionStatus, CodeSessionStatus, SandboxPoolStatus, StoredFiles
from codeexec_operator.core.outcome import Ending, Proven
from codeexec_operator.core.payload import Payload


@dataclass(frozen=True)
class Action:
    """Something to be done, beside writing the status."""


class ReadPolicy(Action):
    """Read the policy of the namespace."""


@dataclass(frozen=True)
class ReadLease(Action):
    """Read the Lease that the client of a session renews."""

    name: str


class ReadRequest(Action):
    """Read all that an execution refers to: the policy, the payload, and its session if that is not known."""


class ReadApprovals(Action):
    """Read what was decided about executions of the namespace."""


@dataclass(frozen=True, repr=False)
class PublishCode(Action):
    """Put code that came sealed into a Secret, so that whoever decides about it can read it."""

    payload: Payload


class WithdrawCode(Action):
    """Delete that Secret."""


@dataclass(frozen=True)
class CreatePod(Action):
    """Create the sandbox pod; a pod of that name which exists already is the same pod."""

    manifest: Mapping[str, Any]
    network_policy: Mapping[str, Any] | None = None
    """Opens what is permitted to the pod. Created before it; without it there is no pod."""


@dataclass(frozen=True)
class DeletePayload(Action):
    """Delete these Secrets of the payload, each by name and UID."""

    secrets: tuple[tuple[str, str], ...]


class Attach(Action):
    """Connect to the runner, and ask it what it has found out about its pod."""


@dataclass(frozen=True, repr=False)
class StartCode(Action):
    """Hand the job to the runner. Only after the status that says so was written."""

    messages: tuple[Mapping[str, Any], ...]
    """The files, in pieces, and then the job."""


class ReadPod(Action):
    """Look for the pod of an execution, which may still belong to the pool that it comes from."""


class ResumeCode(Action):
    """Ask the runner to tell of the code again, from where the transcript ends."""


@dataclass(frozen=True)
class CancelStray(Action):
    """Tell the runner of a session to end a job that no execution claims."""

    uid: str


class StoreFiles(Action):
    """Have the runner of a session that is to sleep tell its files, and store them."""


class KeepAwake(Action):
    """Don't store them any more: somebody needs the session."""


class LeavePod(Action):
    """The session sleeps on record: have its pod deleted, and know it no more."""


@dataclass(frozen=True)
class RestoreFiles(Action):
    """Put the files of a session that sleeps into its new pod, and see that all of them are there."""

    stored: StoredFiles


class CancelCode(Action):
    """Tell the runner to end the code now."""


class DeletePod(Action):
    """Delete the sandbox pod at once."""


class CloseEgress(Action):
    """Delete the NetworkPolicy that has opened what was permitted."""


@dataclass(frozen=True)
class GiveUpSession(Action):
    """The session's runner did not do as it was told: nothing may run there any more."""

    why: str


class Forget(Action):
    """Nothing is left to do for this execution, ever."""


@dataclass(frozen=True)
class AskPool(Action):
    """Find the pool that has such pods. An execution gets in line there, a session takes a pod that is ready."""

    image: str
    runtime_class_name: str | None


@dataclass(frozen=True)
class AdoptPod(Action):
    """Make the pod that came from a pool the own pod of the execution or session; nothing waits for it."""

    patch: Mapping[str, Any]


class ReturnPod(Action):
    """Give back a pod of a pool that was lost before it was used. Nobody gets it any more."""


class ReadPool(Action):
    """Read the policy of the namespace, and list the pods that the pool has already."""


@dataclass(frozen=True)
class CreateMember(Action):
    """Create a pod of the pool."""

    name: str
    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class AttachMember(Action):
    """Connect to the runner of a pod of the pool, and ask it for its report."""

    name: str


@dataclass(frozen=True)
class AdmitMember(Action):
    """From now on the pod can be handed out."""

    name: str
    proven: Proven


@dataclass(frozen=True)
class PingMember(Action):
    """Ask the runner of a pod that waits whether it is still there."""

    name: str


@dataclass(frozen=True)
class DropMember(Action):
    """Delete a pod that was never handed out."""

    name: str
    problem: Ending | None = None
    """Why, if that is a fault; one that lasts would make it happen again and again."""
    gives_way: bool = False
    """True if it makes room for a pod of an execution or a session."""


@dataclass(frozen=True)
class Plan:
    """What to do now: write this status, take these actions, look again at `wake_at` at the latest."""

    status: CodeExecutionStatus | CodeSessionStatus | SandboxPoolStatus | None = None
    actions: tuple[Action, ...] = ()
    wake_at: datetime | None = None
