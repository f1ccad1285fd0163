"""Deletes what code has left in a folder, however it is made. Standard library only."""

import contextlib
import os
import stat
import time

_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def empty(path, deadline):
    """Delete all that is in a folder, however deep, whatever its modes, and following no link.

    Folders that lie in folders are moved up before they are emptied, so that depth costs nothing.
    """
    top = os.open(path, _HOLD)
    try:
        with contextlib.suppress(PermissionError):  # another's, as in a pod: then it is open to all
            os.chmod(f"/proc/self/fd/{top}", stat.S_IRWXU)
        names = os.listdir(f"/proc/self/fd/{top}")
        number = 0
        while names:
            name = names.pop()
            if not _unlink(name, top):
                inner = _open_folder(name, top)
                try:
                    for entry in os.listdir(inner):
                        if time.monotonic() > deadline:
                            raise TimeoutError
                        if not _unlink(entry, inner):
                            number += 1
                            moved = _free_name(number, top)
                            os.close(_open_folder(entry, inner))  # to be moved, it has to be writable
                            os.rename(entry, moved, src_dir_fd=inner, dst_dir_fd=top)
                            names.append(moved)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
            if time.monotonic() > deadline:
                raise TimeoutError
    finally:
        os.close(top)


def _unlink(name, folder):
    """Whether it was something else than a folder, and is gone."""
    try:
        os.unlink(name, dir_fd=folder)
    except (IsADirectoryError, PermissionError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise
        return False
    return True


def _open_folder(name, parent):
    """Opened for listing, though its owner may have closed it to itself."""
    held = os.open(name, _HOLD, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{held}", stat.S_IRWXU)
    finally:
        os.close(held)
    return os.open(name, _LIST, dir_fd=parent)


def _free_name(number, top):
    name = f".codeexec-{number}"
    with contextlib.suppress(FileNotFoundError):
        while os.stat(name, dir_fd=top, follow_symlinks=False):
            name += "-"
    return name
