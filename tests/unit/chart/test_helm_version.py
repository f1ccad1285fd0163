"""The chart refuses a Helm that is older than the documentation assumes, and every page names the same version."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from chart.helm import CHART, DEFAULT_VALUES, KUBE_VERSION, ROOT, run, tool

HELPERS = Path("templates", "_helpers.tpl")
VERSION_IN_USE = ".Capabilities.HelmVersion.Version"
PAGES = ("docs/install.md", "charts/codeexec/README.md")


def _rendered_by(version: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The chart as a Helm of this version renders it: the version is all that is replaced."""
    chart = shutil.copytree(CHART, folder / "codeexec")
    text = (chart / HELPERS).read_text()
    assert text.count(VERSION_IN_USE) == 1
    (chart / HELPERS).write_text(text.replace(VERSION_IN_USE, f'"{version}"'))
    values = ("--values", DEFAULT_VALUES, "--kube-version", KUBE_VERSION)
    return run(tool("helm"), "template", "codeexec", chart, "--namespace", "codeexec-system", *values)


@pytest.mark.parametrize("version", ["v3.17", "v3.17.0", "v3.18.0-rc.1", "v3.19.5+unreleased", "v4.0.0"])
def test_helm_of_this_version_renders_the_chart(version: str, tmp_path: Path) -> None:
    done = _rendered_by(version, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", ["v3.2.0", "v3.14.0", "v3.16.4"])
def test_an_older_helm_is_refused(version: str, tmp_path: Path) -> None:
    done = _rendered_by(version, tmp_path)
    assert done.returncode != 0, "was accepted"
    assert f"this chart needs Helm 3.17 or newer, and this is Helm {version}: upgrade Helm" in done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_name_the_version_that_the_chart_asks_for(page: str) -> None:
    [asked] = re.findall(r'semverCompare ">=(\d+\.\d+)\.0-0"', (CHART / HELPERS).read_text())
    assert f"Helm {asked} or newer" in (ROOT / page).read_text()
