"""What a record says of a result: exit codes, warnings, durations and the words for how something ended. Pure.

The operator, the fake of `executor_client.testing` and the local sandbox write records. What they say alike is here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from codeexec_api.conditions import ConditionType, condition
from codeexec_api.digests import sha256_hex
from codeexec_api.names import block_key, file_key
from codeexec_api.phases import Event, Phase, Reason, SessionPhase
from codeexec_api.quantities import parse_quantity
from codeexec_api.v1alpha1.execution import CodeExecution, CodeExecutionSpec
from codeexec_api.v1alpha1.execution_status import BlockStatus, CodeExecutionStatus
from codeexec_api.v1alpha1.limits import PodLimits
from codeexec_api.v1alpha1.sandbox import Condition
from codeexec_api.v1alpha1.session import CodeSession, CodeSessionStatus

BLOCK_EVENTS: Final = MappingProxyType(
    {
        "Completed": Event.EXITED_ZERO,
        "NonZeroExit": Event.EXITED_NONZERO,
        "OutOfMemory": Event.OUT_OF_MEMORY,
        "DeadlineExceeded": Event.DEADLINE,
        "Cancelled": Event.CANCEL,
    }
)
"""What the reason of a block's status means for its execution."""
BLOCK_REASONS: Final = MappingProxyType({event: reason for reason, event in BLOCK_EVENTS.items()})
EGRESS_WARNING: Final = (
    "; warning: the network of the sandbox was not shown to be closed (see status.egressProof), and the policy lets "
    "code run anyway"
)
FILES_TRANSFERRED: Final = "the files were transferred"
ENDED_WITH_SESSION: Final = "the session was ended while the code ran"
LONGEST_BLOCK_MS: Final = 86_400_000
"""Longer than that no block may run; what a runner reports may be anything."""
_SHELL_CODES: Final = {Event.OUT_OF_MEMORY: 137, Event.CANCEL: 130}


def end_of(record: CodeExecution | CodeSession) -> datetime | None:
    """When an execution or a session ended; None as long as it has not."""
    return record.status.finished_at if isinstance(record, CodeExecution) else record.status.ended_at


def exit_code(event: Event, last: int | None) -> int | None:
    """Exit code of the record: the last block's; where it has none, the one that shells use for what happened."""
    if event is Event.DEADLINE:
        return 124
    if event is Event.EXITED_ZERO:
        return 0
    if event in _SHELL_CODES:
        return last or _SHELL_CODES[event]
    return last if event is Event.EXITED_NONZERO else None


def succeeded(phase: Phase, reason: str, now: datetime, generation: int) -> Condition:
    """The condition of an execution that ends, for `kubectl wait`. It has no message: Finished has the same."""
    holds = phase is Phase.SUCCEEDED
    return condition(ConditionType.SUCCEEDED, holds=holds, reason=reason, message="", now=now, generation=generation)


def duration(seconds: float) -> str:
    """Text such as `2.50s` or `3m12s`, for `kubectl get`."""
    if seconds < 60:
        return f"{seconds:.2f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s"


def within_run(blocks: Sequence[BlockStatus], began: datetime, ended: datetime) -> tuple[BlockStatus, ...]:
    """The blocks of a run, by the clock that says when the run began and ended.

    The runner goes by the clock of its node. If that clock turns out to differ, the first block counts as begun with
    the run, and the distances between the blocks stay.
    """

    def block_end(block: BlockStatus) -> timedelta:
        return block.started_at - began + timedelta(milliseconds=min(block.duration_ms, LONGEST_BLOCK_MS))

    whole, none = ended - began, timedelta()
    if all(one.started_at >= began and block_end(one) <= whole for one in blocks):
        return tuple(blocks)
    after = [min(max(one.started_at - blocks[0].started_at, none), whole) for one in blocks]
    return tuple(
        one.model_copy(update={"started_at": began + distance}) for one, distance in zip(blocks, after, strict=True)
    )


def egress_may_be_open(status: CodeExecutionStatus | CodeSessionStatus) -> bool:
    """True if the network was tried and not shown to be closed."""
    return status.egress_proof is not None and not status.egress_proof.verdict.holds


def how_it_ended(event: Event, last: int, *, memory: str, timeout: str) -> str:
    """The message of an execution whose last block has ended.

    Args:
        event: how it ended.
        last: the block's own exit code.
        memory: message for code that needed more memory than it had.
        timeout: the limit of each block, by the name that the caller knows it by.
    """
    return {
        Event.EXITED_ZERO: "all blocks ended with exit code 0",
        Event.EXITED_NONZERO: f"the last block ended with exit code {last}",
        Event.OUT_OF_MEMORY: memory,
        Event.DEADLINE: f"the block ran longer than {timeout} and was killed",
        Event.CANCEL: "cancelled; the code was killed",
    }[event]


def how_code_ended(event: Event, last: int, spec: CodeExecutionSpec) -> str:
    """The same for code in a pod."""
    timeout = f"spec.timeoutSeconds ({spec.timeout_seconds} s)"
    return how_it_ended(event, last, memory=out_of_memory("the code", spec.limits), timeout=timeout)


def out_of_memory(what: str, limits: PodLimits) -> str:
    """How something in a pod ended that needed more memory than it had."""
    limit = f"spec.limits.memory ({limits.memory})"
    return f"{what} used more memory than {limit}; files in /workspace and /tmp count as memory"


def session_missing(name: str, namespace: str) -> str:
    """The message of an execution whose session is not there."""
    return (
        f"spec.sessionRef: there is no CodeSession {name!r} in namespace {namespace!r}; "
        "create it before or together with the CodeExecution"
    )


def wait_for_session(phase: SessionPhase) -> str:
    """The message of an execution that was accepted, by the phase of its session."""
    if phase is SessionPhase.READY:
        return "waits for its turn in the session"
    return f"waits for the session to {'wake up' if phase is SessionPhase.ASLEEP else 'start'}"


def place_in_line(position: int, length: int, of: str) -> str:
    """What the record of an execution says that waits for its turn. The first one has position 0."""
    return f"position {position + 1} of {length} in the queue of {of}"


def place_in_session(position: int, length: int, session: str) -> str:
    """The same in a session, where what runs has position 0."""
    return place_in_line(position, length, f"session {session!r}, which runs one execution at a time")


def session_over(session: CodeSession) -> tuple[Event, Reason, str]:
    """What becomes of an execution whose session takes nothing more: the session's own failure, else a refusal."""
    name, status = session.metadata.name, session.status
    if status.phase is SessionPhase.FAILED and status.started_at is None:
        reason = Reason(status.reason) if status.reason in set(Reason) else Reason.POD_REFUSED
        words = status.message.removesuffix(".")
        return Event.FAULT, reason, f"session {name!r} could not start: {words}. Nothing was run"
    # The end may have been asked for before the session's own record says so: until then it says that code can run.
    why, words = (status.reason, status.message) if status.phase.terminal else ("", "")
    message = (
        f"spec.sessionRef: session {name!r} is over ({why or 'EndRequested'}: "
        f"{words or 'ended on request (spec.ended)'}). Start a new session. Nothing was run"
    )
    return Event.REFUSED, Reason.SESSION_ENDED, message


def session_mismatch(spec: CodeExecutionSpec, session: CodeSession) -> str:
    """Which limit of the pod is not that of the session, which has its pod already; empty if all are."""
    for field, name in (("cpu", "cpu"), ("memory", "memory"), ("ephemeral_storage", "ephemeralStorage")):
        found, allowed = getattr(spec.limits, field), getattr(session.spec.limits, field)
        if parse_quantity(found) != parse_quantity(allowed):
            return f"spec.limits.{name}: {found} is not the limit of the session (allowed: {allowed})"
    return ""


@dataclass(frozen=True)
class Announced:
    """What a spec says of one entry of its payload."""

    field: str
    key: str
    sha256: str
    size_bytes: int


def announced(spec: CodeExecutionSpec) -> Iterator[Announced]:
    """Every entry of the payload: the blocks first, then the files."""
    for index, block in enumerate(spec.blocks):
        yield Announced(f"spec.blocks[{index}]", block_key(index), block.sha256, block.size_bytes)
    for index, file in enumerate(spec.files or ()):
        yield Announced(f"spec.files[{index}]", file_key(index), file.sha256, file.size_bytes)


def payload_mismatch(announced: Announced, content: bytes | None) -> str:
    """The message of an execution whose payload has other content than its spec announces; empty if it is the same."""
    expected = f"sha256 {announced.sha256}, {announced.size_bytes} bytes"
    found = "nothing" if content is None else f"sha256 {sha256_hex(content)}, {len(content)} bytes"
    if found == expected:
        return ""
    return (
        f"{announced.field}: the payload holds {found} under {announced.key!r}, but the spec announces {expected}. "
        "Nothing was run. Create the execution again from the code that is to run"
    )
