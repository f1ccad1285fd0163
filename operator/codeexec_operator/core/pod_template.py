"""What the pods of a pool are made of."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from codeexec_api import Event, PodLimits, PodRequests, Reason, evaluate
from codeexec_api.digests import sha256_hex
from codeexec_api.names import TEMPLATE_LABEL
from codeexec_operator.core.image_trust import refused_image
from codeexec_operator.core.observed import PolicyProblem
from codeexec_operator.core.observed_pool import ObservedPool
from codeexec_operator.core.outcome import Ending


@dataclass(frozen=True)
class Template:
    """What pods of the pool are made of at the moment."""

    image: str
    runtime_class_name: str | None
    limits: PodLimits
    requests: PodRequests
    user_namespace: bool
    stateful: bool = False
    """A kernel stands by in each pod."""

    @cached_property
    def digest(self) -> str:
        """Changes when anything does that a pod can't change any more. Each pod of a pool is compared with it."""
        resources = [self.limits.dump(), self.requests.dump()]
        parts = [self.image, self.runtime_class_name, *resources, self.user_namespace]
        parts += ["stateful"] if self.stateful else []  # pods of operators that knew of no such pools stay as they are
        return sha256_hex(json.dumps(parts, sort_keys=True).encode())[:16]


def template_of(seen: ObservedPool) -> Template | Ending:
    """What pods are to be made of now, or why there must be none."""
    if seen.policy is None or isinstance(seen.policy, PolicyProblem):
        message = seen.policy.message if seen.policy else "the policy has not been read yet"
        return Ending(Event.REFUSED, Reason.POLICY_INVALID, message)
    verdict = evaluate(seen.pool.spec, seen.policy, source=seen.policy_source)
    if not verdict.allowed:
        return Ending(Event.REFUSED, Reason.POLICY_VIOLATION, verdict.message)
    if ending := refused_image(seen, verdict.image, verdict.runtime_class_name):
        return ending
    return Template(
        verdict.image,
        verdict.runtime_class_name,
        seen.pool.spec.limits,
        seen.policy.requests,
        seen.cluster_view.user_namespace(verdict.runtime_class_name),
        seen.pool.spec.stateful,
    )


def template_label(pod: Mapping[str, Any]) -> str:
    """The digest that a pod of a pool carries."""
    return str((pod["metadata"].get("labels") or {}).get(TEMPLATE_LABEL, ""))
