"""On which nodes the pods of a RuntimeClass may land: as Kubernetes' scheduler decides, without the room. Pure.

The operator and `codeexec doctor --capacity` ask here, so that both count the same nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

_KEEPS_OFF: Final = ("NoSchedule", "NoExecute")
_PASSING_TAINTS: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Begin the keys of taints that Kubernetes sets for a while: the node is not ready, cordoned, or short of memory."""

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
            tuple(sorted(map(Toleration.of, raw.get("tolerations") or ()))),
        )

    def closed_because(self, node: Raw) -> str:
        """Why the pods don't land on this node now; empty if they may. A node that is not ready has a taint as well."""
        cordoned = "cordoned" if (node.get("spec") or {}).get("unschedulable") else ""
        return self.never_because(node) or cordoned or self._kept_off(node, passing=True)

    def never_because(self, node: Raw) -> str:
        """Why the pods never land on this node; empty if they may, now or when the node takes pods again."""
        labels = node["metadata"].get("labels") or {}
        system = ((node.get("status") or {}).get("nodeInfo") or {}).get("operatingSystem")
        if system and system != "linux":
            return f"runs {system}, not linux"
        if missing := [f"{key}={value}" for key, value in self.node_selector if labels.get(key) != value]:
            return f"lacks the label {missing[0]}"
        return self._kept_off(node, passing=False)

    def _kept_off(self, node: Raw, *, passing: bool) -> str:
        for taint in (node.get("spec") or {}).get("taints") or ():
            if (
                taint["effect"] in _KEEPS_OFF
                and taint["key"].startswith(_PASSING_TAINTS) is passing
                and not any(one.tolerates(taint) for one in self.tolerations)
            ):
                return f"taint {taint['key']}:{taint['effect']}"
        return ""


PLAIN: Final = Scheduling()
"""Of pods to which no RuntimeClass adds anything."""
