"""Logs of operators and the records that they tell of, made without an operator, to be changed by tests."""

import functools
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from factories import AGENT, NOW, UID, a_session, an_execution

from codeexec_api import AuditAnchor, CodeExecution, CodeSession, Phase, SessionPhase
from codeexec_api.audit import (
    AuditEvent,
    Facts,
    Line,
    Segment,
    digest,
    facts_of,
    of_a_deletion,
    of_a_failure,
    of_a_write,
    of_the_last_one,
    status_digest,
)
from codeexec_api.audit_check import Verification, audit_line, read_log, verify
from codeexec_api.audit_findings import FindingKind, LogLine
from codeexec_api.checkpoints import Witness

Record = CodeExecution | CodeSession


def envelope(line: Line) -> str:
    """As the operator's log has it."""
    return json.dumps({"message": "audit", "severity": "info", "audit": line.body})


@dataclass
class World:
    """An operator's log, and the records that it has written."""

    logs: dict[str, list[str]] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    segments: dict[str, Segment] = field(default_factory=dict)
    now: Any = NOW
    starts: int = 0
    shards: dict[str, str] = field(default_factory=dict)
    """Logs of namespaces whose process is one of several shards."""

    def start(self, *namespaces: str) -> None:
        """Another process."""
        self.starts += 1
        self.segments, self.shards = {}, {}
        self._begin(namespaces or ("codeexec-sandbox",))

    def start_shard(self, log: str, *namespaces: str) -> None:
        """Another process, beside those of the other shards."""
        self.starts += 1
        self.shards |= dict.fromkeys(namespaces, log)
        self._begin(namespaces)

    def _begin(self, namespaces: Iterable[str]) -> None:
        for index, one in enumerate(namespaces):
            self.segments[one] = Segment(f"{self.starts:031x}{index:x}", one, "1.2.3")
            self.say(one, AuditEvent.OPERATOR_STARTED, {})
            anchors = [record.status.audit for record in self.records.values() if record.metadata.namespace == one]
            if known := [anchor for anchor in anchors if anchor]:
                newest = max(known, key=lambda anchor: anchor.time)
                self.say(one, AuditEvent.CONTINUES, of_the_last_one(newest))

    def say(self, namespace: str, event: AuditEvent, more: Any) -> Line:
        self.now += timedelta(milliseconds=1)
        self.segments[namespace], line = self.segments[namespace].append(event, self.now, more)
        self.logs.setdefault(self.shards.get(namespace, f"log-{self.starts}"), []).append(envelope(line))
        return line

    def write(self, record: Record, phase: Phase | SessionPhase, answer: int | None = 200, **changes: Any) -> Line:
        """A status, which the API server takes or refuses; without an answer it is lost on the way."""
        before = self.records.get(record.metadata.name, record)
        status = before.status.model_copy(update={"phase": phase, "reason": phase.value, **changes})
        after = before.model_copy(update={"status": status})
        line = self.say(record.metadata.namespace, AuditEvent.STATUS_WRITE, of_a_write(before.status, after))
        if answer == 200:
            anchored = status.model_copy(update={"audit": line.anchor})
            self.records[record.metadata.name] = before.model_copy(update={"status": anchored})
        else:
            self.say(record.metadata.namespace, AuditEvent.NOT_WRITTEN, of_a_failure(line, answer))
        return line

    def delete(self, name: str, answer: int | None = 200) -> Line:
        """A record whose time is over. It is gone, whatever the API server answered."""
        record = self.records.pop(name)
        line = self.say(record.metadata.namespace, AuditEvent.RECORD_DELETED, of_a_deletion(record, "Age"))
        if answer != 200:
            self.say(record.metadata.namespace, AuditEvent.NOT_WRITTEN, of_a_failure(line, answer))
        return line

    def stored(self) -> list[dict[str, Any]]:
        """The records as the API server has them: with defaults that nobody has written."""
        found = []
        for one in self.records.values():
            kind = "CodeExecution" if isinstance(one, CodeExecution) else "CodeSession"
            raw = {"kind": kind, **one.model_dump(mode="json", by_alias=True, exclude_none=True)}
            raw["status"] = one.status.dump() | {"artifactsOmitted": 0, "observedGeneration": 0}
            found.append(raw)
        return found

    def lines(self) -> list[LogLine]:
        return [line for name, texts in self.logs.items() for line in read_log(name, texts)]

    def check(self, *, complete: bool = True, records: bool = True, witness: Witness | None = None) -> Verification:
        stored = self.stored() if records else None
        return verify(
            self.lines(), stored, now=self.now, namespace="codeexec-sandbox", complete=complete, witness=witness
        )

    def forge(self, name: str, chains: Mapping[str, str] | None = None, **status: Any) -> None:
        """Change a record, its line and all hashes after that, and let each record name its new line.

        Somebody who can write both log and records can do that. `chains` get other ids.
        """
        record = self.records[name]
        forged = record.model_copy(update={"status": record.status.model_copy(update=status)})

        def change(body: Facts) -> None:
            if body["hash"] == record.status.audit.hash:
                body |= {"record": facts_of(forged), "statusSHA256": status_digest(forged.status.dump())}
            body["chain"] = (chains or {}).get(body["chain"], body["chain"])

        self.rewrite(change)
        anchored = forged.status.model_copy(update={"audit": self.records[name].status.audit})
        self.records[name] = forged.model_copy(update={"status": anchored})

    def rewrite(self, change: Callable[[Facts], None]) -> None:
        """Change lines and all hashes after them, and let each record name its new line."""
        texts, anchors = recomputed([text for log in self.logs.values() for text in log], change)
        for log in self.logs.values():
            log[:] = itertools.islice(texts, len(log))
        for one in [*self.records.values()]:
            kept = one.status.model_copy(update={"audit": anchors[one.status.audit.hash]})
            self.records[one.metadata.name] = one.model_copy(update={"status": kept})


def recomputed(texts: Iterable[str], change: Callable[[Facts], None]) -> tuple[Iterator[str], dict[str, AuditAnchor]]:
    """Lines of logs after a change of some audit lines, as consistent as before; and for each hash the new anchor."""
    heads: dict[str, str] = {}
    anchors: dict[str, AuditAnchor] = {}
    made: list[str] = []
    for text in texts:
        if not (read := audit_line(text)):
            made.append(text)
            continue
        body = dict(read)
        change(body)
        if after := body.get("after"):
            body |= of_the_last_one(anchors[after["hash"]]) if after["hash"] in anchors else {}
        body["previous"] = heads.get(body["chain"], body["previous"])
        body["hash"] = heads[body["chain"]] = digest(body)
        anchors[read["hash"]] = Line(body).anchor
        start = text.index("{")
        made.append(text[:start] + json.dumps(json.loads(text[start:]) | {"audit": body}))
    return iter(made), anchors


def named(name: str, namespace: str = "codeexec-sandbox") -> CodeExecution:
    made = an_execution(requestedBy=AGENT)
    identity = {"name": name, "namespace": namespace, "uid": f"{UID[:-8]}{zlib.crc32(name.encode()):08x}"}
    return made.model_copy(update={"metadata": made.metadata.model_copy(update=identity)})


def a_world() -> World:
    """A copy of the one below, to be changed."""
    made = made_once()
    logs = {name: list(texts) for name, texts in made.logs.items()}
    return World(logs, dict(made.records), now=made.now, starts=made.starts)


@functools.cache
def made_once() -> World:
    """Two processes, two namespaces, a refused write, one that got lost, and lines of others in between."""
    world = World()
    world.start("codeexec-sandbox", "other")
    for index in range(4):
        one = named(f"run-{index}", "other" if index == 2 else "codeexec-sandbox")
        world.write(one, Phase.RUNNING, 409 if index == 1 else 200)
        if index == 1:
            world.write(one, Phase.RUNNING)
        world.logs["log-1"].append('{"message": "something else", "audit": true}')
        if index:
            world.write(one, Phase.SUCCEEDED, exit_code=0)
    world.write(a_session(), SessionPhase.READY)
    world.start("codeexec-sandbox", "other")
    world.write(named("run-0"), Phase.LOST, None)
    world.write(named("run-0"), Phase.LOST)
    world.write(named("run-5"), Phase.DENIED)
    world.write(named("run-6", "other"), Phase.DENIED)
    return world


def kinds(found: Verification) -> set[FindingKind]:
    return {one.kind for one in found.findings}
