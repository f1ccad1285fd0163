"""What the runner has reported of one execution. Pure.

A transcript with a problem never counts as a success.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from codeexec_api import ArtifactStatus, BlockStatus, OutputRun, StreamStatus
from codeexec_api.digests import sha256_hex
from codeexec_api.names import artifact_key
from codeexec_api.paths import check_workspace_path
from codeexec_api.v1alpha1.bounds import MAX_ARTIFACTS, MAX_BLOCKS
from codeexec_operator.core.frames import MAX_WORDS, Frames, content_of
from codeexec_operator.core.output_parts import SHORT_PARTS, STREAMS, Kept, Order, OutputParts, StreamName, fit
from codeexec_operator.core.output_place import OutputPlace

MAX_RUNS: Final = 1024
_HEAD_BYTES: Final = 4096
"""How much of a stream that is kept elsewhere stands in the record itself."""


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
class Transcript(Frames):
    """Accumulates what an execution has written and made.

    What doesn't fit into the record is cut into `parts` while it arrives, so that never more than one of them is held
    here.
    """

    task = "run the job"

    finished: bool = False
    """True once nothing more comes, and what is to be stored has been cut into parts."""
    fault: FileFault | None = None
    blocks: list[BlockStatus] = field(default_factory=list)
    artifacts: list[ArtifactStatus] = field(default_factory=list)
    artifacts_omitted: int = 0
    parts: OutputParts = field(default_factory=OutputParts)
    _streams: dict[StreamName, _Stream] = field(default_factory=lambda: {name: _Stream() for name in STREAMS})
    _order: Order = field(default_factory=lambda: Order(MAX_RUNS))
    _file: Any = None
    _file_bytes: int = 0
    _fetched_bytes: int = 0

    @classmethod
    def of(cls, place: OutputPlace) -> "Transcript":
        """A new one, whose large output goes to this place."""
        return cls(parts=OutputParts(place))

    @property
    def over(self) -> bool:
        """See `Frames`. A fault ends the job, too."""
        return super().over or self.fault is not None

    def take(self, frame: Mapping[str, Any], job: str) -> None:
        """See `Frames`. What comes too late changes nothing."""
        if not self.finished:
            super().take(frame, job)

    def _take(self, frame: Mapping[str, Any]) -> None:
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
            self.fault = FileFault(str(frame["fault"]["message"])[:MAX_WORDS])
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
            kept_bytes, sha256 = len(encoded), sha256_hex(encoded)
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
