"""The content of a file that code may change meanwhile: its digest, and its frames. Standard library only."""

import errno
import os

from channel import data_fields
from sha256 import Sha256
from source import PIECE


def digest_of(file, most):
    """Size and SHA-256 of a file as it is read; without the digest if it has grown too large meanwhile."""
    digest, size = Sha256(), 0
    while piece := os.pread(file.fileno(), PIECE, size):
        size += len(piece)
        if size > most:
            return os.fstat(file.fileno()).st_size, None
        digest.update(piece)
    return size, digest.hexdigest()


def send_content(index, path, file, expected, send, most):
    """Send the frames of the content of a file, which has to be what it was when its digest was taken."""
    digest, size = Sha256(), 0
    while (piece := os.pread(file.fileno(), PIECE, size)) or size == 0:  # an empty file has a piece, too
        send(file=index, **data_fields(piece))
        digest.update(piece)
        size += len(piece)
        if not piece or size > most:
            break
    if digest.hexdigest() != expected:
        raise OSError(errno.EBUSY, "changed while it was read", path)
