"""`python -m codeexec_api ROOT` generates files from the API contract and writes them into the checkout at ROOT."""

import json
import sys
from pathlib import Path

import yaml

from codeexec_api.phases import to_markdown
from codeexec_api.schema import custom_resource_definitions

_HEADER = "# Generated from crds/codeexec_api by `make generate`; do not edit.\n"


def generate() -> dict[str, str]:
    """The content of each generated file, by its path in the checkout."""
    files = {"docs/phases.md": to_markdown()}
    for name, crd in custom_resource_definitions().items():
        plain = json.loads(json.dumps(crd))  # without this, YAML anchors replace repeated parts
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110)
        files[f"charts/codeexec/files/crds/{name}"] = _HEADER + text
    return files


def main() -> None:
    """Write each generated file into the checkout that the only argument names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m codeexec_api CHECKOUT")
    for name, content in generate().items():
        path = Path(sys.argv[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
