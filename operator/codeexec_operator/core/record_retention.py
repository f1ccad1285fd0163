"""Which records of finished executions and sessions are deleted: the oldest ones, as the policy says. Pure."""

from bisect import insort
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from codeexec_api import CodeExecution, CodeSession, RecordRetention
from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL
from codeexec_api.records import end_of
from codeexec_api.v1alpha1.bounds import MIN_RECORD_SECONDS

_UNKNOWN: Final = datetime.min.replace(tzinfo=UTC)
_SETTLED: Final = timedelta(seconds=MIN_RECORD_SECONDS)


class Why(StrEnum):
    """Why a record is deleted."""

    AGE = "Age"
    NUMBER = "Number"


class Row(NamedTuple):
    """A finished record in a list of columns. Rows sort by age, and executions before sessions."""

    written: datetime
    """Time of the audit line of its status."""
    plural: str
    name: str
    session: str

    @classmethod
    def of(cls, plural: str, cells: Mapping[str, str | None]) -> "Row":
        """From the columns that the API server prints. A record of version 0.1 has no audit line and counts as old."""
        written = cells["Audited"]
        moment = datetime.fromisoformat(written) if written else _UNKNOWN
        return cls(moment, plural, str(cells["Name"]), cells.get("Session") or "")


class Choice(NamedTuple):
    """A record that may be deleted."""

    row: Row
    why: Why


class Census:
    """The finished records of a namespace, seen one by one: sessions first. It holds only the oldest of them.

    Args:
        most: how many are held.
    """

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._oldest: list[Row] = []
        self._sessions: set[str] = set()
        """Names of the sessions among them."""
        self._kept_sessions: set[str] = set()
        """Those of these with an execution that stays."""

    def add(self, row: Row) -> None:
        """Count a record."""
        self._count += 1
        insort(self._oldest, row)
        if row.plural == SESSION_PLURAL:
            self._sessions.add(row.name)
        if len(self._oldest) > self._most:
            self._keep(self._oldest.pop())

    def _keep(self, row: Row) -> None:
        if row.plural == SESSION_PLURAL:
            self._sessions.discard(row.name)
            self._kept_sessions.discard(row.name)
        elif row.session in self._sessions:
            self._kept_sessions.add(row.session)

    def choose(self, policy: RecordRetention, now: datetime) -> list[Choice]:
        """What to delete, in this order.

        The record of a session is kept as long as that of one of its executions is, so sessions come last.
        """
        over = 0 if policy.max_count is None else self._count - policy.max_count
        chosen = []
        for index, row in enumerate(self._oldest):
            if too_old(row.written, policy, now):
                chosen.append(Choice(row, Why.AGE))
            elif index < over and row.written + _SETTLED <= now:
                chosen.append(Choice(row, Why.NUMBER))
            else:
                self._keep(row)
        sessions = [choice for choice in chosen if choice.row.plural == SESSION_PLURAL]
        return [
            *(choice for choice in chosen if choice.row.plural == EXECUTION_PLURAL),
            *(choice for choice in sessions if choice.row.name not in self._kept_sessions),
        ]

    @property
    def full(self) -> bool:
        """True if there are more records than are held, so another look may find more to delete."""
        return self._count > self._most


def too_old(written: datetime, policy: RecordRetention, now: datetime) -> bool:
    """True if a record that was written then has reached its age."""
    age = timedelta(seconds=policy.max_age_seconds) if policy.max_age_seconds is not None else None
    return age is not None and now - written >= max(age, _SETTLED)


class Obstacle(StrEnum):
    """Why a record stays."""

    CHANGED = "it has changed since it was listed"
    YOUNG = "it is too young"
    NOT_EXPORTED = "it was not exported"


def obstacle(
    record: CodeExecution | CodeSession,
    choice: Choice,
    policy: RecordRetention,
    exported: Mapping[str, int],
    now: datetime,
) -> Obstacle | None:
    """Why a record stays after all, though its row was chosen; None if it is to be deleted.

    `exported` is the newest resource version that was exported, by plural, and `now` the time by the API server's clock
    or the operator's, whichever is earlier.
    """
    anchor = record.status.audit
    if not record.status.phase.terminal or (anchor.time if anchor else _UNKNOWN) != choice.row.written:
        return Obstacle.CHANGED
    ended = anchor.time if anchor else end_of(record) or record.metadata.creation_timestamp
    if ended is None or now - ended < _SETTLED or (choice.why is Why.AGE and not too_old(ended, policy, now)):
        return Obstacle.YOUNG
    if policy.require_export and int(record.metadata.resource_version) > exported.get(choice.row.plural, 0):
        return Obstacle.NOT_EXPORTED
    return None
