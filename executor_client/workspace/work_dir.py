"""The caller's own folder beside a workspace: what stands there goes to the sandbox, what code makes comes back.

`write_inside` is the one door through which content gets from a sandbox to the caller's disk.
"""

import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from codeexec_api.paths import check_workspace_path
from codeexec_api.v1alpha1.bounds import MAX_PAYLOAD_BYTES
from executor_client.exceptions import FileTransferError
from executor_client.model.blocks import WorkspaceFile
from executor_client.workspace.unasked import acted_on

_OWNERS: Final = {"HEAD": "a Git repository", "pyvenv.cfg": "a virtual environment"}
"""Whose folder it is that holds such a file. Programs act on much of what is in there, whatever its name."""
MAX_FILES_SENT: Final = 256
MAX_BYTES_SENT: Final = 4 * MAX_PAYLOAD_BYTES
_KEPT_SOURCE: Final = re.compile(r"tmp_code_[0-9a-f]{64}\.\w+")
"""The source of a block without a name; work_dir may have many of earlier executors."""
_NO_LINK_NO_WAITING: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_REMEDY: Final = "use a folder that contains only what the code needs, or set upload_work_dir=False"


class NameRefused(ValueError):
    """Programs of the caller's act on a file of this name unasked."""


def refusal(root: Path, name: str) -> str:
    """Why a file that code made is not written under this path below a folder, or nothing.

    Links that stand there count as what they lead to.
    """
    root = root.resolve()
    folder = root
    with suppress(OSError, RuntimeError, ValueError):  # a name that leads out is an error of its own
        folder = root / (root / name).parent.resolve().relative_to(root)
    led_to = folder.relative_to(root)
    if part := acted_on(name) or acted_on(f"{led_to.as_posix()}/x"):
        return f"programs act on the name {part!r} by themselves"
    for one in (root, *(root / way for way in led_to.parents), folder):
        for marker, owner in _OWNERS.items():
            if os.path.lexists(one / marker):
                return f"{str(one)!r} holds {marker}, and so is the folder of {owner}"
    return ""


def write_inside(root: Path, name: str, content: bytes, *, any_name: bool = False) -> Path:
    """Write a file below a folder, and return its path. Missing folders are made.

    What stands under the name is replaced and never opened: no link is followed, no FIFO waited for. Permissions of a
    file that stands there are kept, but nobody may execute what code has made.

    Args:
        root: the folder, resolved.
        name: path below it, with slashes.
        content: of the file.
        any_name: the caller has typed this very name, or the folder is none of the caller's.

    Raises:
        NameRefused: programs of the caller's act on such a file unasked, and any_name is not set.
        ValueError: the name leads out of the folder.
        OSError: it can't be written, or a folder has this name.
        RuntimeError: a link on the way leads to itself (before Python 3.13).
    """
    path = root / name
    # By a link that stands there, or a name that is more than a name on Windows, such as C:x.
    if not path.parent.resolve().is_relative_to(root):
        raise ValueError(f"{name!r} leads out of {root}: remove the link on its way, or use a name below this folder")
    if not any_name and (why := refusal(root, check_workspace_path(name))):
        raise NameRefused(f"{name!r} is not written: {why}")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with new.open("xb") as out:
            out.write(content)
        with suppress(FileNotFoundError):
            there = path.lstat()
            if stat.S_ISREG(there.st_mode):
                new.chmod(there.st_mode & (0o777 if any_name else 0o666))
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return path


def is_kept_source(name: str) -> bool:
    """True for the file that an executor itself makes for the source of a block without a name."""
    return _KEPT_SOURCE.fullmatch(name) is not None


class Stamp(NamedTuple):
    """What a local file is known by; a file that is changed gets another one."""

    inode: int
    modified_ns: int
    size: int


class WorkDir:
    """A local folder. Knows which files of it were written here from the sandbox, and which are the caller's own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._own: set[str] = set()
        self._written: dict[str, Stamp] = {}

    def write(self, name: str, content: bytes, *, any_name: bool = False) -> Path:
        """Write a file that comes from the sandbox, and return its path; see `write_inside` for what it raises."""
        path = write_inside(self.root.resolve(), name, content, any_name=any_name)
        if name not in self._own:
            self._written[name] = _stamp(path.lstat())
        return path

    def keeps_out(self, name: str) -> bool:
        """Whether code may not make this file here, because programs of the caller's act on such files unasked."""
        return bool(refusal(self.root, name))

    def stamps(self, names: Iterable[str]) -> dict[str, Stamp]:
        """What these files, which have just been written, are known by; those that are gone are left out."""
        found: dict[str, Stamp] = {}
        for name in names:
            with suppress(OSError):
                found[name] = _stamp((self.root / name).lstat())
        return found

    def unsent(self, sent: Mapping[str, Stamp]) -> dict[str, Stamp]:
        """The caller's regular files that are not in the workspace as they are here, by path.

        A file that the caller has put here stays the caller's when code changes it.
        Hidden files and folders and the kept source of blocks without a name are left out. No link is followed.

        Args:
            sent: the files that are there, as they were when they were sent.

        Raises:
            ValueError: they are too many or too large, or one has a name that can't be one in the workspace.
        """
        found: dict[str, Stamp] = {}
        for name, stamp in self._own_files():
            if stamp not in (sent.get(name), self._written.get(name)):
                found[name] = stamp
                self._check(name, found)
        self._own |= found.keys()
        return found

    def read(self, names: Iterable[str]) -> tuple[WorkspaceFile, ...]:
        """Files that `unsent` has named, as far as they are still there.

        Raises:
            FileTransferError: one can't be read.
        """
        files = []
        for name in names:
            try:
                file = os.open(self.root / name, os.O_RDONLY | _NO_LINK_NO_WAITING)
                with os.fdopen(file, "rb") as opened:
                    if stat.S_ISREG(os.fstat(file).st_mode):
                        files.append(WorkspaceFile(name, opened.read(MAX_PAYLOAD_BYTES + 1)))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise FileTransferError(
                    f"{name!r} in work_dir {self.root} can't be read: {error.strerror}. Make it readable, or {_REMEDY}"
                ) from error
        return tuple(files)

    def _own_files(self) -> Iterator[tuple[str, Stamp]]:
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for file in sorted(files):
                path = Path(folder, file)
                try:
                    found = path.lstat()
                except OSError:  # it was there a moment ago, or its folder can be listed only
                    continue
                if stat.S_ISREG(found.st_mode) and not file.startswith(".") and not is_kept_source(file):
                    yield path.relative_to(self.root).as_posix(), _stamp(found)

    def _check(self, name: str, found: Mapping[str, Stamp]) -> None:
        try:
            check_workspace_path(name)
        except (ValueError, UnicodeError) as error:
            raise ValueError(
                f"{name!r} in work_dir can't go into the workspace: {error}; rename it, or {_REMEDY}"
            ) from None
        for what, number, most in (
            ("bytes in the file " + repr(name), found[name].size, MAX_PAYLOAD_BYTES),
            ("files", len(found), MAX_FILES_SENT),
            ("bytes", sum(one.size for one in found.values()), MAX_BYTES_SENT),
        ):
            if number > most:
                raise ValueError(f"{number} {what} of work_dir {self.root} are too many (at most {most}): {_REMEDY}")


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_ino, found.st_mtime_ns, found.st_size)
