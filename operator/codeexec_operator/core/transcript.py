"""What the runner has reported of one execution, frame by frame; `operator/sandbox/runner.py` describes the format.

The pod is not trusted: a frame that doesn't fit, or that is missing, makes the transcript faulty, and a faulty
transcript never counts as a success.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from codeexec_api import ArtifactStatus, BlockStatus, OutputRun, StreamStatus
from codeexec_api.names import artifact_key
from codeexec_api.packing import unpack
from codeexec_api.paths import check_workspace_path
from codeexec_api.v1alpha1.bounds import MAX_ARTIFACTS, MAX_BLOCKS
from codeexec_operator.core.output_parts import SHORT_PARTS, STREAMS, Kept, Order, OutputParts, StreamName, fit
from codeexec_operator.core.output_place import OutputPlace

MAX_RUNS: Final = 1024
MAX_LINE_BYTES: Final = 2 * 1024 * 1024
MAX_PIECE_BYTES: Final = 256 * 1024
"""Of output or of a file in a frame. A runner reads 64 KiB at a time, and a broken character becomes three bytes."""
_HEAD_BYTES: Final = 4096
"""How much of a stream that is kept elsewhere stands in the record itself."""


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
class FileFault:
    """A file that could not be put into the workspace, or taken out of it."""

    message: str


@dataclass
class _Stream:
    head: str = ""
    digest: Any = field(default_factory=hashlib.sha256)
    kept_bytes: int = 0
    total_bytes: int = 0
    truncated: bool = False


@dataclass(repr=False)
class Transcript:
    """Accumulates frames. `done` is true once the runner has reported the end and everything had arrived.

    It has no repr, so that output can't slip into a log line.
    What doesn't fit into the record is cut into `parts` while it arrives, so that never more than one of them is held
    here.
    """

    done: bool = False
    problem: str = ""
    finished: bool = False
    """True once nothing more comes, and what is to be stored has been cut into parts."""
    fault: FileFault | None = None
    blocks: list[BlockStatus] = field(default_factory=list)
    artifacts: list[ArtifactStatus] = field(default_factory=list)
    artifacts_omitted: int = 0
    parts: OutputParts = field(default_factory=OutputParts)
    _streams: dict[StreamName, _Stream] = field(default_factory=lambda: {name: _Stream() for name in STREAMS})
    _order: Order = field(default_factory=lambda: Order(MAX_RUNS))
    _next: int = 0
    _file: Any = None
    _file_bytes: int = 0
    _fetched_bytes: int = 0

    @classmethod
    def of(cls, place: OutputPlace) -> "Transcript":
        """A new one, whose large output goes to this place."""
        return cls(parts=OutputParts(place))

    @property
    def over(self) -> bool:
        """True when nothing more is to be expected."""
        return self.done or bool(self.problem) or self.fault is not None

    @property
    def next_frame(self) -> int:
        """Number of the frame that comes next."""
        return self._next

    def take(self, frame: Mapping[str, Any], job: str) -> None:
        """Take the next frame."""
        if self.over or self.finished:
            return
        try:
            self._take(frame, job)
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
            self._take_output(frame["stream"], *content_of(frame))
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

    def _take_output(self, name: StreamName, encoded: bytes, packed: bytes | None) -> None:
        if not encoded:
            raise ValueError("output without text")
        stream, text = self._streams[name], encoded.decode()
        if stream.kept_bytes + len(encoded) > self.parts.place.output_bytes:
            raise ValueError("more output than any execution may keep")
        if len(stream.head.encode()) == stream.kept_bytes:  # else it has been cut
            stream.head = fit(stream.head + text[:_HEAD_BYTES], _HEAD_BYTES)
        stream.digest.update(encoded)
        stream.kept_bytes += len(encoded)
        stream.total_bytes += len(encoded)
        self._order.add(name, len(text))
        if self.parts.add_output(name, encoded, packed):
            self.parts.close(self._now_kept())

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
        data, packed = content_of(frame)
        self._file = self._file or hashlib.sha256()
        self._file.update(data)
        self._file_bytes += len(data)
        self._fetched_bytes += len(data)
        if self._fetched_bytes > self.parts.place.fetch_bytes:
            raise ValueError("more files than any execution may give out")
        if self.parts.add(artifact_key(index), data, packed):
            self.parts.close(self._now_kept())

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

    def _now_kept(self) -> Kept:
        streams = {name: (one.kept_bytes, one.digest.hexdigest()) for name, one in self._streams.items()}
        return Kept(self._next, streams, max(0, len(self.artifacts) - 1))  # more may come of the last one

    def cut(self) -> bool:
        """Close a part before it is full, so that it can be stored; False if that can't be any more."""
        if self.parts.lost or self.finished or self.over or self.parts.count >= SHORT_PARTS:
            return False
        self.parts.close(self._now_kept())
        return True

    def finish(self) -> None:
        """Nothing more comes: what can't stand in the record becomes the last part."""
        if not self.finished:
            self.finished = True
            self.parts.finish(self._now_kept())

    # --- for the record ---

    def stream(self, name: StreamName) -> StreamStatus:
        """One stream as the record keeps it: marked where it is not all that was written."""
        stream = self._streams[name]
        if self.parts.count:
            kept_bytes, sha256 = self.parts.kept[-1].streams[name]
            text = stream.head.encode()[:kept_bytes].decode()
        else:
            text = self.parts.inline(name)
            encoded = text.encode()
            kept_bytes, sha256 = len(encoded), hashlib.sha256(encoded).hexdigest()
        return StreamStatus(
            text=text,
            sha256=sha256,
            kept_bytes=kept_bytes,
            total_bytes=stream.total_bytes,
            # Without the runner's totals nobody knows what else was written.
            truncated=not self.done or stream.truncated or kept_bytes < max(stream.kept_bytes, stream.total_bytes),
            referenced=bool(self.parts.count) and kept_bytes > 0,
        )

    def order(self) -> tuple[OutputRun, ...]:
        """How the streams were interleaved, in at most MAX_RUNS runs, if they stand in the record as a whole."""
        if self.parts.count:
            return ()
        return tuple(OutputRun(stream=name, characters=count) for name, count in self._order.runs)

    def kept_artifacts(self) -> tuple[ArtifactStatus, ...]:
        """The files that were named; those whose content was lost on the way are marked as not fetched."""
        if not self.parts.lost:
            return tuple(self.artifacts)
        complete = self.parts.kept[-1].artifacts if self.parts.kept else 0
        return tuple(
            one if index < complete else one.model_copy(update={"fetched": False})
            for index, one in enumerate(self.artifacts)
        )


def content_of(frame: Mapping[str, Any]) -> tuple[bytes, bytes | None]:
    """What a frame brings, and that as one gzip member if it came so."""
    if "gzip64" in frame:
        packed = base64.b64decode(frame["gzip64"], validate=True)
        data = unpack(packed, MAX_PIECE_BYTES, alone=True)
        return data, packed if len(packed) < len(data) else None
    if "data64" in frame:
        return base64.b64decode(frame["data64"], validate=True), None
    text: str = frame["data"]
    return text.encode(), None
