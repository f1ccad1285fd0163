"""The proof that the network of a sandbox is closed: what the runner found inside, held against what was found outside.

A target that nobody can reach proves nothing by not answering. So each target has to answer the operator, which is
outside the sandbox, at about the same time. What is permitted never covers a target, so the proof is the same with it.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal

from codeexec_api import EgressProof, EgressTarget, EgressVerdict, OpenedEgress
from codeexec_api.v1alpha1.bounds import MAX_EGRESS_TARGETS

FRESH: Final = timedelta(seconds=60)
"""How long ago the operator may have reached a target."""
_ADDRESS: Final = re.compile(r"[0-9A-Za-z.:-]+")
"""Some clusters give their API server a name."""
_LONGEST_TARGETS: Final = 256 * MAX_EGRESS_TARGETS


@dataclass(frozen=True, order=True)
class Target:
    """Something in the cluster that answers whoever can reach it."""

    name: str
    address: str
    port: int
    protocol: Literal["TCP", "UDP"] = "TCP"

    @classmethod
    def of(cls, recorded: EgressTarget) -> "Target":
        """The target that a record or a report names."""
        return cls(recorded.name, recorded.address, recorded.port, recorded.protocol)

    def __str__(self) -> str:
        """For messages, such as `dns 10.96.0.10:53/UDP`."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.name} {host}:{self.port}/{self.protocol}"

    def dump(self) -> dict[str, Any]:
        """As the runner takes it."""
        return {"name": self.name, "address": self.address, "port": self.port, "protocol": self.protocol}


@lru_cache(maxsize=256)
def _parsed(text: str) -> frozenset[Target] | None:
    """The same object for all pods with the same targets: thousands are compared each time a pool is decided on."""
    try:
        named = [EgressTarget.model_validate(one) for one in json.loads(text)]
    except (ValueError, TypeError, RecursionError):
        return None
    known = len(named) <= MAX_EGRESS_TARGETS and all(_ADDRESS.fullmatch(one.address) for one in named)
    return frozenset(map(Target.of, named)) if known else None


def parse_targets(text: str) -> frozenset[Target] | None:
    """What a pod was told to try; None if that is not as the operator writes it, so that somebody else has."""
    return _parsed(text) if len(text) <= _LONGEST_TARGETS else None


def judge(
    asked: Collection[Target],
    answered: Mapping[Target, bool],
    reached_at: Mapping[Target, datetime],
    now: datetime,
    *,
    opened: Sequence[OpenedEgress] = (),
) -> EgressProof:
    """What is shown about `asked`, the targets that the runner was told to try, where this much is permitted.

    `answered` has the targets that the runner tried, `reached_at` when each last answered the operator. The proof names
    those that were asked for first, and no more than a record may have.
    """
    reachable = {target for target, when in reached_at.items() if now - when <= FRESH}
    if any(answered.values()):
        verdict = EgressVerdict.OPEN
    elif asked and reachable >= set(asked) == answered.keys():
        verdict = EgressVerdict.RESTRICTED if opened else EgressVerdict.CLOSED
    else:
        verdict = EgressVerdict.UNPROVEN
    targets = tuple(
        EgressTarget(
            **target.dump(), refused=not answered[target] if target in answered else None, reachable=target in reachable
        )
        for target in sorted(answered.keys() | set(asked), key=lambda one: (one not in asked, one))[:MAX_EGRESS_TARGETS]
    )
    return EgressProof(verdict=verdict, checked_at=now, targets=targets)


def explain(proof: EgressProof, opened: Sequence[OpenedEgress] = ()) -> str:
    """The proof in a sentence or two: what was found, and what to do about it."""

    def named(targets: list[EgressTarget]) -> str:
        return ", ".join(str(Target.of(target)) for target in targets)

    if proof.verdict is EgressVerdict.CLOSED:
        return f"no answer inside the sandbox from: {named(list(proof.targets))}"
    if proof.verdict is EgressVerdict.RESTRICTED:
        permitted = ", ".join(map(_opened, opened))
        return f"permitted: {permitted}; no answer inside the sandbox from: {named(list(proof.targets))}"
    if proof.verdict is EgressVerdict.OPEN:
        answered = named([target for target in proof.targets if target.refused is False])
        if opened:
            return (
                f"the network of the sandbox is open: {answered} answered from inside the pod, and no permit may open "
                f"that. Either a permit opens it nevertheless ({', '.join(map(_opened, opened))}), or the network is "
                "open without a permit: run an execution without spec.egress, and look at its status.egressProof"
            )
        return (
            f"the network of the sandbox is open: {answered} answered from inside the pod. The namespace needs the "
            "NetworkPolicy codeexec-deny-all, which the chart installs, and the cluster a network plugin that enforces "
            "NetworkPolicy for egress"
        )
    unreached = named([target for target in proof.targets if not target.reachable])
    return (
        "it can't be shown that the network of the sandbox is closed: nothing answered inside the pod, but the "
        f"operator did not reach {unreached or 'anything'} either. Let the operator connect there "
        "(operator.networkPolicy of the chart, network policies of the cluster), or look for the cause in its log"
    )


def _opened(opened: OpenedEgress) -> str:
    return f"{opened.permit} without {', '.join(opened.left_out)}" if opened.left_out else opened.permit
