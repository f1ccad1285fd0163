"""The bills of materials of the images (`make sbom`) agree with the locks and with what code finds in a pod."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import ROOT, image
from jsonschema import Draft7Validator
from locked import locked
from packaging.utils import canonicalize_name
from referencing import Registry, Resource

IMAGES = ("operator", "sandbox")
OF_THE_BASE = {"pip", "setuptools", "wheel"}
"""What the official image of Python brings along; Debian's has none of them."""
OURS = {"operator": {"codeexec", "codeexec-operator"}, "sandbox": set()}

LIST_PACKAGES = """
import importlib.metadata, json
print(json.dumps([[one.metadata["Name"], one.version] for one in importlib.metadata.distributions()]))
"""


def sbom(name: str) -> dict[str, Any]:
    path = ROOT / ".codeexec" / "sbom" / f"{name}.cdx.json"
    assert path.is_file(), f"{path} is missing: run `make sbom`"
    return json.loads(path.read_text())


def listed(name: str, kind: str) -> set[tuple[str, str]]:
    """Names and versions of one kind of package (pypi, deb) in the bill of materials."""
    return listed_in(sbom(name), kind)


def listed_in(document: dict[str, Any], kind: str) -> set[tuple[str, str]]:
    ours = [one for one in document["components"] if one.get("purl", "").startswith(f"pkg:{kind}/")]
    return {(one["name"] if kind == "deb" else canonicalize_name(one["name"]), one["version"]) for one in ours}


def names(packages: set[tuple[str, str]]) -> set[str]:
    return {name for name, _ in packages}


@pytest.fixture(scope="module")
def cyclonedx() -> Draft7Validator:
    """The schema of CycloneDX, as it comes with the program that writes the bills of materials."""
    tools = [str(ROOT / "tests" / "cluster" / "tools.sh"), "--sbom-schemas"]
    folder = Path(subprocess.run(tools, capture_output=True, text=True, check=True).stdout.strip())
    schemas = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    registry = Registry().with_resources((one["$id"], Resource.from_contents(one)) for one in schemas)
    (bom,) = [one for one in schemas if "/bom-" in one["$id"]]
    return Draft7Validator(bom, registry=registry)


@pytest.mark.parametrize("name", IMAGES)
def test_the_bill_of_materials_is_that_of_the_image_in_use(name):
    component = sbom(name)["metadata"]["component"]
    assert f"{component['name']}@{component['version']}" == image(f"{name.upper()}_IMAGE"), "run `make sbom`"


@pytest.mark.parametrize("name", IMAGES)
def test_the_bill_of_materials_is_valid(name, cyclonedx):
    document = sbom(name)
    assert document["bomFormat"] == "CycloneDX"
    assert not [error.message for error in cyclonedx.iter_errors(document)]
    document["components"][0].pop("name")
    assert not cyclonedx.is_valid(document)


@pytest.mark.parametrize(("name", "known"), [("operator", "kopf kubernetes"), ("sandbox", "numpy pandas matplotlib")])
def test_the_bill_of_materials_names_what_is_locked_and_nothing_else(name, known):
    assert set(known.split()) <= names(locked(name))
    assert locked(name) <= listed(name, "pypi")
    assert names(listed(name, "pypi")) - OF_THE_BASE == names(locked(name)) | OURS[name]


@pytest.mark.parametrize("name", IMAGES)
def test_the_bill_of_materials_names_the_packages_of_debian(name):
    assert {"base-files", "bash", "libc6", "zlib1g"} <= names(listed(name, "deb"))


@pytest.mark.parametrize("name", IMAGES)
def test_what_make_images_attests_names_the_same_packages(name):
    digest = image(f"{name.upper()}_IMAGE").partition("@")[2].replace(":", "-")
    attested = json.loads((ROOT / ".codeexec" / "signatures" / f"{digest}.cdx.json").read_text())
    assert listed(name, "deb") == listed_in(attested, "deb")
    assert listed(name, "pypi") == listed_in(attested, "pypi")


async def output(executor, code: str, language: str = "python") -> str:
    result = await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


async def test_code_finds_the_distributions_that_the_bill_of_materials_names(executor):
    found = json.loads(await output(executor, LIST_PACKAGES))
    assert {(canonicalize_name(name), version) for name, version in found} == listed("sandbox", "pypi")


async def test_code_finds_the_packages_of_debian_that_the_bill_of_materials_names(executor):
    result = await output(executor, "dpkg-query --show --showformat '${Package} ${Version}\\n'", "sh")
    found = {tuple(line.split()) for line in result.splitlines()}
    assert found == listed("sandbox", "deb")
