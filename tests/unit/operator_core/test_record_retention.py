"""Which records go: the oldest ones that the policy doesn't want any more, and no other."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from factories import NOW, a_policy, a_session, an_execution, seconds
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import AuditAnchor, CodeExecution, Phase, RecordRetention, SessionPhase
from codeexec_api.audit_export import Cursor
from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL
from codeexec_api.policy import inheriting
from codeexec_api.v1alpha1.bounds import MIN_RECORD_SECONDS
from codeexec_operator.core.record_retention import Census, Choice, Obstacle, Row, Why, obstacle

HOUR = 3600
SETTLED = MIN_RECORD_SECONDS


def ago(age: float) -> datetime:
    return NOW - seconds(age)


def a_row(name: str, age: float, session: str = "", plural: str = EXECUTION_PLURAL) -> Row:
    return Row(ago(age), plural, name, session)


def a_session_row(name: str, age: float) -> Row:
    return a_row(name, age, plural=SESSION_PLURAL)


def chosen(rows: Sequence[Row], most: int = 100, **policy: Any) -> list[tuple[str, str]]:
    census = Census(most)
    for row in rows:
        census.add(row)
    return [(one.row.name, one.why.value) for one in census.choose(RecordRetention(**policy), NOW)]


ROWS = [a_row("c", 2 * HOUR), a_row("a", 4 * HOUR), a_row("d", HOUR), a_row("b", 3 * HOUR)]


@pytest.mark.parametrize(
    ("policy", "gone"),
    [
        ({}, []),
        ({"requireExport": True}, []),
        ({"maxAgeSeconds": 5 * HOUR}, []),
        ({"maxAgeSeconds": 3 * HOUR}, [("a", "Age"), ("b", "Age")]),
        ({"maxCount": 4}, []),
        ({"maxCount": 1}, [("a", "Number"), ("b", "Number"), ("c", "Number")]),
        ({"maxCount": 2, "maxAgeSeconds": 4 * HOUR}, [("a", "Age"), ("b", "Number")]),
    ],
)
def test_the_oldest_go_first_by_age_or_by_number(policy: dict[str, Any], gone: list[tuple[str, str]]) -> None:
    assert chosen(ROWS, **policy) == gone


def test_a_young_record_stays_whatever_the_number_is() -> None:
    rows = [a_row("young", SETTLED - 1), a_row("settled", SETTLED)]
    assert chosen(rows, maxCount=1) == [("settled", "Number")]
    assert chosen([rows[0], a_row("younger", 1)], maxCount=1) == []


def test_the_record_of_a_session_goes_after_those_of_its_executions() -> None:
    rows = [a_session_row("work", 2 * HOUR), a_row("in-work", 2 * HOUR, "work"), a_row("late", HOUR, "work")]
    assert chosen(rows, maxAgeSeconds=2 * HOUR) == [("in-work", "Age")], "one of its executions is kept"
    assert chosen(rows, maxAgeSeconds=HOUR) == [("in-work", "Age"), ("late", "Age"), ("work", "Age")]


def test_only_the_oldest_are_held_and_all_are_counted() -> None:
    rows = [a_row(f"run-{age}", age * HOUR) for age in range(1, 1001)]
    gone = chosen(rows, most=10, maxCount=5)
    assert gone == [(f"run-{age}", "Number") for age in range(1000, 990, -1)]
    rows.append(a_session_row("work", 2000 * HOUR))
    rows.append(a_row("in-work", 1, "work"))
    assert chosen(rows, most=10, maxCount=5)[0] == ("run-1000", "Number"), "of an execution that is not held any more"


@pytest.mark.parametrize("sessions", [0, 3])
def test_names_of_sessions_are_held_only_if_their_records_are(sessions: int) -> None:
    census = Census(10)
    for number in range(sessions):
        census.add(a_session_row(f"work-{number}", 2000 * HOUR))
    for number in range(1000):
        census.add(a_row(f"run-{number}", HOUR + number, f"work-{number}"))
    gone = [one.row.name for one in census.choose(RecordRetention(maxAgeSeconds=HOUR), NOW)]
    assert len(census._kept_sessions) == sessions
    assert not any(name.startswith("work") for name in gone), "there is an execution of each"


def test_a_record_without_an_audit_line_counts_as_old() -> None:
    row = Row.of(EXECUTION_PLURAL, {"Name": "old", "Audited": None, "Session": None})
    assert chosen([row, *ROWS], maxCount=4) == [("old", "Number")]
    cells = {"Name": "run", "Audited": "2026-11-21T12:00:00.5Z"}
    assert Row.of(SESSION_PLURAL, cells) == Row(NOW + timedelta(seconds=0.5), SESSION_PLURAL, "run", "")


# --- what is looked at again before it goes ---


def anchored(age: float) -> dict[str, Any]:
    return {"audit": AuditAnchor(chain="0" * 32, sequence=1, hash="0" * 64, time=ago(age)), "finished_at": ago(age)}


def a_record(age: float, *, version: int = 7, phase: Phase = Phase.SUCCEEDED) -> CodeExecution:
    record = an_execution(phase=phase, status=anchored(age))
    meta = record.metadata.model_copy(update={"resource_version": str(version)})
    return record.model_copy(update={"metadata": meta})


def stays(record: CodeExecution, exported: int = 0, **policy: Any) -> Obstacle | None:
    choice = Choice(a_row(record.metadata.name, 2 * HOUR), Why.NUMBER)
    return obstacle(record, choice, RecordRetention(**policy), {EXECUTION_PLURAL: exported}, NOW)


def test_what_has_changed_since_it_was_listed_stays() -> None:
    assert stays(a_record(2 * HOUR)) is None
    assert stays(a_record(HOUR)) is Obstacle.CHANGED
    assert stays(a_record(2 * HOUR, phase=Phase.RUNNING)) is Obstacle.CHANGED


def test_a_young_record_stays_though_its_row_was_chosen() -> None:
    for age, stayed in ((SETTLED - 1, Obstacle.YOUNG), (SETTLED, None)):
        choice = Choice(a_row("run-1", age), Why.NUMBER)
        assert obstacle(a_record(age), choice, RecordRetention(max_count=1), {}, NOW) is stayed


def test_the_age_counts_from_the_audit_line_and_not_from_the_end() -> None:
    status = anchored(2 * HOUR) | {"finished_at": ago(4 * HOUR)}
    record = an_execution(phase=Phase.SUCCEEDED, status=status)
    choice = Choice(a_row("run-1", 2 * HOUR), Why.AGE)
    assert obstacle(record, choice, RecordRetention(max_age_seconds=3 * HOUR), {}, NOW) is Obstacle.YOUNG


def test_nothing_is_exported_as_long_as_no_cursor_says_so() -> None:
    choice, policy = Choice(a_row("run-1", 2 * HOUR), Why.NUMBER), RecordRetention(max_count=1, require_export=True)
    assert obstacle(a_record(2 * HOUR, version=1), choice, policy, {}, NOW) is Obstacle.NOT_EXPORTED


def test_what_was_not_exported_as_it_is_stays_if_that_is_required() -> None:
    assert stays(a_record(2 * HOUR, version=7), exported=7, requireExport=True) is None
    assert stays(a_record(2 * HOUR, version=8), exported=7, requireExport=True) is Obstacle.NOT_EXPORTED
    assert stays(a_record(2 * HOUR, version=8), exported=7) is None


def test_a_record_without_an_audit_line_goes_by_its_own_times() -> None:
    old = an_execution(phase=Phase.SUCCEEDED, status={"finished_at": ago(2 * HOUR)})
    choice = Choice(Row.of(EXECUTION_PLURAL, {"Name": "run-1", "Audited": None}), Why.AGE)
    for hours, stayed in ((2, None), (3, Obstacle.YOUNG)):
        assert obstacle(old, choice, RecordRetention(maxAgeSeconds=hours * HOUR), {}, NOW) is stayed
    session = a_session(phase=SessionPhase.ENDED, status={"ended_at": ago(2 * HOUR)})
    assert obstacle(session, choice, RecordRetention(maxAgeSeconds=2 * HOUR), {}, NOW) is None


AGES = st.integers(0, 4 * HOUR)
NUMBERS = st.none() | st.integers(1, 8)


@given(
    st.lists(st.tuples(AGES, st.sampled_from(list(Phase)), st.integers(1, 20)), max_size=12),
    st.none() | st.integers(SETTLED, 4 * HOUR),
    NUMBERS,
    st.none() | st.integers(0, 20),
    st.integers(1, 12),
)
def test_nothing_goes_that_is_unfinished_young_wanted_or_unexported(
    made: list[tuple[int, Phase, int]], age: int | None, count: int | None, exported: int | None, most: int
) -> None:
    """Even if the list had rows of unfinished records."""
    policy = RecordRetention(max_age_seconds=age, max_count=count, require_export=exported is not None)
    records = {
        f"run-{index}": a_record(old, version=version, phase=phase) for index, (old, phase, version) in enumerate(made)
    }
    census = Census(most)
    for name, record in records.items():
        assert record.status.audit
        census.add(Row(record.status.audit.time, EXECUTION_PLURAL, name, ""))
    cursor = {} if exported is None else {EXECUTION_PLURAL: exported}
    choices = census.choose(policy, NOW)
    gone = [one.row.name for one in choices if not obstacle(records[one.row.name], one, policy, cursor, NOW)]
    for name in gone:
        record = records[name]
        assert record.status.audit
        assert record.status.phase.terminal
        assert NOW - record.status.audit.time >= seconds(SETTLED)
        assert exported is None or int(record.metadata.resource_version) <= exported
        old = age is not None and NOW - record.status.audit.time >= seconds(age)
        assert old or count is not None
    if age is None:
        assert len(records) - len(gone) >= min(count or len(records), len(records))
    assert len(gone) <= most


# --- the policy ---


def test_records_are_kept_by_default() -> None:
    assert not a_policy().records.limited
    assert not a_policy(records={"requireExport": True}).records.limited
    assert a_policy(records={"maxCount": 1}).records.limited


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_the_policy_of_a_namespace_does_not_drop_the_export(default: bool, own: bool) -> None:
    policy = a_policy(records={"maxCount": 1, "requireExport": own})
    records = inheriting(policy, a_policy(records={"requireExport": default, "maxAgeSeconds": HOUR})).records
    assert records == RecordRetention(max_count=1, require_export=own or default)


def test_a_cursor_that_is_no_number_is_none() -> None:
    assert Cursor.parse({EXECUTION_PLURAL: "12", SESSION_PLURAL: "x", "other": "3"}).versions == {EXECUTION_PLURAL: 12}
    assert Cursor.parse({}).versions == {}
