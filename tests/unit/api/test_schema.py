"""Structural schemas: what the API server takes, with every rule in them."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from schema_nodes import nodes

from codeexec_api.quantities import QUANTITY_PATTERN
from codeexec_api.schema import custom_resource_definitions, structural
from codeexec_api.v1alpha1.approval import ExecutionApproval
from codeexec_api.v1alpha1.execution import CodeExecution
from codeexec_api.v1alpha1.policy import ExecutionPolicy
from codeexec_api.v1alpha1.session import CodeSession

DEFINITIONS = custom_resource_definitions()
IMMUTABLE = {
    CodeExecution: {
        "artifacts",
        "blocks",
        "egress",
        "files",
        "image",
        "limits",
        "mounts",
        "payloadRef",
        "queueTimeoutSeconds",
        "requestedBy",
        "runtimeClassName",
        "sealedPayload",
        "sessionRef",
        "source",
        "timeoutSeconds",
        "traceparent",
        "ttlSecondsAfterFinished",
    },
    ExecutionApproval: {"approver", "decision", "executionRef", "expiresAt", "grants", "reason"},
    CodeSession: {
        "clientLease",
        "idleTimeoutSeconds",
        "image",
        "limits",
        "maxLifetimeSeconds",
        "requestedBy",
        "runtimeClassName",
        "sleepAfterSeconds",
        "source",
        "stateful",
        "traceparent",
    },
}
OPTIONAL = {
    CodeExecution: {
        "egress",
        "files",
        "image",
        "mounts",
        "payloadRef",
        "queueTimeoutSeconds",
        "requestedBy",
        "runtimeClassName",
        "sealedPayload",
        "sessionRef",
        "traceparent",
        "ttlSecondsAfterFinished",
    },
    CodeSession: {"clientLease", "image", "requestedBy", "runtimeClassName", "sleepAfterSeconds", "traceparent"},
    ExecutionApproval: {"expiresAt", "grants", "reason"},
}
ONE_WAY = {CodeExecution: "cancelled", CodeSession: "ended", ExecutionApproval: "revoked"}
SET_ONCE = {ExecutionApproval: {"revokedBy"}}
"""Fields that come together with the one-way field, and have rules of their own."""
Model = type[CodeExecution] | type[CodeSession] | type[ExecutionApproval]
both_kinds = pytest.mark.parametrize("model", [CodeExecution, CodeSession])
every_record = pytest.mark.parametrize("model", [CodeExecution, CodeSession, ExecutionApproval])


def schema_at(path: str, model: Model = CodeExecution) -> dict[str, Any]:
    return dict(nodes(structural(model)))[path]


def rules(schema: dict[str, Any]) -> list[str]:
    return [rule["rule"] for rule in schema.get("x-kubernetes-validations", [])]


@pytest.mark.parametrize("model", [CodeExecution, CodeSession, ExecutionApproval, ExecutionPolicy])
def test_nothing_that_a_structural_schema_may_not_hold(model: type[BaseModel]) -> None:
    for path, node in nodes(structural(model)):
        forbidden = {"$ref", "$defs", "title", "const", "allOf", "oneOf"} & set(node)
        assert not forbidden, path
        if "additionalProperties" in node:  # a map
            assert node["additionalProperties"]["type"] == "string", path
            assert node["additionalProperties"]["maxLength"] * node["maxProperties"] < 1000, path
            assert "properties" not in node, path
        assert node.get("type") in {"object", "array", "string", "integer", "boolean", None}, path
        assert node.get("default", "something") is not None, path
        if "x-kubernetes-int-or-string" in node:
            assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
            assert "type" not in node, path
        else:
            assert "type" in node, path
            assert "anyOf" not in node, path


@both_kinds
@pytest.mark.parametrize("name", ["cpu", "memory", "ephemeralStorage"])
def test_a_quantity_is_int_or_string_and_checked(model: Model, name: str) -> None:
    node = schema_at(f".spec.limits.{name}", model)
    assert node["x-kubernetes-int-or-string"] is True
    assert any("isGreaterThan" in rule for rule in rules(node))


@pytest.mark.parametrize("name", ["cpu", "memory", "ephemeralStorage"])
def test_the_api_server_takes_no_quantity_that_the_operator_does_not_understand(name: str) -> None:
    """`1e3` and `5n` are quantities for Kubernetes, but not for `parse_quantity`."""
    assert schema_at(f".spec.limits.{name}").get("pattern") == QUANTITY_PATTERN


@every_record
def test_every_field_of_the_spec_is_immutable_but_for_the_one_that_ends_it(model: Model) -> None:
    fields = schema_at(".spec", model)["properties"]
    assert set(fields) == IMMUTABLE[model] | {ONE_WAY[model]} | SET_ONCE.get(model, set())
    for name in IMMUTABLE[model]:
        [rule] = [one for one in fields[name]["x-kubernetes-validations"] if one["rule"] == "self == oldSelf"]
        assert rule["message"] == f"spec.{name} is immutable: create a new {model.__name__} instead"
    assert rules(fields[ONE_WAY[model]]) == ["!oldSelf || self"]


@every_record
def test_optional_fields_can_be_neither_added_nor_removed(model: Model) -> None:
    spec = schema_at(".spec", model)
    without_default = {name for name, node in spec["properties"].items() if "default" not in node}
    assert without_default - set(spec["required"]) - SET_ONCE.get(model, set()) == OPTIONAL[model]
    for name in OPTIONAL[model]:
        [rule] = [
            one for one in spec["x-kubernetes-validations"] if one["rule"] == f"has(self.{name}) == has(oldSelf.{name})"
        ]
        assert rule["message"] == f"spec.{name} is immutable: create a new {model.__name__} instead"
        assert rule["fieldPath"] == f".{name}"


@pytest.mark.parametrize(
    ("field", "rule"),
    [
        (".approver", "self.approver != self.executionRef.requestedBy"),
        (".grants", "self.decision != 'Approve' || (has(self.grants) && has(self.expiresAt))"),
        (".revokedBy", "has(self.revokedBy) == self.revoked"),
        (".revokedBy", "!has(oldSelf.revokedBy) || self.revokedBy == oldSelf.revokedBy"),
    ],
)
def test_fields_of_an_approval_that_depend_on_each_other_have_a_rule(field: str, rule: str) -> None:
    entries = schema_at(".spec", ExecutionApproval)["x-kubernetes-validations"]
    assert rule in [one["rule"] for one in entries if one.get("fieldPath") == field]


def every_text(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from ((path, node) for path, node in nodes(schema) if node.get("type") == "string" and "enum" not in node)


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (CodeExecution, ".spec.egress"),
        (CodeExecution, ".spec.mounts"),
        *(
            (ExecutionPolicy, f"{where}.{field}")
            for where in (".spec", ".spec.withApproval", ".spec.agentRules[]")
            for field in ("egress", "mounts")
        ),
    ],
)
def test_permits_and_mounts_are_bounded_in_all_that_they_hold(model: Model, field: str) -> None:
    """The API server refuses a CRD whose rules could cost too much, and it reckons by these bounds."""
    schema = schema_at(field, model)
    assert schema["maxItems"] <= 16
    assert all(node["maxLength"] <= 253 for _, node in every_text(schema))


def test_a_rule_for_some_agents_is_not_one_for_all() -> None:
    assert rules(schema_at(".spec.agentRules[]", ExecutionPolicy)) == ["has(self.agent) || has(self.requestedBy)"]


@pytest.mark.parametrize("where", [".spec.withApproval.maxLimits", ".spec.agentRules[].maxLimits"])
@pytest.mark.parametrize("name", ["cpu", "memory", "ephemeralStorage"])
def test_a_quantity_in_a_policy_is_a_bounded_text_that_is_checked(where: str, name: str) -> None:
    """The API server reckons what the rules of a list cost by the length of what is in it."""
    node = schema_at(f"{where}.{name}", ExecutionPolicy)
    assert (node["type"], node["maxLength"], node["pattern"]) == ("string", 32, QUANTITY_PATTERN)
    assert any("isGreaterThan" in rule for rule in rules(node))


@pytest.mark.parametrize("crd", DEFINITIONS.values(), ids=DEFINITIONS)
def test_the_definition_as_a_whole(crd: dict[str, Any]) -> None:
    [version] = crd["spec"]["versions"]
    assert crd["metadata"]["name"] == f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
    assert crd["spec"]["scope"] == "Namespaced"
    assert crd["spec"]["names"]["categories"] == ["codeexec"]
    root = version["schema"]["openAPIV3Schema"]
    assert root["required"] == ["spec"]
    named_after = crd["spec"]["names"]["kind"] != "ExecutionApproval"  # a pod, or the policy that counts
    assert any("self.metadata.name" in rule for rule in rules(root)) == named_after
    assert ("status" in root["properties"]) == ("status" in version.get("subresources", {}))
    for column in version["additionalPrinterColumns"]:
        assert column["description"]


def test_each_printer_column_shows_a_field_that_exists() -> None:
    for crd in DEFINITIONS.values():
        [version] = crd["spec"]["versions"]
        known = {path for path, _ in nodes(version["schema"]["openAPIV3Schema"])} | {".metadata.creationTimestamp"}
        shown = {re.sub(r"\[[^]]*]", "[]", column["jsonPath"]) for column in version["additionalPrinterColumns"]}
        assert shown <= known


PAST = {
    ".metadata.creationTimestamp",
    ".status.startedAt",
    ".status.finishedAt",
    ".status.endedAt",
    ".status.lastUsedAt",
}
"""Times that never lie in the future."""
COLUMNS = [
    pytest.param(column, id=f"{crd['spec']['names']['plural']}-{column['name']}")
    for crd in DEFINITIONS.values()
    for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]
]


@pytest.mark.parametrize("column", COLUMNS)
def test_a_date_column_shows_a_past_time(column: dict[str, Any]) -> None:
    """kubectl prints the time since a date, and `<invalid>` for a future one."""
    assert column["type"] != "date" or column["jsonPath"] in PAST


def columns(file: str, *, wide: bool = False) -> list[str]:
    [version] = DEFINITIONS[file]["spec"]["versions"]
    return [one["name"] for one in version["additionalPrinterColumns"] if wide or "priority" not in one]


@pytest.mark.parametrize("file", DEFINITIONS)
def test_columns_are_few_and_end_with_the_age(file: str) -> None:
    """Without `-o wide` a row has to fit into a terminal."""
    assert columns(file)[-1] == "Age"
    assert len(columns(file)) <= 7
    assert len(set(columns(file, wide=True))) == len(columns(file, wide=True))


@pytest.mark.parametrize("file", ["codeexecutions.yaml", "codesessions.yaml", "sandboxpools.yaml"])
def test_what_is_not_well_says_why_without_wide_output(file: str) -> None:
    assert "Reason" in columns(file)


def fields(schema: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Path, name and description of each field in a CRD's schema, and of each object in a list.

    The API server serves its own descriptions of apiVersion, kind and metadata.
    """
    for path, node in nodes(schema):
        name = path.rpartition(".")[2]
        if path in ("", ".apiVersion", ".kind", ".metadata") or (name.endswith("[]") and node["type"] != "object"):
            continue
        yield path, name, node.get("description", "")


EVERY_DESCRIPTION = [
    pytest.param([*fields(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])], id=file)
    for file, crd in DEFINITIONS.items()
]
every_description = pytest.mark.parametrize("descriptions", EVERY_DESCRIPTION)
Descriptions = list[tuple[str, str, str]]


@every_description
def test_every_field_has_a_description(descriptions: Descriptions) -> None:
    assert [path for path, _, text in descriptions if not text] == []


@every_description
def test_descriptions_are_sentences_that_begin_with_the_name_of_the_field(descriptions: Descriptions) -> None:
    """As the API conventions of Kubernetes ask."""
    for path, name, text in descriptions:
        assert name.endswith("[]") or text.startswith(f"{name} "), path
        assert text.endswith("."), path
        assert len(max(re.split(r"[.:] ", text), key=lambda one: len(one.split())).split()) <= 35, path


FIELD_PATHS = [
    path.replace("[]", "")
    for crd in DEFINITIONS.values()
    for path, _ in nodes(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
]
NO_FIELDS = ("metadata.uid", "metadata.generation", "codeexec.dev", "os.path")


def names_in_python(text: str) -> list[str]:
    """Words of the implementation: `snake_case`, `CONSTANTS`, and dotted names that aren't fields of the API."""
    dotted = re.findall(r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", text)
    foreign = [one for one in dotted if one not in NO_FIELDS and not any(f".{one}" in path for path in FIELD_PATHS)]
    return foreign + re.findall(r"\b\w*_\w*\b", text)


def test_what_counts_as_a_name_in_python() -> None:
    assert names_in_python("see `codeexec_api.names.ORDER_KEY`")
    assert names_in_python("names.order, snake_case, MAX_BYTES") == ["names.order", "snake_case", "MAX_BYTES"]
    assert names_in_python("spec.limit.cpu") == ["spec.limit.cpu"]
    assert not names_in_python(
        "status.outputRefs, limits.cpu, spec.blocks[0]. Of codeexec.dev/payload, os.path or 2.50s"
    )


@every_description
def test_no_description_names_anything_in_python(descriptions: Descriptions) -> None:
    assert {path: found for path, _, text in descriptions if (found := names_in_python(text))} == {}


@pytest.mark.parametrize("column", COLUMNS)
def test_no_column_names_anything_in_python(column: dict[str, Any]) -> None:
    assert names_in_python(column["description"]) == []


def test_short_names() -> None:
    names = [crd["spec"]["names"]["shortNames"] for crd in DEFINITIONS.values()]
    assert names == [["cex"], ["cses"], ["sbp"], ["xapp"], ["xpol"]]
