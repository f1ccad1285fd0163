"""The words of the audit report: labels for results, networks, reasons and findings. Pure tables and functions.

Nothing here quotes `status.message`: messages can name files, and the report names none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from codeexec_api import CodeExecution, EgressProof, EgressVerdict, Phase, Reason, SessionPhase
from codeexec_api.audit_findings import FindingKind
from executor_client.cli.auditing import Record


class Tone(StrEnum):
    """How the page shows a label. The value is its CSS class."""

    BAD = "bad"
    WARN = "warn"
    GOOD = "good"
    PLAIN = "plain"


_SYMBOLS: Final = MappingProxyType({Tone.BAD: "✕", Tone.WARN: "!", Tone.GOOD: "✓", Tone.PLAIN: "·"})


@dataclass(frozen=True)
class Label:
    """A short text with its tone. Its symbol repeats the tone for readers who see no colours."""

    text: str
    tone: Tone = Tone.PLAIN

    @property
    def symbol(self) -> str:
        """One character."""
        return _SYMBOLS[self.tone]


# --- results ---

SUCCEEDED: Final = Label("Succeeded", Tone.GOOD)
ENDED: Final = Label("Ended")
CLOSED: Final = Label("Closed", Tone.GOOD)
NOT_STARTED: Final = Label("Not started", Tone.WARN)
"""For executions whose session had ended. The operator's phase for them is `Denied`, but nobody denied anything."""
_RESULTS: Final[Mapping[str, Label]] = MappingProxyType(
    {
        Phase.PENDING: Label("Pending"),
        Phase.AWAITING_APPROVAL: Label("Awaiting approval"),
        Phase.APPROVED: Label("Approved"),
        Phase.DENIED: Label("Denied", Tone.BAD),
        Phase.EXPIRED: Label("Expired", Tone.BAD),
        Phase.STARTING: Label("Starting"),
        Phase.RUNNING: Label("Running"),
        Phase.SUCCEEDED: SUCCEEDED,
        Phase.FAILED: Label("Failed", Tone.BAD),
        Phase.TIMED_OUT: Label("Timed out", Tone.BAD),
        Phase.CANCELLED: Label("Cancelled"),
        Phase.OUT_OF_MEMORY: Label("Out of memory", Tone.BAD),
        Phase.LOST: Label("Lost", Tone.BAD),
        SessionPhase.READY: Label("Ready"),
        SessionPhase.ASLEEP: Label("Asleep"),
        SessionPhase.ENDED: ENDED,
    }
)
_NETWORKS: Final = MappingProxyType(
    {
        EgressVerdict.CLOSED: CLOSED,
        EgressVerdict.RESTRICTED: Label("Restricted", Tone.GOOD),
        EgressVerdict.OPEN: Label("Open", Tone.BAD),
        EgressVerdict.UNPROVEN: Label("Not verified", Tone.WARN),
    }
)
NOT_TESTED: Final = Label("Not checked: nothing ran")


def not_started(record: Record) -> bool:
    """True if an execution ended as `Denied` only because its session had ended."""
    return record.status.phase is Phase.DENIED and record.status.reason == Reason.SESSION_ENDED


def result_of(record: Record) -> Label:
    """The result of an execution or a session."""
    phase = record.status.phase.value
    return NOT_STARTED if not_started(record) else _RESULTS.get(phase, Label(phase))


def network_of(proof: EgressProof | None) -> Label | None:
    """The verdict of the network check. None if there was no check."""
    return _NETWORKS.get(proof.verdict, Label(proof.verdict.value, Tone.WARN)) if proof else None


# --- reasons ---

WHY: Final[Mapping[str, str]] = MappingProxyType(
    {
        Reason.POLICY_VIOLATION: "The policy does not allow the request",
        Reason.POLICY_INVALID: "The policy is invalid",
        Reason.POLICY_IN_FORCE: "",
        Reason.APPROVAL_REQUIRED: "Waiting for an approver",
        Reason.APPROVED: "Approved, not started yet",
        Reason.APPROVAL_NOT_NEEDED: "",
        Reason.APPROVAL_DENIED: "An approver denied it",
        Reason.APPROVAL_REVOKED: "The approval was revoked before the code started",
        Reason.APPROVAL_EXPIRED: "The approval expired before the code started",
        Reason.APPROVAL_TIMEOUT: "Nobody decided in time",
        Reason.PAYLOAD_MISSING: "The Secret with the code is missing",
        Reason.PAYLOAD_FOREIGN: "The Secret with the code belongs to another execution",
        Reason.PAYLOAD_MISMATCH: "The code does not match its digest",
        Reason.PAYLOAD_UNREADABLE: "The operator cannot decrypt the code",
        Reason.SESSION_NOT_FOUND: "Its session does not exist",
        Reason.SESSION_ENDED: "Its session had ended",
        Reason.SESSION_MISMATCH: "It asked for other limits than its session has",
        Reason.WAITING_FOR_SESSION: "Waiting for its turn in the session",
        Reason.WAITING_FOR_POOL: "Waiting for a pod of the pool",
        Reason.QUEUE_TIMEOUT: "No pod was free within the queue timeout",
        Reason.POD_CLAIMED: "Taking a pod from the pool",
        Reason.POD_REQUESTED: "Waiting for its pod",
        Reason.UNSCHEDULABLE: "Waiting for room on a node",
        Reason.POD_STARTING: "Waiting for its pod to start",
        Reason.SANDBOX_READY: "",
        Reason.FILE_REFUSED: "A file could not be written to the workspace",
        Reason.FILES_STORED: "Its files are stored",
        Reason.FILES_NOT_STORED: "Its files could not be stored",
        Reason.STORE_UNAVAILABLE: "The output store could not be used",
        Reason.WAKING: "Waking up",
        Reason.FILES_DIFFER: "Its files did not come back as they were stored",
        Reason.CODE_STARTED: "",
        Reason.COMPLETED: "",
        Reason.NON_ZERO_EXIT: "The exit code is not 0",
        Reason.OUT_OF_MEMORY: "The code exceeded its memory limit",
        Reason.DEADLINE_EXCEEDED: "A time limit was reached",
        Reason.CANCEL_REQUESTED: "Cancelled on request",
        Reason.END_REQUESTED: "Ended on request",
        Reason.IDLE_TIMEOUT: "Nothing ran within the idle timeout",
        Reason.CLIENT_GONE: "Its client is gone",
        Reason.LIFETIME_EXCEEDED: "The maximum lifetime was reached",
        Reason.IMAGE_PULL_FAILED: "The image could not be pulled",
        Reason.QUOTA_EXCEEDED: "A resource quota was used up",
        Reason.POD_REFUSED: "Kubernetes refused the pod",
        Reason.RUNTIME_CLASS_NOT_FOUND: "The RuntimeClass does not exist",
        Reason.EGRESS_NOT_ENFORCED: "The network check did not show a closed network",
        Reason.IMAGE_NOT_VERIFIED: "The image has no signature by a trusted key",
        Reason.ISOLATION_NOT_ENFORCED: "The isolation of the pod was weaker than required",
        Reason.START_TIMEOUT: "No pod became ready in time",
        Reason.RUNNER_FAILED: "The sandbox runner failed",
        Reason.POOL_READY: "",
        Reason.POOL_FILLING: "",
        Reason.POOL_EMPTY: "",
        Reason.POD_LOST: "The pod disappeared",
        Reason.OPERATOR_RESTARTED: "The operator restarted",
    }
)


def why_of(record: Record) -> str:
    """Why a record has its result, in one line. Empty if there is nothing to explain."""
    told = _why_executed(record) if isinstance(record, CodeExecution) else ""
    return told or WHY.get(record.status.reason, record.status.reason)


def _why_executed(execution: CodeExecution) -> str:
    """The reason with the values of this execution. Empty if the reason alone is enough."""
    spec, status = execution.spec, execution.status
    approval, ended = status.approval, status.blocks[-1].reason if status.blocks else ""
    if approval and status.reason == Reason.APPROVAL_DENIED:
        return f"{approval.approver} denied it: {approval.reason}".removesuffix(": ")
    if approval and approval.decision == "Approve" and status.reason == Reason.COMPLETED:
        return f"Approved by {approval.approver}"
    if status.reason == Reason.NON_ZERO_EXIT and status.exit_code is not None:
        return f"Exit code {status.exit_code}"
    if status.reason == Reason.DEADLINE_EXCEEDED and ended == Reason.DEADLINE_EXCEEDED:
        return f"A block ran longer than its time limit, {spec.timeout_seconds} s"
    if status.reason == Reason.OUT_OF_MEMORY:
        return f"The code exceeded its memory limit, {spec.limits.memory}"
    return ""


# --- what needs a look ---


@dataclass(frozen=True)
class Concern:
    """A kind of problem with a record."""

    key: str
    """Part of the section's anchor."""
    title: str
    explanation: str
    tone: Tone = Tone.BAD


OPEN: Final = Concern("open", "Network open", "A target outside the sandbox answered the network check.")
REFUSED: Final = Concern(
    "refused", "Denied or expired", "The policy or an approver refused the request, or nobody approved it in time."
)
LOST: Final = Concern("lost", "Lost", "The pod or its result was lost. The code may have run in part.")
FAULTY: Final = Concern("faulty", "Failed to run", "The sandbox did not start, or it failed.")
TIMED_OUT: Final = Concern("timed-out", "Timed out", "The code reached a time limit and was stopped.")
OUT_OF_MEMORY: Final = Concern("out-of-memory", "Out of memory", "The code exceeded its memory limit and was stopped.")
FAILED: Final = Concern("failed", "Failed", "The code ran and ended with an exit code other than 0.")
UNPROVEN: Final = Concern(
    "unproven", "Network not verified", "The network check could not show that the network is closed.", Tone.WARN
)
UNSTARTED: Final = Concern("not-started", "Not started", "The session had ended. Nothing ran.", Tone.WARN)
CONCERNS: Final = (OPEN, REFUSED, LOST, FAULTY, TIMED_OUT, OUT_OF_MEMORY, FAILED, UNPROVEN, UNSTARTED)
"""In the order of the page."""
_BY_PHASE: Final[Mapping[str, Concern]] = MappingProxyType(
    {
        Phase.DENIED: REFUSED,
        Phase.EXPIRED: REFUSED,
        Phase.LOST: LOST,
        Phase.FAILED: FAULTY,
        Phase.TIMED_OUT: TIMED_OUT,
        Phase.OUT_OF_MEMORY: OUT_OF_MEMORY,
    }
)
_BY_VERDICT: Final = MappingProxyType({EgressVerdict.OPEN: OPEN, EgressVerdict.UNPROVEN: UNPROVEN})


def concern_of(record: Record, *, with_network: bool = True) -> Concern | None:
    """The worst problem of a record; None if there is none.

    The network check of an execution in a session is that of the session: `with_network` is False for it.
    """
    proof = record.status.egress_proof if with_network else None
    found = {_BY_VERDICT.get(proof.verdict) if proof else None, _by_phase(record)}
    return next((one for one in CONCERNS if one in found), None)


def _by_phase(record: Record) -> Concern | None:
    if not_started(record):
        return UNSTARTED
    if record.status.reason == Reason.NON_ZERO_EXIT:
        return FAILED
    return _BY_PHASE.get(record.status.phase.value)


FINDINGS: Final = MappingProxyType(
    {
        FindingKind.UNREADABLE: "Line unreadable",
        FindingKind.CHANGED: "Line changed",
        FindingKind.REORDERED: "Lines out of order",
        FindingKind.REPEATED: "Line repeated",
        FindingKind.CONFLICTING: "Lines in conflict",
        FindingKind.MISDATED: "Line misdated",
        FindingKind.BROKEN: "Chain broken",
        FindingKind.MISSING: "Lines missing",
        FindingKind.RECORD_CHANGED: "Record changed",
        FindingKind.RECORD_OUTDATED: "Record set back",
        FindingKind.RECORD_UNANCHORED: "Record without its line",
        FindingKind.RECORD_MISSING: "Record missing",
        FindingKind.EXPORT_INVALID: "Export invalid",
        FindingKind.REWRITTEN: "Line rewritten",
        FindingKind.CHECKPOINT_INVALID: "Checkpoint invalid",
    }
)
"""Titles of what `codeexec audit verify` finds."""
