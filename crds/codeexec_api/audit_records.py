"""Holds records against the audit lines that tell of them. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

from pydantic import ValidationError

from codeexec_api.audit import DIGEST_FORM, STATUS_FORM, AuditEvent, Facts, facts_of, in_utc, known_facts, status_digest
from codeexec_api.audit_coverage import Coverage
from codeexec_api.audit_findings import CLOCKS_APART, Chain, FindingKind, Found, ReadLine
from codeexec_api.names import SESSION_KIND
from codeexec_api.phases import Phase, SessionPhase
from codeexec_api.v1alpha1.execution import CodeExecution
from codeexec_api.v1alpha1.sandbox import AuditAnchor
from codeexec_api.v1alpha1.session import CodeSession

_DYING: Final = timedelta(minutes=1)
"""Within that before its end a process may have told of what it could not write any more."""
_SHOWN: Final = 80
"""Characters of a value that a finding quotes."""
_LAST: Final = frozenset(one.value for phases in (Phase, SessionPhase) for one in phases if one.terminal)
"""Phases after which no status is written."""


@dataclass(frozen=True)
class Evidence:
    """A record as the API server has it, without the bulk that only its digest covers: output and sealed code."""

    raw: Mapping[str, Any]
    """With its `kind`."""
    status_sha256: str
    """Of its whole status; empty if it has none, or none in a canonical form."""

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """What is needed to check a record. Many records fit into memory like this."""
        spec, status = raw.get("spec"), raw.get("status")
        if not isinstance(spec, Mapping) or not isinstance(status, Mapping):
            return cls(raw, "")
        try:
            digest = status_digest(status)
        except ValueError:
            digest = ""
        slim = {
            "spec": _emptied(spec, "sealedPayload", "data"),
            "status": _emptied(_emptied(status, "stdout", "text"), "stderr", "text"),
        }
        return cls({**raw, **slim}, digest)


def _emptied(holder: Mapping[str, Any], name: str, field: str) -> Mapping[str, Any]:
    part = holder.get(name)
    if isinstance(part, Mapping) and isinstance(part.get(field), str):
        return {**holder, name: {**part, field: ""}}
    return holder


class Records:
    """Holds records against the lines that tell of them."""

    def __init__(
        self, chains: Mapping[str, Chain], coverage: Coverage, found: Found, latest: str, later: Set[str]
    ) -> None:
        self._chains, self._coverage, self._found, self._latest = chains, coverage, found, latest
        self._told: defaultdict[str, list[ReadLine]] = defaultdict(list)
        """Lines by the UID of the record that they tell of, oldest first, without those whose write has failed, and
        without those that were read later than the records."""
        self._deletions: defaultdict[str, list[ReadLine]] = defaultdict(list)
        """Lines that say that the operator deleted a record, by its UID."""
        self._ages: dict[str, int] = {}
        """Chains by their age, the oldest first."""
        for chain in sorted(chains.values(), key=lambda one: str(one[min(one)].body["time"])):
            self._ages[chain[min(chain)].body["chain"]] = len(self._ages)
            refused = _refused(chain)
            for number in sorted(chain):
                line = chain[number]
                if line.body["event"] == AuditEvent.RECORD_DELETED:
                    # A client that got no answer, or sent the request twice, doesn't know whether the record is gone.
                    answer = refused.get(number, "")
                    if not answer.startswith("4") or answer == "404":
                        self._deletions[line.record["uid"]].append(line)
                elif line.record and number not in refused and line.where not in later:
                    self._told[line.record["uid"]].append(line)

    def check(
        self,
        records: Iterable[Mapping[str, Any] | Evidence] | None,
        exported: Iterable[Mapping[str, Any]],
        namespace: str,
    ) -> tuple[int, tuple[str, ...]]:
        """How many agree with their line, and which the log tells of that are not there.

        Args:
            records: of the cluster; None: it is not asked.
            exported: of these, those count that the cluster doesn't have any more.
            namespace: where both are.
        """
        fine, seen = 0, set()
        for record in records or ():
            evidence = record if isinstance(record, Evidence) else Evidence.of(record)
            seen.add(evidence.raw["metadata"]["uid"])
            fine += self._check(evidence)
        fine += sum(self._check(Evidence.of(raw)) for raw in exported if raw["metadata"]["uid"] not in seen)
        if records is None:
            return fine, ()
        gone = [
            lines[-1]
            for uid, lines in self._told.items()
            if uid not in seen and lines[-1].body["namespace"] == namespace
        ]
        for line in gone:
            deletions = self._deletions[line.record["uid"]]
            if not any(self._fits(one, line) for one in deletions):
                said = "no line says that the operator deleted it"
                if deletions:
                    said = f"the line of its deletion, at {deletions[-1].where}, does not fit the last line about it"
                message = f"the cluster lacks it, and {said} (last line: {line.where})"
                self._found.wonder(FindingKind.RECORD_MISSING, line.named, message)
        return fine, tuple(line.named for line in gone)

    def _fits(self, deletion: ReadLine, told: ReadLine) -> bool:
        """True if a line says that a record was deleted as its last line left it; `told` is the newest about it.

        The last line may be newer than that: a write may have come through though its answer did not. An operator of
        another version may know other fields of a status.
        """
        named = deletion.position("last")
        last = self._chains.get(named.chain, {}).get(named.sequence) if named else None
        if named is None or last is None or last.body["event"] != AuditEvent.STATUS_WRITE:
            return False
        same_version = last.body["operator"] == deletion.body["operator"]
        members = ("namespace", "statusSHA256") if same_version else ("namespace",)
        return (
            last.body["hash"] == named.hash
            and last.record["uid"] == deletion.record["uid"]
            and all(last.body.get(name) == deletion.body.get(name) for name in members)
            and self._order(last) >= self._order(told)
            and last.moment - deletion.moment <= CLOCKS_APART
        )

    def _check(self, evidence: Evidence) -> bool:
        """True if it agrees with its line."""
        raw = evidence.raw
        try:
            record = (CodeSession if raw["kind"] == SESSION_KIND else CodeExecution).read(raw)
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
        return line is not None and self._agrees(where, record, evidence.status_sha256, line)

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
            newer = chain and anchor.sequence > max(chain)
            cut_off = newer and in_utc(anchor.time) <= self._coverage.until(chain[max(chain)].body["namespace"])
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
            elif newer:
                self._found.wonder(FindingKind.MISSING, where, f"its line is newer than the given logs: {named}")
            else:
                self._found.wonder(FindingKind.MISSING, where, f"its line is not in the given logs: {named}")
        elif line.body["hash"] != anchor.hash or line.body["time"] != in_utc(anchor.time):
            message = f"it names {named}, but with another hash or time than at {line.where}: one of them was changed"
            self._found.say(FindingKind.RECORD_UNANCHORED, where, message)
            return None
        return line

    def _contradicts(self, told: ReadLine, anchor: AuditAnchor, *, given: bool) -> bool:
        """True if `told`, the newest line of a record, rules out that the record names a later one, which isn't there.

        `given`: there are lines of that chain. If not, the record may be the work of a later process: one whose clock
        is behind, or that came after one which has died before it could write what it had told of.
        """
        last = told.record["phase"] in _LAST
        if given:
            return last or in_utc(anchor.time) <= told.body["time"]
        chain = self._chains[told.body["chain"]]
        return last and max(line.moment for line in chain.values()) - told.moment > _DYING

    def _agrees(self, where: str, record: CodeExecution | CodeSession, status_sha256: str, line: ReadLine) -> bool:
        said, found = _facts_in_the_form_of(line, record), line.record
        if found.get("uid") != record.metadata.uid:
            message = f"it names the line at {line.where}, which is about {line.named} with another UID"
            self._found.say(FindingKind.RECORD_UNANCHORED, where, message)
            return False
        known, others = known_facts(record, found)
        if others:
            message = f"it tells {', '.join(others)}, which this version doesn't know; verify it with a newer codeexec"
            self._found.wonder(FindingKind.UNREADABLE, line.where, message[: 2 * _SHOWN])
        if self._is_of_another_form(line, "digestForm", DIGEST_FORM):
            return False
        if said != known:
            self._found.say(FindingKind.RECORD_CHANGED, where, f"{_differences(said, known)} (the line: {line.where})")
            return False
        if self._is_of_another_form(line, "statusForm", STATUS_FORM):
            return False
        if not status_sha256 or status_sha256 != line.body.get("statusSHA256"):
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

    def _is_of_another_form(self, line: ReadLine, name: str, known: int) -> bool:
        """True if the line has a digest in a form that this version can't compute, which is said."""
        form = line.body.get(name, known)
        if form != known:
            message = f"{name} {form!r} is unknown (allowed: {known}); verify it with a newer codeexec"
            self._found.wonder(FindingKind.UNREADABLE, line.where, message[: 2 * _SHOWN])
        return bool(form != known)

    def _order(self, line: ReadLine) -> tuple[int, int]:
        """By which lines of all chains follow each other: clocks may be set back."""
        return (self._ages[line.body["chain"]], line.body["sequence"])


def _facts_in_the_form_of(line: ReadLine, record: CodeExecution | CodeSession) -> Facts:
    """What lines tell of a record, with the digest of code that the line's operator computed."""
    facts = facts_of(record)
    if isinstance(record, CodeExecution) and "digestForm" not in line.body:
        facts["digest"] = record.spec.earlier_code_digest
    return facts


def _refused(chain: Chain) -> dict[int, str]:
    """Numbers of the lines whose status was not written, or perhaps not, with what was answered."""
    failures = (line.body for line in chain.values() if line.body["event"] == AuditEvent.NOT_WRITTEN)
    return {body["of"]: str(body.get("answer")) for body in failures if isinstance(body.get("of"), int)}


def _differences(said: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    """What of the facts isn't as the line tells."""
    names = sorted(name for name in said.keys() | told.keys() if said.get(name) != told.get(name))
    return "; ".join(f"{name} is {_quote(said.get(name))}, but was {_quote(told.get(name))}" for name in names)


def _quote(value: Any) -> str:
    text = (
        "absent" if value is None else str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)
    )
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
