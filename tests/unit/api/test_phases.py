"""The phase tables: complete, closed, and without a way out of an end."""

import re
from typing import Any

import pytest

from codeexec_api.phases import (
    SESSION_TRANSITIONS,
    TRANSITIONS,
    Event,
    IllegalTransition,
    Phase,
    Reason,
    SessionPhase,
    advance,
    advance_session,
    to_markdown,
)

TABLES = [(Phase, TRANSITIONS, advance), (SessionPhase, SESSION_TRANSITIONS, advance_session)]
both_tables = pytest.mark.parametrize(("phases", "table", "move_on"), TABLES, ids=["execution", "session"])


@both_tables
@pytest.mark.parametrize("event", Event)
def test_each_pair_is_in_the_table_or_refused(phases: Any, table: Any, move_on: Any, event: Event) -> None:
    for phase in phases:
        if (phase, event) in table:
            assert move_on(phase, event) == table[phase, event]
        else:
            with pytest.raises(IllegalTransition, match=f"{event.value} is not possible in phase {phase.value}"):
                move_on(phase, event)


@both_tables
def test_every_phase_is_reachable(phases: Any, table: Any, move_on: Any) -> None:
    reached = {phases("Pending")}
    while more := {move.phase for (phase, _), move in table.items() if phase in reached} - reached:
        reached |= more
    assert reached == set(phases)


@both_tables
def test_each_way_to_end_has_a_reason_of_its_own(phases: Any, table: Any, move_on: Any) -> None:
    for phase in phases:
        reasons = [move.reason for (origin, _), move in table.items() if origin is phase and move.phase.terminal]
        assert len(set(reasons)) == len(reasons), phase


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_one_word_as_conditions_have_it(reason: Reason) -> None:
    assert re.fullmatch(r"([A-Z][a-z]+)+", reason.value)


@pytest.mark.parametrize("phase", [phase for phase in Phase if not phase.terminal])
def test_what_is_not_over_can_be_cancelled(phase: Phase) -> None:
    assert advance(phase, Event.CANCEL).phase is Phase.CANCELLED


@pytest.mark.parametrize("phase", [phase for phase in SessionPhase if not phase.terminal])
def test_a_session_that_is_not_over_can_be_ended(phase: SessionPhase) -> None:
    assert advance_session(phase, Event.ENDED).phase is SessionPhase.ENDED


@pytest.mark.parametrize("event", [Event.DEADLINE, Event.FAULT, Event.VANISHED])
def test_what_has_a_pod_ends_however_it_is_lost(event: Event) -> None:
    for phase in (Phase.STARTING, Phase.RUNNING):
        assert advance(phase, event).phase.terminal
    for phase in (SessionPhase.STARTING, SessionPhase.READY):
        assert advance_session(phase, event).phase.terminal


@pytest.mark.parametrize("phase", SessionPhase)
def test_only_a_session_whose_pod_is_shown_to_be_closed_becomes_ready(phase: SessionPhase) -> None:
    """The proof is made while it starts: no other phase leads to Ready, and none but Ready is for executions."""
    leads_there = SESSION_TRANSITIONS.get((phase, Event.READY))
    assert (leads_there is not None) == (phase is SessionPhase.STARTING)


def test_what_waits_for_approval_goes_on_only_by_way_of_approved() -> None:
    ways_on = {
        move.phase
        for (phase, _), move in TRANSITIONS.items()
        if phase is Phase.AWAITING_APPROVAL and not move.phase.terminal
    }
    assert ways_on == {Phase.APPROVED}


@pytest.mark.parametrize("phase", Phase)
def test_an_approval_can_lapse_as_long_as_the_code_has_not_started(phase: Phase) -> None:
    lapses = phase in (Phase.AWAITING_APPROVAL, Phase.APPROVED, Phase.STARTING)
    assert ((phase, Event.EXPIRED) in TRANSITIONS) == lapses


def test_terminal_phases_are_those_without_a_row() -> None:
    assert {phase for phase in Phase if phase.terminal} == {
        Phase.DENIED,
        Phase.EXPIRED,
        Phase.SUCCEEDED,
        Phase.FAILED,
        Phase.TIMED_OUT,
        Phase.CANCELLED,
        Phase.OUT_OF_MEMORY,
        Phase.LOST,
    }
    assert {phase for phase in SessionPhase if phase.terminal} == {
        SessionPhase.DENIED,
        SessionPhase.ENDED,
        SessionPhase.FAILED,
        SessionPhase.LOST,
    }


@both_tables
def test_nothing_returns_to_an_earlier_phase(phases: Any, table: Any, move_on: Any) -> None:
    order = list(phases)
    for (phase, event), move in table.items():
        if event is Event.WOKEN:  # a session that sleeps gets another pod
            continue
        assert move.phase.terminal or order.index(move.phase) > order.index(phase)


@pytest.mark.parametrize("kind", ["CodeExecution", "CodeSession"])
def test_the_document_has_a_row_and_an_arrow_for_each_move(kind: str) -> None:
    phases, table, _ = TABLES[["CodeExecution", "CodeSession"].index(kind)]
    [section] = [one for one in to_markdown().split("\n## ") if one.startswith(kind)]
    for (phase, event), move in table.items():
        assert f"    {phase.value} --> {move.phase.value}: {event.value}\n" in section
        assert f"| {phase.value} | {event.value} | {move.phase.value} | {move.reason.value} |" in section
    assert section.count(" --> [*]") == len([phase for phase in phases if phase.terminal])
    assert section.count("\n| ") == len(table) + 1
