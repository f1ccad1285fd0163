"""What the images hold: what is locked, and what an agent wants for a table and a chart."""

import asyncio
import json
import subprocess
from collections.abc import Iterator

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, image
from locked import locked
from packaging.utils import canonicalize_name

from executor_client import KubernetesCodeExecutor

OF_THE_BASE = {"pip", "setuptools", "wheel"}
"""What the official image of Python brings along; Debian's has none of them."""

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
    "files": sorted(name for name in os.listdir() if not name.startswith("tmp_code")),
}))
"""
PNG = "89504e470d0a1a0a"


async def run(executor: KubernetesCodeExecutor, code: str, language: str = "python"):
    result = await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result


@pytest.fixture(scope="module")
def shared(agent_kubeconfig: str) -> Iterator[KubernetesCodeExecutor]:
    """One session for what code finds, with the limits that are the default."""
    executor = KubernetesCodeExecutor(kubeconfig=agent_kubeconfig, namespace=SANDBOX)
    yield executor
    asyncio.run(executor.stop())


async def test_code_finds_the_distributions_that_are_locked_and_no_others(shared):
    listed = json.loads((await run(shared, LIST_PACKAGES)).stdout)
    found = {
        (canonicalize_name(name), version) for name, version in listed if canonicalize_name(name) not in OF_THE_BASE
    }
    assert found == locked("sandbox")
    assert "numpy" in {name for name, _ in found}


async def test_an_agent_computes_and_draws_with_the_limits_that_are_the_default(shared):
    result = await run(shared, ANALYSIS)
    assert json.loads(result.stdout) == {
        "monthly": [870, 840, 960],
        "read back": 2670,
        "solution": [2.0, 3.0],
        "first bytes": PNG,
        "drawn": True,
        "files": ["chart.png", "monthly.csv"],
    }


def tags(reference: str) -> Iterator[str]:
    """What the local Docker calls an image besides its digest."""
    command = ["docker", "image", "inspect", "--format", "{{range .RepoTags}}{{println .}}{{end}}", reference]
    yield from subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()


def test_a_tag_is_refused_with_the_command_that_prints_the_digest():
    tag = next(tags(image()))
    with pytest.raises(ValueError, match="must be named by digest") as caught:
        KubernetesCodeExecutor(image=tag)
    _, command, _ = str(caught.value).split("`")
    printed = subprocess.run(
        command.replace("IMAGE", tag), shell=True, capture_output=True, text=True, check=True, timeout=20
    )
    assert printed.stdout.strip() == image()
