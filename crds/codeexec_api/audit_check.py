"""Reads logs of the operator, and says whether their audit lines are all there, unchanged, and what the records say.

Pure: log lines and records in, findings and notes out. A finding is something that is not as the operator has written
it. A note is something that can't be told.
"""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from codeexec_api.audit import FORMAT, GENESIS, MEMBER, AuditEvent, digest, facts_of, in_utc, status_digest
from codeexec_api.names import SESSION_KIND
from codeexec_api.phases import Phase, SessionPhase
from codeexec_api.v1alpha1 import AuditAnchor, CodeExecution, CodeSession

_HEX: Final = {"chain": re.compile(r"[0-9a-f]{32}"), "previous": re.compile(r"[0-9a-f]{64}")}
_HEX["hash"] = _HEX["previous"]
_AHEAD: Final = timedelta(hours=1)
"""That the operator's clock may be before the reader's."""
_DYING: Final = timedelta(minutes=1)
"""Within that before its end a process may have told of what it could not write any more."""
_SHOWN: Final = 80
"""Characters of a value that a finding quotes."""


_LAST: Final = frozenset(one.value for phases in (Phase, SessionPhase) for one in phases if one.terminal)
"""Phases after which no status is written."""


class FindingKind(StrEnum):
    """What is wrong, for programs."""

    UNREADABLE = "Unreadable"
    """An audit line lacks what each has, or is no proper JSON."""
    CHANGED = "Changed"
    """A line's hash is not that of its content."""
    REORDERED = "Reordered"
    """A line comes after a later one."""
    REPEATED = "Repeated"
    """A line comes twice in one log."""
    CONFLICTING = "Conflicting"
    """Two different lines stand at one place of a chain."""
    BROKEN = "Broken"
    """A line follows another one than it says."""
    MISSING = "Missing"
    """Lines are not there, though those around them are, or a record or a later chain names them."""
    RECORD_CHANGED = "RecordChanged"
    """A record isn't what its line says."""
    RECORD_OUTDATED = "RecordOutdated"
    """A later line tells of another status of this record."""
    RECORD_UNANCHORED = "RecordUnanchored"
    """A record names no line, or one that is another than the log has, or that of another record."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as the operator has written it."""

    kind: FindingKind
    where: str
    """Log and line number, or kind and name of the record."""
    message: str


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
    gone: tuple[str, ...] = ()
    """Kind and name of what the log tells of and the cluster doesn't have any more, in order of appearance."""


class LogLine(NamedTuple):
    """A line of a log file."""

    log: str
    number: int
    """From 1 on."""
    text: str

    @property
    def where(self) -> str:
        """For findings."""
        return f"{self.log}:{self.number}"


def read_log(name: str, text: Iterable[str]) -> Iterator[LogLine]:
    """The lines of a file that may hold audit lines."""
    return (LogLine(name, number, line) for number, line in enumerate(text, 1) if MEMBER in line)


@dataclass(frozen=True)
class ReadLine:
    """An audit line that is well-formed."""

    where: str
    body: Mapping[str, Any]

    @property
    def record(self) -> Mapping[str, Any]:
        """What it tells of a record; empty if it tells of none."""
        found: Mapping[str, Any] = self.body.get("record", {})
        return found

    @property
    def named(self) -> str:
        """Kind and name of that."""
        return f"{self.record.get('kind')} {self.record.get('name')}"


class _Unreadable(Exception):
    """Text that should hold an audit line, and doesn't."""


def audit_line(text: str) -> Mapping[str, Any] | None:
    """The audit line in a line of a log; None if it is a line of somebody else.

    What stands before the first brace is left out: `kubectl logs --timestamps` and container runtimes put times there.

    Raises:
        ValueError: it is one, but not in a form that has one meaning: a member comes twice, or there is a fraction.
    """
    try:
        outer = json.loads(text[text.find("{") :], object_pairs_hook=_Pairs, parse_float=_Fraction)
    except (ValueError, RecursionError):
        return None
    audit = dict(outer).get(MEMBER) if isinstance(outer, _Pairs) else None
    if not isinstance(audit, _Pairs) or not {"chain", "sequence"} <= dict(audit).keys():
        return None
    body: Mapping[str, Any] = _plain(audit)
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
    records: Iterable[Mapping[str, Any]] | None = None,
    *,
    now: datetime,
    namespace: str = "",
    complete: bool = False,
    later: Iterable[LogLine] = (),
) -> Verification:
    """Check chains, and hold records against them.

    Args:
        lines: of all logs, each log in its order. The order of the logs doesn't matter, and they may overlap.
        records: CodeExecutions and CodeSessions as the API server has them, each with its `kind`; None: no cluster is
            asked.
        now: the reader's clock; nothing can have been written after that.
        namespace: where those records are.
        complete: nothing was left out of the logs, so what they don't have is a finding and no note.
        later: what was read of the logs after the records. Records may name these lines, and may be older than they.
    """
    found, later = _Found(complete), tuple(later)
    chains = _gather(itertools.chain(lines, later), found)
    _check_chains(chains, found)
    if not chains:
        found.say(FindingKind.MISSING, "the logs", "they have no readable audit line")
    fine, gone = 0, tuple[str, ...]()
    if records is not None:
        unseen = {line.where for line in later}
        fine, gone = _Records(chains, found, in_utc(now + _AHEAD), unseen).check(records, namespace)
    summaries = tuple(sorted(map(_summary, chains.values()), key=lambda one: (one.namespace, one.since, one.chain)))
    return Verification(tuple(found.findings), tuple(found.notes), summaries, found.lines, fine, gone)


_Chain = dict[int, ReadLine]
"""Lines by their number."""


@dataclass
class _Found:
    complete: bool
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    lines: int = 0

    def say(self, kind: FindingKind, where: str, message: str) -> None:
        self.findings.append(Finding(kind, where, message))

    def wonder(self, kind: FindingKind, where: str, message: str) -> None:
        """It can't be told, unless the logs are complete."""
        (self.findings if self.complete else self.notes).append(Finding(kind, where, message))


# --- the lines ---


def _gather(lines: Iterable[LogLine], found: _Found) -> dict[str, _Chain]:
    chains: defaultdict[str, _Chain] = defaultdict(dict)
    latest: dict[tuple[str, str], int] = {}
    for line in lines:
        read = _read(line, found)
        if read is None:
            continue
        chain, number = read.body["chain"], read.body["sequence"]
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
    return dict(chains)


def _read(line: LogLine, found: _Found) -> ReadLine | None:
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
    except (ValueError, RecursionError) as error:
        found.say(FindingKind.UNREADABLE, line.where, f"an ambiguous audit line: {error}")
        return None
    return ReadLine(line.where, body)


def _other_format(line: LogLine, body: Mapping[str, Any], found: _Found) -> None:
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
    record = body.get("record", {})
    texts = [record.get(name) for name in ("kind", "name", "uid", "phase")] if isinstance(record, dict) else [None]
    if (record or body["event"] == AuditEvent.STATUS_WRITE) and not all(isinstance(one, str) for one in texts):
        return "audit.record lacks the kind, name, uid or phase of a record"
    return ""


def _about(body: Mapping[str, Any]) -> str:
    record = body.get("record", {})
    return f" ({record['kind']} {record['name']}, {record['phase']})" if record else ""


def _check_chains(chains: Mapping[str, _Chain], found: _Found) -> None:
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


def _check_link(name: str, before: ReadLine, after: ReadLine, found: _Found) -> None:
    first, last = before.body["sequence"] + 1, after.body["sequence"] - 1
    if first <= last:
        which = f"line {first} of chain {name} is" if first == last else f"lines {first} to {last} of chain {name} are"
        found.say(FindingKind.MISSING, after.where, f"{which} missing between {before.where} and {after.where}")
    elif after.body["previous"] != before.body["hash"]:
        message = f"line {last + 1} of chain {name} doesn't follow the line at {before.where}"
        found.say(FindingKind.BROKEN, after.where, message)
    if after.body["namespace"] != before.body["namespace"]:
        found.say(FindingKind.BROKEN, after.where, f"the namespace of chain {name} changes here")


def _check_continuation(line: ReadLine, chains: Mapping[str, _Chain], found: _Found) -> None:
    """What a later process saw of an earlier chain has to be there."""
    after = line.body.get("after")
    try:
        anchor = AuditAnchor.model_validate({**after, "time": line.body["time"]} if isinstance(after, dict) else None)
    except ValidationError:
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


def _summary(chain: _Chain) -> ChainSummary:
    first, last = chain[min(chain)], chain[max(chain)]
    return ChainSummary(
        chain=first.body["chain"],
        namespace=first.body["namespace"],
        operator=first.body["operator"],
        first=min(chain),
        last=max(chain),
        since=first.body["time"],
        until=last.body["time"],
    )


# --- the records ---


class _Records:
    """Holds records against the lines that tell of them."""

    def __init__(self, chains: Mapping[str, _Chain], found: _Found, latest: str, later: Set[str]) -> None:
        self._chains, self._found, self._latest = chains, found, latest
        self._until = max((line.body["time"] for chain in chains.values() for line in chain.values()), default="")
        self._told: defaultdict[str, list[ReadLine]] = defaultdict(list)
        """Lines by the UID of the record that they tell of, oldest first, without those whose write has failed, and
        without those that were read later than the records."""
        self._ages: dict[str, int] = {}
        """Chains by their age, the oldest first."""
        for chain in sorted(chains.values(), key=lambda one: str(one[min(one)].body["time"])):
            self._ages[chain[min(chain)].body["chain"]] = len(self._ages)
            refused = _refused(chain)
            for number in sorted(chain):
                line = chain[number]
                if line.record and number not in refused and line.where not in later:
                    self._told[line.record["uid"]].append(line)

    def check(self, records: Iterable[Mapping[str, Any]], namespace: str) -> tuple[int, tuple[str, ...]]:
        """How many agree with their line, and which the log tells of that are not there."""
        fine, seen = 0, set()
        for raw in records:
            seen.add(raw["metadata"]["uid"])
            fine += self._check(raw)
        gone = [lines[-1] for uid, lines in self._told.items() if uid not in seen]
        return fine, tuple(line.named for line in gone if line.body["namespace"] == namespace)

    def _check(self, raw: Mapping[str, Any]) -> bool:
        """True if it agrees with its line."""
        try:
            record = (CodeSession if raw["kind"] == SESSION_KIND else CodeExecution).parse(raw)
        except ValidationError as error:
            where = f"{raw['kind']} {raw['metadata']['name']}"
            fields = ", ".join(".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
            self._found.say(
                FindingKind.RECORD_CHANGED,
                where,
                f"not written by an operator: these fields are not valid: {fields}"[: 2 * _SHOWN],
            )
            return False
        where, anchor = f"{raw['kind']} {record.metadata.name}", record.status.audit
        if anchor is None:
            self._unanchored(where, record, raw.get("status") or {})
            return False
        line = self._line_of(where, anchor, self._told.get(record.metadata.uid, ()))
        return line is not None and self._agrees(where, record, raw["status"], line)

    def _unanchored(self, where: str, record: CodeExecution | CodeSession, status: Mapping[str, Any]) -> None:
        if lines := self._told.get(record.metadata.uid):
            told = lines[-1]
            message = f"it names no line, but the line at {told.where} says that it became {told.record['phase']}"
            self._found.say(FindingKind.RECORD_UNANCHORED, where, message)
        elif status:
            message = "it names no line: it was not written by an operator that writes audit lines"
            self._found.wonder(FindingKind.RECORD_UNANCHORED, where, message)

    def _line_of(self, where: str, anchor: AuditAnchor, told: Sequence[ReadLine]) -> ReadLine | None:
        """The line that a record names; None if it isn't there, which is said. `told` are those that tell of it."""
        chain = self._chains.get(anchor.chain, {})
        line = chain.get(anchor.sequence)
        named = f"line {anchor.sequence} of chain {anchor.chain}"
        if line is None:
            inside = chain and min(chain) < anchor.sequence < max(chain)
            cut_off = chain and anchor.sequence > max(chain) and in_utc(anchor.time) <= self._until
            if told and self._contradicts(told[-1], anchor, given=bool(chain)):
                message = (
                    f"it names {named}, which doesn't exist; its last line, at {told[-1].where}, says that it became "
                )
                self._found.say(FindingKind.RECORD_UNANCHORED, where, f"{message}{told[-1].record['phase']}")
            elif in_utc(anchor.time) > self._latest:
                message = f"it names {named}, of {in_utc(anchor.time)}, which is in the future"
                self._found.say(FindingKind.RECORD_UNANCHORED, where, message)
            elif inside or cut_off:
                self._found.say(FindingKind.MISSING, where, f"its line is missing: {named}")
            elif chain and anchor.sequence > max(chain):
                self._found.wonder(FindingKind.MISSING, where, f"its line is newer than the given logs: {named}")
            else:
                self._found.wonder(FindingKind.MISSING, where, f"its line is not in the given logs: {named}")
        elif line.body["hash"] != anchor.hash or line.body["time"] != in_utc(anchor.time):
            message = f"it names {named}, but with another hash or time than at {line.where}: one of them was changed"
            self._found.say(FindingKind.RECORD_UNANCHORED, where, message)
            return None
        return line

    def _contradicts(self, told: ReadLine, anchor: AuditAnchor, *, given: bool) -> bool:
        """True if the newest line of a record rules out that it names a later one, which isn't there.

        Args:
            told: that line.
            anchor: what the record names.
            given: there are lines of that chain. If not, the record may be the work of a later process: one whose clock
                is behind, or that came after one which has died before it could write what it had told of.
        """
        last = told.record["phase"] in _LAST
        if given:
            return last or in_utc(anchor.time) <= told.body["time"]
        chain = self._chains[told.body["chain"]]
        until = max(_moment(line.body["time"]) for line in chain.values())
        return last and until - _moment(told.body["time"]) > _DYING

    def _agrees(
        self, where: str, record: CodeExecution | CodeSession, status: Mapping[str, Any], line: ReadLine
    ) -> bool:
        said, found = facts_of(record), line.record
        if found.get("uid") != record.metadata.uid:
            message = f"it names the line at {line.where}, which is about {line.named} with another UID"
            self._found.say(FindingKind.RECORD_UNANCHORED, where, message)
            return False
        if said != found:
            self._found.say(FindingKind.RECORD_CHANGED, where, f"{_differences(said, found)} (the line: {line.where})")
            return False
        if status_digest(status) != line.body.get("statusSHA256"):
            message = "its status was changed in fields that lines don't hold, such as output or messages"
            self._found.say(FindingKind.RECORD_CHANGED, where, f"{message} (the line: {line.where})")
            return False
        later = [one for one in self._told.get(record.metadata.uid, ()) if self._order(one) > self._order(line)]
        if later:
            newest = later[-1]
            message = (
                f"it matches {line.where}, but the line at {newest.where} says that it became "
                f"{newest.record['phase']} later"
            )
            self._found.say(FindingKind.RECORD_OUTDATED, where, message)
        return not later

    def _order(self, line: ReadLine) -> tuple[int, int]:
        """By which lines of all chains follow each other: clocks may be set back."""
        return (self._ages[line.body["chain"]], line.body["sequence"])


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # somebody has changed it
        return datetime.min.replace(tzinfo=UTC)


def _refused(chain: _Chain) -> set[int]:
    """Numbers of the lines whose status was not written, or perhaps not."""
    failures = (line.body for line in chain.values() if line.body["event"] == AuditEvent.NOT_WRITTEN)
    return {body["of"] for body in failures if isinstance(body.get("of"), int)}


def _differences(said: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    """What of the facts isn't as the line tells."""
    names = sorted(name for name in said.keys() | told.keys() if said.get(name) != told.get(name))
    return "; ".join(f"{name} is {_quote(said.get(name))}, but was {_quote(told.get(name))}" for name in names)


def _quote(value: Any) -> str:
    text = (
        "absent" if value is None else str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)
    )
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
