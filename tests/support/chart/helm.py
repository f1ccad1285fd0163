"""What the chart tests share: where the chart and the tools are, and the chart rendered as objects."""

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "codeexec"
TOOLS = ROOT / "tests" / "cluster" / "tools.sh"
CI_VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
DEFAULT_VALUES = CHART / "ci" / "default-values.yaml"

# A helm that was built without its release flags takes the cluster for an ancient one.
KUBE_VERSION = "1.34.0"
SYSTEM = "codeexec-system"


@functools.cache
def _from_tools(option: str) -> str:
    return subprocess.run([TOOLS, option], check=True, capture_output=True, text=True).stdout.strip()


@functools.cache
def tool(name: str) -> str:
    """Path of a command-line tool, from PATH or from where `tools.sh` puts it."""
    found = shutil.which(name) or shutil.which(name, path=_from_tools("--bin"))
    assert found, f"{name} is missing: run `{TOOLS.relative_to(ROOT)} {name}`, which builds it once"
    return found


def schemas() -> Path:
    """Folder of the Kubernetes JSON schemas."""
    folder = Path(_from_tools("--schemas"))
    assert folder.is_dir(), f"{folder} is missing: run `{TOOLS.relative_to(ROOT)} k8s-schemas`, which makes it once"
    return folder


def run(*command: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=stdin, capture_output=True, text=True)


@functools.cache  # the same chart and values give the same, and many tests look at the defaults
def template(
    *arguments: str, values: Path | None = DEFAULT_VALUES, namespace: str = SYSTEM
) -> subprocess.CompletedProcess[str]:
    files = ["--values", str(values)] if values else []
    command = [tool("helm"), "template", "codeexec", str(CHART), "--namespace", namespace]
    return run(*command, "--kube-version", KUBE_VERSION, *files, *arguments)


def manifest(*arguments: str, values: Path | None = DEFAULT_VALUES, namespace: str = SYSTEM) -> str:
    """What `helm install` would send to the cluster, as text."""
    done = template(*arguments, values=values, namespace=namespace)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(*arguments: str, values: Path | None = DEFAULT_VALUES, namespace: str = SYSTEM) -> list[dict[str, Any]]:
    """What `helm install` would send to the cluster, as objects."""
    text = manifest(*arguments, values=values, namespace=namespace)
    return [one for one in yaml.load_all(text, Loader=yaml.CSafeLoader) if one]


def pick(objects: Sequence[dict[str, Any]], kind: str, name: str, *, namespace: str | None = None) -> dict[str, Any]:
    """The only object of this kind and name; in this namespace, if there may be others elsewhere."""
    named = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    [found] = [one for one in named if namespace in (None, one["metadata"].get("namespace"))]
    return found
