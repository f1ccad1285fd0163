"""Reads logs of the operator, and says whether their audit lines are all there, unchanged, and what the records say.

Pure: log lines and records in, findings and notes out. A finding is something that is not as the operator has written
it. A note is something that can't be told.
"""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from codeexec_api.audit import FORMAT, GENESIS, MEMBER, AuditEvent, digest, in_utc, is_in_utc
from codeexec_api.audit_coverage import Coverage, Place, Span, widen
from codeexec_api.audit_export import Exported, read_export
from codeexec_api.audit_findings import CLOCKS_APART, Chain, Finding, FindingKind, Found, LogLine, ReadLine
from codeexec_api.audit_records import Evidence, Records
from codeexec_api.checkpoints import Checkpoint, Head, Witness, compare, read_checkpoints
from codeexec_api.names import LOCAL_NAMESPACE

_HEX: Final = {"chain": re.compile(r"[0-9a-f]{32}"), "previous": re.compile(r"[0-9a-f]{64}")}
_HEX["hash"] = _HEX["previous"]
_NAMESPACE: Final = re.compile(r"\S+")
"""What a line of a checkpoint can hold."""
_SHOWN: Final = 80
"""Characters of a value that a finding quotes."""


@dataclass(frozen=True)
class ChainSummary:
    """What was read of one chain."""

    chain: str
    namespace: str
    operator: str
    first: int
    last: int
    since: str
    """Time of the first of these lines, RFC 3339 in UTC."""
    until: str
    hash: str
    """Of the last of these lines."""

    @property
    def head(self) -> Head:
        """What a checkpoint says of it."""
        return Head(self.namespace, self.chain, self.last, self.hash, self.until)


@dataclass(frozen=True)
class Verification:
    """What was found."""

    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    """What can't be told from what was given. Of the same kinds: it would be a finding, were the logs complete."""
    chains: tuple[ChainSummary, ...]
    lines: int
    """Audit lines that were read."""
    records: int
    """Records that agree with their line."""
    checkpoints: tuple[Checkpoint, ...]
    """That are signed by the key, oldest first."""
    gone: tuple[str, ...] = ()
    """Kind and name of what the log tells of and the cluster doesn't have any more, in order of appearance."""


def read_log(name: str, text: Iterable[str]) -> Iterator[LogLine]:
    """The lines of a file that may hold audit lines."""
    return (LogLine(name, number, line) for number, line in enumerate(text, 1) if MEMBER in line)


def audit_line(text: str) -> Mapping[str, Any] | None:
    """The audit line in a line of a log; None if it is a line of somebody else.

    What stands before the first brace is left out: `kubectl logs --timestamps` and container runtimes put times there.

    Raises:
        ValueError: it is one, but in no form that has one meaning: a member comes twice, there is a fraction, or it is
            nested too deeply.
    """
    try:
        outer = json.loads(text[text.find("{") :], object_pairs_hook=_Pairs, parse_float=_Fraction)
    except (ValueError, RecursionError):
        return None
    audit = dict(outer).get(MEMBER) if isinstance(outer, _Pairs) else None
    if not isinstance(audit, _Pairs) or not {"chain", "sequence"} <= dict(audit).keys():
        return None
    try:
        body: Mapping[str, Any] = _plain(audit)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return body


class _Pairs(list[tuple[str, Any]]):
    """The members of an object, also those that come twice."""


class _Fraction(float):
    """What no audit line has."""


def _plain(value: Any) -> Any:
    if isinstance(value, _Pairs):
        plain = {name: _plain(one) for name, one in value}
        if len(plain) != len(value):
            raise ValueError("a field comes twice")
        return plain
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        raise ValueError("it has a number with a fraction")
    return value


def verify(
    lines: Iterable[LogLine],
    records: Iterable[Mapping[str, Any] | Evidence] | None = None,
    *,
    now: datetime,
    namespace: str = "",
    complete: bool = False,
    later: Iterable[LogLine] = (),
    witness: Witness | None = None,
    export: Mapping[str, bytes] | None = None,
) -> Verification:
    """Check chains, and hold records against them.

    Args:
        lines: of all logs, each log in its order. The order of the logs doesn't matter, and they may overlap.
        records: CodeExecutions and CodeSessions as the API server has them, each with its `kind`, or as `Evidence`;
            None: no cluster is asked.
        now: the reader's clock; nothing can have been written after that.
        namespace: where those records are.
        complete: nothing was left out of the logs, so what they don't have is a finding and no note.
        later: what was read of the logs after the records. Records may name these lines, and may be older than they.
        witness: signed checkpoints, which were read before the logs; None: the logs are not held against any.
        export: files with records and lines of that namespace, by their names; None: there are none.
    """
    found, later = Found(complete), tuple(later)
    exported = read_export(export, found) if export is not None else Exported((), ())
    chains, coverage = _gather(itertools.chain(exported.lines, lines, later), found)
    _check_chains(chains, found)
    if not chains:
        found.say(
            FindingKind.MISSING,
            "the logs",
            "the given logs contain no audit line: pass the operator's log with its JSON lines unchanged "
            "(docs/audit.md#keep-the-log)",
        )
    checkpoints = read_checkpoints(witness, found) if witness else ()
    compare(chains, coverage, checkpoints, found)
    fine, gone = 0, tuple[str, ...]()
    if records is not None or export is not None:
        unseen = {line.where for line in later}
        checked = Records(chains, coverage, found, in_utc(now + CLOCKS_APART), unseen)
        fine, gone = checked.check(records, exported.records, namespace)
    summaries = tuple(sorted(map(_summary, chains.values()), key=lambda one: (one.namespace, one.since, one.chain)))
    return Verification(tuple(found.findings), tuple(found.notes), summaries, found.lines, fine, checkpoints, gone)


# --- the lines ---


def _gather(lines: Iterable[LogLine], found: Found) -> tuple[dict[str, Chain], Coverage]:
    chains: defaultdict[str, Chain] = defaultdict(dict)
    spans: dict[Place, Span] = {}
    latest: dict[tuple[str, str], int] = {}
    for line in lines:
        read = _read(line, found)
        if read is None:
            continue
        chain, number, time = read.body["chain"], read.body["sequence"], read.body["time"]
        widen(spans, Place(line.log, read.body["namespace"], chain, line.exported), Span(time, time, number))
        last = latest.get((line.log, chain), 0)
        latest[line.log, chain] = max(last, number)
        known = chains[chain].setdefault(number, read)
        same = known.body == read.body
        if not same:
            message = f"line {number} of chain {chain} differs from the one at {known.where}"
            found.say(FindingKind.CONFLICTING, read.where, message)
        elif known is not read and number <= last:
            found.say(FindingKind.REPEATED, read.where, f"line {number} of chain {chain} is already at {known.where}")
        elif number <= last:
            found.say(FindingKind.REORDERED, read.where, f"line {number} of chain {chain} comes after line {last}")
    return dict(chains), Coverage(spans)


def _read(line: LogLine, found: Found) -> ReadLine | None:
    try:
        body = audit_line(line.text)
        if body is None:
            return None
        found.lines += 1
        if body.get("format") != FORMAT:
            _other_format(line, body, found)
            return None
        if problem := _malformed(body):
            found.say(FindingKind.UNREADABLE, line.where, problem)
            return None
        if digest(body) != body["hash"]:
            told = f"line {body['sequence']} of chain {body['chain']}{_about(body)}"
            found.say(FindingKind.CHANGED, line.where, f"{told} was changed: its hash does not match its content")
    except ValueError as error:
        found.say(FindingKind.UNREADABLE, line.where, f"an ambiguous audit line: {error}")
        return None
    return ReadLine(line.log, line.where, body)


def _other_format(line: LogLine, body: Mapping[str, Any], found: Found) -> None:
    """A newer operator's, or somebody has changed it: which of them the lines around it tell."""
    message = f"format {body.get('format')!r} is unknown (allowed: {FORMAT}); verify it with a newer codeexec"
    found.wonder(FindingKind.UNREADABLE, line.where, message[: 2 * _SHOWN])


def _malformed(body: Mapping[str, Any]) -> str:
    """What is wrong with the members that each line has; empty if nothing is."""
    for name, pattern in _HEX.items():
        if not isinstance(body.get(name), str) or not pattern.fullmatch(body[name]):
            return f"audit.{name} is not a hexadecimal number of the right length"
    number = body["sequence"]
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= 2**53:
        return "audit.sequence is not a whole number from 1 on"
    for name in ("time", "operator", "namespace", "event"):
        if not isinstance(body.get(name), str):
            return f"audit.{name} is not a string"
    if not _NAMESPACE.fullmatch(body["namespace"]):
        return f"audit.namespace is {body['namespace'][:_SHOWN]!r}, which is empty or has a blank"
    if not is_in_utc(body["time"]):
        return f"audit.time is {body['time'][:_SHOWN]!r}, which is no time in UTC with microseconds"
    record = body.get("record", {})
    texts = [record.get(name) for name in ("kind", "name", "uid", "phase")] if isinstance(record, dict) else [None]
    needed = body["event"] in (AuditEvent.STATUS_WRITE, AuditEvent.RECORD_DELETED)
    if (record or needed) and not all(isinstance(one, str) for one in texts):
        return "audit.record lacks the kind, name, uid or phase of a record"
    return ""


def _about(body: Mapping[str, Any]) -> str:
    record = body.get("record", {})
    return f" ({record['kind']} {record['name']}, {record['phase']})" if record else ""


def _check_chains(chains: Mapping[str, Chain], found: Found) -> None:
    for name, chain in chains.items():
        numbers = sorted(chain)
        first = chain[numbers[0]]
        if numbers[0] > 1:
            message = f"lines 1 to {numbers[0] - 1} of chain {name} are not in the given logs"
            found.wonder(FindingKind.MISSING, first.where, message)
        elif first.body["previous"] != GENESIS or first.body["event"] != AuditEvent.OPERATOR_STARTED:
            found.say(FindingKind.BROKEN, first.where, f"chain {name} doesn't begin with OperatorStarted")
        for before, after in pairwise(numbers):
            _check_link(name, chain[before], chain[after], found)
        for line in chain.values():
            if line.body["event"] == AuditEvent.CONTINUES:
                _check_continuation(line, chains, found)
    _check_takeovers(chains, found)


def _check_link(name: str, before: ReadLine, after: ReadLine, found: Found) -> None:
    first, last = before.body["sequence"] + 1, after.body["sequence"] - 1
    if first <= last:
        which = f"line {first} of chain {name} is" if first == last else f"lines {first} to {last} of chain {name} are"
        found.say(FindingKind.MISSING, after.where, f"{which} missing between {before.where} and {after.where}")
    elif after.body["previous"] != before.body["hash"]:
        message = f"line {last + 1} of chain {name} doesn't follow the line at {before.where}"
        found.say(FindingKind.BROKEN, after.where, message)
    if after.body["namespace"] != before.body["namespace"]:
        found.say(FindingKind.BROKEN, after.where, f"the namespace of chain {name} changes here")


def _check_continuation(line: ReadLine, chains: Mapping[str, Chain], found: Found) -> None:
    """What a later process saw of an earlier chain has to be there."""
    anchor = line.position("after")
    if anchor is None:
        found.say(FindingKind.UNREADABLE, line.where, "audit.after doesn't name a line")
        return
    chain = chains.get(anchor.chain)
    if chain is None:
        message = f"chain {anchor.chain}, of the operator before this one, is not in the given logs"
        found.wonder(FindingKind.MISSING, line.where, message)
    elif anchor.sequence > max(chain):
        message = (
            f"chain {anchor.chain} ends with line {max(chain)} in the given logs, but the next operator saw line "
            f"{anchor.sequence}"
        )
        found.say(FindingKind.MISSING, line.where, message)
    elif anchor.sequence in chain and chain[anchor.sequence].body["hash"] != anchor.hash:
        message = f"line {anchor.sequence} of chain {anchor.chain} differs from the one that the next operator saw"
        found.say(FindingKind.CONFLICTING, chain[anchor.sequence].where, message)


def _check_takeovers(chains: Mapping[str, Chain], found: Found) -> None:
    """One operator at a time serves a namespace, so a chain doesn't go on when the next one has begun.

    A chain whose beginning isn't there, or that began within the same hour, is no next one. Local executors may share a
    log.
    """
    begun: defaultdict[str, list[datetime]] = defaultdict(list)
    for chain in chains.values():
        if (first := chain.get(1)) and first.body["namespace"] != LOCAL_NAMESPACE:
            begun[first.body["namespace"]].append(first.moment)
    for times in begun.values():
        times.sort()
    for name, chain in chains.items():
        first = chain[min(chain)]
        namespace = first.body["namespace"]
        since = next((time for time in begun[namespace] if time - first.moment > CLOCKS_APART), None)
        late = [number for number in chain if since and chain[number].moment - since > CLOCKS_APART]
        if since and late:
            line = chain[min(late)]
            message = (
                f"line {min(late)} of chain {name} is of {line.body['time']}, but another operator has served "
                f"namespace {namespace} since {in_utc(since)}"
            )
            found.wonder(FindingKind.MISDATED, line.where, message)


def _summary(chain: Chain) -> ChainSummary:
    first, last = chain[min(chain)], chain[max(chain)]
    return ChainSummary(
        chain=first.body["chain"],
        namespace=first.body["namespace"],
        operator=first.body["operator"],
        first=min(chain),
        last=max(chain),
        since=first.body["time"],
        until=last.body["time"],
        hash=last.body["hash"],
    )
