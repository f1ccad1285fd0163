"""Conditions in the form of the Kubernetes API conventions."""

from factories import NOW, seconds

from codeexec_api import Condition, ConditionType, condition, set_condition

LATER = NOW + seconds(5)


def a_condition(kind: ConditionType = ConditionType.ACCEPTED, *, holds: bool = True, later: bool = False) -> Condition:
    now = LATER if later else NOW
    return condition(kind, holds=holds, reason="Why", message="Because.", now=now, generation=int(later))


def test_a_new_type_is_added_behind_the_others() -> None:
    first, second = a_condition(), a_condition(ConditionType.STARTED)
    assert set_condition([first], second) == (first, second)


def test_a_change_of_status_takes_the_place_and_the_new_time() -> None:
    other, new = a_condition(ConditionType.FINISHED), a_condition(holds=False, later=True)
    assert set_condition([a_condition(), other], new) == (new, other)


def test_the_time_stays_while_the_status_stays() -> None:
    [result] = set_condition([a_condition()], a_condition(later=True))
    assert result.last_transition_time == NOW
    assert result.observed_generation == 1


def test_the_given_conditions_are_left_alone() -> None:
    before = [a_condition()]
    set_condition(before, a_condition(holds=False))
    assert before == [a_condition()]


def test_status_is_a_word() -> None:
    assert (a_condition().status, a_condition(holds=False).status) == ("True", "False")
