"""What the runner has reported, frame by frame; the format is described in `operator/sandbox/runner.py`.

The pod is not trusted: a frame that doesn't fit, or that is missing, makes the transcript faulty, and a faulty
transcript never counts as a success.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from codeexec_api import BlockStatus, EgressTarget, OutputRun, StreamStatus
from codeexec_api.v1alpha1 import MAX_BLOCKS, MAX_EGRESS_TARGETS, MAX_OUTPUT_BYTES
from codeexec_operator.core.egress import Target

MAX_RUNS: Final = 1024
LAYERS: Final = frozenset({"Seccomp", "Landlock"})
"""What a runner can put around code."""
MAX_LINE_BYTES: Final = 2 * 1024 * 1024
_ESCAPED_BUDGET: Final = 384 * 1024
"""Of each stream, as JSON with Go's escaping: two of these and the rest have to fit into one object of etcd."""
_SIX_BYTES: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f<>&]")
_TWO_BYTES: Final = re.compile(r'[\t\n\r"\\]')
_SEPARATORS: Final = re.compile(r"[\u2028\u2029]")


StreamName = Literal["stdout", "stderr"]


@dataclass
class _Stream:
    pieces: list[str] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)
    total_bytes: int = 0
    truncated: bool = False


@dataclass(frozen=True)
class Readiness:
    """What the runner has found out about its pod, before there was any code in it."""

    layers: tuple[str, ...]
    """Names of the layers that it can put around code."""
    answered: Mapping[Target, bool]
    """For each target of the egress proof, whether it answered."""


@dataclass
class Transcript:
    """Accumulates frames. `done` is true once the runner has reported the end and everything had arrived."""

    done: bool = False
    problem: str = ""
    ready: Readiness | None = None
    blocks: list[BlockStatus] = field(default_factory=list)
    _streams: dict[StreamName, _Stream] = field(default_factory=lambda: {"stdout": _Stream(), "stderr": _Stream()})
    _order: list[tuple[StreamName, int]] = field(default_factory=list)
    _order_full: bool = False
    _next: int = 0
    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes, execution_uid: str) -> None:
        """Take bytes as they come from the pod, in pieces of any size."""
        self._rest += data
        lines: list[bytes] = []
        if b"\n" in data:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
        if len(self._rest) > MAX_LINE_BYTES:
            self._fail(f"a line of more than {MAX_LINE_BYTES} bytes")
            self._rest.clear()
        for line in lines:
            if self.problem or self.done:
                return
            try:
                self._take(json.loads(line), execution_uid)
            except Exception as error:  # whatever a pod sends must not get any further
                self._fail(f"a line that is no frame ({type(error).__name__})")

    def _take(self, frame: Mapping[str, Any], execution_uid: str) -> None:
        if "ready" in frame and self._next == 0:
            self.ready = _readiness(frame)
            return None
        if "error" in frame:
            self.problem = f"the runner could not run the job: {str(frame['error'])[:1000]}"
            return None
        if frame["id"] != execution_uid or frame["seq"] != self._next:
            return self._fail(f"frame {frame['seq']} of {frame['id']!r} where {self._next} was due")
        self._next += 1
        if "data" in frame:
            self._take_output(frame["stream"], frame["data"])
        elif "block" in frame:
            self._take_block(frame)
        elif frame.get("done") is True:
            self._take_end(frame)
        return None

    def _take_output(self, name: StreamName, text: str) -> None:
        if not text:
            raise ValueError("output without text")
        stream = self._streams[name]
        encoded = text.encode()
        stream.pieces.append(text)
        stream.digest.update(encoded)
        stream.total_bytes += len(encoded)
        if stream.total_bytes > MAX_OUTPUT_BYTES:
            raise ValueError("more output than any execution may keep")
        if self._order_full:
            return
        if self._order and self._order[-1][0] == name:
            self._order[-1] = (name, self._order[-1][1] + len(text))
        elif len(self._order) < MAX_RUNS:
            self._order.append((name, len(text)))
        else:
            self._order_full = True

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

    def _take_end(self, frame: Mapping[str, Any]) -> None:
        for name, stream in self._streams.items():
            if frame[name]["sha256"] != stream.digest.hexdigest():
                return self._fail(f"{name} did not arrive as it was sent")
            total = frame[name]["bytes"]
            if type(total) is not int or not stream.total_bytes <= 3 * total < 2**53:
                return self._fail(f"a wrong total for {name}")
            stream.total_bytes = total
            stream.truncated = frame[name].get("truncated") is True
        if not self.blocks:
            return self._fail("an end without a block")
        self.done = True
        return None

    def _fail(self, problem: str) -> None:
        self.problem = f"the runner sent {problem}"

    def stream(self, name: StreamName) -> StreamStatus:
        """One stream as the record keeps it: cut where it would not fit into the object, and marked so."""
        stream = self._streams[name]
        text = fit("".join(stream.pieces), _ESCAPED_BUDGET)
        encoded = text.encode()
        return StreamStatus(
            text=text,
            sha256=hashlib.sha256(encoded).hexdigest(),
            total_bytes=stream.total_bytes,
            # Without the runner's totals nobody knows what else was written.
            truncated=not self.done
            or stream.truncated
            or len(text) < sum(map(len, stream.pieces))
            or len(encoded) < stream.total_bytes,
        )

    def order(self) -> tuple[OutputRun, ...]:
        """How the streams were interleaved, in at most MAX_RUNS runs."""
        return tuple(OutputRun(stream=name, characters=count) for name, count in self._order)


def _readiness(frame: Mapping[str, Any]) -> Readiness:
    layers = frame["layers"]
    if len(frame["egress"]) > MAX_EGRESS_TARGETS or not set(layers) <= LAYERS or len(layers) > len(LAYERS):
        raise ValueError("more than a report can hold")
    answered = {}
    for one in frame["egress"]:
        answered[Target.of(EgressTarget.model_validate(one))] = one["answered"] is not False
    return Readiness(tuple(layers), answered)


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
