"""The rows of the audit report: one for each entry, with its details, by day. Pure.

In a long report, entries in a row that need no look are folded into one. A session's executions are always folded.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import groupby
from typing import Final, TypeAlias

from codeexec_api import CodeExecution, CodeSession, EgressVerdict
from codeexec_api.records import end_of
from executor_client.cli.auditing import Record, many
from executor_client.cli.report_entries import Entry, SessionGroup, anchor_of, record_of, session_anchor
from executor_client.cli.report_words import (
    CLOSED,
    ENDED,
    SUCCEEDED,
    Label,
    Tone,
    concern_of,
    network_of,
    result_of,
    why_of,
)

FOLDED_FROM: Final = 40
"""Entries of a report from which on those that need no look are folded."""
FOLDED_AT_LEAST: Final = 3
"""Entries that one fold holds at least."""
DAYS_OPEN: Final = 60
"""Rows up to which each day of a report is open at first."""


@dataclass(frozen=True)
class Fact:
    """A detail of a record."""

    name: str
    value: str
    anchor: str = ""
    """Of the row or table that the value links to. Empty: no link."""
    code: bool = False


@dataclass(frozen=True)
class Row:
    """An execution, a file transfer or a session."""

    kind: str
    anchor: str
    name: str
    at: datetime | None
    shown: str
    """The time as the row shows it."""
    agent: str
    requested_by: str
    what: str
    digest: str
    result: Label
    why: str
    boundary: Label | None
    """The network check."""
    flagged: bool
    """The record differs from the audit log."""
    facts: tuple[Fact, ...]
    problems: int = 0
    """How many records need a look: this one, and those in a session."""
    problems_inside: int = 0
    rows: tuple["Row", ...] = ()
    transfers: tuple["Row", ...] = ()


@dataclass(frozen=True)
class Fold:
    """Entries in a row that need no look."""

    text: str
    shown: str
    until: str
    agents: str
    rows: tuple[Row, ...]


Shown: TypeAlias = Row | Fold


@dataclass(frozen=True)
class Day:
    """What was created on one day."""

    title: str
    count: str
    problems: int
    open: bool
    rows: tuple[Shown, ...]


def days_of(entries: Sequence[Entry], flagged: Collection[str] = ()) -> tuple[Day, ...]:
    """The rows, by day. `flagged` are the anchors of the records that differ from the audit log."""
    days = [(on, [_row(one, on, flagged) for one in group]) for on, group in groupby(entries, _day_of)]
    fold = len(entries) >= FOLDED_FROM
    shown = [(on, rows, tuple(_folded(rows)) if fold else tuple(rows)) for on, rows in days]
    is_open = len(days) == 1 or sum(len(one) for _, _, one in shown) <= DAYS_OPEN
    return tuple(
        Day(
            title=f"{on:%A}, {on.day} {on:%B %Y}" if on else "No date",
            count=_tally(rows),
            problems=sum(row.problems for row in rows),
            open=is_open,
            rows=some,
        )
        for on, rows, some in shown
    )


def _day_of(entry: Entry) -> date | None:
    created = record_of(entry).metadata.creation_timestamp
    return created.date() if created else None


def _folded(rows: Iterable[Row]) -> Iterator[Shown]:
    for quiet, group in groupby(rows, _is_quiet):
        some = tuple(group)
        if quiet and len(some) >= FOLDED_AT_LEAST:
            agents = list(dict.fromkeys(row.agent for row in some))
            more = f" and {len(agents) - 2} more" if len(agents) > 2 else ""
            yield Fold(_tally(some), some[0].shown, some[-1].shown, f"{', '.join(agents[:2])}{more}", some)
        else:
            yield from some


def _is_quiet(row: Row) -> bool:
    """True if nobody has to see it at first: it ended well, with the network closed, and without an approval."""
    if row.problems or row.flagged or row.boundary not in (None, CLOSED):
        return False
    if row.kind == "session":
        return row.result == ENDED and all(map(_is_quiet, (*row.rows, *row.transfers)))
    return row.result == SUCCEEDED and not row.why


def _tally(rows: Iterable[Row]) -> str:
    """Such as `12 executions, 3 in 1 session`."""
    rows = tuple(rows)
    sessions = [row for row in rows if row.kind == "session"]
    inside = sum(len(row.rows) for row in sessions)
    counts = [(len(rows) - len(sessions) + inside, "execution"), (len(sessions), "session")]
    return ", ".join(many(count, what) for count, what in counts if count)


# --- rows ---


def _row(entry: Entry, on: date | None, flagged: Collection[str]) -> Row:
    if isinstance(entry, CodeExecution):
        return _of_execution(entry, on, flagged, problem=concern_of(entry) is not None)
    return _of_session(entry, on, flagged)


def _of_execution(
    execution: CodeExecution, on: date | None, flagged: Collection[str], *, problem: bool, in_session: bool = False
) -> Row:
    spec, status = execution.spec, execution.status
    anchor, created = anchor_of(execution), execution.metadata.creation_timestamp
    boundary = network_of(status.egress_proof)
    return Row(
        kind="execution" if spec.blocks else "transfer",
        anchor=anchor,
        name=execution.metadata.name,
        at=created,
        shown=_clock(created, on),
        agent=spec.source.agent,
        requested_by=spec.requested_by or "",
        what=_blocks(execution) if spec.blocks else _transfer(execution),
        digest=spec.summary.digest if spec.blocks else "",
        result=result_of(execution),
        why=". ".join(filter(None, (why_of(execution), _opened(execution)))),
        # Inside a session, only what differs from the session's own row is worth repeating.
        boundary=boundary if not in_session or (boundary and boundary.tone is not Tone.GOOD) else None,
        flagged=anchor in flagged,
        facts=tuple(_facts(execution)),
        problems=int(problem),
    )


def _of_session(group: SessionGroup, on: date | None, flagged: Collection[str]) -> Row:
    session, first = group.session, group.first
    created, anchor = first.metadata.creation_timestamp, session_anchor(group.name)

    def rows(executions: Iterable[CodeExecution]) -> tuple[Row, ...]:
        return tuple(
            _of_execution(one, on, flagged, problem=group.concern_of(one) is not None, in_session=session is not None)
            for one in executions
        )

    inside, transfers = rows(group.executions), rows(group.transfers)
    counts = [many(len(inside), "execution")] + ([many(len(transfers), "file transfer")] if transfers else [])
    problems = sum(row.problems for row in (*inside, *transfers))
    own = session is not None and concern_of(session) is not None
    return Row(
        kind="session",
        anchor=anchor,
        name=group.name,
        at=created,
        shown=_clock(created, on),
        agent=first.spec.source.agent,
        requested_by=first.spec.requested_by or "",
        what=", ".join(counts),
        digest="",
        result=result_of(session) if session else Label("No record"),
        why=why_of(session) if session else "The session's record is not in this report",
        boundary=network_of(session.status.egress_proof) if session else None,
        flagged=anchor in flagged,
        facts=tuple(_facts(session)) if session else (),
        problems=own + problems,
        problems_inside=problems,
        rows=inside,
        transfers=transfers,
    )


def _blocks(execution: CodeExecution) -> str:
    """Such as `python` or `bash, python, 3 blocks`."""
    count = len(execution.spec.blocks)
    return ", ".join([*execution.spec.languages, *([f"{count} blocks"] if count > 1 else [])])


def _transfer(execution: CodeExecution) -> str:
    if files := execution.spec.files:
        return f"{many(len(files), 'file')} copied in"
    return "Files fetched" if execution.spec.artifacts.fetch else "Files listed"


def _opened(execution: CodeExecution) -> str:
    opened = ", ".join(one.permit for one in execution.status.egress)
    return f"Egress to {opened}" if opened else ""


def _clock(moment: datetime | None, on: date | None) -> str:
    """The time on this day. For another day, with its date."""
    if moment is None:
        return ""
    return f"{moment:%H:%M:%S}" if moment.date() == on else shown(moment)


def shown(moment: datetime | None) -> str:
    """A time in UTC, to the second. Empty if there is none."""
    return moment.strftime("%Y-%m-%d %H:%M:%S") if moment else ""


# --- details ---


def _facts(record: Record) -> Iterator[Fact]:
    status = record.status
    own = _of_a_session(record) if isinstance(record, CodeSession) else _of_an_execution(record)
    facts = (
        Fact("Phase", f"{status.phase.value} ({status.reason})".removesuffix(" ()")),
        Fact("Created", shown(record.metadata.creation_timestamp)),
        Fact("Started", shown(status.started_at)),
        Fact("Ended", shown(end_of(record))),
        *own,
        *_of_the_sandbox(record),
    )
    yield from (one for one in facts if one.value)


def _of_an_execution(execution: CodeExecution) -> Iterator[Fact]:
    spec, status = execution.spec, execution.status
    session = spec.session_ref.name if spec.session_ref else ""
    yield Fact("Session", session, session_anchor(session))
    if asked := status.approval:
        decided = f"{asked.decision} by {asked.approver}" if asked.decision else "nobody decided"
        yield Fact("Approval", decided, approval_anchor(execution.metadata.name) if spec.blocks else "")
    yield Fact("Exit code", "" if status.exit_code is None else str(status.exit_code))
    yield Fact("Code digest", spec.code_digest if spec.blocks else "", code=True)
    yield Fact("Time limit", f"{spec.timeout_seconds} s for each block" if spec.blocks else "")
    yield Fact("Code rules", ", ".join(one.told for one in status.code_findings))
    yield Fact("Egress", ", ".join(map(str, spec.egress or ())))
    yield Fact("Mounts", ", ".join(map(str, spec.mounts or ())))
    yield Fact("Pool", status.pool_name)
    if reset := status.pod_reset:
        yield Fact("Pod", f"used before, and found clean ({len(reset.checked)} checks); use {reset.use}")


def _of_a_session(session: CodeSession) -> Iterator[Fact]:
    yield Fact("Python state", "kept between executions" if session.spec.stateful else "")
    yield Fact("Pool", session.status.pool_name)


def _of_the_sandbox(record: Record) -> Iterator[Fact]:
    status, limits = record.status, record.spec.limits
    yield Fact("Limits", f"cpu {limits.cpu}, memory {limits.memory}")
    if proof := status.egress_proof:
        permits = " with the egress above" if proof.verdict is EgressVerdict.RESTRICTED else ""
        yield Fact("Network check", f"{proof.verdict.value}{permits}, {shown(proof.checked_at)}")
    yield Fact("Boundary", status.boundary.value if status.boundary else "")
    yield Fact("Isolation", ", ".join((*status.layers, *filter(None, (status.runtime_class_name,)))))
    yield Fact("Pod", f"{status.pod_name} on {status.node_name}".removesuffix(" on "))
    yield Fact("Image", status.image, code=True)
    yield Fact("Executor", record.spec.source.executor)
    if anchor := status.audit:
        yield Fact("Audit line", f"{anchor.sequence} of chain {anchor.chain}", code=True)


def approval_anchor(name: str) -> str:
    """The anchor of an execution's approval."""
    return f"approval-of-{name}"
