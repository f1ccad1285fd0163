"""The scratch folder of a local sandbox: what is in it, in and out, and that it is gone in the end.

Nothing here follows a link: the code that ran may have made them.
"""

import errno
import logging
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from codeexec_api import ArtifactRequest, ArtifactStatus
from codeexec_api.digests import sha256_hex
from codeexec_api.paths import check_workspace_path
from codeexec_api.v1alpha1.bounds import MAX_ARTIFACTS, MAX_FETCH_BYTES
from executor_client.model.selection import fitting, place, selected
from executor_client.runtime import forks
from executor_client.workspace.work_dir import Stamp, write_inside

logger = logging.getLogger(__name__)

_MOST_ENTRIES: Final = 20_000
"""Looked at in a workspace; code may make more."""
_DELETE_SECONDS: Final = 60


@dataclass(frozen=True)
class Survey:
    """The regular files of a workspace."""

    stamps: Mapping[str, tuple[int, int, int]]
    """Inode, time of the last change in ns, and size, by path."""
    omitted: int = 0
    """Files that are not named: too many, or an unusable name."""


class Workspace:
    """A folder for code, and one for its temporary files, which only the caller's user may enter."""

    def __init__(self) -> None:
        self.root: Final = Path(tempfile.mkdtemp(prefix="codeexec-")).resolve()
        self.files: Final = self.root / "workspace"
        self.temporary: Final = self.root / "tmp"
        self.files.mkdir(mode=0o700)
        self.temporary.mkdir(mode=0o700)

    def write(self, name: str, content: bytes, *, anew: bool = False) -> None:
        """Put a file in. With `anew`, what stands under its name goes, and so does its mode.

        Raises:
            OSError: a folder has this name, or a part of the path is no folder.
        """
        folder = self.files
        *folders, last = name.split("/")
        for part in folders:
            folder /= part
            with suppress(FileExistsError):
                folder.mkdir()
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        if anew:
            (folder / last).unlink(missing_ok=True)
        write_inside(self.files, name, content, any_name=True)

    def survey(self) -> Survey:
        """What is there."""
        stamps: dict[str, tuple[int, int, int]] = {}
        omitted = 0
        for entry in self._entries():
            found = entry.stat(follow_symlinks=False)
            name = Path(entry.path).relative_to(self.files).as_posix()
            try:
                check_workspace_path(name)
            except (ValueError, UnicodeError):
                omitted += 1
            else:
                stamps[name] = (found.st_ino, found.st_ctime_ns, found.st_size)
        return Survey(stamps, omitted)

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        left, folders = _MOST_ENTRIES, [str(self.files)]
        while folders:
            with suppress(OSError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield entry

    def read(self, name: str) -> bytes | None:
        """A regular file, at most `MAX_FETCH_BYTES` of it and one more; None if it can't be read."""
        with suppress(OSError):
            descriptor = os.open(self.files / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return file.read(MAX_FETCH_BYTES + 1)
        return None

    def changed(
        self, before: Survey, sources: frozenset[str]
    ) -> tuple[tuple[ArtifactStatus, ...], int, dict[str, bytes]]:
        """Files made or changed since, in order of path; how many are not named; and the content of the small ones.

        `sources` were put in since, and don't count.
        """
        after = self.survey()
        names = sorted(_changed(before, after, sources))
        artifacts, contents = self._look_at(names[:MAX_ARTIFACTS], after, _fitting(names[:MAX_ARTIFACTS], after, ["*"]))
        unfetched = tuple(one.model_copy(update={"fetched": False}) for one in artifacts)
        return unfetched, after.omitted + len(names[MAX_ARTIFACTS:]), contents

    def selected(
        self, before: Survey, sources: frozenset[str], request: ArtifactRequest
    ) -> tuple[tuple[ArtifactStatus, ...], int, dict[str, bytes]]:
        """As `changed`, but the files that a request lists, and the content of those that it fetches."""
        after = self.survey()
        fetched = [name for name in sorted(after.stamps) if selected(name, request.fetch)]
        fetched.sort(key=lambda name: place(name, request.fetch))
        listed = {"None": [], "Changed": _changed(before, after, sources), "All": list(after.stamps)}[request.list]
        names = [*fetched, *sorted(set(listed) - set(fetched))]
        sent = _fitting(fetched[:MAX_ARTIFACTS], after, request.fetch)
        artifacts, contents = self._look_at(sorted(names[:MAX_ARTIFACTS]), after, sent)
        return artifacts, after.omitted + len(names[MAX_ARTIFACTS:]), contents

    def _look_at(
        self, names: Sequence[str], survey: Survey, sent: frozenset[str]
    ) -> tuple[tuple[ArtifactStatus, ...], dict[str, bytes]]:
        artifacts, contents = [], {}
        for name in names:
            size = survey.stamps[name][2]
            content = self.read(name) if size <= MAX_FETCH_BYTES else None
            if content is None or len(content) > MAX_FETCH_BYTES:
                artifacts.append(ArtifactStatus(path=name, size_bytes=size))
                continue
            if fetched := name in sent and len(content) <= size:
                contents[name] = content
            digest = sha256_hex(content)
            artifacts.append(ArtifactStatus(path=name, size_bytes=len(content), sha256=digest, fetched=fetched))
        return tuple(artifacts), contents


def _fitting(names: Sequence[str], survey: Survey, fetch: Sequence[str]) -> frozenset[str]:
    return fitting({name: survey.stamps[name][2] for name in names}, fetch, MAX_FETCH_BYTES)


def _changed(before: Survey, after: Survey, sources: frozenset[str]) -> list[str]:
    return [name for name, stamp in after.stamps.items() if stamp != before.stamps.get(name) and name not in sources]


def delete(root: Path) -> None:
    """Delete a workspace, also where code has made folders that can't be entered, or many levels of them."""
    with suppress(OSError, RecursionError):
        shutil.rmtree(root)
    if not root.exists():
        return
    with suppress(OSError, subprocess.TimeoutExpired):
        for command in (["chmod", "-R", "u+rwx", "--", str(root)], ["rm", "-rf", "--", str(root)]):
            subprocess.run(command, capture_output=True, check=False, timeout=_DELETE_SECONDS)  # noqa: S603 - own path
    if root.exists():
        logger.warning("the workspace %s could not be deleted; delete it by hand", root)


class Scratch:
    """A workspace that calls share, and what is in it. It is deleted by `delete`, and with whoever holds it.

    Args:
        holder: the workspace doesn't outlive this.
    """

    def __init__(self, holder: object) -> None:
        self.workspace = Workspace()
        self.sent: dict[str, Stamp] = {}
        self.has_functions = False
        self.delete = forks.finalize(holder, delete, self.workspace.root)

    @classmethod
    @contextmanager
    def of_one_call(cls, holder: object) -> "Iterator[Scratch]":
        """Inside is a workspace that no other call gets."""
        scratch = cls(holder)
        try:
            yield scratch
        finally:
            scratch.delete()
