"""What a package index is told is complete, and can be read there."""

import re
from zipfile import ZipFile

import pytest
from readme_renderer import markdown

from hatch_build import index_page, urls

from .conftest import ROOT, Wheel

NAMES = ["codeexec", "codeexec-operator"]
PACKAGES = {"codeexec": {"codeexec", "codeexec_api", "executor_client"}, "codeexec-operator": {"codeexec_operator"}}
TESTED = {"3.11", "3.12", "3.13"}
"""The Python of .venv, and PYTHONS of the Makefile."""


@pytest.mark.parametrize("name", NAMES)
def test_each_field_is_there(wheels: dict[str, Wheel], name: str) -> None:
    said = wheels[name].metadata
    assert all((said.summary, said.author, said.maintainer, said.keywords))
    assert (said.license_expression, said.license_files) == ("Apache-2.0", ["LICENSE"])
    assert str(said.requires_python) == ">=3.11"
    assert set(re.findall(r"Python :: (3\.\d+)", "\n".join(said.classifiers or ()))) == TESTED
    assert said.version == wheels["codeexec"].metadata.version


def test_the_operator_needs_the_client_of_its_version(wheels: dict[str, Wheel]) -> None:
    needed = [str(one) for one in wheels["codeexec-operator"].metadata.requires_dist or ()]
    assert f"codeexec=={wheels['codeexec'].metadata.version}" in needed


@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_has_its_own_packages_types_and_licence_and_nothing_else(wheels: dict[str, Wheel], name: str) -> None:
    with ZipFile(wheels[name].path) as archive:
        files = set(archive.namelist())
    [about] = {file.partition("/")[0] for file in files if ".dist-info/" in file}
    assert {file.partition("/")[0] for file in files} == {*PACKAGES[name], about}
    assert f"{about}/licenses/LICENSE" in files
    assert {f"{package}/py.typed" for package in PACKAGES[name]} <= files


@pytest.mark.parametrize("name", NAMES)
def test_an_index_shows_the_readme_without_links_into_nowhere(wheels: dict[str, Wheel], name: str) -> None:
    said = wheels[name].metadata
    assert said.description_content_type == "text/markdown"
    html = markdown.render(said.description)
    assert html
    assert "mermaid" not in html
    assert not [link for link in re.findall(r'(?:href|src)="([^"]+)"', html) if not re.match("https://|#", link)]


def test_with_a_repository_links_lead_there() -> None:
    ours = "https://host.example/us/codeexec"
    page = index_page((ROOT / "README.md").read_text(), ours, "1.2.3")
    assert f"]({ours}/blob/v1.2.3/docs/install.md)" in page
    assert f"]({ours}/raw/v1.2.3/docs/cast.svg)" in page
    assert not re.search(r"\]\((?!https://|#)", page)
    assert set(urls(ours, "1.2.3")) == {
        "Homepage",
        "Documentation",
        "Changelog",
        "Issues",
    }
    assert urls("", "1.2.3") == {}
