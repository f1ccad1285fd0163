"""What an image holds, from its own lists: Debian's packages, Python's distributions, and Python itself."""

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import BytesHeaderParser
from typing import IO, Any, Final
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

_STATUS: Final = re.compile(r"var/lib/dpkg/status(\.d/[^/.]+)?")
_METADATA: Final = re.compile(r".*\.dist-info/METADATA")
_RELEASE: Final = ("etc/os-release", "usr/lib/os-release")


@dataclass
class Contents:
    """Package URLs of what was found."""

    packages: set[PackageURL] = field(default_factory=set)
    distribution: str = ""
    """Such as debian-12."""


def inspected(reference: str) -> dict[str, Any]:
    """What the local Docker says of an image."""
    [about] = json.loads(_docker("image", "inspect", reference))
    return dict(about)


def of_image(reference: str) -> Contents:
    """What the local Docker's image holds."""
    container = _docker("create", reference).strip()
    try:
        export = subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE)
        assert export.stdout
        contents = of_archive(export.stdout)
        if export.wait() != 0:
            raise SystemExit(f"error: `docker export` of {reference} failed")
    finally:
        _docker("rm", container)
    for variable in inspected(reference)["Config"]["Env"] or ():
        name, _, value = variable.partition("=")
        if name == "PYTHON_VERSION":  # of the official image, where Python is no package of Debian
            contents.packages.add(PackageURL("generic", None, "python", value))
    return contents


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


def of_archive(stream: IO[bytes]) -> Contents:
    """What a file system holds, which comes as tar."""
    found, debian = Contents(), []
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            if not member.isfile() or not (file := archive.extractfile(member)):
                continue
            name = member.name.removeprefix("./")
            if _STATUS.fullmatch(name):
                debian += list(_debian(file.read()))
            elif _METADATA.fullmatch(name):
                headers = BytesHeaderParser().parsebytes(file.read())
                found.packages.add(PackageURL("pypi", None, canonicalize_name(headers["Name"]), headers["Version"]))
            elif name in _RELEASE:
                release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', file.read().decode(), re.MULTILINE))
                found.distribution = f"{release['ID']}-{release['VERSION_ID']}"
    found.packages |= {
        PackageURL("deb", "debian", name, version, {"distro": found.distribution, **qualifiers})
        for name, version, qualifiers in debian
    }
    return found


def _debian(status: bytes) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Name, version and qualifiers of each installed package in dpkg's list."""
    for paragraph in status.split(b"\n\n"):
        headers = BytesHeaderParser().parsebytes(paragraph + b"\n")
        if not headers["Package"] or "installed" not in (headers["Status"] or "installed").split():
            continue
        source = re.fullmatch(r"(\S+)(?: \((.+)\))?", headers["Source"] or "")
        upstream = {"upstream": "@".join(filter(None, source.groups()))} if source else {}
        yield headers["Package"], headers["Version"], {"arch": headers["Architecture"], **upstream}


def bill_of_materials(reference: str, contents: Contents, created: datetime) -> dict[str, Any]:
    """CycloneDX 1.6. The same image gives the same document, whatever registry it is in."""
    name, _, digest = reference.rpartition("/")[2].partition("@")
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, digest))
    bom.metadata.timestamp = created.astimezone(UTC).replace(microsecond=0)
    bom.metadata.component = Component(name=name, version=digest, type=ComponentType.CONTAINER, bom_ref=digest)
    for purl in sorted(contents.packages, key=str):
        kind = ComponentType.APPLICATION if purl.type == "generic" else ComponentType.LIBRARY
        bom.components.add(Component(name=purl.name, version=purl.version, type=kind, purl=purl, bom_ref=str(purl)))
    bom.register_dependency(bom.metadata.component, bom.components)
    document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    return document
