"""What the runner has reported of one execution, frame by frame; `operator/sandbox/runner.py` describes the format.

The pod is not trusted: a frame that doesn't fit, or that is missing, makes the transcript faulty, and a faulty
transcript never counts as a success.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from codeexec_api import ArtifactStatus, BlockStatus, EgressTarget, OutputRun, StreamStatus
from codeexec_api.names import ORDER_KEY, artifact_key
from codeexec_api.paths import check_workspace_path
from codeexec_api.v1alpha1 import (
    MAX_ARTIFACTS,
    MAX_BLOCKS,
    MAX_EGRESS_TARGETS,
    MAX_FETCH_BYTES,
    MAX_INLINE_BYTES,
    MAX_OUTPUT_BYTES,
    MAX_OUTPUT_PARTS,
)
from codeexec_operator.core.egress import Target

MAX_RUNS: Final = 1024
LAYERS: Final = frozenset({"Seccomp", "Landlock", "LandlockPorts"})
"""What a runner can put around code."""
MAX_LINE_BYTES: Final = 2 * 1024 * 1024
SHORT_PARTS: Final = 40
"""How many parts may be closed before they are full. The others are enough for all that an execution may keep."""
PART_BYTES: Final = 640 * 1024
"""A part is closed when it holds this much; one more frame fits on top into a ConfigMap of 1 MiB."""
_RUN_BYTES: Final = 24
"""What an entry of a part's order takes at most."""
_HEAD_BYTES: Final = 4096
"""How much of a stream that is kept elsewhere stands in the record itself."""
_ESCAPED_BUDGET: Final = 288 * 1024
"""Of each stream, as JSON with Go's escaping: two of these and the rest have to fit into one object of etcd."""
_SIX_BYTES: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f<>&]")
_TWO_BYTES: Final = re.compile(r'[\t\n\r"\\]')
_BOOT_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SEPARATORS: Final = re.compile(r"[\u2028\u2029]")

StreamName = Literal["stdout", "stderr"]
STREAMS: Final[tuple[StreamName, StreamName]] = ("stdout", "stderr")


class Lines:
    """Puts lines together from pieces of any size."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skipping = False

    @property
    def pending(self) -> int:
        """How many bytes have come of a line that isn't complete."""
        return len(self._rest)

    def feed(self, data: bytes, *, skip_beyond: int | None = None) -> list[bytes]:
        """The lines that these bytes complete.

        Args:
            data: what has come.
            skip_beyond: a line that is longer, and not complete yet, is left out. None: no line is.

        Raises:
            ValueError: a line is longer than MAX_LINE_BYTES.
        """
        if self._skipping:
            _, end, data = data.partition(b"\n")
            self._skipping = not end
        self._rest += data
        lines: list[bytes] = []
        if b"\n" in data:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
        if skip_beyond is not None and len(self._rest) > skip_beyond:
            self._rest.clear()
            self._skipping = True
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return lines


@dataclass(frozen=True)
class Readiness:
    """What the runner has found out about its pod, before there was any code in it."""

    layers: tuple[str, ...]
    """Names of the layers that it can put around code."""
    answered: Mapping[Target, bool]
    """For each target of the egress proof, whether it answered."""
    boot_id: str = ""
    """Of the kernel that it runs on."""
    user_namespace: bool = False
    """True if users of its pod are others elsewhere."""
    job: str | None = None
    """The job that runs there, or that was not acknowledged yet."""
    used: bool = False
    """True if any job was begun there."""


def readiness(frame: Mapping[str, Any]) -> Readiness:
    """From the frame that says so.

    Raises:
        Exception: the frame is not one, of whatever type; the caller treats all alike.
    """
    layers = frame["layers"]
    if len(frame["egress"]) > MAX_EGRESS_TARGETS or not set(layers) <= LAYERS or len(layers) > len(LAYERS):
        raise ValueError("more than a report can hold")
    answered = {}
    for one in frame["egress"]:
        answered[Target.of(EgressTarget.model_validate(one))] = one["answered"] is not False
    boot_id = _BOOT_ID.fullmatch(frame.get("bootId", ""))  # a runner of an older image says nothing of it
    job = frame.get("job")
    return Readiness(
        tuple(layers),
        answered,
        boot_id[0] if boot_id else "",
        frame.get("userNamespace") is True,
        str(job) if job else None,
        frame.get("used") is True,
    )


@dataclass(frozen=True, repr=False)
class OutputPart:
    """What goes into one ConfigMap. Has no repr, so that output can't slip into a log line."""

    index: int
    contents: Mapping[str, bytes]


@dataclass(frozen=True)
class FileFault:
    """A file that could not be put into the workspace, or taken out of it."""

    message: str


@dataclass
class _Order:
    """How the streams are interleaved: runs of output on one of them, with the length of each."""

    most: int | None = None
    """Beyond this number of runs, nothing is added any more."""
    runs: list[tuple[StreamName, int]] = field(default_factory=list)
    full: bool = False

    def add(self, name: StreamName, length: int) -> None:
        if self.full:
            return
        if self.runs and self.runs[-1][0] == name:
            self.runs[-1] = (name, self.runs[-1][1] + length)
        elif self.most is None or len(self.runs) < self.most:
            self.runs.append((name, length))
        else:
            self.full = True


@dataclass
class _Stream:
    head: str = ""
    digest: Any = field(default_factory=hashlib.sha256)
    kept_bytes: int = 0
    total_bytes: int = 0
    truncated: bool = False


@dataclass(frozen=True)
class _Kept:
    """What is safe once a part is stored: bytes and digest of each stream, and the artifacts that are complete."""

    streams: Mapping[StreamName, tuple[int, str]]
    artifacts: int


@dataclass(repr=False)
class Transcript:
    """Accumulates frames. `done` is true once the runner has reported the end and everything had arrived.

    It has no repr, so that output can't slip into a log line.
    What doesn't fit into the record is cut into parts while it arrives, so that never more than one of them is held
    here. `take_part` hands them out to be stored; `lose` says that this was not possible.
    """

    done: bool = False
    problem: str = ""
    finished: bool = False
    """True once nothing more comes, and what is to be stored has been cut into parts."""
    fault: FileFault | None = None
    blocks: list[BlockStatus] = field(default_factory=list)
    artifacts: list[ArtifactStatus] = field(default_factory=list)
    artifacts_omitted: int = 0
    _streams: dict[StreamName, _Stream] = field(default_factory=lambda: {name: _Stream() for name in STREAMS})
    _order: _Order = field(default_factory=lambda: _Order(MAX_RUNS))
    _next: int = 0
    _buffer: dict[str, bytearray] = field(default_factory=dict)
    _buffer_order: _Order = field(default_factory=_Order)
    _buffered: int = 0
    _parts: list[OutputPart] = field(default_factory=list)
    _part_count: int = 0
    _kept: list[_Kept] = field(default_factory=list)
    _lost: str = ""
    _file: Any = None
    _file_bytes: int = 0
    _fetched_bytes: int = 0

    @property
    def over(self) -> bool:
        """True when nothing more is to be expected."""
        return self.done or bool(self.problem) or self.fault is not None

    @property
    def next_frame(self) -> int:
        """Number of the frame that comes next."""
        return self._next

    @property
    def part_count(self) -> int:
        """How many parts there are, without those that could not be stored."""
        return self._part_count

    @property
    def lost(self) -> str:
        """Why a part could not be stored; empty if all could."""
        return self._lost

    def take(self, frame: Mapping[str, Any], execution_uid: str) -> None:
        """Take the next frame."""
        if self.over or self.finished:
            return
        try:
            self._take(frame, execution_uid)
        except Exception as error:  # whatever a pod sends must not get any further
            self.fail(f"a line that is not a valid frame ({type(error).__name__})")

    def _take(self, frame: Mapping[str, Any], execution_uid: str) -> None:
        if "error" in frame:
            self.problem = f"the runner could not run the job: {str(frame['error'])[:1000]}"
            return
        if frame["id"] != execution_uid or frame["seq"] != self._next:
            self.fail(f"frame {frame['seq']} of {frame['id']!r} instead of frame {self._next}")
            return
        self._next += 1
        if "stream" in frame:
            self._take_output(frame["stream"], _text(frame))
        elif "block" in frame:
            self._take_block(frame)
        elif "artifact" in frame:
            self._take_artifact(frame)
        elif "file" in frame:
            self._take_file(frame)
        elif frame.get("done") is True:
            self._take_end(frame)
        elif "fault" in frame:
            self.fault = FileFault(str(frame["fault"]["message"])[:1000])
        else:
            self.fail("a frame of unknown kind")

    def _take_output(self, name: StreamName, text: str) -> None:
        if not text:
            raise ValueError("output without text")
        stream = self._streams[name]
        encoded = text.encode()
        if stream.kept_bytes + len(encoded) > MAX_OUTPUT_BYTES:
            raise ValueError("more output than any execution may keep")
        if len(stream.head.encode()) == stream.kept_bytes:  # else it has been cut
            stream.head = fit(stream.head + text[:_HEAD_BYTES], _HEAD_BYTES)
        stream.digest.update(encoded)
        stream.kept_bytes += len(encoded)
        stream.total_bytes += len(encoded)
        self._order.add(name, len(text))
        if not self._lost:
            self._buffer_order.add(name, len(encoded))
        self._keep(name, encoded)

    def _take_block(self, frame: Mapping[str, Any]) -> None:
        if frame["block"] != len(self.blocks) or len(self.blocks) >= MAX_BLOCKS:
            raise ValueError("a block out of order")
        self.blocks.append(
            BlockStatus(
                exit_code=frame["exitCode"],
                reason=frame["reason"],
                started_at=datetime.fromtimestamp(frame["startedAt"], UTC),
                duration_ms=frame["durationMs"],
                stdout_bytes=frame["stdoutBytes"],
                stderr_bytes=frame["stderrBytes"],
            )
        )

    def _take_artifact(self, frame: Mapping[str, Any]) -> None:
        if frame["artifact"] != len(self.artifacts) or len(self.artifacts) >= MAX_ARTIFACTS:
            raise ValueError("an artifact out of order")
        self._end_file()
        path = check_workspace_path(frame["path"])
        self.artifacts.append(ArtifactStatus(path=path, size_bytes=frame["size"], sha256=frame.get("sha256")))

    def _take_file(self, frame: Mapping[str, Any]) -> None:
        index = len(self.artifacts) - 1
        if index < 0 or frame["file"] != index:
            raise ValueError("content of a file that was not announced")
        data = base64.b64decode(frame["data64"], validate=True)
        self._file = self._file or hashlib.sha256()
        self._file.update(data)
        self._file_bytes += len(data)
        self._fetched_bytes += len(data)
        if self._fetched_bytes > MAX_FETCH_BYTES:
            raise ValueError("more files than any execution may give out")
        self._keep(artifact_key(index), data)

    def _end_file(self) -> None:
        """The file whose pieces came last is complete."""
        if self._file is None:
            return
        artifact = self.artifacts[-1]
        if self._file.hexdigest() != artifact.sha256 or self._file_bytes != artifact.size_bytes:
            raise ValueError("a file that is not the one announced")
        self.artifacts[-1] = artifact.model_copy(update={"fetched": True})
        self._file, self._file_bytes = None, 0

    def _take_end(self, frame: Mapping[str, Any]) -> None:
        self._end_file()
        for name, stream in self._streams.items():
            if frame[name]["sha256"] != stream.digest.hexdigest():
                self.fail(f"another digest for {name} than that of the data that arrived")
                return
            total = frame[name]["bytes"]
            if type(total) is not int or not stream.kept_bytes <= 3 * total < 2**53:
                self.fail(f"a wrong total for {name}")
                return
            stream.total_bytes = total
            stream.truncated = frame[name].get("truncated") is True
        omitted = frame.get("artifactsOmitted", 0)
        if type(omitted) is not int or not 0 <= omitted < 2**53:
            self.fail("a wrong number of artifacts")
            return
        self.artifacts_omitted = omitted
        self.done = True

    def fail(self, problem: str) -> None:
        """What came was not what a runner sends."""
        self.problem = f"the runner sent {problem}"

    # --- parts ---

    def _keep(self, key: str, data: bytes) -> None:
        if self._lost:
            return
        self._buffer.setdefault(key, bytearray()).extend(data)
        self._buffered += len(data)
        if self._buffered + _RUN_BYTES * len(self._buffer_order.runs) >= PART_BYTES:
            self._close_part()

    def _close_part(self) -> None:
        if not self._buffer:
            return
        contents = {key: bytes(data) for key, data in self._buffer.items()}
        contents[ORDER_KEY] = json.dumps(self._buffer_order.runs, separators=(",", ":")).encode()
        self._parts.append(OutputPart(self._part_count, contents))
        self._part_count += 1
        self._kept.append(self._now_kept())
        self._buffer, self._buffer_order, self._buffered = {}, _Order(), 0
        if self._part_count > MAX_OUTPUT_PARTS:
            self.lose(self._parts[-1], f"an execution can have at most {MAX_OUTPUT_PARTS} parts of output")

    def _now_kept(self) -> _Kept:
        streams = {name: (one.kept_bytes, one.digest.hexdigest()) for name, one in self._streams.items()}
        return _Kept(streams, max(0, len(self.artifacts) - 1))  # more may come of the last one

    @property
    def held_bytes(self) -> int:
        """How much of the output is held here."""
        parts = sum(len(data) for part in self._parts for data in part.contents.values())
        return parts + sum(map(len, self._buffer.values())) + _RUN_BYTES * len(self._buffer_order.runs)

    def cut(self) -> bool:
        """Close a part before it is full, so that it can be stored; False if that can't be any more."""
        if self._lost or self.finished or self.over or self._part_count >= SHORT_PARTS:
            return False
        self._close_part()
        return True

    def take_part(self) -> OutputPart | None:
        """The next part that has to be stored, in order."""
        return self._parts.pop(0) if self._parts else None

    def finish(self) -> None:
        """Nothing more comes: what can't stand in the record becomes the last part."""
        self.finished = True
        fetched = any(key not in STREAMS for key in self._buffer)
        if not self._lost and (self._part_count or fetched or not self._fits()):
            self._close_part()

    def _fits(self) -> bool:
        return all(
            len(data) <= MAX_INLINE_BYTES and _escaped_size(data.decode()) <= _ESCAPED_BUDGET
            for data in (self._buffer.get(name, bytearray()) for name in STREAMS)
        )

    def lose(self, part: OutputPart, why: str) -> None:
        """This part could not be stored: it and all that comes after it is counted only."""
        self._lost = self._lost or why
        self._part_count = min(self._part_count, part.index)
        del self._kept[part.index :]
        self._parts = [one for one in self._parts if one.index < part.index]
        if part.index == 0:  # its start can stand in the record
            self._buffer = {key: bytearray(data) for key, data in part.contents.items() if key in STREAMS}
        else:
            self._buffer = {}
        self._buffer_order = _Order()

    # --- for the record ---

    def stream(self, name: StreamName) -> StreamStatus:
        """One stream as the record keeps it: marked where it is not all that was written."""
        stream = self._streams[name]
        if self._part_count:
            kept_bytes, sha256 = self._kept[-1].streams[name]
            text = stream.head.encode()[:kept_bytes].decode()
        else:
            whole = bytes(self._buffer.get(name, b"")).decode()
            text = fit(whole.encode()[:MAX_INLINE_BYTES].decode(errors="ignore"), _ESCAPED_BUDGET)
            encoded = text.encode()
            kept_bytes, sha256 = len(encoded), hashlib.sha256(encoded).hexdigest()
        return StreamStatus(
            text=text,
            sha256=sha256,
            kept_bytes=kept_bytes,
            total_bytes=stream.total_bytes,
            # Without the runner's totals nobody knows what else was written.
            truncated=not self.done or stream.truncated or kept_bytes < max(stream.kept_bytes, stream.total_bytes),
            referenced=bool(self._part_count) and kept_bytes > 0,
        )

    def order(self) -> tuple[OutputRun, ...]:
        """How the streams were interleaved, in at most MAX_RUNS runs, if they stand in the record as a whole."""
        if self._part_count:
            return ()
        return tuple(OutputRun(stream=name, characters=count) for name, count in self._order.runs)

    def kept_artifacts(self) -> tuple[ArtifactStatus, ...]:
        """The files that were named; those whose content was lost on the way are marked as not fetched."""
        if not self._lost:
            return tuple(self.artifacts)
        complete = self._kept[-1].artifacts if self._kept else 0
        return tuple(
            one if index < complete else one.model_copy(update={"fetched": False})
            for index, one in enumerate(self.artifacts)
        )


def _text(frame: Mapping[str, Any]) -> str:
    if "data64" in frame:
        return base64.b64decode(frame["data64"], validate=True).decode()
    text: str = frame["data"]
    return text


def fit(text: str, budget: int) -> str:
    """The longest start of a text whose JSON form, as the API server writes it, has at most `budget` bytes.

    Go's encoder writes control characters, `<`, `>`, `&` and two line separators as six bytes, quotes and
    backslashes as two.
    """
    if _escaped_size(text) <= budget:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _escaped_size(text[:middle]) <= budget else (low, middle - 1)
    return text[:low]


def _escaped_size(text: str) -> int:
    six, two, separators = (len(kind.findall(text)) for kind in (_SIX_BYTES, _TWO_BYTES, _SEPARATORS))
    return len(text.encode()) + 5 * six + two + 3 * separators
