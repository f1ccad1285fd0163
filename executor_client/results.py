"""What a finished CodeExecution means for the caller: pure functions of its status."""

from dataclasses import dataclass
from typing import Final

from codeexec_api import BlockStatus, CodeExecution, CodeExecutionStatus, Phase, Reason, StreamStatus
from executor_client.exceptions import CodeExecError, ExecutionLost, ExecutionNotStarted

CANCELLED: Final = "Code execution was cancelled."


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
    output: str
    """stdout and stderr as they were interleaved, with a visible mark for everything that is missing or went wrong."""
    stdout: str
    stderr: str
    truncated: bool
    blocks: tuple[BlockStatus, ...]
    pod_name: str
    code_digest: str


def failure(execution: CodeExecution) -> CodeExecError | None:
    """The error of an execution that ended for another reason than its code, or None."""
    status = execution.status
    text = f"execution {execution.metadata.name}: {status.reason}: {status.message}"
    if status.phase is Phase.LOST or status.reason == Reason.RUNNER_FAILED.value:
        return ExecutionLost(text)
    broken = status.phase is Phase.FAILED and status.reason != Reason.NON_ZERO_EXIT.value
    if broken or status.reason == Reason.EGRESS_NOT_ENFORCED.value:
        return ExecutionNotStarted(text)
    return None


def result_of(execution: CodeExecution) -> ExecutionResult:
    """The result of a finished execution.

    Raises:
        ExecutionNotStarted: the sandbox could not be started.
        ExecutionLost: the sandbox or its result was lost.
    """
    if error := failure(execution):
        raise error
    status = execution.status
    exit_code = 1 if status.exit_code is None or status.phase is Phase.DENIED else status.exit_code
    return ExecutionResult(
        name=execution.metadata.name,
        phase=status.phase,
        reason=status.reason,
        message=status.message,
        exit_code=exit_code,
        output=output_text(status),
        stdout=status.stdout.text if status.stdout else "",
        stderr=status.stderr.text if status.stderr else "",
        truncated=any(stream.truncated for stream in (status.stdout, status.stderr) if stream),
        blocks=status.blocks,
        pod_name=status.pod_name,
        code_digest=status.code_digest,
    )


def output_text(status: CodeExecutionStatus) -> str:
    """The output as a person would have seen it, and what is to be said about it."""
    text = _interleaved(status)
    for name, stream in (("stdout", status.stdout), ("stderr", status.stderr)):
        if stream and stream.truncated:
            kept = len(stream.text.encode())
            text += f"\n[codeexec: {name} truncated: {kept} of {stream.total_bytes} bytes kept]"
    if note := _NOTES.get(status.phase):
        text += ("\n" if text and not text.endswith("\n") else "") + note.format(message=status.message)
    return text


_NOTES: Final = {
    Phase.TIMED_OUT: "Timeout: {message}",
    Phase.CANCELLED: CANCELLED,
    Phase.OUT_OF_MEMORY: "OutOfMemory: {message}",
    Phase.DENIED: "Denied: {message}",
}


def _interleaved(status: CodeExecutionStatus) -> str:
    rest = {"stdout": _text(status.stdout), "stderr": _text(status.stderr)}
    pieces = []
    for run in status.output_order:
        piece, rest[run.stream] = rest[run.stream][: run.characters], rest[run.stream][run.characters :]
        pieces.append(piece)
    return "".join([*pieces, rest["stdout"], rest["stderr"]])


def _text(stream: StreamStatus | None) -> str:
    return stream.text if stream else ""
