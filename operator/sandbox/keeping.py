"""The whole workspace, as a session that sleeps leaves it and finds it again. Standard library only.

Either all of it is told, or nothing is: what can't be made again exactly is a fault that names it.
"""

import contextlib
import errno
import os
import stat

import content
import workspace
from paths import is_telling


def report_whole(fetch, most_files, most_bytes, send):
    """Send the frames of all files and folders, in order of their paths. A folder's path ends with a slash.

    Args:
        fetch: whether the content of files is sent, too.
        most_files: how many files and folders there may be.
        most_bytes: how many bytes files may have together.
        send: is called with the fields of each frame.

    Raises:
        OSError: names the path, with escapes where it can't be told; it can't be made again, is one too many, or
            changed while it was sent.
    """
    found, size = [], 0
    with _naming(".", "is a folder that can't be read"):
        top = os.open(workspace.WORKSPACE, workspace.READ)
    try:
        for path, entry in _walk("", top):
            found.append((path, entry))
            size += 0 if path.endswith("/") else entry.st_size
            if len(found) > most_files:
                raise OSError(errno.EFBIG, f"is one of more than {most_files} files and folders", path)
            if size > most_bytes:
                raise OSError(errno.EFBIG, f"makes the files larger than {most_bytes} bytes together", path)
    finally:
        os.close(top)
    for index, (path, entry) in enumerate(sorted(found)):
        mode = entry.st_mode & workspace.MODE
        if path.endswith("/"):
            send(artifact=index, path=path, size=0, sha256=None, mode=mode)
        else:
            _report(index, path, mode, entry.st_size, send, fetch)


def _walk(prefix, inside):
    """Each file and folder below a folder that is open for reading, as (path, stat result)."""
    with os.scandir(inside) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        path = prefix + name
        if not is_telling(path):
            raise OSError(errno.EINVAL, "has a name that can't be recorded", ascii(path)[1:-1])
        with _naming(path, "can't be looked at"):
            entry = os.stat(name, dir_fd=inside, follow_symlinks=False)
        if why := _unkept(entry):
            raise OSError(errno.EINVAL, why, path)
        if not stat.S_ISDIR(entry.st_mode):
            yield path, entry
            continue
        yield f"{path}/", entry
        with _naming(path, "is a folder that can't be read"):
            inner = os.open(name, workspace.READ, dir_fd=inside)
        try:
            yield from _walk(f"{path}/", inner)
        finally:
            os.close(inner)


@contextlib.contextmanager
def _naming(path, what):
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, what, path) from error


def _unkept(entry):
    """Why this can't be made again; empty if it can."""
    if stat.S_ISDIR(entry.st_mode):
        return ""
    if not stat.S_ISREG(entry.st_mode):
        return "is a link, a pipe, a socket or a device"
    if entry.st_nlink != 1:
        return "has another hard link"
    return "has a mode with the setuid, setgid or sticky bit" if stat.S_IMODE(entry.st_mode) & ~workspace.MODE else ""


def _report(index, path, mode, size, send, fetch):
    with _naming(path, "can't be read"):
        file = workspace.open_file(path)
    with file:
        length, digest = content.digest_of(file, size)
        if digest is None or length != size:
            raise OSError(errno.EBUSY, "changed while it was read", path)
        send(artifact=index, path=path, size=size, sha256=digest, mode=mode)
        if fetch:
            content.send_content(index, path, file, digest, send, size)
