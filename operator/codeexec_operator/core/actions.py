"""What a decision can ask for: the actions, and the plan that lists them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from codeexec_api import CodeExecutionStatus


@dataclass(frozen=True)
class ReadPayload:
    """Read the payload Secret and verify it."""


@dataclass(frozen=True)
class CreatePod:
    """Create the sandbox pod; a pod of that name which exists already is the same pod."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class DeletePayload:
    """Delete the payload Secret with this UID."""

    uid: str


@dataclass(frozen=True)
class Attach:
    """Connect to the runner, and ask it what it has found out about its pod."""


@dataclass(frozen=True, repr=False)
class StartCode:
    """Hand the job to the runner. Only after the status that says so was written."""

    job: Mapping[str, Any]


@dataclass(frozen=True)
class CancelCode:
    """Tell the runner to end the code now."""


@dataclass(frozen=True)
class DeletePod:
    """Delete the sandbox pod at once."""


@dataclass(frozen=True)
class Forget:
    """Nothing is left to do for this execution, ever."""


Action = ReadPayload | CreatePod | DeletePayload | Attach | StartCode | CancelCode | DeletePod | Forget


@dataclass(frozen=True)
class Plan:
    """What to do now: write this status, take these actions, look again at `wake_at` at the latest."""

    status: CodeExecutionStatus | None = None
    actions: tuple[Action, ...] = ()
    wake_at: datetime | None = None
