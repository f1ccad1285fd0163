"""What the audit report counts: entries, requests, refusals, networks, and what needs a look. Pure.

Each request counts once. A session and its executions are one entry. If a session never started, its executions never
did either: the session is then the request that was refused or that failed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Final

from codeexec_api import CodeExecution, CodeSession, Phase, SessionPhase
from codeexec_api.audit_findings import Finding
from codeexec_api.names import EXECUTION_KIND, SESSION_KIND
from executor_client.cli.auditing import Record, many
from executor_client.cli.report_entries import (
    Entry,
    SessionGroup,
    anchor_of,
    execution_anchor,
    session_anchor,
)
from executor_client.cli.report_words import (
    CONCERNS,
    FINDINGS,
    NOT_TESTED,
    OPEN,
    WHY,
    Concern,
    Label,
    Tone,
    concern_of,
    network_of,
    not_started,
    result_of,
    why_of,
)

LINKED: Final = 50
"""Most links of one share."""
_REFUSED: Final = (Phase.DENIED, Phase.EXPIRED, SessionPhase.DENIED)
_ANCHORS: Final = {EXECUTION_KIND: execution_anchor, SESSION_KIND: session_anchor}
_NAMED: Final = re.compile(rf"({EXECUTION_KIND}|{SESSION_KIND}) ([a-z0-9][-a-z0-9.]*[a-z0-9]|[a-z0-9])")
"""How findings name a record."""

# --- what needs a look ---


@dataclass(frozen=True)
class Problem:
    """A record that needs a look."""

    anchor: str
    name: str
    at: datetime | None
    agent: str
    why: str


@dataclass(frozen=True)
class ProblemGroup:
    """Records with the same kind of problem."""

    concern: Concern
    problems: tuple[Problem, ...]


def problems_of(entries: Iterable[Entry]) -> tuple[ProblemGroup, ...]:
    """Each record that needs a look, once, by its worst problem."""
    found: dict[Concern, list[Problem]] = {}
    for entry in entries:
        for concern, problem in _problems(entry):
            found.setdefault(concern, []).append(problem)
    return tuple(ProblemGroup(one, tuple(found[one])) for one in CONCERNS if one in found)


def _problems(entry: Entry) -> Iterator[tuple[Concern, Problem]]:
    if isinstance(entry, CodeExecution):
        if concern := concern_of(entry):
            yield concern, _problem(entry, concern)
        return
    if entry.session and (concern := concern_of(entry.session)):
        yield concern, _problem(entry.session, concern, _consequence(entry))
    for execution in (*entry.executions, *entry.transfers):
        if concern := entry.concern_of(execution):
            yield concern, _problem(execution, concern)


def _problem(record: Record, concern: Concern, more: str = "") -> Problem:
    result = result_of(record).text
    if isinstance(record, CodeSession):
        head = f"Session {result.lower()}"
    elif not record.spec.blocks:
        head = f"File transfer {result.lower()}"
    else:
        head = "" if result == concern.title else result
    why = why_of(record)
    if concern is OPEN:
        ran = record.status.started_at is not None
        why = ("The code ran" if ran else "No code ran") if isinstance(record, CodeExecution) else ""
    return Problem(
        anchor=anchor_of(record),
        name=record.metadata.name,
        at=record.metadata.creation_timestamp,
        agent=record.spec.source.agent,
        why=". ".join(filter(None, (head, why, more))),
    )


def _consequence(group: SessionGroup) -> str:
    """What became of the executions of a session that has a problem."""
    inside = (*group.executions, *group.transfers)
    idle = sum(map(group.swallows, inside))
    ran = sum(one.status.started_at is not None for one in inside)
    if idle:
        return f"{many(idle, 'execution')} did not start"
    return f"{many(ran, 'execution')} ran in it" if ran else ""


@dataclass(frozen=True)
class Found:
    """Something that the check of the audit log has found."""

    title: str
    where: str
    message: str
    anchor: str
    """Of the row that it is about. Empty if the report has none."""


def found_in_log(findings: Iterable[Finding], entries: Iterable[Entry]) -> tuple[Found, ...]:
    """Findings or notes, each with the record that it names."""
    anchors = {anchor_of(one) for one in _records(entries)}

    def anchor(finding: Finding) -> str:
        named = _NAMED.search(f"{finding.where} {finding.message}")
        found = _ANCHORS[named[1]](named[2]) if named else ""
        return found if found in anchors else ""

    return tuple(Found(FINDINGS[one.kind], one.where, one.message, anchor(one)) for one in findings)


def flagged(findings: Iterable[Finding]) -> frozenset[str]:
    """Anchors of the records that are not as the audit log says."""
    named = (_NAMED.fullmatch(one.where) for one in findings)
    return frozenset(_ANCHORS[one[1]](one[2]) for one in named if one)


# --- sums ---


@dataclass(frozen=True)
class Link:
    """A link to the row of a record."""

    anchor: str
    name: str


@dataclass(frozen=True)
class Share:
    """How many have the same label."""

    label: Label
    count: int
    problems: int
    """How many of them need a look."""
    percent: float
    """Of the largest share beside it."""
    problem_percent: float
    links: tuple[Link, ...]
    more: int
    """How many are not linked."""


@dataclass(frozen=True)
class Decided:
    """An execution that needed an approver's decision."""

    anchor: str
    name: str
    requested_by: str
    grants: str
    decision: Label
    approver: str
    reason: str


@dataclass(frozen=True)
class Sums:
    """The totals of a report."""

    executions: int
    """Of code. File transfers are counted apart."""
    transfers: int
    sessions: int
    refused: int
    since: datetime | None
    until: datetime | None
    by_agent: tuple[Share, ...]
    by_requester: tuple[Share, ...]
    outcomes: tuple[Share, ...]
    refusals: tuple[Share, ...]
    networks: tuple[Share, ...]
    approvals: tuple[Decided, ...]


@dataclass(frozen=True)
class _Counted:
    """A record that counts, and whether it needs a look."""

    record: Record
    problem: bool


def sum_up(entries: Sequence[Entry]) -> Sums:
    """The totals. Requests are executions of code, and sessions in which none is recorded."""
    executions = list(_executions(entries))
    groups = [one for one in entries if isinstance(one, SessionGroup)]
    unused = [one.session for one in groups if one.session and not one.executions]
    requests = [*executions, *(_Counted(one, concern_of(one) is not None) for one in unused)]
    refused = [_Counted(one, problem=True) for one in _refused(entries)]
    created = [one.metadata.creation_timestamp for one in _records(entries) if one.metadata.creation_timestamp]
    return Sums(
        executions=len(executions),
        transfers=sum(len(one.transfers) for one in groups),
        sessions=len(groups),
        refused=len(refused),
        since=min(created, default=None),
        until=max(created, default=None),
        by_agent=_shares(requests, lambda one: Label(one.spec.source.agent)),
        by_requester=_shares(requests, lambda one: Label(one.spec.requested_by or "not known")),
        outcomes=_shares(executions, result_of),
        refusals=_shares(refused, lambda one: Label(WHY.get(one.status.reason, one.status.reason), Tone.BAD)),
        networks=_shares(_sandboxes(entries), lambda one: network_of(one.status.egress_proof) or NOT_TESTED),
        approvals=tuple(decided for one in executions if (decided := _decided(one.record))),
    )


def _records(entries: Iterable[Entry]) -> Iterator[Record]:
    for entry in entries:
        if isinstance(entry, CodeExecution):
            yield entry
        else:
            if entry.session:
                yield entry.session
            yield from entry.executions
            yield from entry.transfers


def _executions(entries: Iterable[Entry]) -> Iterator[_Counted]:
    """Executions of code, alone and in sessions."""
    for entry in entries:
        if isinstance(entry, CodeExecution):
            yield _Counted(entry, concern_of(entry) is not None)
        else:
            for one in entry.executions:
                yield _Counted(one, entry.swallows(one) or entry.concern_of(one) is not None)


def _refused(entries: Iterable[Entry]) -> Iterator[Record]:
    """Requests that were refused. Executions that never started because their session was refused are left out."""
    for entry in entries:
        for one in _records([entry]):
            swallowed = isinstance(entry, SessionGroup) and isinstance(one, CodeExecution) and entry.swallows(one)
            if one.status.phase in _REFUSED and not swallowed and not not_started(one):
                yield one


def _sandboxes(entries: Iterable[Entry]) -> Iterator[_Counted]:
    """A record for each sandbox: executions in a session share its pod and its network check."""
    for entry in entries:
        if isinstance(entry, CodeExecution):
            record: Record = entry
        else:
            inside = (*entry.executions, *entry.transfers)
            checked = next((one for one in inside if one.status.egress_proof), entry.first)
            record = entry.session or checked
        label = network_of(record.status.egress_proof)
        yield _Counted(record, label is not None and label.tone is not Tone.GOOD)


def _shares(counted: Iterable[_Counted], key: Callable[[Record], Label]) -> tuple[Share, ...]:
    def text(one: _Counted) -> str:
        return key(one.record).text

    groups = [list(group) for _, group in groupby(sorted(counted, key=text), text)]
    most = max(map(len, groups), default=1)
    shares = [_share(key(group[0].record), group, most) for group in groups]
    return tuple(sorted(shares, key=lambda one: (-one.count, one.label.text)))


def _share(label: Label, counted: Sequence[_Counted], most: int) -> Share:
    problems = [one for one in counted if one.problem]
    links = [*problems, *(one for one in counted if not one.problem)][:LINKED]
    return Share(
        label=label,
        count=len(counted),
        problems=len(problems),
        percent=100 * len(counted) / most,
        problem_percent=100 * len(problems) / most,
        links=tuple(Link(anchor_of(one.record), one.record.metadata.name) for one in links),
        more=len(counted) - len(links),
    )


def _decided(record: Record) -> Decided | None:
    asked = record.status.approval if isinstance(record, CodeExecution) else None
    if asked is None:
        return None
    decisions = {"Approve": Label("Approved", Tone.GOOD), "Deny": Label("Denied", Tone.BAD)}
    return Decided(
        anchor=anchor_of(record),
        name=record.metadata.name,
        requested_by=record.spec.requested_by or "",
        grants=", ".join(map(str, asked.grants)),
        decision=decisions.get(asked.decision) or result_of(record),
        approver=asked.approver,
        reason=asked.reason,
    )
