"""Converts pydantic models into CustomResourceDefinitions with structural schemas.

Pydantic emits JSON schema. The API server takes structural schemas (apiextensions.k8s.io/v1): a subset of OpenAPI v3
without references, null types and `additionalProperties: false`.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from pydantic import BaseModel

from codeexec_api import names
from codeexec_api.v1alpha1.approval import ExecutionApproval
from codeexec_api.v1alpha1.base import Object
from codeexec_api.v1alpha1.execution import CodeExecution
from codeexec_api.v1alpha1.fields import rule
from codeexec_api.v1alpha1.policy import ExecutionPolicy
from codeexec_api.v1alpha1.pool import SandboxPool
from codeexec_api.v1alpha1.session import CodeSession

_MUTABLE: Final = {
    names.EXECUTION_KIND: {"cancelled"},
    names.SESSION_KIND: {"ended"},
    names.APPROVAL_KIND: {"revoked", "revokedBy"},
}
"""The fields of a spec that can change after creation, each by rules of its own. Specs of other kinds can change."""
_NAMES_A_POD: Final = rule(
    f"self.metadata.name.size() <= {names.MAX_EXECUTION_NAME} && !self.metadata.name.contains('.')",
    f"metadata.name must have at most {names.MAX_EXECUTION_NAME} characters and no dots: the pod is named after it",
)
_NAMES_PODS: Final = rule(
    f"self.metadata.name.size() <= {names.MAX_POOL_NAME} && !self.metadata.name.contains('.')",
    f"metadata.name must have at most {names.MAX_POOL_NAME} characters and no dots: the pods are named after it",
)
_IS_THE_DEFAULT: Final = rule(
    "self.metadata.name == 'default'",
    "metadata.name must be 'default': one ExecutionPolicy governs a namespace",
)
_ROOT_RULES: Final = {
    names.EXECUTION_KIND: [_NAMES_A_POD],
    names.SESSION_KIND: [_NAMES_A_POD],
    names.POOL_KIND: [_NAMES_PODS],
    names.POLICY_KIND: [_IS_THE_DEFAULT],
}
_RULES: Final = "x-kubernetes-validations"
_DROPPED: Final = ("title", "$defs")
_NO_DEFAULT: Final[tuple[Any, ...]] = (None, "", [])
_NESTED: Final = ("items", "additionalProperties")
_CLOSED: Final = {"additionalProperties": False}
"""Implied for an object. For a map, `additionalProperties` is the schema of the values."""
_OF_TYPE: Final = {"integer": {"format": "int64"}, "array": {"x-kubernetes-list-type": "atomic"}}
"""Keywords of a type, where the model says nothing else."""


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """Structural schema of a model: references inlined, nulls and noise removed, and no field mutable by oversight."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    definitions = schema.get("$defs", {})
    if mutable := _MUTABLE.get(model.__name__):
        _freeze(definitions[f"{model.__name__}Spec"], mutable, model.__name__)
    return _convert(schema, definitions)


def _freeze(spec: dict[str, Any], mutable: Collection[str], kind: str) -> None:
    """Make all other fields immutable: no value can change, and none that is optional can be added or removed."""
    presence = []
    for name, field in spec["properties"].items():
        if name in mutable:
            continue
        message = f"spec.{name} is immutable: create a new {kind} instead"
        field[_RULES] = [{"message": message, "rule": "self == oldSelf"}, *field.get(_RULES, [])]
        if name not in spec["required"] and field.get("default") in _NO_DEFAULT:
            kept = f"has(self.{name}) == has(oldSelf.{name})"
            presence.append({"fieldPath": f".{name}", "message": message, "rule": kept})
    spec[_RULES] = presence + spec.get(_RULES, [])


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
    if result.get("default", ...) in _NO_DEFAULT:
        del result["default"]
    if "description" in result:
        result["description"] = " ".join(result["description"].split())  # docstrings are wrapped
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if "properties" in result:
        result["properties"] = {name: _convert(child, definitions) for name, child in result["properties"].items()}
    if result.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
        result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if result.get("format") == "date-time" and result.get("type") == "string":
        result.pop("default", None)
    for key, value in _OF_TYPE.get(result.get("type", ""), {}).items():
        result.setdefault(key, value)
    return result


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Join a referenced schema with the keywords beside the reference. The validation rules of both apply."""
    rules = [*base.get(_RULES, []), *over.get(_RULES, [])]
    return base | over | ({_RULES: rules} if rules else {})


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False, text: str) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path, "description": text}
    return column | {"priority": 1} if wide else column


_AGE: Final = _column("Age", ".metadata.creationTimestamp", "date", text="Time since creation")
_AGENT: Final = _column("Agent", ".spec.source.agent", text="Agent that made the request, as claimed by the client")
_EGRESS: Final = _column(
    "Egress", ".status.egressProof.verdict", wide=True, text="Whether the sandbox's network was shown to be closed"
)
_IMAGE: Final = _column("Image", ".status.image", wide=True, text="Sandbox image")
_AUDITED: Final = _column(
    "Audited", ".status.audit.time", wide=True, text="Time of the audit line that belongs to the status"
)
_NODE: Final = _column("Node", ".status.nodeName", wide=True, text="Node of the sandbox pod")
_POD: Final = _column("Pod", ".status.podName", wide=True, text="Sandbox pod")
_STARTED: Final = _column("Started", ".status.startedAt", "date", wide=True, text="Time since the code was started")
_RUNTIME: Final = _column(
    "Runtime", ".status.runtimeClassName", wide=True, text="RuntimeClass; empty for the node's default runtime"
)
_BOUNDARY: Final = _column(
    "Boundary", ".status.boundary", wide=True, text="What separates the code from the kernel of its node"
)
_REQUESTED_BY: Final = "User who created it, as the API server authenticated them"

_EXECUTION_COLUMNS: Final = [
    _AGENT,
    _column("Language", ".status.summary.languages", text="Languages of the blocks, or files"),
    _column("Phase", ".status.phase", text="State of the execution"),
    _column("Reason", ".status.reason", text="Reason for the phase"),
    _column("Exit", ".status.exitCode", "integer", text="Exit code of the last block that ran"),
    _column("Duration", ".status.summary.duration", text="Time from the start of the code to its end"),
    _AGE,
    _column("Requested-By", ".spec.requestedBy", wide=True, text=_REQUESTED_BY),
    _column("Approver", ".status.approval.approver", wide=True, text="User who approved or denied it"),
    _column("Session", ".spec.sessionRef.name", wide=True, text="Session; empty for a pod of its own"),
    _STARTED,
    _POD,
    _NODE,
    _RUNTIME,
    _BOUNDARY,
    _EGRESS,
    _column("Digest", ".status.summary.digest", wide=True, text="Start of the digest of the code and files"),
    _IMAGE,
    _AUDITED,
]
_SESSION_COLUMNS: Final = [
    _AGENT,
    _column("Phase", ".status.phase", text="State of the session"),
    _column("Reason", ".status.reason", text="Reason for the phase"),
    # Who holds which pod, and since when.
    _column("Requested-By", ".spec.requestedBy", text=_REQUESTED_BY),
    _column("Client", ".spec.clientLease", text="Lease of the client; empty if the session outlives it"),
    _column("Pod", ".status.podName", text="Sandbox pod"),
    _AGE,
    _column("Started", ".status.startedAt", "date", wide=True, text="Time since the session was ready"),
    _column("Executions", ".status.executions", "integer", wide=True, text="Executions that ran in the session"),
    _column("Last-Used", ".status.lastUsedAt", "date", wide=True, text="Time since the end of the last execution"),
    _column("Stateful", ".spec.stateful", "boolean", wide=True, text="Whether Python variables persist"),
    _NODE,
    _RUNTIME,
    _BOUNDARY,
    _EGRESS,
    _IMAGE,
    _AUDITED,
]
_POOL_COLUMNS: Final = [
    _column("Replicas", ".spec.replicas", "integer", text="Pods to keep ready, in addition to those in use"),
    _column("Ready", ".status.readyReplicas", "integer", text="Pods that are ready and not in use"),
    _column("In-Use", ".status.claimedReplicas", "integer", text="Pods that executions and sessions use"),
    _column("Queued", ".status.queued", "integer", text="Executions that wait for a pod"),
    _column("Reason", ".status.conditions[?(@.type=='Ready')].reason", text="Why the pool is ready or not"),
    _AGE,
    _column(
        "Refill-Ms", ".status.lastRefillMs", "integer", wide=True, text="Start time of the newest ready pod, in ms"
    ),
    _RUNTIME,
    _IMAGE,
    _column("Message", ".status.conditions[?(@.type=='Ready')].message", wide=True, text="The reason in words"),
]
_APPROVAL_COLUMNS: Final = [
    _column("Execution", ".spec.executionRef.name", text="Execution that the decision is about"),
    _column("Decision", ".spec.decision", text="Approve or Deny"),
    _column("Approver", ".spec.approver", text="User who decided, as the API server authenticated them"),
    # A time in the future: as a date, kubectl would print `<invalid>`.
    _column("Expires", ".spec.expiresAt", text="Time by which the code must have started"),
    _column("Revoked", ".spec.revoked", "boolean", text="Whether the decision was revoked"),
    _AGE,
    _column("Requested-By", ".spec.executionRef.requestedBy", wide=True, text="User who requested the execution"),
    _column("Revoked-By", ".spec.revokedBy", wide=True, text="User who revoked the decision"),
    _column("Reason", ".spec.reason", wide=True, text="Reason for the decision, in the words of the approver"),
]
_POLICY_COLUMNS: Final = [
    _column("Languages", ".spec.languages", text="Allowed languages"),
    _column("Max-Timeout", ".spec.maxTimeoutSeconds", "integer", text="Highest timeout of a block, in seconds"),
    _column("Max-Blocks", ".spec.maxBlocks", "integer", text="Highest number of blocks in one execution"),
    _column("Egress-Proof", ".spec.egressProof", text="Enforce: no code runs unless the network is shown to be closed"),
    _column("Runtime", ".spec.runtimeClassName", text="RuntimeClass of requests that name none"),
    _column("Ready", ".status.conditions[?(@.type=='Ready')].status", text="Whether the policy is in force"),
    _AGE,
    _column("Image", ".spec.images[0]", wide=True, text="Default image"),
    _column("Message", ".status.conditions[?(@.type=='Ready')].message", wide=True, text="Why it is in force or not"),
]


_POOL_SCALE: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


_PHASE: Final = ".status.phase"
"""The operator lists and watches only what isn't over."""


def custom_resource_definitions() -> dict[str, dict[str, Any]]:
    """Every CRD by its file name."""
    return {
        "codeexecutions.yaml": _definition(CodeExecution, "cex", _EXECUTION_COLUMNS, selectable=_PHASE),
        "codesessions.yaml": _definition(CodeSession, "cses", _SESSION_COLUMNS, selectable=_PHASE),
        "sandboxpools.yaml": _definition(SandboxPool, "sbp", _POOL_COLUMNS, scale=_POOL_SCALE),
        "executionapprovals.yaml": _definition(ExecutionApproval, "xapp", _APPROVAL_COLUMNS),
        "executionpolicies.yaml": _definition(ExecutionPolicy, "xpol", _POLICY_COLUMNS),
    }


def _definition(
    model: type[Object],
    short: str,
    columns: list[dict[str, Any]],
    *,
    scale: Mapping[str, str] | None = None,
    selectable: str | None = None,
) -> dict[str, Any]:
    schema, kind = structural(model), model.kind
    schema["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        **{name: child for name, child in schema["properties"].items() if name != "metadata"},
    }
    schema["required"] = ["spec"]
    if rules := _ROOT_RULES.get(kind):
        schema[_RULES] = rules
    version: dict[str, Any] = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": columns,
    }
    if selectable:
        version["selectableFields"] = [{"jsonPath": selectable}]
    if status := schema["properties"].get("status"):
        # One writer owns the whole status. To track the owner of each field would make writes much more expensive.
        status["x-kubernetes-map-type"] = "atomic"
        version["subresources"] = {"status": {}, **({"scale": dict(scale)} if scale else {})}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{model.plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": model.plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["codeexec"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }
