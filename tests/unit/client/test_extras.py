"""Without its extras the package says what to install, on one line."""

import subprocess
import sys

import pytest

from executor_client.runtime.extras import missing_extra

INSTALL = "install codeexec, in a checkout with `pip install .` (docs/install.md)"
AUTOGEN, CLI, CHECKPOINTS = (
    f'install codeexec with its extra {extra!r}, in a checkout with `pip install ".[{extra}]"` (docs/install.md)'
    for extra in ("autogen", "cli", "checkpoints")
)


def without(package: str, code: str) -> subprocess.CompletedProcess[str]:
    """A Python that lacks a package."""
    command = [sys.executable, "-c", f"import sys; sys.modules[{package!r}] = None; {code}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("package", "name", "install"),
    [
        ("aiohttp", "CodeExecutionClient", INSTALL),
        ("kubernetes", "CodeExecutionClient", INSTALL),
        ("opentelemetry", "Session", INSTALL),
        ("autogen_core", "KubernetesCodeExecutor", AUTOGEN),
        ("autogen_core", "LocalSandboxExecutor", AUTOGEN),
    ],
)
def test_what_needs_a_package_says_how_to_install_it(package: str, name: str, install: str) -> None:
    done = without(package, f"from executor_client import {name}")
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: {name} needs the package {package!r}, which is not installed: {install}"
    )
    assert "During handling" not in done.stderr


def test_what_needs_none_is_there() -> None:
    code = "from executor_client import CodeExecError, Limits, prepare; print(Limits().memory)"
    assert without("aiohttp", code).stdout == "256Mi\n"


@pytest.mark.parametrize(("package", "install"), [("click", CLI), ("aiohttp", INSTALL), ("rich", CLI)])
def test_the_command_line_ends_with_one_line(package: str, install: str) -> None:
    done = without(package, "from executor_client.cli import main; main(prog_name='codeexec')")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: codeexec needs the package {package!r}, which is not installed: {install}\n"


@pytest.mark.parametrize("name", ["executor_client.gone", "codeexec_api", None])
def test_a_package_of_ours_that_is_missing_is_another_fault(name: str | None) -> None:
    error = ModuleNotFoundError("gone", name=name)
    assert missing_extra("codeexec", error) is error


def test_checkpoints_have_an_extra_of_their_own() -> None:
    done = without(
        "obstore", "from executor_client.cli.evidence_store import EvidenceStore; EvidenceStore('.', 'checkpoints')"
    )
    assert done.stderr.splitlines()[-1].endswith(
        f"to keep checkpoints needs the package 'obstore', which is not installed: {CHECKPOINTS}"
    )
