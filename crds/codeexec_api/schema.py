"""Pydantic models to CustomResourceDefinitions with structural schemas.

What pydantic emits is JSON schema; what the API server takes is a subset of OpenAPI v3 without references, null
types and `additionalProperties: false` (apiextensions.k8s.io/v1, "structural schemas"). This module bridges that.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from codeexec_api import names
from codeexec_api.v1alpha1 import (
    ROOT_RULES,
    CodeExecution,
    CodeSession,
    ExecutionApproval,
    ExecutionPolicy,
    SandboxPool,
)

_DROPPED: Final = ("title", "$defs")
_NESTED: Final = ("items", "additionalProperties")
_CLOSED: Final = {"additionalProperties": False}
"""What is implied for an object; for a map it is the schema of the values."""


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """Structural schema of a model: references inlined, nulls and noise removed."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(schema, schema.get("$defs", {}))


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _merge(_convert(target, definitions), _convert(rest, definitions))
    if "anyOf" in node:  # Optional[X]: an absent field, never a null
        [variant] = [one for one in node["anyOf"] if one.get("type") != "null"]
        rest = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
        return _merge(_convert(variant, definitions), _convert(rest, definitions))
    result: dict[str, Any] = {
        key: _convert(value, definitions) if key in _NESTED else value
        for key, value in node.items()
        if key not in _DROPPED and value is not _CLOSED.get(key, ...)
    }
    if result.get("default", ...) in (None, "", []):
        del result["default"]
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if "properties" in result:
        result["properties"] = {name: _convert(child, definitions) for name, child in result["properties"].items()}
    if result.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
        result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if result.get("format") == "date-time" and result.get("type") == "string":
        result.pop("default", None)
    if result.get("type") == "integer":
        result["format"] = "int64"
    return result


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Join a referenced schema with what stands beside the reference; validation rules of both count."""
    key = "x-kubernetes-validations"
    rules = [*base.get(key, []), *over.get(key, [])]
    return base | over | ({key: rules} if rules else {})


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False, text: str) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path, "description": text}
    return column | {"priority": 1} if wide else column


_EXECUTION_COLUMNS: Final = [
    _column("Agent", ".spec.source.agent", text="Agent whose code this is, as claimed by the client"),
    _column("Language", ".status.summary.languages", text="Languages of the blocks"),
    _column("Phase", ".status.phase", text="Where the execution stands"),
    _column("Exit", ".status.exitCode", "integer", text="Exit code of the last block that ran"),
    _column("Duration", ".status.summary.duration", text="From the start of the code to its end"),
    _column("Digest", ".status.summary.digest", text="Start of the digest of the code"),
    _column("Age", ".metadata.creationTimestamp", "date", text="Time since creation"),
    _column("Reason", ".status.reason", wide=True, text="Why the execution is in this phase"),
    _column("Requested-By", ".spec.requestedBy", wide=True, text="Who created it, as the API server knows them"),
    _column("Approver", ".status.approval.approver", wide=True, text="Who approved or denied it, if that was needed"),
    _column(
        "Egress",
        ".status.egressProof.verdict",
        wide=True,
        text="Whether the network was shown to be closed, or restricted to what was permitted",
    ),
    _column("Runtime", ".status.runtimeClassName", wide=True, text="RuntimeClass; empty: the node's default"),
    _column("Session", ".spec.sessionRef.name", wide=True, text="Session; empty: a pod of its own"),
    _column("Pod", ".status.podName", wide=True, text="Sandbox pod"),
    _column("Image", ".status.image", wide=True, text="Sandbox image"),
]
_SESSION_COLUMNS: Final = [
    _column("Agent", ".spec.source.agent", text="Agent whose session this is, as claimed by the client"),
    _column("Phase", ".status.phase", text="Where the session stands"),
    _column("Executions", ".status.executions", "integer", text="Executions that ran in it, as last recorded"),
    _column("Last-Used", ".status.lastUsedAt", "date", text="Time since something ran in it, as last recorded"),
    _column("Age", ".metadata.creationTimestamp", "date", text="Time since creation"),
    _column("Stateful", ".spec.stateful", "boolean", wide=True, text="Whether Python keeps its variables"),
    _column("Reason", ".status.reason", wide=True, text="Why the session is in this phase"),
    _column("Egress", ".status.egressProof.verdict", wide=True, text="Whether the network was shown to be closed"),
    _column("Pod", ".status.podName", wide=True, text="Sandbox pod"),
]
_POOL_COLUMNS: Final = [
    _column("Replicas", ".spec.replicas", "integer", text="Pods that are to stand ready"),
    _column("Ready", ".status.readyReplicas", "integer", text="Pods that stand ready"),
    _column("In-Use", ".status.claimedReplicas", "integer", text="Pods that run an execution"),
    _column("Queued", ".status.queued", "integer", text="Executions that wait for a pod"),
    _column("Refill-Ms", ".status.lastRefillMs", "integer", text="What the last pod took to become ready"),
    _column("Age", ".metadata.creationTimestamp", "date", text="Time since creation"),
    _column("Reason", ".status.conditions[?(@.type=='Ready')].reason", wide=True, text="Why the pool is as it is"),
    _column("Runtime", ".status.runtimeClassName", wide=True, text="RuntimeClass; empty: the node's default"),
    _column("Image", ".status.image", wide=True, text="Sandbox image"),
]
_APPROVAL_COLUMNS: Final = [
    _column("Execution", ".spec.executionRef.name", text="Execution that this is about"),
    _column("Decision", ".spec.decision", text="Whether it may run"),
    _column("Approver", ".spec.approver", text="Who decided, as the API server knows them"),
    _column("Expires", ".spec.expiresAt", "date", text="The code must have started by then"),
    _column("Revoked", ".spec.revoked", "boolean", text="Whether it was taken back"),
    _column("Age", ".metadata.creationTimestamp", "date", text="Time since creation"),
    _column("Requested-By", ".spec.executionRef.requestedBy", wide=True, text="Who asked for the execution"),
    _column("Reason", ".spec.reason", wide=True, text="Why, in the words of the approver"),
]
_POLICY_COLUMNS: Final = [
    _column("Languages", ".spec.languages", text="Languages that may be used"),
    _column("Timeout", ".spec.maxTimeoutSeconds", "integer", text="Highest timeout of a block, in seconds"),
    _column("Age", ".metadata.creationTimestamp", "date", text="Time since creation"),
]


_POOL_SCALE: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


def custom_resource_definitions() -> dict[str, dict[str, Any]]:
    """Every CRD by its file name."""
    return {
        "codeexecutions.yaml": _definition(
            CodeExecution, names.EXECUTION_KIND, names.EXECUTION_PLURAL, "cex", _EXECUTION_COLUMNS
        ),
        "codesessions.yaml": _definition(
            CodeSession, names.SESSION_KIND, names.SESSION_PLURAL, "cses", _SESSION_COLUMNS
        ),
        "sandboxpools.yaml": _definition(
            SandboxPool, names.POOL_KIND, names.POOL_PLURAL, "sbp", _POOL_COLUMNS, scale=_POOL_SCALE
        ),
        "executionapprovals.yaml": _definition(
            ExecutionApproval, names.APPROVAL_KIND, names.APPROVAL_PLURAL, "xapp", _APPROVAL_COLUMNS
        ),
        "executionpolicies.yaml": _definition(
            ExecutionPolicy, names.POLICY_KIND, names.POLICY_PLURAL, "xpol", _POLICY_COLUMNS
        ),
    }


def _definition(
    model: type[BaseModel],
    kind: str,
    plural: str,
    short: str,
    columns: list[dict[str, Any]],
    *,
    scale: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    schema = structural(model)
    schema["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        **{name: child for name, child in schema["properties"].items() if name != "metadata"},
    }
    schema["required"] = ["spec"]
    if rules := ROOT_RULES[kind]:
        schema["x-kubernetes-validations"] = rules
    version: dict[str, Any] = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": columns,
    }
    if status := schema["properties"].get("status"):
        # One writer owns all of it: to know who owns which field would be a good part of what a write costs.
        status["x-kubernetes-map-type"] = "atomic"
        version["subresources"] = {"status": {}, **({"scale": dict(scale)} if scale else {})}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["codeexec"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }
