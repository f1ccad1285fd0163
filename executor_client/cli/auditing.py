"""What the audit commands say of records: which ones are chosen, and what happened to one of them, and when. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from codeexec_api import CodeExecution, CodeSession
from codeexec_api.audit import AuditEvent
from codeexec_api.audit_check import audit_line
from codeexec_api.audit_findings import LogLine
from codeexec_api.records import end_of

Record = CodeExecution | CodeSession


@dataclass(frozen=True)
class RecordFilter:
    """Which records are asked for. None: all."""

    agent: str | None = None
    requested_by: str | None = None
    approver: str | None = None
    phase: str | None = None
    since: datetime | None = None

    def takes(self, record: Record) -> bool:
        """True if it is asked for. `since` is held against the creation."""
        created = record.metadata.creation_timestamp
        return (
            self.agent in (None, record.spec.source.agent)
            and self.requested_by in (None, record.spec.requested_by)
            and self.approver in (None, approver_of(record))
            and self.phase in (None, record.status.phase.value)
            and (self.since is None or created is None or created >= self.since)
        )


def approver_of(record: Record) -> str:
    """Who has decided about it; empty if nobody has."""
    approval = record.status.approval if isinstance(record, CodeExecution) else None
    return approval.approver if approval else ""


def without_output(execution: CodeExecution) -> CodeExecution:
    """The same record without the text of its output, which no table and no report shows."""
    streams = {"stdout": execution.status.stdout, "stderr": execution.status.stderr}
    update = {name: one.model_copy(update={"text": ""}) for name, one in streams.items() if one}
    return execution.model_copy(update={"status": execution.status.model_copy(update=update)})


def by_age(records: Iterable[Record]) -> list[Record]:
    """Oldest first."""
    return sorted(records, key=lambda one: (str(one.metadata.creation_timestamp), one.kind, one.metadata.name))


@dataclass(frozen=True)
class Moment:
    """Something that happened to an execution or a session."""

    at: datetime
    what: str
    detail: str = ""


def many(count: int, what: str) -> str:
    """A count with its noun."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def timeline(record: Record) -> list[Moment]:
    """What the record tells of, in order. Where times are the same, as things follow each other."""
    spec, status = record.spec, record.status
    moments: list[tuple[datetime | None, str, str]] = [
        (
            record.metadata.creation_timestamp,
            "created",
            f"by {spec.requested_by or 'nobody known'}, {spec.source.agent}",
        )
    ]
    if isinstance(record, CodeExecution):
        moments += _of_approval(record)
    moments += [
        (one.last_transition_time, f"{one.type}={one.status}", f"{one.reason}: {one.message}".removesuffix(": "))
        for one in status.conditions
    ]
    if proof := status.egress_proof:
        moments.append((proof.checked_at, "network tried", proof.verdict.value))
    moments.append((status.started_at, "started", f"{status.pod_name} on {status.node_name}"))
    moments.append((end_of(record), "ended", f"{status.phase.value} ({status.reason})"))
    if anchor := status.audit:
        moments.append((anchor.time, "last written", f"line {anchor.sequence} of chain {anchor.chain}"))
    return sorted((Moment(at, what, detail) for at, what, detail in moments if at), key=lambda one: one.at)


def _of_approval(record: CodeExecution) -> list[tuple[datetime | None, str, str]]:
    approval = record.status.approval
    if approval is None:
        return []
    decided = f"{approval.decision} by {approval.approver} ({approval.name}): {approval.reason}".removesuffix(": ")
    return [
        (approval.requested_at, "approval asked for", ", ".join(map(str, approval.grants))),
        (approval.decided_at, "decided", decided),
    ]


@dataclass(frozen=True)
class LogEntry:
    """A line of the log that tells of a record."""

    where: str
    time: str
    chain: str
    sequence: int
    said: str
    digest: str


def lines_about(record: Record, lines: Iterable[LogLine]) -> list[LogEntry]:
    """The lines of a log that tell of a record, in the order of the log. Whether they are true is for `verify`."""
    found = []
    for line in lines:
        try:
            body = audit_line(line.text) or {}
            about = body.get("record", {})
            if body.get("event") != AuditEvent.STATUS_WRITE or about.get("uid") != record.metadata.uid:
                continue
            said = f"{body['from']} to {about['phase']} ({about.get('reason', '')})"
            found.append(LogEntry(line.where, body["time"], body["chain"], body["sequence"], said, body["hash"]))
        except (ValueError, KeyError, AttributeError):  # `verify` says what is wrong with it
            continue
    return found
