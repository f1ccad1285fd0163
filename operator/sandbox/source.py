"""The source of a block: a file in memory that nobody can change, whoever has it open. Standard library only."""

import errno
import fcntl
import os

from sha256 import Sha256

PIECE = 256 * 1024
_NOEXEC_SEAL = 0x0008  # MFD_NOEXEC_SEAL: Linux 6.3 or newer, where a node may demand it
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Source:
    """Empty at first, so that a program can inherit it before its block is known."""

    def __init__(self):
        self.descriptor = memory_file("source")

    def seal(self, block):
        """Take the code of a block, for good; what is then in the file is compared with the record's digest.

        Raises:
            RuntimeError: it is other code. None of it may run.
        """
        content = memoryview(block["code"].encode())
        written = 0
        while written < len(content):
            written += os.pwrite(self.descriptor, content[written:], written)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        compare(self.descriptor, block)

    def close(self):
        """Let go of it; a program that has inherited it keeps it."""
        os.close(self.descriptor)


def compare(descriptor, block):
    """See to it that a file holds the code that was submitted.

    Raises:
        RuntimeError: it doesn't.
    """
    digest, size = Sha256(), 0
    while piece := os.pread(descriptor, PIECE, size):
        digest.update(piece)
        size += len(piece)
    if digest.hexdigest() != block["sha256"]:
        raise RuntimeError(
            f"block {block['path']}: the SHA-256 of its code is {digest.hexdigest()}, "
            f"but {block['sha256']} was submitted; the block was not run"
        )


def memory_file(name):
    """The descriptor of an empty file in memory, which no folder shows."""
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
