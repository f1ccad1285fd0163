"""On which nodes the pods of a RuntimeClass may land: as Kubernetes' scheduler decides, without the room. Pure.

The operator and `codeexec doctor --capacity` ask here, so that both count the same nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

_KEEPS_OFF: Final = ("NoSchedule", "NoExecute")

Raw = Mapping[str, Any]
"""An object as the API server has it."""


class Toleration(NamedTuple):
    """Of taints of nodes."""

    key: str
    operator: str
    value: str
    effect: str

    @classmethod
    def of(cls, raw: Raw) -> "Toleration":
        """One of a RuntimeClass, with Kubernetes' defaults."""
        key, value, effect = (raw.get(one) or "" for one in ("key", "value", "effect"))
        return cls(key, raw.get("operator") or "Equal", value, effect)

    def tolerates(self, taint: Raw) -> bool:
        """True if this taint keeps no pod off that has the toleration."""
        if self.effect not in ("", taint["effect"]):
            return False
        if self.operator == "Exists":
            return self.key in ("", taint["key"])
        return self.operator == "Equal" and (self.key, self.value) == (taint["key"], taint.get("value") or "")


@dataclass(frozen=True)
class Scheduling:
    """What a RuntimeClass adds to its pods for the scheduler. Nothing, if the pods name no RuntimeClass."""

    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    @classmethod
    def of(cls, runtime_class: Raw | None) -> "Scheduling":
        """That of a RuntimeClass; None stands for pods without a class."""
        raw = (runtime_class or {}).get("scheduling") or {}
        return cls(
            tuple(sorted((raw.get("nodeSelector") or {}).items())),
            tuple(map(Toleration.of, raw.get("tolerations") or ())),
        )

    def closed_because(self, node: Raw) -> str:
        """Why the pods never land on this node; empty if they may. Whether the node is ready is another question."""
        spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
        system = ((node.get("status") or {}).get("nodeInfo") or {}).get("operatingSystem")
        if system and system != "linux":
            return f"runs {system}, not linux"
        if spec.get("unschedulable"):
            return "cordoned"
        if missing := [f"{key}={value}" for key, value in self.node_selector if labels.get(key) != value]:
            return f"lacks the label {missing[0]}"
        for taint in spec.get("taints") or ():
            if taint["effect"] in _KEEPS_OFF and not any(one.tolerates(taint) for one in self.tolerations):
                return f"taint {taint['key']}:{taint['effect']}"
        return ""


PLAIN: Final = Scheduling()
"""Of pods to which no RuntimeClass adds anything."""
