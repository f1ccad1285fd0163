"""What a test says about code: which block there is, and what comes of it. Nothing here runs any code."""

import errno
import os
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

StreamName: TypeAlias = Literal["stdout", "stderr"]


class Workspace(MutableMapping[str, bytes]):
    """The files of a sandbox by path, and which of them the code has written to."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self.changed: set[str] = set()

    def __getitem__(self, path: str) -> bytes:
        return self._files[path]

    def __setitem__(self, path: str, content: bytes) -> None:
        self.put(path, content)
        self.changed.add(path)

    def __delitem__(self, path: str) -> None:
        del self._files[path]
        self.changed.discard(path)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)

    def put(self, path: str, content: bytes) -> None:
        """Write a file that is no work of the code.

        Raises:
            OSError: a folder has this name, or a file that of a folder in the path.
        """
        if any(other.startswith(f"{path}/") for other in self._files):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if any(path.startswith(f"{other}/") for other in self._files):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self._files[path] = bytes(content)
        self.changed.discard(path)


@dataclass(frozen=True)
class FakeBlock:
    """A block of code that a sandbox would run now."""

    language: str
    """As in the record: `python`, never `py`."""
    code: str
    filename: str
    """Its file in the workspace."""
    files: MutableMapping[str, bytes]
    """The workspace, by relative path. Write to it what the code would write; a session keeps it."""
    session: str | None = None
    """Name of the CodeSession, if it runs in one."""


@dataclass(frozen=True)
class FakeOutcome:
    """What comes of a block.

    Raises:
        ValueError: it is to end in more than one way, or with an exit code that no process has.
    """

    stdout: str | bytes = ""
    stderr: str | bytes = ""
    pieces: tuple[tuple[StreamName, str | bytes], ...] = ()
    """Output in order, where it matters how the streams are interleaved; it comes before `stdout` and `stderr`."""
    exit_code: int = 0
    takes: float = 0
    """Seconds on the clock of the fake; nothing waits. More than the time limit ends the block as a time-out."""
    never_ends: bool = False
    """Runs until it is cancelled, the clock is set past its limit, or its pod is lost."""
    out_of_memory: bool = False
    """Is killed for want of memory."""
    loses_pod: bool = False
    """Its pod is deleted while it runs."""

    def __post_init__(self) -> None:
        if sum((self.never_ends, self.out_of_memory, self.loses_pod)) > 1:
            raise ValueError("an outcome ends in one way: never_ends, out_of_memory or loses_pod")
        whole = isinstance(self.exit_code, int) and not isinstance(self.exit_code, bool)
        if not whole or not 0 <= self.exit_code <= 255:
            raise ValueError(
                f"exit_code is {self.exit_code!r}: pass a whole number from 0 to 255. A process that a signal "
                "ends has 128 and the number of the signal, such as 137"
            )

    def output(self) -> Iterator[tuple[StreamName, bytes]]:
        """Everything that is written, in order."""
        for stream, piece in (*self.pieces, ("stdout", self.stdout), ("stderr", self.stderr)):
            if piece:
                yield stream, piece.encode() if isinstance(piece, str) else piece


Script: TypeAlias = Callable[[FakeBlock], FakeOutcome]
