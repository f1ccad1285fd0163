"""What a finished CodeExecution means for the caller: pure functions of its status and of what that refers to."""

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from codeexec_api import (
    ArtifactStatus,
    BlockStatus,
    CodeExecution,
    CodeExecutionStatus,
    CodeSession,
    Phase,
    Reason,
    SessionPhase,
    StreamStatus,
)
from codeexec_api.digests import sha256_hex
from codeexec_api.names import ORDER_KEY, artifact_key
from codeexec_api.packing import GZIP_SUFFIX, unpack
from codeexec_api.v1alpha1.bounds import (
    MAX_FETCH_BYTES,
    MAX_OUTPUT_BYTES,
    MAX_OUTPUT_PARTS,
    MAX_STORED_BYTES,
    MAX_STORED_PARTS,
)
from executor_client.exceptions import (
    CodeExecError,
    ExecutionLost,
    ExecutionNotStarted,
    FileTransferError,
    OutputUnavailable,
    SessionDenied,
    SessionEnded,
)
from executor_client.model.words import Caller, in_words_of

CANCELLED: Final = "Code execution was cancelled."
StreamName: TypeAlias = Literal["stdout", "stderr"]
STREAMS: Final[tuple[StreamName, ...]] = ("stdout", "stderr")


@dataclass(frozen=True)
class OutputChunk:
    """A piece of output."""

    stream: StreamName
    text: str = field(repr=False)


@dataclass(frozen=True)
class Artifact:
    """A file in the workspace, as it was when the last block had ended."""

    path: str
    """Relative to the workspace."""
    size_bytes: int
    sha256: str | None
    """64 hexadecimal digits; None if the file is too large to be fetched, or if 64 MiB of other files have digests."""
    fetched: bool = False
    """True if the content was brought back."""


@dataclass(frozen=True)
class Contents:
    """What a record refers to: the parts of its output, joined."""

    values: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Content of `stdout`, `stderr` and each fetched artifact by its key."""
    order: tuple[tuple[StreamName, int], ...] = ()
    """Runs of output in bytes, as they were interleaved."""

    @classmethod
    def join(cls, parts: Iterable[Mapping[str, bytes]], *, stored: bool = False) -> "Contents":
        """From the parts of the output, in order.

        Args:
            parts: what each of them holds.
            stored: they come from an output store, where there may be more.

        Raises:
            OutputUnavailable: a part isn't what the operator writes.
        """
        values: dict[str, list[bytes]] = {}
        order: list[tuple[StreamName, int]] = []
        left = _MOST_STORED_BYTES if stored else _MOST_BYTES
        for part in parts:
            for key, value in part.items():
                most = min(left, _MOST_ORDER_BYTES) if key.removesuffix(GZIP_SUFFIX) == ORDER_KEY else left
                key, value = _unpacked(key, value, most)
                left -= len(value)
                if key == ORDER_KEY:
                    order += _runs(value)
                else:
                    values.setdefault(key, []).append(value)
        return cls({key: b"".join(pieces) for key, pieces in values.items()}, tuple(order))


NOTHING: Final = Contents()
_MOST_ORDER_BYTES: Final = 2**20
"""Of the order of the output in one part. As Python objects, the order takes many times as much memory."""
_MOST_BYTES: Final = 2 * MAX_OUTPUT_BYTES + MAX_FETCH_BYTES + MAX_OUTPUT_PARTS * _MOST_ORDER_BYTES
"""Of both streams, all fetched files and the order of the output: more is no result of an execution."""
_MOST_STORED_BYTES: Final = 3 * MAX_STORED_BYTES + MAX_STORED_PARTS * _MOST_ORDER_BYTES
"""The same with an output store."""


@dataclass(frozen=True)
class ExecutionResult:
    """The outcome of one execution, without any framework's types."""

    name: str
    """Name of the CodeExecution, the record."""
    phase: Phase
    reason: str
    message: str
    exit_code: int
    """Exit code of the last block that ran; 124 after a timeout, 137 without memory, 1 if nothing could run."""
    output: str = field(repr=False)
    """stdout and stderr as they were interleaved, with a visible mark for everything that is missing or went wrong."""
    stdout: str = field(repr=False)
    stderr: str = field(repr=False)
    truncated: bool
    blocks: tuple[BlockStatus, ...]
    pod_name: str
    code_digest: str
    artifacts: tuple[Artifact, ...] = ()
    """Files that the blocks have made or changed, or all, as was asked for."""
    artifacts_omitted: int = 0
    """Files that `artifacts` does not name: too many, or an unusable name."""
    files: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """Content of the artifacts that were fetched, by path."""
    session: str | None = None
    """Name of the CodeSession that it ran in, if any."""


_NO_SESSION: Final = frozenset({Reason.SESSION_ENDED.value, Reason.SESSION_NOT_FOUND.value})
_NOT_CLOSED: Final = frozenset(
    {Reason.EGRESS_NOT_ENFORCED.value, Reason.ISOLATION_NOT_ENFORCED.value, Reason.IMAGE_NOT_VERIFIED.value}
)


def failure(execution: CodeExecution, caller: Caller = Caller.PYTHON) -> CodeExecError | None:
    """The error of an execution that ended for another reason than its code, or None."""
    status = execution.status
    text = f"execution {execution.metadata.name}: {status.reason}: {message_of(execution, caller)}"
    ran = status.started_at is not None
    if status.phase is Phase.LOST or (ran and status.reason == Reason.RUNNER_FAILED.value):
        return ExecutionLost(text)
    if status.phase is Phase.DENIED and status.reason in _NO_SESSION:
        return SessionEnded(text)
    if status.reason == Reason.FILE_REFUSED.value:
        return FileTransferError(text)
    broken = status.phase is Phase.FAILED and status.reason != Reason.NON_ZERO_EXIT.value
    if broken or status.reason in _NOT_CLOSED:
        return ExecutionNotStarted(text)
    return None


def message_of(execution: CodeExecution, caller: Caller = Caller.PYTHON) -> str:
    """The message of the record in the words of the caller. A question to a human stays in those of the policy."""
    status = execution.status
    if status.phase is Phase.AWAITING_APPROVAL:
        return status.message
    return in_words_of(caller, status.message, execution.spec)


def session_failure(session: CodeSession, caller: Caller = Caller.PYTHON) -> CodeExecError | None:
    """The error of a session in which nothing can run any more, or None."""
    status = session.status
    message = in_words_of(caller, status.message, session.spec)
    text = f"session {session.metadata.name}: {status.reason}: {message}"
    if status.phase is SessionPhase.DENIED and status.reason not in _NOT_CLOSED:
        return SessionDenied(text)
    if status.phase in (SessionPhase.DENIED, SessionPhase.FAILED):
        return ExecutionNotStarted(text)
    return SessionEnded(text) if status.phase.terminal else None


def result_of(
    execution: CodeExecution, contents: Contents = NOTHING, caller: Caller = Caller.PYTHON
) -> ExecutionResult:
    """The result of a finished execution.

    Args:
        execution: the record.
        contents: what its `status.outputRefs` or `status.outputStore` name.
        caller: who reads its messages.

    Raises:
        CodeExecError: something other than the code failed; see `failure`.
        OutputUnavailable: the contents are not what the record says.
    """
    if error := failure(execution, caller):
        raise error
    status, message = execution.status, message_of(execution, caller)
    chunks = interleaved(status, contents)
    exit_code = 1 if status.exit_code is None or status.phase is Phase.DENIED else status.exit_code
    return ExecutionResult(
        name=execution.metadata.name,
        phase=status.phase,
        reason=status.reason,
        message=message,
        exit_code=exit_code,
        output=output_text(status, chunks, message),
        stdout=_joined(one for one in chunks if one.stream == "stdout"),
        stderr=_joined(one for one in chunks if one.stream == "stderr"),
        truncated=any(stream.truncated for _, stream in _streams(status)),
        blocks=status.blocks,
        pod_name=status.pod_name,
        code_digest=status.code_digest,
        artifacts=tuple(
            Artifact(one.path, one.size_bytes, one.sha256, fetched=one.fetched) for one in status.artifacts
        ),
        artifacts_omitted=status.artifacts_omitted,
        files={one.path: _artifact(index, one, contents) for index, one in enumerate(status.artifacts) if one.fetched},
        session=execution.spec.session_ref.name if execution.spec.session_ref else None,
    )


def artifact_content(execution: CodeExecution, path: str, contents: Contents) -> bytes:
    """The content of one file that a finished execution has fetched.

    Raises:
        FileTransferError: the execution has not fetched this file.
        OutputUnavailable: the contents are not what the record says.
    """
    for index, artifact in enumerate(execution.status.artifacts):
        if artifact.path == path and artifact.fetched:
            return _artifact(index, artifact, contents)
    fetched = [one.path for one in execution.status.artifacts if one.fetched]
    raise FileTransferError(
        f"execution {execution.metadata.name} has not fetched {path!r}; it has fetched: "
        f"{', '.join(fetched) or 'nothing'}"
    )


def output_text(status: CodeExecutionStatus, chunks: Iterable[OutputChunk], message: str) -> str:
    """The output as a person would have seen it, and how it ended: with this message, where one tells that."""
    text = _joined(chunks)
    for name, stream in _streams(status):
        if stream.truncated:
            kept = stream.kept_bytes or len(stream.text.encode())
            what = f"truncated: {kept} of {stream.total_bytes} bytes kept"
            text += f"\n[codeexec: {name} {what if kept < stream.total_bytes else _NO_END}]"
    if note := NOTES.get(status.phase):
        text += ("\n" if text and not text.endswith("\n") else "") + note.format(message=message)
    return text


def not_approved_in_time(result: ExecutionResult, execution: CodeExecution, seconds: float | None) -> ExecutionResult:
    """The result of an execution that the caller gave up on, because nobody decided about it."""
    approval = execution.status.approval
    asked = ", ".join(map(str, approval.grants)) if approval else "nothing"
    message = f"nobody approved {asked} within {seconds} s, so the execution was cancelled. Nothing was run"
    return replace(result, reason=Reason.APPROVAL_TIMEOUT.value, message=message, output=f"Denied: {message}")


_NO_END: Final = "may lack its end"
NOTES: Final = {
    Phase.TIMED_OUT: "Timeout: {message}",
    Phase.CANCELLED: CANCELLED,
    Phase.OUT_OF_MEMORY: "OutOfMemory: {message}",
    Phase.DENIED: "Denied: {message}",
    Phase.EXPIRED: "Expired: {message}",
    Phase.AWAITING_APPROVAL: "Not run yet: {message}. It runs as soon as it is approved.",
}
"""What is said of an end that the output doesn't tell, by its phase; `{message}` is that of the record, in the words
of the caller."""


def _joined(chunks: Iterable[OutputChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def interleaved(status: CodeExecutionStatus, contents: Contents = NOTHING) -> list[OutputChunk]:
    """All that is kept of the output, in order; where the order isn't known, stdout comes first.

    Raises:
        OutputUnavailable: the contents are not what the record says.
    """
    kept = {name: _kept(status, contents, name) for name in STREAMS}
    order = contents.order or _byte_runs(status)
    chunks: list[OutputChunk] = []
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in STREAMS}
    taken = dict.fromkeys(STREAMS, 0)
    for name, count in (*order, *((name, len(kept[name])) for name in STREAMS)):
        piece = kept[name][taken[name] : taken[name] + count]
        taken[name] += len(piece)
        if text := decoders[name].decode(piece, final=taken[name] == len(kept[name])):
            chunks.append(OutputChunk(name, text))
    return chunks


def _byte_runs(status: CodeExecutionStatus) -> Iterator[tuple[StreamName, int]]:
    """The order that the record itself holds, which counts characters."""
    texts = {name: stream.text for name, stream in _streams(status)}
    taken = dict.fromkeys(STREAMS, 0)
    for run in status.output_order:
        start = taken[run.stream]
        taken[run.stream] += run.characters
        yield run.stream, len(texts.get(run.stream, "")[start : taken[run.stream]].encode())


def _streams(status: CodeExecutionStatus) -> list[tuple[StreamName, StreamStatus]]:
    both: tuple[tuple[StreamName, StreamStatus | None], ...] = (("stdout", status.stdout), ("stderr", status.stderr))
    return [(name, stream) for name, stream in both if stream]


def _kept(status: CodeExecutionStatus, contents: Contents, name: StreamName) -> bytes:
    """All that is kept of a stream, in UTF-8."""
    stream = dict(_streams(status)).get(name)
    if stream is None:
        return b""
    if not stream.referenced:
        return stream.text.encode()
    return _checked(contents.values.get(name, b""), name, stream.sha256, stream.kept_bytes)


def _artifact(index: int, artifact: ArtifactStatus, contents: Contents) -> bytes:
    content = contents.values.get(artifact_key(index), b"")
    return _checked(content, repr(artifact.path), artifact.sha256, artifact.size_bytes)


def _checked(content: bytes, what: str, sha256: str | None, size: int) -> bytes:
    if (sha256_hex(content), len(content)) != (sha256, size):
        raise OutputUnavailable(
            f"the stored {what} does not match the record: {len(content)} bytes with SHA-256 "
            f"{sha256_hex(content)} instead of {size} bytes with {sha256}. The stored output was changed or damaged: "
            "tell the platform owner, and run the code again"
        )
    return content


def _unpacked(key: str, value: bytes, most_bytes: int) -> tuple[str, bytes]:
    """A value and its key, as they were before the operator compressed them. Operators before 0.2 did not."""
    name = key.removesuffix(GZIP_SUFFIX)
    try:
        if name != key:
            return name, unpack(value, most_bytes)
        if len(value) > most_bytes:
            raise ValueError(f"it has more than {most_bytes} bytes")
    except ValueError as error:
        raise OutputUnavailable(f"the stored {name} is not readable: {error}") from error
    return key, value


def _runs(value: bytes) -> Sequence[tuple[StreamName, int]]:
    try:
        runs = json.loads(value)
        if all(name in STREAMS and type(count) is int and count >= 0 for name, count in runs):
            return [(name, count) for name, count in runs]
    except (ValueError, TypeError, RecursionError):
        pass
    raise OutputUnavailable(
        "the stored order of stdout and stderr is not a JSON list of [stream, bytes]. The stored output was changed "
        "or damaged: tell the platform owner, and run the code again"
    )
