"""What an image was made of: an SLSA v1 provenance predicate."""

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

BUILD_TYPE: Final = "https://codeexec.dev/make-images/v1"
"""`tests/cluster/images.sh`; docs/images.md says what the parameters are."""


def provenance(
    name: str, sources: str, base: str, files: Mapping[str, bytes], commit: str, dirty: bool, created: str
) -> dict[str, Any]:
    """The predicate.

    Args:
        name: which image: operator or sandbox.
        sources: hash of all files that went in, which is also the image's tag.
        base: reference or ID of the base image.
        files: lock files, by path.
        commit: of the tree; empty if it is no git tree.
        dirty: True if the tree had changes that are not in this commit.
        created: when the image was created, by Docker.
    """
    _, _, digest = base.rpartition("sha256:")
    source = [{"name": "source", "digest": {"gitCommit": commit}, "annotations": {"uncommittedChanges": dirty}}]
    locks = [{"name": path, "digest": {"sha256": hashlib.sha256(text).hexdigest()}} for path, text in files.items()]
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"image": name},
            "internalParameters": {"sources": sources},
            "resolvedDependencies": [
                *(source if commit else ()),
                {"name": "base", "uri": base, "digest": {"sha256": digest}},
                *locks,
            ],
        },
        "runDetails": {
            "builder": {"id": f"{BUILD_TYPE}/unattested"},
            "metadata": {"finishedOn": created},
        },
    }


def tree(root: Path, paths: Sequence[str]) -> tuple[str, bool]:
    """Commit of the git tree, and whether these paths have changes that are not in it; no commit if it is no tree."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "HEAD").strip(), bool(git("status", "--porcelain", "--", *paths))
    except (OSError, subprocess.CalledProcessError):
        return "", False
