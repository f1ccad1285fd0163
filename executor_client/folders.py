"""Files of the caller's own machine: written below one folder only, whatever stands there."""

import secrets
import stat
from contextlib import suppress
from pathlib import Path


def write_inside(root: Path, name: str, content: bytes) -> Path:
    """Write a file below a folder, and return its path. Missing folders are made.

    What stands under the name is replaced and never opened: no link is followed, no FIFO waited for. Permissions of a
    file that stands there are kept.

    Args:
        root: the folder, resolved.
        name: path below it, with slashes.
        content: of the file.

    Raises:
        ValueError: the name leads out of the folder.
        OSError: it can't be written, or a folder has this name.
        RuntimeError: a link on the way leads to itself (before Python 3.13).
    """
    path = root / name
    # By a link that stands there, or a name that is more than a name on Windows, such as C:x.
    if not path.parent.resolve().is_relative_to(root):
        raise ValueError(f"{name!r} leads out of {root}")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with new.open("xb") as out:
            out.write(content)
        with suppress(FileNotFoundError):
            there = path.lstat()
            if stat.S_ISREG(there.st_mode):
                new.chmod(there.st_mode & 0o777)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return path
