"""Files of the caller's own machine: written below one folder only, whatever stands there.

`write_inside` is the one door through which content gets from a sandbox to the caller's disk.
"""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from codeexec_api.paths import check_workspace_path
from executor_client.workspace.unasked import acted_on

_OWNERS: Final = {"HEAD": "a Git repository", "pyvenv.cfg": "a virtual environment"}
"""Whose folder it is that holds such a file. Programs act on much of what is in there, whatever its name."""


class NameRefused(ValueError):
    """Programs of the caller's act on a file of this name unasked."""


def refusal(root: Path, name: str) -> str:
    """Why a file that code made is not written under this name below a folder, or nothing.

    Args:
        root: the folder.
        name: path below it, with slashes. Links that stand there count as what they lead to.
    """
    root = root.resolve()
    folder = root
    with suppress(OSError, RuntimeError, ValueError):  # a name that leads out is an error of its own
        folder = root / (root / name).parent.resolve().relative_to(root)
    led_to = folder.relative_to(root)
    if part := acted_on(name) or acted_on(f"{led_to.as_posix()}/x"):
        return f"programs act unasked on what is named {part!r}"
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
        raise ValueError(f"{name!r} leads out of {root}")
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
