"""What a record says of an execution's way, as a tree of stages with their times: its trace, and what is measured.

Made from the final record, so nothing has to be remembered on the way, and a restart of the operator loses nothing that
the record knows.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from codeexec_api import BlockStatus, CodeExecution, ConditionType, Reason, find_condition, true_condition
from codeexec_api.attributes import Attributes, Value, error_of, outcome_attributes, request_attributes
from codeexec_api.records import LONGEST_BLOCK_MS

EXECUTION: Final = "handle_execution"
ACCEPT: Final = "accept"
APPROVAL: Final = "await_approval"
QUEUE: Final = "queue"
WAIT_FOR_SESSION: Final = "wait_for_session"
START_SANDBOX: Final = "start_sandbox"
RUN: Final = "run_blocks"
BLOCK: Final = "run_block"

OTHER: Final = "_OTHER"
"""For what is not in a closed vocabulary; the word is that of OpenTelemetry's `error.type`."""
_COMPLETED: Final = Reason.COMPLETED.value
_REASONS: Final = frozenset(reason.value for reason in Reason)
_CREATION: Final = timedelta(seconds=1)
"""The API server writes the time of creation in whole seconds."""


@dataclass(frozen=True)
class Stage:
    """A part of an execution's way. Never longer than the one that it is a part of."""

    name: str
    began: datetime
    ended: datetime
    attributes: Attributes = field(default_factory=dict)
    error: str = ""
    """Reason of the failure that happened in it; empty if there was none."""
    parts: tuple["Stage", ...] = ()


@dataclass(frozen=True)
class Times:
    """When what happened, in this order; None for what never did."""

    created: datetime
    asked: datetime | None
    """When a human was asked to approve it."""
    accepted: datetime | None
    queued_until: datetime | None
    """When it left the queue of a pool, if the record ever said that it was in one."""
    started: datetime | None
    """When the code was handed over."""
    finished: datetime


def known_reason(reason: str) -> str:
    """The same, if it is one of `Reason`. A block's comes from inside the pod."""
    return reason if reason in _REASONS else OTHER


def times_of(execution: CodeExecution, seen_at: datetime) -> Times:
    """Of an execution that is over, and of which this process first heard at `seen_at`."""
    status = execution.status
    accepted = true_condition(status.conditions, ConditionType.ACCEPTED)
    queued = find_condition(status.conditions, ConditionType.QUEUED)
    accepted_at = accepted.last_transition_time if accepted else None
    left_at = queued.last_transition_time if queued and queued.status == "False" else None
    started, finished = status.started_at, status.finished_at or seen_at
    asked_at = status.approval.requested_at if status.approval else None
    happened = [moment for moment in (asked_at, accepted_at, left_at, started, finished) if moment]
    created = execution.metadata.creation_timestamp or seen_at
    # Within that second, and neither after it was seen nor after anything happened to it. The clock of the API server,
    # which says when it was created, may be ahead of the operator's, which says all else.
    created = min(created + _CREATION, seen_at, *happened)
    moments: list[datetime | None] = []
    latest = created
    for moment in (asked_at, accepted_at, left_at, started, finished):  # clocks of several machines have part in them
        latest = max(latest, moment or latest)
        moments.append(latest if moment else None)
    return Times(created, moments[0], moments[1], moments[2], moments[3], latest)


def stages_of(execution: CodeExecution, seen_at: datetime) -> Stage:
    """The way of an execution that is over, from its creation to its end. `seen_at` as for `times_of`."""
    times = times_of(execution, seen_at)
    error = known_reason(error_of(execution)) if error_of(execution) else ""
    parts = [*_before_code(execution, times)]
    if times.started:
        parts.append(_run(execution, times.started, times.finished))
    if error:  # it happened in the last of them
        last = parts[-1]
        attributes = {**last.attributes, "error.type": error}
        parts[-1] = Stage(last.name, last.began, last.ended, attributes, error, last.parts)
    return Stage(EXECUTION, times.created, times.finished, _attributes(execution), error, tuple(parts))


def _attributes(execution: CodeExecution) -> Attributes:
    """All that the client's span says, and what only the operator knows."""
    meta, status = execution.metadata, execution.status
    attributes = {**request_attributes(meta.namespace, meta.name, execution.spec), **outcome_attributes(execution)}
    if status.node_name:
        attributes["k8s.node.name"] = status.node_name
    if status.image:
        attributes["container.image.repo_digests"] = [status.image]
    if status.pool_name:
        attributes["codeexec.pool.name"] = status.pool_name
    if status.pod_reset:
        attributes["codeexec.pod.use"] = status.pod_reset.use
    return attributes


def _before_code(execution: CodeExecution, times: Times) -> list[Stage]:
    """One after the other, without gaps, until the code starts, or until it ends without."""
    accepted = times.accepted or times.started or times.finished
    parts = [Stage(ACCEPT, times.created, times.asked or accepted)]
    if times.asked:
        parts.append(Stage(APPROVAL, times.asked, accepted))
    if times.accepted is None:
        return parts
    end = times.started or times.finished
    if execution.spec.session_ref:
        return [*parts, Stage(WAIT_FOR_SESSION, times.accepted, end)]
    began = times.accepted
    if times.queued_until:
        parts.append(Stage(QUEUE, began, times.queued_until))
        began = times.queued_until
    if times.started or began < end:
        pod = {"k8s.pod.name": execution.status.pod_name} if execution.status.pod_name else {}
        parts.append(Stage(START_SANDBOX, began, end, {**pod, "codeexec.sandbox.origin": origin_of(execution)}))
    return parts


def origin_of(execution: CodeExecution) -> str:
    """Where its code runs: in the pod of a `session`, in one from a `pool`, or in a `new` one."""
    if execution.spec.session_ref:
        return "session"
    return "pool" if execution.status.pool_name else "new"


def _run(execution: CodeExecution, began: datetime, ended: datetime) -> Stage:
    status = execution.status
    attributes = {} if status.exit_code is None else {"process.exit.code": status.exit_code}
    blocks = [_block(execution, index, block, began, ended) for index, block in enumerate(status.blocks)]
    return Stage(RUN, began, ended, attributes, parts=tuple(blocks))


def _block(execution: CodeExecution, index: int, block: BlockStatus, earliest: datetime, latest: datetime) -> Stage:
    """Its times are the node's; they are kept within those of the run, which are the operator's."""
    began = min(max(block.started_at, earliest), latest)
    ended = min(began + timedelta(milliseconds=min(block.duration_ms, LONGEST_BLOCK_MS)), latest)
    attributes: dict[str, Value] = {
        "codeexec.block.index": index,
        "codeexec.stdout.size_bytes": block.stdout_bytes,
        "codeexec.stderr.size_bytes": block.stderr_bytes,
        "process.exit.code": block.exit_code,
    }
    if index < len(execution.spec.blocks):
        attributes["codeexec.block.language"] = execution.spec.blocks[index].language
    error = "" if block.reason == _COMPLETED else known_reason(block.reason)
    if error:
        attributes["error.type"] = error
    return Stage(BLOCK, began, ended, attributes, error)
