"""What the schemas say of values: how lists are shared, which numbers are allowed, and what texts look like."""

import re
from typing import Any

from schema_nodes import nodes

from codeexec_api.schema import custom_resource_definitions

FREE = (
    # Words of people, agents and code, and messages.
    *("message", "reason", "agent", "executor", "conversation", "text", "permit", "found", "places", "field", "value"),
    # What others define: users, images on nodes, label selectors, UIDs, addresses, Sigstore bundles.
    *("requestedBy", "approver", "revokedBy", "image", "imageID", "selector", "uid", "address", "imageSignatures"),
    # Rules in CEL say more than a pattern could.
    *("filename", "path", "fetch"),
    *("languages", "duration"),  # of `status.summary`, which only columns show
)
"""Fields whose text has no pattern, but a greatest length."""


def of_type(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Each such value in a spec or status, by its path."""
    schemas = [
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in custom_resource_definitions().values()
    ]
    fields = [one for schema in schemas for one in nodes(schema) if one[0].startswith((".spec", ".status"))]
    return [(path, node) for path, node in fields if node.get("type") == kind]


def test_each_list_says_how_appliers_share_it() -> None:
    for path, node in of_type("array"):
        kind = node["x-kubernetes-list-type"]
        assert kind in ("atomic", "set", "map"), path
        assert kind != "set" or node["items"]["type"] == "string", path
        assert (kind == "map") == ("x-kubernetes-list-map-keys" in node), path
        assert node["maxItems"], path


def test_lists_with_an_order_are_not_merged() -> None:
    """The first image is the default, the first rule that matches counts, and blocks run in order."""
    kinds = {path: node["x-kubernetes-list-type"] for path, node in of_type("array")}
    ordered = (".spec.images", ".spec.agentRules", ".spec.agentRules[].images", ".spec.blocks", ".status.outputOrder")
    assert {kinds[path] for path in ordered} == {"atomic"}


def test_each_number_has_bounds() -> None:
    for path, node in of_type("integer"):
        assert node["minimum"] <= node["maximum"], path


def test_each_text_has_a_form_and_a_greatest_length() -> None:
    for path, node in of_type("string"):
        if "enum" not in node and "format" not in node:
            assert "pattern" in node or path.rpartition(".")[2].rstrip("[]") in FREE, path
            assert "maxLength" in node or re.search(r"]\{\d+}\$$", node["pattern"]), path
