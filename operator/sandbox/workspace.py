"""The files that code shares with the operator. No link is followed, whatever code has planted. Standard library only.

Paths are relative to the workspace, with `/` between their parts.
"""

import base64
import contextlib
import errno
import fnmatch
import heapq
import os
import stat

import content
from paths import MAX_PATH_BYTES, is_telling
from source import compare

WORKSPACE = "/workspace"
MAX_ARTIFACTS = 256
MAX_FETCH_BYTES = 16 * 2**20
MAX_HASHED_BYTES = 64 * 2**20
OLDER_NS = 1
"""So much older a file seems to be than what the runner wrote to it: as little as there is. A change by code then
shows, even one within the same tick of the clock from which file systems take times."""
MODE = 0o777
"""The bits of a mode that a session keeps that sleeps."""

# Without O_DIRECTORY, with which gVisor follows links all the same (google/gvisor#14786). A link or a file that is
# opened like this instead of a folder is of no use: nothing can be opened below it.
_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO, or a file that is leased, must not hang.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def hold_folder(parts, make=False):
    """Hold the folder below the workspace that these parts lead to; what is missing is made if `make` says so."""
    folder = os.open(WORKSPACE, _HOLD)
    try:
        for part in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
            inner = os.open(part, _HOLD, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def open_file(path):
    """Open a file for reading, which may be no plain file.

    Raises:
        OSError: it can't be opened, or a part of the path is a link.
    """
    *folders, name = path.split("/")
    with hold_folder(folders) as folder:
        return os.fdopen(os.open(name, READ, dir_fd=folder), "rb", buffering=0)


def create_file(path, replace=False):
    """Open an empty file for writing, whatever earlier code has planted there. With `replace`, what stands there goes.

    No part of the path may be a link, and what stands under the name must be a plain file without a second name. The
    folders are held open, so one that is swapped for a link meanwhile leads nowhere.

    Raises:
        OSError: names the path; a part of it is a link, too long or no folder, or the file is not plain or can't be
            written.
    """
    *folders, name = _parts(path)
    with _naming(path), hold_folder(folders, make=True) as folder:
        if replace:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        out = os.fdopen(os.open(name, _WRITE, 0o644, dir_fd=folder), "wb", buffering=0)
        try:
            found = os.fstat(out.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise PermissionError(errno.EPERM, "is a device, a pipe or a file with another hard link", path)
            out.truncate()
        except OSError:
            out.close()
            raise
    return out


def replace_file(path, block):
    """Put the code of a block under its name; a file or a link that stands there goes.

    Returns:
        Whether there was room for it. Without, nothing stands under the name.

    Raises:
        OSError: names the path; a part of it is a link, too long or no folder, or the name is a folder's.
        RuntimeError: see `source.compare`.
    """
    *folders, name = _parts(path)
    try:
        with _naming(path), hold_folder(folders, make=True) as folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            with os.fdopen(os.open(name, _NEW, 0o644, dir_fd=folder), "r+b", buffering=0) as out:
                try:
                    _write(out, block["code"].encode())
                except OSError:
                    os.unlink(name, dir_fd=folder)
                    raise
                _seem_older(out)
                compare(out.fileno(), block)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True


def _parts(path):
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise PermissionError(errno.EPERM, "is not a path inside the workspace", path)
    return parts


def _write(out, data):
    left = memoryview(data)
    while left:
        left = left[out.write(left) :]


def _seem_older(file):
    found = os.fstat(file.fileno())
    with contextlib.suppress(OSError):  # it belongs to another user
        os.utime(file.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns - OLDER_NS))


@contextlib.contextmanager
def _naming(path):
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


class Upload:
    """Files that come in pieces ahead of a job. The first that can't be written is remembered, and nothing after it."""

    def __init__(self):
        self.problem = None
        self._path = None
        self._file = None
        self._folders = {}

    def put(self, path, data, append, mode=None):
        """Take a piece, in base64: the next one of the file that was begun last, or the first of another.

        A path with a mode that ends with a slash is that of a folder. Without a mode a file has that of a new one.
        """
        if self.problem:
            return
        try:
            if path.endswith("/") and mode is not None:
                self._make_folder(path, mode)
                return
            if not append:
                self._begin(path, mode)
            elif path != self._path:
                raise OSError(errno.EINVAL, "is a piece of a file whose first piece is missing", path)
            with _naming(path):
                _write(self._file, base64.b64decode(data, validate=True))
        except (OSError, ValueError) as error:
            self.problem = f"{path}: {getattr(error, 'strerror', None) or error}"
            if path == self._path:
                self.abandon()

    def abandon(self):
        """Leave no part of a file behind: nobody could tell that it is not all, and it may fill the disk."""
        if self._file is None:
            return
        path = self._path
        self._close()
        *folders, name = path.split("/")
        with contextlib.suppress(OSError), hold_folder(folders) as folder:
            os.unlink(name, dir_fd=folder)

    def _begin(self, path, mode):
        self._close()
        # No code has run since an earlier attempt, whose file may have a mode that doesn't let us write.
        self._file = create_file(path, replace=mode is not None)
        self._path = path
        if mode is not None:
            os.fchmod(self._file.fileno(), mode & MODE)

    def _make_folder(self, path, mode):
        """Its mode comes last, so that files can be put into the folder until then."""
        with _naming(path), hold_folder(_parts(path[:-1]), make=True) as held:
            if not stat.S_ISDIR(os.fstat(held).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            os.chmod(f"/proc/self/fd/{held}", 0o700)  # an earlier attempt may have given it its mode
        self._folders[path] = mode & MODE

    def _close(self):
        if self._file is not None:
            _seem_older(self._file)
            self._file.close()
            self._path = self._file = None

    def finish(self):
        """Close what is open, and give folders their modes, the innermost first."""
        self._close()
        for path in sorted(self._folders, reverse=True):
            try:
                with _naming(path), hold_folder(_parts(path[:-1])) as held:
                    os.chmod(f"/proc/self/fd/{held}", self._folders[path])
            except OSError as error:
                self.problem = self.problem or f"{path}: {error.strerror}"
        self._folders.clear()


class Snapshot:
    """What the files in the workspace looked like."""

    def __init__(self, files=()):
        # A number for each file, because there may be very many.
        self._marks = {hash((path, *_look(found))) for path, found in files}

    def add(self, path):
        """Include a file as it looks now."""
        *folders, name = path.split("/")
        with contextlib.suppress(OSError), hold_folder(folders) as folder:
            self._marks.add(hash((path, *_look(os.stat(name, dir_fd=folder, follow_symlinks=False)))))

    def holds(self, path, found):
        """Whether the file is still the same."""
        return hash((path, *_look(found))) in self._marks


def _look(found):
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


class Survey:
    """Walks over the regular files of the workspace and counts what can't be told."""

    def __init__(self):
        self.omitted = 0

    def files(self):
        """Each file with a telling name, as (path, stat result), in no order."""
        try:
            top = os.open(WORKSPACE, READ)
        except OSError:  # code has taken the permission away
            self.omitted += 1
            return
        try:
            yield from self._below(top, "")
        finally:
            os.close(top)

    def _below(self, folder, prefix):
        with os.scandir(folder) as entries:
            for entry in entries:
                path = prefix + entry.name
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # it is gone
                    continue
                except OSError:  # code has taken the permission away to look at what is in the folder
                    self.omitted += 1
                    continue
                if stat.S_ISDIR(found.st_mode):
                    yield from self._inside(folder, entry.name, path)
                elif stat.S_ISREG(found.st_mode) and is_telling(path):
                    yield path, found
                elif stat.S_ISREG(found.st_mode):
                    self.omitted += 1

    def _inside(self, folder, name, path):
        if len(os.fsencode(path)) >= MAX_PATH_BYTES:  # nothing in it has a telling name; it counts as one
            self.omitted += 1
            return
        try:
            inner = os.open(name, READ, dir_fd=folder)
        except OSError:  # code has taken the permission away
            self.omitted += 1
            return
        try:
            if stat.S_ISDIR(os.fstat(inner).st_mode):
                yield from self._below(inner, f"{path}/")
        finally:
            os.close(inner)


def report_artifacts(wanted, patterns, before, send, most):
    """Send the frames of the files that a job has left, in order of their paths, and of the content of some.

    Args:
        wanted: "None", "Changed" (what `before` doesn't hold) or "All".
        patterns: files to send: each is a path, or a pattern whose `*` matches `/`, too. Where not all files fit,
            those of earlier ones come first.
        before: the Snapshot from before the job.
        send: is called with the fields of each frame.
        most: how many bytes of files may be sent.

    Returns:
        How many files are not listed.

    Raises:
        OSError: names the path; a file changed while it was sent, and what was sent of it is not to be used.
    """
    if wanted == "None" and not patterns:
        return 0
    survey = Survey()
    matching = 0

    def candidates():
        nonlocal matching
        for path, found in survey.files():
            place = _place(path, patterns)
            if place < len(patterns) or wanted == "All" or (wanted == "Changed" and not before.holds(path, found)):
                matching += 1
                yield place, path, found.st_size

    chosen = heapq.nsmallest(MAX_ARTIFACTS, candidates())
    fetched = [(path, size) for place, path, size in chosen if place < len(patterns)]
    budget = _Budget(most if patterns else 0, fetched)
    for index, (path, place, size) in enumerate(sorted((path, place, size) for place, path, size in chosen)):
        _report(index, path, size, place < len(patterns), budget, send)
    return survey.omitted + matching - len(chosen)


def _place(path, patterns):
    """Index of the first pattern that selects a file. If none does, the number of patterns."""
    found = (i for i, one in enumerate(patterns) if path == one or fnmatch.fnmatchcase(path, one))
    return next(found, len(patterns))


class _Budget:
    """How many bytes may still be sent, which of them are kept for which file, and how many may be hashed unsent.

    Args:
        most: bytes that may be sent.
        fetched: paths and sizes of the files to send, those first that come first where not all fit.
    """

    def __init__(self, most, fetched):
        self.send = left = most
        self.hash = MAX_HASHED_BYTES - min(most, MAX_FETCH_BYTES)
        self._kept = {}
        for path, size in fetched:
            if size <= left:
                self._kept[path] = size
                left -= size

    def room_for(self, path):
        """How many bytes this file may have, which is asked for once: all that is not kept for others."""
        self._kept.pop(path, None)
        return self.send - sum(self._kept.values())


def _report(index, path, size, fetch, budget, send):
    room = budget.room_for(path)
    try:
        file = open_file(path)
    except OSError:  # not readable any more, or gone
        send(artifact=index, path=path, size=size, sha256=None)
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        sending = fetch and size <= room
        if not sending and (size > MAX_FETCH_BYTES or size > budget.hash):
            send(artifact=index, path=path, size=size, sha256=None)
            return
        if not sending:
            budget.hash -= size
        size, digest = content.digest_of(file, room if sending else MAX_FETCH_BYTES)
        send(artifact=index, path=path, size=size, sha256=digest)
        if sending and size <= room:
            budget.send -= size
            content.send_content(index, path, file, digest, send, room)
