"""What was seen of the cluster, as small frozen values. `reconcile.decide` sees nothing else."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from pydantic import ValidationError

from codeexec_api import CodeExecution, CodeSession, ExecutionApproval, ExecutionPolicy, ExecutionPolicySpec
from codeexec_api.code_rules import Reading
from codeexec_api.invalid import wrong_fields
from codeexec_api.policy import namespace_policy
from codeexec_operator.core.client_lease import LeaseView
from codeexec_operator.core.cluster_view import ClusterView
from codeexec_operator.core.observed_pod import Sandbox
from codeexec_operator.core.outcome import Proven
from codeexec_operator.core.payload import HeldPayload, Payload, PayloadProblem
from codeexec_operator.core.pod_reset import Reset
from codeexec_operator.core.transcript import Transcript
from codeexec_operator.core.workspace_copy import Transfer


@dataclass(frozen=True)
class PolicyProblem:
    """A policy that can't be understood. It is never replaced by another one: nothing runs until it is mended."""

    message: str


def parse_policy(raw: Mapping[str, Any] | None) -> ExecutionPolicySpec | PolicyProblem | None:
    """From an ExecutionPolicy of the API server; None if the namespace has none."""
    if raw is None:
        return None
    try:
        return ExecutionPolicy.model_validate({part: raw[part] for part in raw if part != "status"}).spec
    except ValidationError as error:
        message = f"{namespace_policy(raw['metadata']['namespace'])} is not valid: {wrong_fields(error)}"
        return PolicyProblem(f"{message}. Nothing runs in the namespace until the platform owner corrects it")


@dataclass(frozen=True)
class Room:
    """What has pods in a namespace."""

    idle: tuple[str, ...] = ()
    """Names of sessions in which nothing runs or waits."""
    busy: int = 0
    """Other sessions."""
    executions: int = 0
    """With a pod of their own, or of a pool."""
    ready: int = 0
    """Pods of pools that wait for an execution."""


@dataclass(frozen=True)
class SessionView:
    """What an execution needs to know of the session that it runs in."""

    session: CodeSession
    sandbox: Sandbox = field(default_factory=Sandbox)
    turn: bool = False
    """True if nothing that came earlier waits or runs."""
    since: datetime | None = None
    """When it got in line."""
    position: int = 0
    """How many are before it."""
    length: int = 0
    """How many are in the queue, with it."""


@dataclass(frozen=True)
class PoolView:
    """What an execution sees of the pool that its pod comes from."""

    name: str
    since: datetime
    """When it got in line."""
    position: int = 0
    """How many are before it."""
    length: int = 0
    """How many are in the queue, with it."""
    problem: str = ""
    """What is wrong with the pool at the moment."""
    pod_name: str = ""
    """The pod that it was given; empty as long as it has none."""
    image: str = ""
    """Of that pod, or, as long as it has none, of those that it waits for."""
    runtime_class_name: str | None = None
    """The same."""
    proven: Proven | None = None
    """What was shown of that pod."""
    use: int = 1
    """How many executions that pod has had, with this one."""
    reset: Reset | None = None
    """What was shown of it after the one before."""


@dataclass(frozen=True)
class ClaimedView:
    """The pod of a pool that a session has taken."""

    pool: str
    pod_name: str
    proven: Proven
    """What was shown of it."""


class FrameStream(Enum):
    """Whether what the runner tells of code that runs arrives in this process."""

    CLOSED = "closed"
    """Not: the process started after the code, or the connection has ended."""
    REQUESTED = "requested"
    """The runner was asked to tell it again."""
    OPEN = "open"


@dataclass(frozen=True)
class Observed:
    """Everything known about one execution at one moment."""

    execution: CodeExecution
    policy: ExecutionPolicySpec | PolicyProblem
    since: datetime
    """When this process began to look after it."""
    policy_source: str = ""
    """Where the policy is kept, for messages."""
    cluster_view: ClusterView = field(default_factory=ClusterView)
    payload: Payload | HeldPayload | PayloadProblem | None = None
    payload_read_at: datetime | None = None
    reading: Reading | None = None
    """What is known of its Python code; None if no rule has asked for that. It says itself which code it is of."""
    approvals: tuple[ExecutionApproval, ...] | None = None
    """Decisions about executions of this name; None if they were not read yet."""
    code_unreadable: bool = False
    """True if code that came sealed could not be put where whoever decides can read it."""
    sandbox: Sandbox = field(default_factory=Sandbox)
    """The pod of this execution alone; in a session there is none."""
    session: SessionView | None = None
    pool: PoolView | None = None
    pool_asked: bool = False
    """True if it was looked for a pool that has pods such as this execution needs."""
    room: Room = field(default_factory=Room)
    """Looked at only while no node has room for its pod."""
    recorded_at: datetime | None = None
    """When this process last wrote its record."""
    frames: FrameStream = FrameStream.CLOSED
    frames_since: datetime | None = None
    """When it became what it is."""
    begun_at: datetime | None = None
    """When this process handed the code over, the last time; None if it has not."""
    missing: str = ""
    """Why the runner does not tell of the code again, in its words."""
    cancel_sent_at: datetime | None = None
    egress_closed: bool = False
    """True if this process has closed again what was opened for it."""
    transcript: Transcript = field(default_factory=Transcript)

    @property
    def record(self) -> CodeExecution:
        """The execution: what `ObservedSession.record` is there."""
        return self.execution

    @property
    def place(self) -> Sandbox:
        """Where the code runs: the sandbox of the session, or its own."""
        return self.session.sandbox if self.session else self.sandbox


@dataclass(frozen=True)
class ObservedSession:
    """Everything known about one session at one moment."""

    session: CodeSession
    policy: ExecutionPolicySpec | PolicyProblem
    since: datetime
    """When this process began to look after it."""
    policy_read: bool = False
    policy_source: str = ""
    """Where the policy is kept, for messages."""
    cluster_view: ClusterView = field(default_factory=ClusterView)
    sandbox: Sandbox = field(default_factory=Sandbox)
    claimants: Set[str] = frozenset()
    """UIDs of the executions that run in it or wait for it."""
    used_at: datetime | None = None
    """When this process last saw an execution of it end."""
    strays_listed_at: datetime | None = None
    """When it was last looked for the execution of a job that nobody claims."""
    lease: LeaseView | None = None
    """The Lease of its client, once it was read."""
    room: Room = field(default_factory=Room)
    """Looked at only while no node has room for its pod."""
    pool_asked: bool = False
    """True if it was looked for a ready pod of a pool."""
    claimed: ClaimedView | None = None
    adopting: bool = False
    """True if this process sees to it that the pod becomes the session's own."""
    executions: int = 0
    """How many have run in it, as far as is known."""
    unresponsive: str = ""
    """Why its runner can't be trusted to do anything more."""
    ending: bool = False
    """True if its end, or its sleep, is decided, and is on its way to its record."""
    unsure: bool = False
    """True if its sleep may be on record, though no answer has said so: no code may run before that is known."""
    store_url: str = ""
    """Of the operator's output store; empty if there is none."""
    storing: Transfer | None = None
    restoring: Transfer | None = None

    @property
    def record(self) -> CodeSession:
        """The session: what `Observed.record` is there."""
        return self.session
