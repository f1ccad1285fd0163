"""The scratch folder of a local sandbox: what is in it, in and out, and that it is gone in the end.

Nothing here follows a link: the code that ran may have made them.
"""

import errno
import heapq
import logging
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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

_DELETE_SECONDS: Final = 60


class _Survey:
    """Walks over the regular files of a folder, and counts what can't be named."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self.omitted = 0

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Each file with a usable name, and how it looks, in no order."""
        folders = [str(self._top)]
        while folders:
            try:
                with os.scandir(folders.pop()) as entries:
                    for entry in entries:
                        found = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(found.st_mode):
                            folders.append(entry.path)
                        elif stat.S_ISREG(found.st_mode) and (name := self._name(entry.path)):
                            yield name, found
            except OSError:  # code has taken the permission away, or it lies too deep for a name
                self.omitted += 1

    def _name(self, path: str) -> str:
        name = path.removeprefix(f"{self._top}/")
        try:
            check_workspace_path(name)
        except (ValueError, UnicodeError):
            self.omitted += 1
            return ""
        return name


class Workspace:
    """A folder for code, and one for its temporary files, which only the caller's user may enter."""

    def __init__(self) -> None:
        self.root: Final = Path(tempfile.mkdtemp(prefix="codeexec-")).resolve()
        self.files: Final = self.root / "workspace"
        self.temporary: Final = self.root / "tmp"
        self.files.mkdir(mode=0o700)
        self.temporary.mkdir(mode=0o700)
        self._seen: set[int] = set()

    def write(self, name: str, content: bytes, *, anew: bool = False) -> None:
        """Put a file in, which is no change. With `anew`, what stands under its name goes, and so does its mode.

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
        self._seen.add(_mark(name, write_inside(self.files, name, content, any_name=True).lstat()))

    def survey(self) -> None:
        """Note how each file looks: a number for each, because code may make very many. Changes count from here."""
        self._seen = {_mark(*one) for one in _Survey(self.files).files()}

    def read(self, name: str) -> bytes | None:
        """A regular file, at most `MAX_FETCH_BYTES` of it and one more; None if it can't be read."""
        with suppress(OSError):
            descriptor = os.open(self.files / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return file.read(MAX_FETCH_BYTES + 1)
        return None

    def changed(self) -> tuple[tuple[ArtifactStatus, ...], int, dict[str, bytes]]:
        """Files that code has made or changed since `survey`, in order of path, without those that `write` put in.

        Also how many are not named, and the content of the small ones.
        """
        sizes, omitted = self._choose(ArtifactRequest(list="Changed"))
        artifacts, contents = self._look_at(sizes, fitting(sizes, ["*"], MAX_FETCH_BYTES))
        return tuple(one.model_copy(update={"fetched": False}) for one in artifacts), omitted, contents

    def selected(self, request: ArtifactRequest) -> tuple[tuple[ArtifactStatus, ...], int, dict[str, bytes]]:
        """As `changed`, but the files that a request lists, and the content of those that it fetches."""
        sizes, omitted = self._choose(request)
        fetched = {name: size for name, size in sizes.items() if selected(name, request.fetch)}
        artifacts, contents = self._look_at(sizes, fitting(fetched, request.fetch, MAX_FETCH_BYTES))
        return artifacts, omitted, contents

    def _choose(self, request: ArtifactRequest) -> tuple[dict[str, int], int]:
        """Sizes of the files to name, in order of path, and how many are not named. Those to fetch come first."""
        survey, matching = _Survey(self.files), 0

        def candidates() -> Iterator[tuple[int, str, int]]:
            nonlocal matching
            for name, found in survey.files():
                changed = _mark(name, found) not in self._seen
                if selected(name, request.fetch) or {"None": False, "Changed": changed, "All": True}[request.list]:
                    matching += 1
                    yield place(name, request.fetch), name, found.st_size

        chosen = heapq.nsmallest(MAX_ARTIFACTS, candidates())
        return dict(sorted((name, size) for _, name, size in chosen)), survey.omitted + matching - len(chosen)

    def _look_at(
        self, sizes: Mapping[str, int], sent: frozenset[str]
    ) -> tuple[tuple[ArtifactStatus, ...], dict[str, bytes]]:
        artifacts, contents = [], {}
        for name, size in sizes.items():
            content = self.read(name) if size <= MAX_FETCH_BYTES else None
            if content is None or len(content) > MAX_FETCH_BYTES:
                artifacts.append(ArtifactStatus(path=name, size_bytes=size))
                continue
            if fetched := name in sent and len(content) <= size:
                contents[name] = content
            digest = sha256_hex(content)
            artifacts.append(ArtifactStatus(path=name, size_bytes=len(content), sha256=digest, fetched=fetched))
        return tuple(artifacts), contents


def _mark(name: str, found: os.stat_result) -> int:
    return hash((name, found.st_ino, found.st_ctime_ns, found.st_size))


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
