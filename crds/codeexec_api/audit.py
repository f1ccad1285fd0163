"""Audit lines: what each holds, how they are chained by hash, and how a log is held against the records.

The operator makes a line of each status that it writes, and the status says which line is its own (`status.audit`). The
command line checks both. Pure: no clock, no randomness, no files.

A chain is what one operator process says of one namespace. Each line has the SHA-256 of the one before it (`previous`)
and of itself (`hash`), both of the canonical form: the line's JSON object without `hash`, keys sorted by code point, no
blanks, UTF-8 without escapes beyond those that JSON needs. There are strings, integers, lists and objects in it, and
true; no null and no fractions. A line holds no code, no output, no name of a file and no text that could quote one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias

from codeexec_api.digests import sha256_hex
from codeexec_api.v1alpha1.execution import CodeExecution
from codeexec_api.v1alpha1.execution_status import CodeExecutionStatus
from codeexec_api.v1alpha1.limits import Limits
from codeexec_api.v1alpha1.sandbox import AuditAnchor
from codeexec_api.v1alpha1.session import CodeSession, CodeSessionStatus

FORMAT: Final = 1
"""Of the lines. Another one means that a reader of this one can't tell anything."""
STATUS_FORM: Final = 1
"""Of `status_digest`: the fields of v1alpha1 by their names. Lines that name no form have this one."""
DIGEST_FORM: Final = 2
"""Of the digest of code: form 2 covers names. Lines that name no form have form 1, `earlier_code_digest`."""
MEMBER: Final = "audit"
"""Member of a JSON log line that holds an audit line, and of a status that holds its anchor."""
GENESIS: Final = "0" * 64
"""`previous` of the first line of a chain."""

Facts: TypeAlias = dict[str, Any]
_LISTED_CHARACTERS: Final = 3072
"""Of each list of texts that a line has: it has to be short enough for container runtimes."""
_TRACE_ID: Final = slice(3, 35)
_NOTHING: Final[tuple[Any, ...]] = (None, "", 0, False, [], {})


class AuditEvent(StrEnum):
    """What a line tells of."""

    OPERATOR_STARTED = "OperatorStarted"
    """The first line of a chain: this process looks after the namespace from now on."""
    CONTINUES = "Continues"
    """The newest line of an earlier chain that a record named when this process started, as `after`."""
    STATUS_WRITE = "StatusWrite"
    """A status is about to be written."""
    NOT_WRITTEN = "NotWritten"
    """The status of the line `of` was refused, or nobody knows (`answer`: a status of HTTP, or `none`).

    The same for the record of a `RecordDeleted`: it was not deleted, or nobody knows."""
    RECORD_DELETED = "RecordDeleted"
    """A record is about to be deleted, because the policy says so: `why` is Age or Number, `last` its last line."""


@dataclass(frozen=True)
class Line:
    """One line, made or read."""

    body: Mapping[str, Any]

    @property
    def anchor(self) -> AuditAnchor:
        """What a status says of its line."""
        body = self.body
        return AuditAnchor(chain=body["chain"], sequence=body["sequence"], hash=body["hash"], time=body["time"])


@dataclass(frozen=True)
class Segment:
    """A chain that is being written: where it stands."""

    chain: str
    """32 hexadecimal digits that no other chain has."""
    namespace: str
    operator: str
    """Version of the operator."""
    sequence: int = 0
    head: str = GENESIS

    def append(self, event: AuditEvent, now: datetime, more: Mapping[str, Any]) -> tuple["Segment", Line]:
        """The next line, and the chain with it at its end."""
        body: Facts = {
            "format": FORMAT,
            "chain": self.chain,
            "sequence": self.sequence + 1,
            "previous": self.head,
            "time": in_utc(now),
            "operator": self.operator,
            "namespace": self.namespace,
            "event": event.value,
            **more,
        }
        body["hash"] = digest(body)
        return replace(self, sequence=body["sequence"], head=body["hash"]), Line(body)


def of_a_write(
    before: CodeExecutionStatus | CodeSessionStatus, after: CodeExecution | CodeSession
) -> Mapping[str, Any]:
    """What a line says of a status that is about to be written; `after` is the record with that status."""
    return {
        "from": before.phase.value,
        "record": facts_of(after),
        **({"digestForm": DIGEST_FORM} if isinstance(after, CodeExecution) else {}),
        **_digested(after),
    }


def of_a_deletion(record: CodeExecution | CodeSession, why: str) -> Mapping[str, Any]:
    """What a line says of a record that is about to be deleted."""
    facts, anchor = facts_of(record), record.status.audit
    named = {name: facts[name] for name in ("kind", "name", "uid", "phase")}
    return {
        "record": named,
        "why": why,
        **_digested(record),
        **({"last": _position(anchor)} if anchor else {}),
    }


def _digested(record: CodeExecution | CodeSession) -> Facts:
    return {"statusForm": STATUS_FORM, "statusSHA256": status_digest(record.status.dump())}


def of_a_failure(line: Line, answer: int | None) -> Mapping[str, Any]:
    """What a line says of a write that failed; without an answer nobody knows whether it did."""
    return {"of": line.body["sequence"], "answer": str(answer) if answer else "none"}


def of_the_last_one(anchor: AuditAnchor) -> Mapping[str, Any]:
    """What a line says of the newest line of an earlier process."""
    return {"after": _position(anchor)}


def _position(anchor: AuditAnchor) -> Facts:
    return {"chain": anchor.chain, "sequence": anchor.sequence, "hash": anchor.hash}


_SOMETIMES: Final = frozenset(("exitCode", "approval", "stdoutBytes", "stderrBytes"))
"""Facts of some executions only."""
_FIELDS: Final = {
    "limits": frozenset(field.alias or name for name, field in Limits.model_fields.items()),
    "approval": frozenset(("grants", "decision", "approver", "name", "uid")),
}
"""Facts that have fields."""


def facts_of(record: CodeExecution | CodeSession) -> Facts:
    """What lines tell of a record, without what is empty: digests, sizes, names of objects and people, outcome."""
    return {name: value for name, value in _all_facts(record).items() if value not in _NOTHING} | _exit_code(record)


def known_facts(record: CodeExecution | CodeSession, told: Mapping[str, Any]) -> tuple[Facts, list[str]]:
    """The facts of a line that this version knows, and the names of the others, which a newer operator has told."""
    names = _all_facts(record).keys() | _SOMETIMES
    facts, others = dict(told), sorted(told.keys() - names)
    for name, fields in _FIELDS.items():
        if isinstance(value := told.get(name), Mapping):
            facts[name] = {field: one for field, one in value.items() if field in fields}
            others += sorted(f"{name}.{field}" for field in value.keys() - fields)
    return {name: value for name, value in facts.items() if name in names}, others


def _all_facts(record: CodeExecution | CodeSession) -> Facts:
    spec, status, meta = record.spec, record.status, record.metadata
    facts: Facts = {
        "kind": record.kind,
        "name": meta.name,
        "uid": meta.uid,
        "phase": status.phase.value,
        "reason": status.reason,
        "agent": spec.source.agent,
        "executor": spec.source.executor,
        "requestedBy": spec.requested_by,
        "traceId": spec.traceparent[_TRACE_ID] if spec.traceparent else "",
        "limits": spec.limits.dump(),
        "pod": status.pod_name,
        "node": status.node_name,
        "image": status.image,
        "imageID": status.image_id,
        "runtimeClass": status.runtime_class_name,
        "boundary": status.boundary.value if status.boundary else "",
        "layers": list(status.layers),
        "egress": status.egress_proof.verdict.value if status.egress_proof else "",
        "operator": status.operator_version,
        "startedAt": in_utc(status.started_at),
    }
    return facts | (_of_execution(record) if isinstance(record, CodeExecution) else _of_session(record))


def _of_execution(record: CodeExecution) -> Facts:
    spec, status = record.spec, record.status
    files, streams = spec.files or (), {"stdout": status.stdout, "stderr": status.stderr}
    facts: Facts = {
        "digest": spec.code_digest,
        "languages": [block.language for block in spec.blocks],
        "sizesBytes": [block.size_bytes for block in spec.blocks],
        "files": len(files),
        "filesBytes": sum(file.size_bytes for file in files),
        "timeoutSeconds": spec.timeout_seconds,
        "session": spec.session_ref.name if spec.session_ref else "",
        "permits": _listed(spec.egress),
        "mounts": _listed(spec.mounts),
        "pool": status.pool_name,
        "podUse": status.pod_reset.use if status.pod_reset else 0,
        "artifacts": len(status.artifacts),
        "codeFindings": _listed([one.told for one in status.code_findings]),
        "finishedAt": in_utc(status.finished_at),
    }
    facts |= {f"{name}Bytes": stream.total_bytes for name, stream in streams.items() if stream}
    if approval := status.approval:
        asked: Facts = {
            "grants": _listed(approval.grants),
            "decision": approval.decision,
            "approver": approval.approver,
            "name": approval.name,
            "uid": approval.uid,
        }
        facts["approval"] = {name: value for name, value in asked.items() if value}
    return facts


def _listed(things: Sequence[object] | None) -> list[str]:
    """Each by its text; the digest of all, where that is long."""
    texts = list(map(str, things or ()))
    if sum(map(len, texts)) <= _LISTED_CHARACTERS:
        return texts
    return [f"{len(texts)}, sha256 {sha256_hex(canonical(texts))}"]


def _of_session(record: CodeSession) -> Facts:
    spec, status = record.spec, record.status
    return {
        "stateful": spec.stateful,
        "idleTimeoutSeconds": spec.idle_timeout_seconds,
        "maxLifetimeSeconds": spec.max_lifetime_seconds,
        "pool": status.pool_name,
        "executions": status.executions,
        "finishedAt": in_utc(status.ended_at),
    }


def _exit_code(record: CodeExecution | CodeSession) -> Facts:
    """An exit code of 0 is not the same as none."""
    code = record.status.exit_code if isinstance(record, CodeExecution) else None
    return {} if code is None else {"exitCode": code}


def in_utc(moment: datetime | None) -> str:
    """A time as lines have it: RFC 3339, UTC, microseconds; empty if there is none.

    A time that has no equivalent in UTC keeps its offset. No operator writes such a time, so no line has it.
    """
    if moment is None:
        return ""
    try:
        return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError):
        return moment.isoformat(timespec="microseconds")


def is_in_utc(text: str) -> bool:
    """True if this is a time as lines have it."""
    try:
        return text.endswith("Z") and in_utc(datetime.fromisoformat(text)) == text
    except ValueError:
        return False


def log_entry(line: Line) -> str:
    """The line of JSON that stands in a log, without its end: the audit line, and what a person wants to read first."""
    body = line.body
    about = body["namespace"]
    record = body.get("record")
    if record and body["event"] == AuditEvent.RECORD_DELETED:
        about += f"/{record['name']}: {body['event']} ({body['why']})"
    elif record:
        about += f"/{record['name']}: {record['phase']} ({record.get('reason', '')})"
    else:
        about += f": {body['event']}"
    entry = {"message": about, MEMBER: body, "timestamp": body["time"], "severity": "info"}
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))


# --- hashes ---


def canonical(value: Any) -> bytes:
    """The one way to write a value down.

    Raises:
        ValueError: it has no such form, because of a fraction, or half of a surrogate pair.
    """
    return _ENCODER.encode(value).encode()


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)


def digest(body: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical form of a line without its `hash`.

    Raises:
        ValueError: it has no canonical form.
    """
    return sha256_hex(canonical({name: value for name, value in body.items() if name != "hash"}))


def status_digest(status: Mapping[str, Any]) -> str:
    """SHA-256 of a whole status but for its anchor, as it was sent, or as the API server stores it.

    The API server adds defaults, so what is absent, null, false, 0 or empty counts as the same: as absent.

    Raises:
        ValueError: it has no canonical form.
    """
    told = {name: value for name, value in status.items() if name != MEMBER}
    return sha256_hex(canonical(_without_nothing(told)))


def _without_nothing(value: Any) -> Any:
    if isinstance(value, Mapping):
        pruned = {name: _without_nothing(one) for name, one in value.items()}
        return {name: one for name, one in pruned.items() if one not in _NOTHING}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_nothing(one) for one in value]
    return value
