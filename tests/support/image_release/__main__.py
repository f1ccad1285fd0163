"""The command line: `sign` for any image in a registry, `attest` for those that tests/cluster/images.sh has built."""

import argparse
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from codeexec_api.image_signatures import SIGN_PREDICATE
from codeexec_api.v1alpha1.bounds import IMAGE_PATTERN
from image_release.contents import bill_of_materials, inspected, of_image
from image_release.provenance import provenance, tree
from image_release.registry import Repository
from image_release.signing import CYCLONEDX, FOLDER, PROVENANCE, ROOT, SigningKey, signing_key, statement


def sign(reference: str, key: SigningKey, repository: Repository) -> Path:
    """Sign one image; returns where the signature is kept, besides the registry."""
    bundle = key.sign(statement(reference))
    repository.attach(bundle, SIGN_PREDICATE)
    path = place(reference, "sigstore.json")
    path.write_text(bundle)
    return path


def place(reference: str, suffix: str) -> Path:
    """The file for an image, named by its digest."""
    return FOLDER / f"{reference.rpartition('@')[2].replace(':', '-')}.{suffix}"


def attest(asked: argparse.Namespace, key: SigningKey, repository: Repository) -> None:
    """Attest what is in an image and what it was made of. That is found out once for each image."""
    for suffix, kind, find in (("cdx.json", CYCLONEDX, contained), ("provenance.json", PROVENANCE, made_of)):
        path = place(asked.reference, suffix)
        if not path.exists():
            path.write_text(json.dumps(find(asked), indent=1))
        repository.attach(key.sign(statement(asked.reference, kind, json.loads(path.read_text()))), kind)


def contained(asked: argparse.Namespace) -> dict[str, Any]:
    """The bill of materials."""
    created = datetime.fromisoformat(inspected(asked.reference)["Created"])
    return bill_of_materials(asked.reference, of_image(asked.reference), created)


def made_of(asked: argparse.Namespace) -> dict[str, Any]:
    """The provenance."""
    created, (commit, dirty) = inspected(asked.reference)["Created"], tree(ROOT, asked.paths)
    locks = {path: (ROOT / path).read_bytes() for path in asked.paths if path.startswith("requirements/")}
    return provenance(asked.name, asked.sources, asked.base, locks, commit, dirty, created)


def by_digest(text: str) -> str:
    """A reference by digest."""
    if not re.fullmatch(IMAGE_PATTERN, text):
        raise argparse.ArgumentTypeError(f"{text!r} is no reference by digest (NAME@sha256:…)")
    return text


def main() -> None:
    """Do what the command line says; prints where the signature is kept."""
    parser = argparse.ArgumentParser(prog="python -m image_release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("sign", "attest"):
        command = commands.add_parser(name)
        command.add_argument("reference", type=by_digest, help="NAME@sha256:…, which is in its registry")
    command.add_argument("--name", required=True, help="operator or sandbox")
    command.add_argument("--sources", required=True, help="hash of the files that went in")
    command.add_argument("--base", required=True, help="base image, by digest or with its ID")
    command.add_argument("paths", nargs="+", help="files and folders that went in, from the root of the tree")
    asked = parser.parse_args()
    key, repository = signing_key(), Repository(asked.reference)
    if asked.command == "attest":
        attest(asked, key, repository)
    print(sign(asked.reference, key, repository))


if __name__ == "__main__":
    main()
