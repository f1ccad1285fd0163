"""Metadata of codeexec and codeexec-operator that is made when they are built. Hatchling calls it.

`CODEEXEC_REPOSITORY=https://HOST/OWNER/NAME` names the public repository: it gets into the metadata, and the README's
links to other files lead there. Without it there are no such links.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_ROOT = Path(__file__).parent
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")
_DIAGRAM = re.compile(r"```mermaid\n.*?```\n+", re.DOTALL)
_SHARED = ("version", "license", "authors", "maintainers", "requires-python", "keywords", "classifiers")


def index_page(readme: str, repository: str, version: str) -> str:
    """A README as a package index shows it: it draws no diagrams, and has no files that links could lead to."""

    def linked(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        if repository:
            return f"{picture}[{text}]({repository}/{'raw' if picture else 'blob'}/v{version}/{path})"
        return "" if picture else text

    return re.sub(r"\n{3,}", "\n\n", _LINK.sub(linked, _DIAGRAM.sub("", readme)))


def urls(repository: str, version: str) -> dict[str, str]:
    """Where a release is explained."""
    if not repository:
        return {}
    files = f"{repository}/blob/v{version}"
    return {
        "Homepage": repository,
        "Documentation": f"{files}/docs/README.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


class Metadata(MetadataHookInterface):
    """Fills in what `dynamic` lists."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Hatchling's hook.

        Raises:
            ValueError: the address of the repository is none.
        """
        repository = os.environ.get("CODEEXEC_REPOSITORY", "").rstrip("/")
        if repository and not repository.startswith("https://"):
            raise ValueError(f"CODEEXEC_REPOSITORY is {repository!r}, but must be https://HOST/OWNER/NAME, or not set")
        client = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
        version = client["version"]
        if metadata["name"] != client["name"]:
            metadata.update({field: client[field] for field in _SHARED})
            metadata["dependencies"] = [f"{client['name']}=={version}", *self.config["dependencies"]]
        readme = (Path(self.root) / "README.md").read_text()
        metadata["readme"] = {"content-type": "text/markdown", "text": index_page(readme, repository, version)}
        metadata["urls"] = urls(repository, version)
