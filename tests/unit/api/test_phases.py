"""The phase table: complete, closed, and without a way out of an end."""

import pytest

from codeexec_api.phases import TRANSITIONS, Event, IllegalTransition, Phase, advance, to_markdown


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", Event)
def test_each_pair_is_in_the_table_or_refused(phase: Phase, event: Event) -> None:
    if (phase, event) in TRANSITIONS:
        assert advance(phase, event) == TRANSITIONS[phase, event]
    else:
        with pytest.raises(IllegalTransition, match=f"{event.value} is not possible in phase {phase.value}"):
            advance(phase, event)


def test_every_phase_is_reachable() -> None:
    reached = {Phase.PENDING}
    while more := {move.phase for (phase, _), move in TRANSITIONS.items() if phase in reached} - reached:
        reached |= more
    assert reached == set(Phase)


@pytest.mark.parametrize("phase", [phase for phase in Phase if not phase.terminal])
def test_what_is_not_over_can_be_cancelled(phase: Phase) -> None:
    assert advance(phase, Event.CANCEL).phase is Phase.CANCELLED


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING])
@pytest.mark.parametrize("event", [Event.DEADLINE, Event.FAULT, Event.VANISHED])
def test_what_has_a_pod_ends_however_it_is_lost(phase: Phase, event: Event) -> None:
    assert advance(phase, event).phase.terminal


def test_terminal_phases_are_those_without_a_row() -> None:
    assert {phase for phase in Phase if phase.terminal} == {
        Phase.DENIED,
        Phase.SUCCEEDED,
        Phase.FAILED,
        Phase.TIMED_OUT,
        Phase.CANCELLED,
        Phase.OUT_OF_MEMORY,
        Phase.LOST,
    }


def test_nothing_returns_to_an_earlier_phase() -> None:
    order = [Phase.PENDING, Phase.STARTING, Phase.RUNNING]
    for (phase, _), move in TRANSITIONS.items():
        assert move.phase.terminal or order.index(move.phase) > order.index(phase)


def test_the_document_has_a_row_and_an_arrow_for_each_move() -> None:
    document = to_markdown()
    for (phase, event), move in TRANSITIONS.items():
        assert f"    {phase.value} --> {move.phase.value}: {event.value}\n" in document
        assert f"| {phase.value} | {event.value} | {move.phase.value} | {move.reason.value} |" in document
