"""What checks of the audit log give: findings, which are something wrong, and notes, which are something unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from pydantic import ValidationError

from codeexec_api.v1alpha1.sandbox import AuditAnchor

CLOCKS_APART: Final = timedelta(hours=1)
"""That the clocks of operators, signers and readers may differ by."""


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
    MISDATED = "Misdated"
    """At its time nobody can have added a line there: a checkpoint would have seen it, or another operator led."""
    BROKEN = "Broken"
    """A line follows another one than it says."""
    MISSING = "Missing"
    """Lines are not there, though those around them are, or a record, a later chain or a checkpoint names them."""
    RECORD_CHANGED = "RecordChanged"
    """A record isn't what its line says."""
    RECORD_OUTDATED = "RecordOutdated"
    """A later line tells of another status of this record."""
    RECORD_UNANCHORED = "RecordUnanchored"
    """A record names no line, or one that is another than the log has, or that of another record."""
    RECORD_MISSING = "RecordMissing"
    """A record that lines tell of is not there, and no line fits that says that the operator deleted it."""
    EXPORT_INVALID = "ExportInvalid"
    """A file of an export is not what was written, or does not follow the one before it."""
    REWRITTEN = "Rewritten"
    """A line differs from the one that a signed checkpoint saw at that place of the chain."""
    CHECKPOINT_INVALID = "CheckpointInvalid"
    """A checkpoint has no valid signature by the known key, or does not follow the one before it."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as the operator has written it."""

    kind: FindingKind
    where: str
    """Log and line number, or kind and name of the record, or name of the checkpoint."""
    message: str


class LogLine(NamedTuple):
    """A line of a log file."""

    log: str
    number: int
    """From 1 on."""
    text: str
    exported: bool = False
    """In a file of an export, which has lines of one namespace alone."""

    @property
    def where(self) -> str:
        """For findings."""
        return f"{self.log}:{self.number}"


@dataclass(frozen=True)
class ReadLine:
    """An audit line that is well-formed."""

    log: str
    where: str
    """Log and number of the line."""
    body: Mapping[str, Any]

    @property
    def moment(self) -> datetime:
        """Its time, by the operator's clock."""
        return datetime.fromisoformat(self.body["time"])

    def position(self, member: str) -> AuditAnchor | None:
        """The line that it names in this member, with its own time; None if it names none."""
        named = self.body.get(member)
        try:
            return AuditAnchor.model_validate({**named, "time": self.moment}) if isinstance(named, Mapping) else None
        except ValidationError:
            return None

    @property
    def record(self) -> Mapping[str, Any]:
        """What it tells of a record; empty if it tells of none."""
        found: Mapping[str, Any] = self.body.get("record", {})
        return found

    @property
    def named(self) -> str:
        """Kind and name of that."""
        return f"{self.record.get('kind')} {self.record.get('name')}"


Chain: TypeAlias = dict[int, ReadLine]
"""Lines by their number."""


@dataclass
class Found:
    """Collects what is found."""

    complete: bool
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    lines: int = 0

    def say(self, kind: FindingKind, where: str, message: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(kind, where, message))

    def wonder(self, kind: FindingKind, where: str, message: str) -> None:
        """It can't be told, unless the logs are complete."""
        (self.findings if self.complete else self.notes).append(Finding(kind, where, message))
