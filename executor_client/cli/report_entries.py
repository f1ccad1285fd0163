"""The entries of the audit report: executions of their own, and sessions with their executions. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from codeexec_api import CodeExecution, CodeSession, SessionPhase
from executor_client.cli.auditing import Record
from executor_client.cli.report_words import Concern, concern_of

_NEVER_STARTED: Final = (SessionPhase.DENIED, SessionPhase.FAILED, SessionPhase.LOST)


def anchor_of(record: Record) -> str:
    """The anchor of a record's row. The kind is part of it: an execution and a session can have the same name."""
    name = record.metadata.name
    return execution_anchor(name) if isinstance(record, CodeExecution) else session_anchor(name)


def execution_anchor(name: str) -> str:
    """The anchor of the row of an execution."""
    return f"execution-{name}"


def session_anchor(name: str) -> str:
    """The anchor of a session's row."""
    return f"session-{name}"


@dataclass(frozen=True)
class SessionGroup:
    """A session with the executions that name it."""

    name: str
    session: CodeSession | None
    """None if its record is not among those of the report."""
    executions: tuple[CodeExecution, ...] = ()
    transfers: tuple[CodeExecution, ...] = ()
    """Executions without code, which copy or list files."""

    @property
    def first(self) -> Record:
        """The record whose time and user stand for the group."""
        return self.session or (*self.executions, *self.transfers)[0]

    def swallows(self, execution: CodeExecution) -> bool:
        """True if an execution never started because this session never did."""
        session = self.session
        return (
            session is not None
            and session.status.started_at is None
            and session.status.phase in _NEVER_STARTED
            and execution.status.started_at is None
            and execution.status.phase.terminal
        )

    def concern_of(self, execution: CodeExecution) -> Concern | None:
        """What is wrong with one of its executions, beyond what is wrong with the session."""
        if self.swallows(execution):
            return None
        return concern_of(execution, with_network=self.session is None)


Entry: TypeAlias = CodeExecution | SessionGroup


def entries_of(records: Iterable[Record]) -> list[Entry]:
    """Executions of their own, and sessions with their executions, in the order of the records."""
    executions: dict[str, list[CodeExecution]] = {}
    sessions: dict[str, CodeSession] = {}
    places: dict[str, CodeExecution | None] = {}  # anchors, in order; None: of a session
    for record in records:
        if isinstance(record, CodeSession):
            sessions[record.metadata.name] = record
            places.setdefault(anchor_of(record))
        elif record.spec.session_ref:
            name = record.spec.session_ref.name
            executions.setdefault(name, []).append(record)
            places.setdefault(session_anchor(name))
        else:
            places[anchor_of(record)] = record
    groups = {
        session_anchor(name): _group(name, sessions.get(name), executions.get(name, ()))
        for name in sessions.keys() | executions.keys()
    }
    entries: list[Entry] = [record or groups[anchor] for anchor, record in places.items()]
    return sorted(entries, key=lambda one: str(record_of(one).metadata.creation_timestamp))


def record_of(entry: Entry) -> Record:
    """The record whose time stands for the entry."""
    return entry if isinstance(entry, CodeExecution) else entry.first


def _group(name: str, session: CodeSession | None, executions: Sequence[CodeExecution]) -> SessionGroup:
    with_code = tuple(one for one in executions if one.spec.blocks)
    return SessionGroup(name, session, with_code, tuple(one for one in executions if not one.spec.blocks))
