"""What a fake cluster holds: objects, what was sent with them, output, logs of pods, and the operator's audit log."""

import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from codeexec_api import (
    AuditAnchor,
    BlockStatus,
    CodeExecution,
    CodeExecutionSpec,
    CodeFinding,
    CodeSession,
    CodeSessionSpec,
    ConditionType,
    EgressMode,
    EgressVerdict,
    Event,
    ExecutionApproval,
    ExecutionPolicy,
    ExecutionPolicySpec,
    Phase,
    Reason,
    Verdict,
    evaluate,
)
from codeexec_api.audit import AuditEvent, Segment, log_entry, of_a_write
from codeexec_api.code_rules import Reading
from codeexec_api.names import APPROVAL_PLURAL, EXECUTION_PLURAL, POLICY_NAME, SESSION_PLURAL
from codeexec_api.policy import capped, namespace_policy, without_store
from codeexec_api.v1alpha1.base import ObjectMeta
from codeexec_api.v1alpha1.bounds import MAX_OUTPUT_BYTES
from executor_client.testing import records
from executor_client.testing.outcomes import Workspace
from executor_client.testing.output import Frames, Output
from executor_client.testing.store import Growing, Records


@dataclass(eq=False)
class Pod:
    """Of a session, or of one execution."""

    name: str
    workspace: Workspace = field(default_factory=Workspace)
    log: Growing[tuple[datetime, bytes]] = field(default_factory=Growing)
    queue: "deque[Run]" = field(default_factory=deque)
    """Executions of a session in order of arrival; the first one runs."""
    serving: bool = False
    """Somebody sees to it already that the first one runs."""


@dataclass(eq=False)
class Run:
    """What is known of one execution beside its record."""

    name: str
    payload: Mapping[str, bytes]
    output: Output
    frames: Frames
    pod: Pod
    blocks: list[BlockStatus] = field(default_factory=list)
    bytes_before: tuple[int, int] = (0, 0)
    reading: Reading | None = None
    findings: tuple[CodeFinding, ...] = ()
    endless_since: datetime | None = None
    """When the block began that runs now, and does not end by itself."""


class State:
    """Objects with their versions, and how they are written."""

    def __init__(self, *, namespace: str, policy: ExecutionPolicySpec | None, now: datetime) -> None:
        """`policy` is the namespace's own; None: the cluster's default counts."""
        self.namespace: Final = namespace
        self.policy: Final = policy or ExecutionPolicySpec(images=(records.FAKE_IMAGE,))
        self._own_policy = policy is not None
        self.executions: Final[Records[CodeExecution]] = Records(EXECUTION_PLURAL)
        self.sessions: Final[Records[CodeSession]] = Records(SESSION_PLURAL)
        self.approvals: Final[Records[ExecutionApproval]] = Records(APPROVAL_PLURAL)
        self.payloads: Final[dict[str, Mapping[str, bytes]]] = {}
        """What was sent with each execution."""
        self.outputs: Final[dict[str, Mapping[str, bytes]]] = {}
        """What each output ConfigMap holds."""
        self.runs: Final[dict[str, Run]] = {}
        self.session_pods: Final[dict[str, Pod]] = {}
        self.logs: Final[dict[str, Growing[tuple[datetime, bytes]]]] = {}
        """The lines that each pod has written, with their times."""
        self.audit_log: Final[list[str]] = []
        """Lines of the operator's log that make its audit log."""
        self.now = now
        self.egress = EgressVerdict.CLOSED
        self.operator_absent = False
        self.start_fault: tuple[Reason, str] | None = None
        self._segment = Segment(uuid.uuid4().hex, namespace, records.VERSION)
        self._tell(AuditEvent.OPERATOR_STARTED, {})

    def metadata(self, name: str) -> ObjectMeta:
        """Of a new object."""
        return ObjectMeta(
            name=name, namespace=self.namespace, uid=str(uuid.uuid4()), generation=1, creation_timestamp=self.now
        )

    def session_of(self, name: str) -> str | None:
        """Name of the session that an execution asks for, whether it exists or not."""
        ref = self.executions[name].spec.session_ref
        return ref.name if ref else None

    def approvals_of(self, name: str) -> list[ExecutionApproval]:
        """What was decided about an execution."""
        return [one for one in self.approvals.all() if one.spec.execution_ref.name == name]

    def first_in_line(self, session: str) -> Run | None:
        """The execution whose turn it is in a session; None if there is none, or it runs already."""
        first = next(iter(self.session_pods[session].queue), None)
        return first if first and self.executions[first.name].status.phase is Phase.STARTING else None

    def policy_object(self) -> ExecutionPolicy | None:
        """The policy as an object of the namespace; None if it has none of its own."""
        if not self._own_policy:
            return None
        return ExecutionPolicy(metadata=ObjectMeta(name=POLICY_NAME, namespace=self.namespace), spec=self.policy)

    def evaluate(
        self,
        spec: CodeExecutionSpec | CodeSessionSpec,
        policy: ExecutionPolicySpec | None = None,
        reading: Reading | None = None,
    ) -> Verdict:
        """What the policy says, or another one that stands for it. This cluster has no output store."""
        source = namespace_policy(self.namespace) if self._own_policy else records.DEFAULT_POLICY
        limited = without_store(capped(policy or self.policy, MAX_OUTPUT_BYTES))
        return evaluate(spec, limited, reading, source=source)

    def start_refusal(self) -> tuple[Event, Reason, str] | None:
        """Why no pod becomes ready, if so."""
        if self.start_fault:
            return Event.FAULT, *self.start_fault
        if self.egress is EgressVerdict.CLOSED or self.policy.egress_proof is EgressMode.WARN:
            return None
        message = f"{records.EGRESS_MESSAGES[self.egress]}. Nothing was run"
        return Event.REFUSED, Reason.EGRESS_NOT_ENFORCED, message

    def transition(self, run: Run, event: Event, kind: ConditionType, message: str, **more: Any) -> None:
        """Take an execution to the phase that follows."""
        more = {"code_findings": run.findings, **more}
        self.write_execution(records.moved(self.executions[run.name], event, kind, message, self.now, **more))

    def transition_session(self, name: str, event: Event, kind: ConditionType, message: str, **more: Any) -> None:
        """Take a session to the phase that follows."""
        self.write_session(records.moved_session(self.sessions[name], event, kind, message, self.now, **more))

    def write_execution(self, after: CodeExecution) -> None:
        """With the line that tells of it."""
        anchor = self._tell(AuditEvent.STATUS_WRITE, of_a_write(self.executions[after.metadata.name].status, after))
        status = after.status.model_copy(update={"audit": anchor})
        self.executions.put(after.model_copy(update={"status": status}))

    def write_session(self, after: CodeSession) -> None:
        """With the line that tells of it."""
        anchor = self._tell(AuditEvent.STATUS_WRITE, of_a_write(self.sessions[after.metadata.name].status, after))
        status = after.status.model_copy(update={"audit": anchor})
        self.sessions.put(after.model_copy(update={"status": status}))

    def _tell(self, event: AuditEvent, more: Mapping[str, Any]) -> AuditAnchor:
        self._segment, line = self._segment.append(event, self.now, more)
        self.audit_log.append(log_entry(line))
        return line.anchor
