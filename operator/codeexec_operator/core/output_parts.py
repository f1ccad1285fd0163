"""Output that doesn't fit into the record: cut into parts while it arrives, so that only one of them is held here.

What came compressed stays so, and the rest is compressed when its part is complete. Where a full part ends depends on
what came alone: frames that a runner sends again make the same parts. A part that ends elsewhere has another name.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from codeexec_api.names import ORDER_KEY
from codeexec_api.packing import GZIP_SUFFIX, pack
from codeexec_api.v1alpha1.bounds import MAX_INLINE_BYTES
from codeexec_operator.core.output_place import CONFIG_MAPS, OutputPlace

PART_BYTES: Final = 640 * 1024
"""A part is closed when it holds this much; one more frame fits on top into a ConfigMap of 1 MiB."""
SHORT_PARTS: Final = 40
"""How many parts may be closed before they are full. The others are enough for all that an execution may keep."""
_ESCAPED_BUDGET: Final = 288 * 1024
"""Of each stream, as JSON with Go's escaping: two of these and the rest have to fit into one object of etcd."""
_LOST_START_BYTES: Final = 15 * 1024
"""How much of each stream stays for the record if its first part is lost. So little needs no share of memory."""
_RUN_BYTES: Final = 24
"""What an entry of a part's order takes at most."""
_SIX_BYTES: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f<>&]")
_TWO_BYTES: Final = re.compile(r'[\t\n\r"\\]')
_SEPARATORS: Final = re.compile(r"[\u2028\u2029]")

StreamName = Literal["stdout", "stderr"]
STREAMS: Final[tuple[StreamName, StreamName]] = ("stdout", "stderr")


@dataclass(frozen=True, repr=False)
class OutputPart:
    """What goes into one ConfigMap or object of a store. Has no repr, so that output can't slip into a log line."""

    index: int
    frames: tuple[int, int]
    """Numbers of the frame that it begins with, and of the frame that comes after it."""
    contents: Mapping[str, bytes]
    """Gzip members by key."""
    starts: Mapping[str, bytes]
    """The start of what each key holds, as plain as it can stand in the record."""


@dataclass
class Order:
    """How the streams are interleaved: runs of output on one of them, with the length of each."""

    most: int | None = None
    """Beyond this number of runs, nothing is added any more."""
    runs: list[tuple[StreamName, int]] = field(default_factory=list)
    full: bool = False

    def add(self, name: StreamName, length: int) -> None:
        """So much more has come on this stream."""
        if self.full:
            return
        if self.runs and self.runs[-1][0] == name:
            self.runs[-1] = (name, self.runs[-1][1] + length)
        elif self.most is None or len(self.runs) < self.most:
            self.runs.append((name, length))
        else:
            self.full = True


@dataclass(frozen=True)
class Kept:
    """What is safe once a part is stored: bytes and digest of each stream, and the artifacts that are complete."""

    frames: int
    streams: Mapping[StreamName, tuple[int, str]]
    artifacts: int


@dataclass(repr=False)
class _Held:
    """What has come for one key of a part."""

    begins: bool = True
    """True if its start can stand in the record: of a stream, not of a file."""
    size: int = 0
    """Bytes, not compressed."""
    start: bytearray = field(default_factory=bytearray)
    """As much of it as can stand in the record."""
    _packed: bytearray = field(default_factory=bytearray)
    _plain: bytearray = field(default_factory=bytearray)
    """What has come since, not compressed yet."""

    def add(self, data: bytes, packed: bytes | None) -> None:
        if self.begins:
            self.start += data[: MAX_INLINE_BYTES - len(self.start)]
        self.size += len(data)
        if packed is None:
            self._plain += data
        else:
            self._pack()
            self._packed += packed

    def _pack(self) -> None:
        if self._plain:
            self._packed += pack(self._plain)
            self._plain.clear()

    def packed(self) -> bytes:
        """All of it."""
        self._pack()
        return bytes(self._packed)

    @property
    def fits(self) -> bool:
        """True if all of it can stand in the record."""
        if not self.begins or self.size > MAX_INLINE_BYTES:
            return False
        return _escaped_size(self.start.decode()) <= _ESCAPED_BUDGET

    @property
    def held_bytes(self) -> int:
        return len(self.start) + len(self._packed) + len(self._plain)


@dataclass(repr=False)
class OutputParts:
    """The parts of one execution. A part is held until `stored` or `lose` says what became of `next_part`."""

    place: OutputPlace = CONFIG_MAPS
    lost: str = ""
    """Why a part could not be stored; empty if all could."""
    kept: list[Kept] = field(default_factory=list)
    """For each part, what is safe with it."""
    held: dict[str, _Held] = field(default_factory=dict)
    """What is in no part yet."""
    _order: Order = field(default_factory=Order)
    _size: int = 0
    _waiting: list[OutputPart] = field(default_factory=list)

    def add(self, key: str, data: bytes, packed: bytes | None = None) -> bool:
        """Hold a piece, which may have come as one gzip member, too. True if the part is full now."""
        if self.lost:
            return False
        self.held.setdefault(key, _Held(key in STREAMS)).add(data, packed)
        self._size += len(data if packed is None else packed)
        return self._size + _RUN_BYTES * len(self._order.runs) >= PART_BYTES

    def add_output(self, name: StreamName, data: bytes, packed: bytes | None = None) -> bool:
        """Hold a piece of a stream. True if the part is full now."""
        if not self.lost:
            self._order.add(name, len(data))
        return self.add(name, data, packed)

    @property
    def held_bytes(self) -> int:
        """How much is held here, in parts that wait to be stored, and in none yet."""
        waiting = sum(len(data) for part in self._waiting for data in (*part.contents.values(), *part.starts.values()))
        return waiting + sum(one.held_bytes for one in self.held.values()) + _RUN_BYTES * len(self._order.runs)

    def close(self, kept: Kept) -> None:
        """What is held becomes a part, with which this much is safe."""
        if not self.held:
            return
        contents = {f"{key}{GZIP_SUFFIX}": one.packed() for key, one in self.held.items()}
        contents[f"{ORDER_KEY}{GZIP_SUFFIX}"] = pack(json.dumps(self._order.runs, separators=(",", ":")).encode())
        starts = {key: bytes(one.start) for key, one in self.held.items() if one.begins}
        frames = (self.kept[-1].frames if self.kept else 0, kept.frames)
        self._waiting.append(OutputPart(self.count, frames, contents, starts))
        self.kept.append(kept)
        self.held, self._order, self._size = {}, Order(), 0
        if self.count > self.place.parts:
            self.lose(self._waiting[-1], f"an execution can have at most {self.place.parts} parts of output")

    @property
    def count(self) -> int:
        """How many there are, without those that could not be stored."""
        return len(self.kept)

    @property
    def frames(self) -> list[tuple[int, int]]:
        """Of each part, see `OutputPart.frames`. Parts of the same frames are the same, whoever has made them."""
        return list(pairwise([0, *(one.frames for one in self.kept)]))

    def finish(self, kept: Kept) -> None:
        """Nothing more comes: what can't stand in the record becomes the last part."""
        if not self.lost and (self.count or not all(one.fits for one in self.held.values())):
            self.close(kept)

    def inline(self, name: StreamName) -> str:
        """As much of a stream as can stand in the record, if nothing of it is in a part."""
        return fit(self.held.get(name, _Held()).start.decode(errors="ignore"), _ESCAPED_BUDGET)

    @property
    def waits(self) -> bool:
        """True if there is a part that has to be stored."""
        return bool(self._waiting)

    @property
    def next_part(self) -> OutputPart | None:
        """The next part that has to be stored, in order."""
        return self._waiting[0] if self._waiting else None

    def stored(self, part: OutputPart) -> None:
        """This part is stored, and need not be held any more."""
        self._waiting = [one for one in self._waiting if one is not part]

    def lose(self, part: OutputPart, why: str) -> None:
        """This part could not be stored: it and all that comes after it is counted only."""
        self.lost = self.lost or why
        del self.kept[part.index :]
        self._waiting = [one for one in self._waiting if one.index < part.index]
        first = part.starts.items() if part.index == 0 else ()  # its start can stand in the record
        self.held = {key: _Held(start=bytearray(data[:_LOST_START_BYTES])) for key, data in first}
        self._order = Order()


def fit(text: str, budget: int) -> str:
    """The longest start of a text whose JSON form, as the API server writes it, has at most `budget` bytes.

    Go's encoder writes control characters, `<`, `>`, `&` and two line separators as six bytes, quotes and
    backslashes as two.
    """
    if _escaped_size(text) <= budget:
        return text
    return text[: bisect_right(range(1, len(text)), budget, key=lambda length: _escaped_size(text[:length]))]


def _escaped_size(text: str) -> int:
    six, two, separators = (len(kind.findall(text)) for kind in (_SIX_BYTES, _TWO_BYTES, _SEPARATORS))
    return len(text.encode()) + 5 * six + two + 3 * separators
