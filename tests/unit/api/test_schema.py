"""Structural schemas: what the API server takes, with every rule in them."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from codeexec_api.quantities import QUANTITY_PATTERN
from codeexec_api.schema import custom_resource_definitions, structural
from codeexec_api.v1alpha1 import CodeExecution, ExecutionPolicy

IMMUTABLE = {
    "blocks",
    "files",
    "payloadRef",
    "source",
    "timeoutSeconds",
    "limits",
    "image",
    "runtimeClassName",
    "traceparent",
    "ttlSecondsAfterFinished",
}
OPTIONAL = {"files", "image", "runtimeClassName", "traceparent", "ttlSecondsAfterFinished"}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each schema in a schema, by its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def execution_schema(path: str) -> dict[str, Any]:
    return dict(nodes(structural(CodeExecution)))[path]


def rules(schema: dict[str, Any]) -> list[str]:
    return [rule["rule"] for rule in schema.get("x-kubernetes-validations", [])]


@pytest.mark.parametrize("model", [CodeExecution, ExecutionPolicy])
def test_nothing_that_a_structural_schema_may_not_hold(model: type[BaseModel]) -> None:
    for path, node in nodes(structural(model)):
        forbidden = {"$ref", "$defs", "title", "additionalProperties", "const", "allOf", "oneOf"} & set(node)
        assert not forbidden, path
        assert node.get("type") in {"object", "array", "string", "integer", "boolean", None}, path
        assert node.get("default", "something") is not None, path
        if "x-kubernetes-int-or-string" in node:
            assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
            assert "type" not in node, path
        else:
            assert "type" in node, path
            assert "anyOf" not in node, path


@pytest.mark.parametrize("name", ["cpu", "memory", "ephemeralStorage"])
def test_a_quantity_is_int_or_string_and_checked(name: str) -> None:
    node = execution_schema(f".spec.limits.{name}")
    assert node["x-kubernetes-int-or-string"] is True
    assert any("isGreaterThan" in rule for rule in rules(node))


@pytest.mark.parametrize("name", ["cpu", "memory", "ephemeralStorage"])
def test_the_api_server_takes_no_quantity_that_the_operator_does_not_understand(name: str) -> None:
    """`1e3` and `5n` are quantities for Kubernetes, but not for `parse_quantity`."""
    assert execution_schema(f".spec.limits.{name}").get("pattern") == QUANTITY_PATTERN


@pytest.mark.parametrize("name", sorted(IMMUTABLE))
def test_fields_of_the_spec_are_immutable(name: str) -> None:
    assert "self == oldSelf" in rules(execution_schema(f".spec.{name}"))


def test_every_field_of_the_spec_is_immutable_or_cancelled() -> None:
    assert set(execution_schema(".spec")["properties"]) == IMMUTABLE | {"cancelled"}
    assert rules(execution_schema(".spec.cancelled")) == ["!oldSelf || self"]


@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_optional_fields_can_be_neither_added_nor_removed(name: str) -> None:
    assert f"has(self.{name}) == has(oldSelf.{name})" in rules(execution_schema(".spec"))


def test_all_optional_fields_without_a_default_are_known() -> None:
    spec = execution_schema(".spec")
    without = {name for name, node in spec["properties"].items() if "default" not in node}
    assert without - set(spec["required"]) == OPTIONAL


@pytest.mark.parametrize("path", [".spec.blocks[].filename", ".spec.files[].path"])
def test_paths_stay_in_the_workspace(path: str) -> None:
    assert any("'..'" in rule for rule in rules(execution_schema(path)))


def test_the_size_of_the_payload_is_checked() -> None:
    assert any("sum()" in rule and "1000000" in rule for rule in rules(execution_schema(".spec")))


@pytest.mark.parametrize("crd", custom_resource_definitions().values(), ids=custom_resource_definitions())
def test_the_definition_as_a_whole(crd: dict[str, Any]) -> None:
    [version] = crd["spec"]["versions"]
    assert crd["metadata"]["name"] == f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
    assert crd["spec"]["scope"] == "Namespaced"
    assert crd["spec"]["names"]["categories"] == ["codeexec"]
    root = version["schema"]["openAPIV3Schema"]
    assert root["required"] == ["spec"]
    assert rules(root)
    assert ("status" in root["properties"]) == ("status" in version.get("subresources", {}))
    for column in version["additionalPrinterColumns"]:
        assert column["description"]


def test_each_printer_column_shows_a_field_that_exists() -> None:
    for crd in custom_resource_definitions().values():
        [version] = crd["spec"]["versions"]
        known = {path for path, _ in nodes(version["schema"]["openAPIV3Schema"])} | {".metadata.creationTimestamp"}
        assert {column["jsonPath"] for column in version["additionalPrinterColumns"]} <= known


def test_every_field_of_a_spec_has_a_description() -> None:
    for path, node in nodes(execution_schema(".spec"), ".spec"):
        assert path.endswith("[]") or node.get("description"), path


def test_short_names() -> None:
    names = [crd["spec"]["names"]["shortNames"] for crd in custom_resource_definitions().values()]
    assert names == [["cex"], ["xpol"]]
