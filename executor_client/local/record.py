"""What happened to a local execution, in the form of the cluster's record: pure functions and values.

So results, their words and the span are made by the same functions for both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from codeexec_api import (
    ApprovalStatus,
    ArtifactStatus,
    BlockStatus,
    CodeExecution,
    CodeExecutionSpec,
    CodeExecutionStatus,
    CodeFinding,
    Event,
    Phase,
    Reason,
    StreamStatus,
    advance,
)
from codeexec_api.digests import sha256_hex
from codeexec_api.records import BLOCK_REASONS, exit_code, how_it_ended
from codeexec_api.v1alpha1.base import ObjectMeta
from executor_client.model.results import STREAMS, Contents, OutputChunk, StreamName
from executor_client.model.stream import Stream

LAYERS: Final = ("Seccomp", "Landlock")


@dataclass(frozen=True)
class Submission:
    """What is to be run, or isn't."""

    name: str
    spec: CodeExecutionSpec
    findings: tuple[CodeFinding, ...] = ()
    """What the policy's rules for code have found."""


@dataclass(frozen=True)
class BlockEnd:
    """How one block ended."""

    event: Event
    exit_code: int
    """Its own; other ends have codes of their own."""
    duration_ms: int = 0


class Output:
    """stdout and stderr of all blocks, as they come.

    Args:
        most: bytes of each that are kept; what is beyond is counted.
        tell: called with what is kept, as it comes.
    """

    def __init__(self, most: int, tell: Callable[[OutputChunk], object] | None = None) -> None:
        self._tell = tell
        self._streams = {name: Stream(most) for name in STREAMS}
        self._order: list[tuple[StreamName, int]] = []

    def add(self, stream: StreamName, data: bytes, *, final: bool = False) -> None:
        """Take the next piece of a stream."""
        text = self._streams[stream].take(data, final=final)
        if not text:
            return
        size = len(text.encode())
        if self._order and self._order[-1][0] == stream:
            size += self._order.pop()[1]
        self._order.append((stream, size))
        if self._tell:
            self._tell(OutputChunk(stream, text))

    def finish(self) -> None:
        """Nothing comes any more: a character that was begun is a broken one."""
        for name in STREAMS:
            self.add(name, b"", final=True)

    @property
    def totals(self) -> dict[StreamName, int]:
        """How many bytes have come of each stream, kept or not."""
        return {name: stream.total_bytes for name, stream in self._streams.items()}

    def contents(self) -> Contents:
        """What is kept."""
        return Contents({name: stream.text.encode() for name, stream in self._streams.items()}, tuple(self._order))

    def status(self, stream: StreamName) -> StreamStatus:
        """What the record says of a stream."""
        one = self._streams[stream]
        kept = one.text.encode()
        return StreamStatus(
            text="",
            sha256=sha256_hex(kept),
            kept_bytes=len(kept),
            total_bytes=one.total_bytes,
            truncated=one.truncated,
            referenced=True,
        )


@dataclass
class Progress:
    """What is known of an execution, while it goes on and at its end."""

    output: Output
    blocks: list[BlockStatus] = field(default_factory=list)
    last: BlockEnd | None = None
    artifacts: tuple[ArtifactStatus, ...] = ()
    artifacts_omitted: int = 0

    def note(self, end: BlockEnd, started_at: datetime, before: dict[StreamName, int]) -> None:
        """Take down how a block ended; `before` are the totals of the output when it began."""
        self.last = end
        self.blocks.append(
            BlockStatus(
                exit_code=exit_code(end.event, end.exit_code) or 0,
                reason=BLOCK_REASONS[end.event],
                started_at=started_at,
                duration_ms=end.duration_ms,
                stdout_bytes=self.output.totals["stdout"] - before["stdout"],
                stderr_bytes=self.output.totals["stderr"] - before["stderr"],
            )
        )


def begun(submission: Submission, now: datetime, approver: str) -> CodeExecution:
    """The record of an execution whose code is about to run; `approver` has let it run in production, or is empty."""
    status = CodeExecutionStatus(
        phase=Phase.RUNNING,
        reason=Reason.CODE_STARTED.value,
        started_at=now,
        layers=LAYERS,
        approval=ApprovalStatus(decision="Approve", approver=approver) if approver else None,
    )
    return _record(submission, status)


def lost(submission: Submission) -> CodeExecution:
    """The record of an execution that failed by something other than its code, which may have run in part."""
    move = advance(Phase.RUNNING, Event.FAULT)
    status = CodeExecutionStatus(phase=move.phase, reason=move.reason.value)
    return _record(submission, status)


def finished(submission: Submission, progress: Progress) -> CodeExecution:
    """The record of an execution that has ended; one without a last block was cancelled before."""
    end = progress.last
    move = advance(Phase.RUNNING, end.event) if end else advance(Phase.PENDING, Event.CANCEL)
    status = CodeExecutionStatus(
        phase=move.phase,
        reason=move.reason.value,
        message=_how_it_ended(end, submission.spec),
        exit_code=exit_code(end.event, end.exit_code) if end else None,
        started_at=progress.blocks[0].started_at if progress.blocks else None,
        blocks=tuple(progress.blocks),
        layers=LAYERS if end else (),
        artifacts=progress.artifacts,
        artifacts_omitted=progress.artifacts_omitted,
        stdout=progress.output.status("stdout"),
        stderr=progress.output.status("stderr"),
    )
    return _record(submission, status)


def denied(submission: Submission, message: str, reason: Reason = Reason.POLICY_VIOLATION) -> CodeExecution:
    """The record of an execution that the policy does not allow, or whose session is over."""
    status = CodeExecutionStatus(phase=Phase.DENIED, reason=reason.value, message=message)
    return _record(submission, status)


def _record(submission: Submission, status: CodeExecutionStatus) -> CodeExecution:
    known = status.model_copy(update={"code_digest": submission.spec.code_digest, "code_findings": submission.findings})
    return CodeExecution(
        metadata=ObjectMeta(name=submission.name, uid=submission.name), spec=submission.spec, status=known
    )


def unknown_here(language: str, program: str, known: Sequence[str]) -> str:
    """The message for a language that this machine doesn't run; without a program if no machine does."""
    why = f": this machine has no {program}" if program else ""
    if program == "pwsh":
        why += " (Powershell or pwsh is not installed)"  # in the words of AutoGen's executors
    return f"unknown language {language}{why}; supported languages: {', '.join(known)}"


def _how_it_ended(end: BlockEnd | None, spec: CodeExecutionSpec) -> str:
    if end is None:
        return "cancelled before it ran"
    memory = f'the code was killed: it needed more memory than Limits(memory="{spec.limits.memory}"), or killed itself'
    return how_it_ended(end.event, end.exit_code, memory=memory, timeout=f"timeout={spec.timeout_seconds}")
