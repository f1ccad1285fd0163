"""Which files of a workspace a call fetches, and which of them first. Pure.

The runner has the same rules: `report_artifacts` in `operator/sandbox/workspace.py`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from codeexec_api import Block, File
from codeexec_api.languages import default_file_name
from codeexec_api.paths import MAX_PATH_BYTES
from executor_client.model.results import Artifact


def literally(path: str) -> str:
    """The entry that selects the file with this path and no other: *, ? and [ stand for themselves.

    An entry has as many characters as a path at most. A path that would get too long stays as it is: the entry then
    selects the file all the same, and may select others.
    """
    entry = re.sub(r"([*?[])", r"[\1]", path)
    return entry if len(entry.encode()) <= MAX_PATH_BYTES else path


def place(path: str, fetch: Sequence[str]) -> int:
    """Index of the first entry that selects a file: its path, or a pattern. If none does, the number of entries."""
    return next((i for i, one in enumerate(fetch) if path == one or fnmatchcase(path, one)), len(fetch))


def selected(path: str, fetch: Sequence[str]) -> bool:
    """True if an entry selects the file."""
    return place(path, fetch) < len(fetch)


def fitting(sizes: Mapping[str, int], fetch: Sequence[str], room: int) -> frozenset[str]:
    """The files that fit into so many bytes together. Those of earlier entries come first, and then those by path."""
    chosen = []
    for path in sorted(sizes, key=lambda path: (place(path, fetch), path)):
        if sizes[path] <= room:
            chosen.append(path)
            room -= sizes[path]
    return frozenset(chosen)


def as_sent(artifacts: Sequence[Artifact], blocks: Iterable[Block], files: Iterable[File]) -> frozenset[str]:
    """Paths of the files and sources that the code has left as they were sent: path and SHA-256 are the same.

    If the record lacks a SHA-256, the path decides: nothing shows that the file was changed. Without artifacts, nothing
    that was sent is looked at: to announce it takes a digest.
    """
    if not artifacts:
        return frozenset()
    sent = {(one.filename or default_file_name(one.language, one.sha256), one.sha256) for one in blocks}
    sent |= {(one.path, one.sha256) for one in files}
    paths = {path for path, _ in sent}
    return frozenset(
        one.path for one in artifacts if (one.path in paths if one.sha256 is None else (one.path, one.sha256) in sent)
    )
