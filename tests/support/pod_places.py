"""Namespaces where pods are tried, and what the API server says to a pod there."""

import functools
import json
from collections.abc import Callable
from typing import Any

from cluster_tools import wait_for
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError
from weaker_pods import Pod, a_hardened_pod, spec

POLICY = "codeexec-pods"
CHANGES = "codeexec-pod-changes"

# What not every version has: the minor version of Kubernetes from which on its API server has it by default. An older
# one drops such a field before admission sees it, and doesn't know such a subresource.
KEPT_FROM = {
    "spec.hostUsers": 33,
    "spec.securityContext.supplementalGroupsPolicy": 33,
    "spec.containers[0].securityContext.procMount": 33,
    "spec.resourceClaims": 34,
    "spec.resources": 34,
    "spec.hostnameOverride": 35,
    "pods/resize": 33,
}


class Place:
    """A namespace, and how its pods look to whoever asks."""

    def __init__(self, core: client.CoreV1Api, namespace: str) -> None:
        self.core = core
        self.namespace = namespace

    def stored(self, pod: Pod) -> Pod:
        """The spec that would be stored. Raises ApiException if the pod is refused."""
        stored: Pod = self.core.api_client.sanitize_for_serialization(
            self.core.create_namespaced_pod(self.namespace, pod, dry_run="All").spec
        )
        return stored

    def refusal(self, pod: Pod) -> str:
        """What the API server says to this pod; empty if it would be accepted."""
        return _refusal(lambda: self.stored(pod))

    def create(self, pod: Pod) -> str:
        """Make the pod; its name."""
        name: str = self.core.create_namespaced_pod(self.namespace, pod).metadata.name
        return name

    def patch(
        self,
        name: str,
        patch: Pod,
        subresource: str = "",
        *,
        kind: str = "strategic-merge",
        dry_run: str | None = "All",
    ) -> str:
        """What the API server says to a patch of a pod; empty if it is, or would be, accepted."""
        method = getattr(self.core, f"patch_namespaced_pod{subresource and '_' + subresource}")
        content_type = f"application/{kind}-patch+json"
        return _refusal(lambda: method(name, self.namespace, patch, dry_run=dry_run, _content_type=content_type))

    def bind(self, name: str, node: str, metadata: Pod) -> str:
        """What the API server says to a Binding of a pod that has this metadata, too."""
        binding = {"metadata": {"name": name, **metadata}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
        return _refusal(
            lambda: self.core.create_namespaced_pod_binding(
                name, self.namespace, binding, dry_run="All", _preload_content=False
            )
        )

    def refuses_as_ours(self, refusal: str, field: str) -> bool:
        """The refusal is our policy's, by the binding of this place, and names the field first."""
        return f"'{POLICY}' with binding '{self.namespace}' denied request: {field} " in refusal

    def refuses_the_change(self, refusal: str, field: str) -> bool:
        """The same of our policy for changes, which any binding may have put in force here."""
        return f"'{CHANGES}' with binding" in refusal and f"denied request: {field} " in refusal


def _refusal(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except ApiException as error:
        return _message(error)
    except ValidationError as error:  # the client's own: it wants the required fields
        return str(error)
    return ""


def _message(error: ApiException) -> str:
    try:
        message: str = json.loads(error.body)["message"]
    except ValueError:  # of what the API server doesn't have at all: "404 page not found"
        return str(error.body).strip()
    return message


def is_pod_security_s_or_ours(refusal: str) -> bool:
    """In a sandbox namespace either may answer first."""
    return "violates PodSecurity" in refusal or f"'{POLICY}' with binding '{POLICY}' denied request" in refusal


def wait_for_the_policy(place: Place) -> None:
    """Until a pod that only our policy refuses is refused."""
    weak = a_hardened_pod()
    spec(hostPID=True)(weak)
    wait_for("the policy to be in force", lambda: "denied request: spec.hostPID" in place.refusal(weak))


def wait_for_the_changes_policy(place: Place) -> None:
    """Until a binding that only our policy refuses is refused; there is no such pod."""
    binding = {
        "metadata": {"name": "nobody", "annotations": {"example.com/network": "other"}},
        "target": {"kind": "Node", "name": "none"},
    }
    attempt = functools.partial(
        place.core.create_namespaced_binding, place.namespace, binding, dry_run="All", _preload_content=False
    )
    wait_for("the policy to be in force", lambda: f"'{CHANGES}'" in _refusal(attempt))


def part(stored: Pod, field: str) -> Any:
    """What is in the stored spec at a field as refusals name it; None if nothing is."""
    node: Any = {"spec": stored}
    for key in field.replace("[0]", ".0").split("."):
        node = node[0] if key == "0" else node.get(key)
        if node is None:
            return None
    return node
