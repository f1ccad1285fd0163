"""The workspace of a session that sleeps: what its runner says of it, and how it gets into a pod again. Pure.

The pod is not trusted: what doesn't fit, or is missing, makes the copy faulty, and a session with a faulty copy stays
awake. The list holds a digest for each file, and the record holds the digest of the list.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self

from codeexec_api import PodLimits, Reason, StoredFiles
from codeexec_api.digests import SHA256_HEX
from codeexec_api.names import artifact_key
from codeexec_api.output_store import dump_part, load_part
from codeexec_api.packing import GZIP_SUFFIX, pieces_of
from codeexec_api.paths import check_workspace_path
from codeexec_api.quantities import parse_quantity
from codeexec_api.v1alpha1.bounds import MAX_KEPT_FILES, MAX_STORED_BYTES, MAX_STORED_PARTS
from codeexec_operator.core.frames import MAX_WORDS, Frames, content_of
from codeexec_operator.core.output_parts import Kept, OutputParts
from codeexec_operator.core.output_place import OutputPlace
from codeexec_operator.core.payload import PIECE_BYTES, process_limits

FILES_JOB: Final = "files-"
"""What the names of jobs begin with that list the workspace of a session. UIDs of executions don't."""
_MODES: Final = 0o777
_OLDER: Final = (
    "the runner in the sandbox image is older than the operator, and can't list a whole workspace: use a current image"
)


@dataclass(frozen=True)
class Transfer:
    """How far the storing, or the return, of the files of a session has come in this process."""

    since: datetime
    ended_at: datetime | None = None
    stored: StoredFiles | None = None
    """What was stored."""
    problem: str = ""
    """Why the transfer has failed; empty if it has not."""
    reason: Reason = Reason.STORE_UNAVAILABLE
    """The problem in one word. After FilesDiffer, no other try helps."""

    @property
    def running(self) -> bool:
        """True until the transfer has ended."""
        return self.ended_at is None


@dataclass(frozen=True)
class Entry:
    """A file or a folder. The path of a folder ends with a slash."""

    path: str
    mode: int
    size: int = 0
    sha256: str = ""
    """Empty for a folder."""

    @classmethod
    def of(cls, path: Any, mode: Any, size: Any, sha256: Any) -> Self:
        """Make an entry of what a runner has sent.

        Raises:
            Exception: of any type: no file or folder can be so.
        """
        check_workspace_path(path.removesuffix("/"))
        if not (type(mode) is type(size) is int and 0 <= mode <= _MODES and 0 <= size <= MAX_STORED_BYTES):
            raise ValueError("a mode or a size that no file has")
        if not (size == 0 and not sha256 if path.endswith("/") else SHA256_HEX.fullmatch(sha256)):
            raise ValueError("a folder with content, or a file without a digest")
        return cls(path, mode, size, sha256 or "")

    @property
    def folder(self) -> bool:
        """True if the entry is a folder."""
        return self.path.endswith("/")


@dataclass(frozen=True)
class Listing:
    """All files and folders, in order of their paths, and the objects that hold the content of the files."""

    entries: tuple[Entry, ...]
    parts: tuple[str, ...] = ()
    """Digests of the objects, which are their names, in order."""

    def dump(self) -> bytes:
        """The content of the object that holds this list."""
        entries = [[one.path, one.mode, one.size, one.sha256] for one in self.entries]
        value = {"entries": entries, "parts": self.parts}
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Read what `dump` has made.

        Raises:
            Exception: of any type: the object holds something else.
        """
        value = json.loads(data)
        return cls(tuple(Entry.of(*one) for one in value["entries"]), tuple(map(str, value["parts"])))

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(one.size for one in self.entries)


def differs(stored: Listing, found: Listing) -> str:
    """The first difference between a workspace and what was stored; empty if there is none."""
    before, now = ({one.path: one for one in listing.entries} for listing in (stored, found))
    for path in sorted(before.keys() | now.keys()):
        if before.get(path) != now.get(path):
            how = "is not there" if path not in now else "was not stored" if path not in before else "is another one"
            return f"{path} {how}"
    return ""


def most_bytes(limits: PodLimits) -> int:
    """The most bytes that the files of a sleeping session may have. The runner's report of them counts as disk, too."""
    return min(MAX_STORED_BYTES, int(parse_quantity(limits.ephemeral_storage)) // 2)


def build_listing(job: str, limits: PodLimits, *, content: bool) -> dict[str, Any]:
    """The job that makes a runner list its whole workspace, with the content of its files if asked."""
    return {
        "id": job,
        "session": True,
        "stateful": False,
        "blocks": [],
        "timeoutSeconds": 0,
        "outputBytes": 0,
        "fetchBytes": most_bytes(limits),
        **process_limits(limits),
        "artifacts": {"list": "Whole", "fetch": content, "most": MAX_KEPT_FILES},
    }


def _parts() -> OutputParts:
    return OutputParts(OutputPlace(fetch_bytes=MAX_STORED_BYTES, parts=MAX_STORED_PARTS))


@dataclass(repr=False)
class WorkspaceCopy(Frames):
    """Accumulates the list of a whole workspace. With `content`, it cuts the content of files into parts meanwhile."""

    task = "list the files"

    content: bool = field(kw_only=True)
    parts: OutputParts = field(default_factory=_parts)
    entries: list[Entry] = field(default_factory=list)
    _size: int = 0
    _file: Any = None
    _file_bytes: int = 0

    def _take(self, frame: Mapping[str, Any]) -> None:
        if "fault" in frame:
            self.problem = str(frame["fault"]["message"])[:MAX_WORDS]
        elif ("artifact" in frame and "mode" not in frame) or ("done" in frame and "whole" not in frame):
            self.problem = _OLDER
        elif "artifact" in frame:
            self._take_entry(frame)
        elif "file" in frame:
            self._take_content(frame)
        elif frame.get("done") is True and frame.get("whole") is True:
            self._end_file()
            self._close()
            self.done = True
        else:
            raise ValueError("a frame of another kind")

    def _take_entry(self, frame: Mapping[str, Any]) -> None:
        self._end_file()
        entry = Entry.of(frame["path"], frame["mode"], frame["size"], frame["sha256"])
        last = self.entries[-1].path if self.entries else ""
        if frame["artifact"] != len(self.entries) or len(self.entries) >= MAX_KEPT_FILES or entry.path <= last:
            raise ValueError("an entry out of order")
        self._size += entry.size
        if self._size > MAX_STORED_BYTES:
            raise ValueError("more than any session may keep")
        self.entries.append(entry)
        if self.content and not entry.folder:
            self._file, self._file_bytes = hashlib.sha256(), 0

    def _take_content(self, frame: Mapping[str, Any]) -> None:
        index = len(self.entries) - 1
        if self._file is None or frame["file"] != index:
            raise ValueError("content of a file that was not announced")
        data, packed = content_of(frame)
        self._file.update(data)
        self._file_bytes += len(data)
        if self._file_bytes > self.entries[index].size:
            raise ValueError("more of a file than was announced")
        if self.parts.add(artifact_key(index), data, packed):
            self._close()

    def _end_file(self) -> None:
        """Check the file whose pieces came last: all of it has come."""
        if self._file is None:
            return
        entry = self.entries[-1]
        if (self._file.hexdigest(), self._file_bytes) != (entry.sha256, entry.size):
            raise ValueError("a file that is not the one announced")
        self._file = None

    def _close(self) -> None:
        self.parts.close(Kept(self._next, {}, 0))
        if self.parts.lost:
            self.problem = f"the files make more than {MAX_STORED_PARTS} objects"

    def cut(self) -> bool:
        """Close a part before it is full, so that it can be stored; False if there is nothing in it."""
        if self.over or not self.parts.held:
            return False
        self._close()
        return True

    @property
    def next_object(self) -> bytes | None:
        """The next object that has to be stored. It is held until `object_stored`."""
        part = self.parts.next_part
        return dump_part(part.contents) if part else None

    def object_stored(self) -> None:
        """The next object is stored."""
        if part := self.parts.next_part:
            self.parts.stored(part)


class Unpacking:
    """Makes the messages that put a workspace into a pod, of one object after the other.

    Each method raises a ValueError where the objects don't hold what the list says.
    """

    def __init__(self, listing: Listing) -> None:
        self._entries = listing.entries
        self._keys = {f"{artifact_key(index)}{GZIP_SUFFIX}": index for index in range(len(listing.entries))}
        self._at, self._size, self._digest = -1, 0, hashlib.sha256()

    def of_object(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages for what the next object holds."""
        for key, packed in load_part(data).items():
            index = self._keys.get(key)
            if index is None:  # the order of streams, of which there are none
                continue
            if index != self._at:
                yield from self._go_to(index)
            yield from self._pieces(index, packed)

    def rest(self) -> Iterator[dict[str, Any]]:
        """The messages for what comes after the last object."""
        yield from self._go_to(len(self._entries))

    def _go_to(self, index: int) -> Iterator[dict[str, Any]]:
        """Begin the file with this index. What comes before is complete, and only folders are in between."""
        if self._at >= 0:
            last = self._entries[self._at]
            if (self._size, self._digest.hexdigest()) != (last.size, last.sha256):
                raise ValueError(f"the objects hold another file {last.path}")
        between = self._entries[self._at + 1 : index]
        if index < self._at or not all(one.folder for one in between):
            raise ValueError("the objects don't hold all files")
        for one in self._entries[self._at + 1 : index + 1]:
            yield {"put": one.path, "data": "", "append": False, "mode": one.mode}
        self._size, self._digest = 0, hashlib.sha256()
        self._at = index

    def _pieces(self, index: int, packed: bytes) -> Iterator[dict[str, Any]]:
        entry, held = self._entries[index], bytearray()
        for piece in pieces_of(packed, entry.size - self._size):
            self._size += len(piece)
            self._digest.update(piece)
            held += piece
            while len(held) >= PIECE_BYTES:
                yield _more(entry, held[:PIECE_BYTES])
                del held[:PIECE_BYTES]
        if held:
            yield _more(entry, held)


def _more(entry: Entry, piece: bytes | bytearray) -> dict[str, Any]:
    return {"put": entry.path, "data": base64.b64encode(piece).decode(), "append": True}
