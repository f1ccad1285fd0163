"""What separates code from the kernel of its node: what the pod was to have, and what it has.

The kind of a RuntimeClass is a claim: the name of its handler. That a pod has a kernel of its own is shown by its boot
ID, which every kernel makes up when it starts: it is another one than the node's, which the kubelet reports.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from codeexec_api import Boundary, Event, ExecutionPolicySpec, Reason
from codeexec_operator.core.cluster_view import ClusterView
from codeexec_operator.core.observed import PolicyProblem
from codeexec_operator.core.observed_pod import PodView
from codeexec_operator.core.outcome import Ending
from codeexec_operator.core.readiness import Readiness

USER_NAMESPACE: Final = "UserNamespace"
"""The layer, as records name it."""
_KERNELS: Final = re.compile(r"(?:(kata)|runsc|gvisor)(?:-|$)")


def promised(handler: str | None) -> Boundary | None:
    """Whose kernel a pod gets by this handler of a container runtime; None if it is the node's, or if nobody knows."""
    found = _KERNELS.match(handler or "")
    return (Boundary.VM if found[1] else Boundary.GVISOR) if found else None


@dataclass(frozen=True)
class Isolation:
    """What was shown of one pod."""

    boundary: Boundary
    user_namespace: bool
    problem: str = ""
    """Why it is weaker than its RuntimeClass promises, if it is."""


def awaits_node(pod: PodView, cluster_view: ClusterView) -> bool:
    """True if its isolation can't be judged before more is known of its node, which may have just joined."""
    return bool(promised(cluster_view.handler(pod.runtime_class_name))) and not cluster_view.boot_id(pod.node_name)


def look_at(pod: PodView, ready: Readiness, cluster_view: ClusterView) -> Isolation:
    """What a pod that has reported has."""
    kernel = promised(cluster_view.handler(pod.runtime_class_name))
    user_namespace = pod.user_namespace and ready.user_namespace
    of_node = cluster_view.boot_id(pod.node_name)
    if kernel and of_node and ready.boot_id and ready.boot_id != of_node:
        return Isolation(kernel, user_namespace)
    problem = (
        f"the RuntimeClass {pod.runtime_class_name!r} stands for {kernel.value}, but the pod did not show a kernel of "
        f"its own: it reported the boot ID {ready.boot_id or 'none'}, and node {pod.node_name!r} has "
        f"{of_node or 'none that is known'}. Check that the handler of the RuntimeClass is installed on "
        "the node, and that the sandbox image is as new as the operator"
        if kernel
        else ""
    )
    return Isolation(Boundary.USER_NAMESPACE if user_namespace else Boundary.CONTAINER, user_namespace, problem)


def unobtainable(
    policy: ExecutionPolicySpec | PolicyProblem | None, cluster_view: ClusterView, runtime_class_name: str | None
) -> Ending | None:
    """The refusal, if no pod of this RuntimeClass would have what the policy requires."""
    if not _requires(policy) or cluster_view.user_namespace(runtime_class_name):
        return None
    runtime = f"the RuntimeClass {runtime_class_name!r}" if runtime_class_name else "the default runtime"
    if not cluster_view.open_nodes(runtime_class_name):
        return _refused(f"no known node takes pods of {runtime}")
    return _refused(f"not every node that takes pods of {runtime} gives them a user namespace")


def insufficient(policy: ExecutionPolicySpec | PolicyProblem | None, layers: Collection[str]) -> Ending | None:
    """The refusal, if a pod with these layers has not what the policy requires."""
    if not _requires(policy) or USER_NAMESPACE in layers:
        return None
    return _refused("the pod did not show that it has a user namespace of its own")


def _requires(policy: ExecutionPolicySpec | PolicyProblem | None) -> bool:
    return isinstance(policy, ExecutionPolicySpec) and policy.require_user_namespaces


def _refused(why: str) -> Ending:
    message = (
        f"the policy requires user namespaces (requireUserNamespaces: true), and {why}. Nothing was run. Choose a "
        "RuntimeClass that has them, or ask the platform owner for nodes that have them"
    )
    return Ending(Event.REFUSED, Reason.ISOLATION_NOT_ENFORCED, message)
