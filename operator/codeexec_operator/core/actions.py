"""What a decision can ask for: the actions, and the plan that lists them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from codeexec_api import CodeExecutionStatus, CodeSessionStatus


@dataclass(frozen=True)
class ReadPolicy:
    """Read the policy of the namespace."""


@dataclass(frozen=True)
class ReadRequest:
    """Read all that an execution refers to: the policy, the payload, and its session if that is not known."""


@dataclass(frozen=True)
class CreatePod:
    """Create the sandbox pod; a pod of that name which exists already is the same pod."""

    manifest: Mapping[str, Any]


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
class CancelCode:
    """Tell the runner to end the code now."""


@dataclass(frozen=True)
class DeletePod:
    """Delete the sandbox pod at once."""


@dataclass(frozen=True)
class GiveUpSession:
    """The session's runner did not do as it was told: nothing may run there any more."""

    why: str


@dataclass(frozen=True)
class Forget:
    """Nothing is left to do for this execution, ever."""


Action = (
    ReadPolicy
    | ReadRequest
    | CreatePod
    | DeletePayload
    | Attach
    | StartCode
    | CancelCode
    | DeletePod
    | GiveUpSession
    | Forget
)


@dataclass(frozen=True)
class Plan:
    """What to do now: write this status, take these actions, look again at `wake_at` at the latest."""

    status: CodeExecutionStatus | CodeSessionStatus | None = None
    actions: tuple[Action, ...] = ()
    wake_at: datetime | None = None
