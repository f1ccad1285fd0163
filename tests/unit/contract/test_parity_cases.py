"""The cases agree with themselves; needs no cluster."""

from collections import Counter

import pytest
from parity.case import Case
from parity.suite import all_cases, explains_itself


def test_there_are_enough_cases_and_each_has_a_name_of_its_own():
    cases = all_cases()
    assert len(cases) >= 80
    for names in ([case.id for case in cases], [case.about for case in cases]):
        assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.id)
def test_a_difference_has_a_reason_and_a_reason_a_difference(case: Case):
    assert explains_itself(case) == ""


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.id)
def test_a_case_runs_blocks_or_is_a_scenario(case: Case):
    assert not (case.blocks and case.scenario)
