"""What the images hold: the bills of materials (`make sbom`) agree with the locks and with what code finds in a pod."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import ROOT, image
from jsonschema import Draft7Validator
from referencing import Registry, Resource

from executor_client import KubernetesCodeExecutor

pytestmark = pytest.mark.e2e

IMAGES = ("operator", "sandbox")
OF_THE_BASE = {"pip", "setuptools", "wheel"}
"""What the official image of Python brings along; Debian's has none of them."""
OURS = {"operator": {"codeexec"}, "sandbox": set()}

LIST_PACKAGES = """
import importlib.metadata, json
print(json.dumps([[one.metadata["Name"], one.version] for one in importlib.metadata.distributions()]))
"""

# What an agent writes that was asked for a table and a chart.
ANALYSIS = """
import json, os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

sales = pd.DataFrame({"day": pd.date_range("2026-01-01", periods=90), "sold": np.arange(90) % 7 * 10})
monthly = sales.groupby(sales["day"].dt.month)["sold"].sum()
monthly.to_csv("monthly.csv")

figure, axes = plt.subplots()
axes.plot(sales["day"], sales["sold"], label="sold")
axes.set_title("Sales in Zürich")
axes.legend()
figure.savefig("chart.png")
picture = plt.imread("chart.png")

print(json.dumps({
    "monthly": monthly.tolist(),
    "read back": int(pd.read_csv("monthly.csv")["sold"].sum()),
    "solution": np.linalg.solve(np.array([[3, 1], [1, 2]]), np.array([9, 8])).round(6).tolist(),
    "first bytes": open("chart.png", "rb").read(8).hex(),
    "drawn": picture.shape[0] > 100 and float(picture.std()) > 0,
    "files": sorted(os.listdir()),
}))
"""
PNG = "89504e470d0a1a0a"


def sbom(name: str) -> dict[str, Any]:
    path = ROOT / ".codeexec" / "sbom" / f"{name}.cdx.json"
    assert path.is_file(), f"{path} is missing: run `make sbom`"
    return json.loads(path.read_text())


def listed(name: str, kind: str) -> set[tuple[str, str]]:
    """Names and versions of one kind of package (pypi, deb) in the bill of materials."""
    ours = [one for one in sbom(name)["components"] if one.get("purl", "").startswith(f"pkg:{kind}/")]
    return {(one["name"] if kind == "deb" else canonical(one["name"]), one["version"]) for one in ours}


def canonical(name: str) -> str:
    """The one spelling of a Python distribution's name that stands for all."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(name: str) -> set[tuple[str, str]]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return set(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", text, re.MULTILINE))


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


async def run(executor: KubernetesCodeExecutor, code: str, language: str = "python"):
    result = await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result


async def test_code_finds_the_distributions_that_the_bill_of_materials_names(executor):
    found = json.loads((await run(executor, LIST_PACKAGES)).stdout)
    assert {(canonical(name), version) for name, version in found} == listed("sandbox", "pypi")


async def test_code_finds_the_packages_of_debian_that_the_bill_of_materials_names(executor):
    result = await run(executor, "dpkg-query --show --showformat '${Package} ${Version}\\n'", "sh")
    found = {tuple(line.split()) for line in result.stdout.splitlines()}
    assert found == listed("sandbox", "deb")


async def test_an_agent_computes_and_draws_with_the_limits_that_are_the_default(make_executor):
    result = await run(make_executor(), ANALYSIS)
    assert json.loads(result.stdout) == {
        "monthly": [870, 840, 960],
        "read back": 2670,
        "solution": [2.0, 3.0],
        "first bytes": PNG,
        "drawn": True,
        "files": sorted([Path(result.code_file).name, "chart.png", "monthly.csv"]),
    }


def tags(reference: str) -> Iterator[str]:
    """What the local Docker calls an image besides its digest."""
    command = ["docker", "image", "inspect", "--format", "{{range .RepoTags}}{{println .}}{{end}}", reference]
    yield from subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()


def test_a_tag_is_refused_with_the_digest_of_the_image_named():
    tag = next(tags(image()))
    with pytest.raises(ValueError, match="must be named by digest") as caught:
        KubernetesCodeExecutor(image=tag)
    assert str(caught.value).endswith(f"here it is {image()}")
