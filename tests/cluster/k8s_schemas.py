"""Writes strict JSON schemas of Kubernetes' objects, in the form that kubeconform reads.

usage: python3 k8s_schemas.py SWAGGER.JSON FOLDER

Called by tools.sh, because kubeconform itself downloads them. The input is the OpenAPI description inside Kubernetes'
Go module. The output is one file a kind, FOLDER/KIND-GROUP-VERSION.json, with everything that it refers to inside
(custom resource definitions refer to themselves). Unknown fields are refused.
"""

import json
import pathlib
import re
import sys

REFERENCE = "#/definitions/"
# The API server takes more for these than their definitions say.
LENIENT = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}


def field(schema: dict) -> dict:
    """A field's schema without what is only for readers and for Kubernetes' own tools."""
    kept = {key: value for key, value in schema.items() if key != "description" and not key.startswith("x-")}
    return {key: field(value) if key in ("items", "additionalProperties") else value for key, value in kept.items()}


def definition(name: str, schema: dict) -> dict:
    """The schema of a type; one with named fields accepts no others."""
    if name in LENIENT:
        return LENIENT[name]
    strict = field(schema)
    if "properties" in schema:
        strict["properties"] = {key: field(value) for key, value in schema["properties"].items()}
        strict["additionalProperties"] = False
    return strict


def reachable(name: str, definitions: dict[str, dict]) -> set[str]:
    """The definition and all that it refers to."""
    found, open_names = set(), [name]
    while open_names:
        name = open_names.pop()
        if name not in found:
            found.add(name)
            open_names += re.findall(rf'"{REFERENCE}([^"]+)"', json.dumps(definitions[name]))
    return found


def main(swagger: str, folder: str) -> None:
    source = json.loads(pathlib.Path(swagger).read_text())["definitions"]
    definitions = {name: definition(name, schema) for name, schema in source.items()}
    target = pathlib.Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name, schema in source.items():
        kinds = schema.get("x-kubernetes-group-version-kind", [])
        if len(kinds) != 1:  # not an object, or one that belongs to every group
            continue
        parts = [kinds[0]["kind"], kinds[0]["group"].split(".")[0], kinds[0]["version"]]
        file = target / ("-".join(part.lower() for part in parts if part) + ".json")
        needed = {other: definitions[other] for other in sorted(reachable(name, definitions))}
        file.write_text(json.dumps({"$ref": REFERENCE + name, "definitions": needed}))


main(*sys.argv[1:])
