"""What a runner has found out about its pod, before there is any code in it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from codeexec_api import EgressTarget
from codeexec_api.v1alpha1.bounds import MAX_EGRESS_TARGETS
from codeexec_operator.core.egress import Target

LAYERS: Final = frozenset({"Seccomp", "Landlock", "LandlockPorts"})
"""What a runner can put around code."""
_BOOT_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Readiness:
    """What the runner has found out about its pod, before there was any code in it."""

    layers: tuple[str, ...]
    """Names of the layers that it can put around code."""
    answered: Mapping[Target, bool]
    """For each target of the egress proof, whether it answered."""
    boot_id: str = ""
    """Of the kernel that it runs on."""
    user_namespace: bool = False
    """True if users of its pod are others elsewhere."""
    job: str | None = None
    """The job that runs there, or that was not acknowledged yet."""
    used: bool = False
    """True if a file was put there, or any job was begun."""


def readiness(frame: Mapping[str, Any]) -> Readiness:
    """From the frame that says so.

    Raises:
        Exception: the frame is not one, of whatever type; the caller treats all alike.
    """
    layers = frame["layers"]
    if len(frame["egress"]) > MAX_EGRESS_TARGETS or not set(layers) <= LAYERS or len(layers) > len(LAYERS):
        raise ValueError("more than a report can hold")
    answered = {}
    for target in frame["egress"]:
        answered[Target.of(EgressTarget.model_validate(target))] = target["answered"] is not False
    boot_id = _BOOT_ID.fullmatch(frame.get("bootId", ""))  # a runner of an older image says nothing of it
    job = frame.get("job")
    return Readiness(
        tuple(layers),
        answered,
        boot_id[0] if boot_id else "",
        frame.get("userNamespace") is True,
        str(job) if job else None,
        frame.get("used") is True,
    )
