"""A namespace's policy as the API server has it: valid, absent, or not to be understood."""

from factories import IMAGE, a_policy

from codeexec_operator.core.observed import PolicyProblem, parse_policy


def test_a_policy_is_parsed() -> None:
    raw = {"metadata": {"name": "default"}, "spec": {"images": [IMAGE], "maxTimeoutSeconds": 5}}
    assert parse_policy(raw) == a_policy(maxTimeoutSeconds=5)


def test_no_policy_is_no_problem() -> None:
    assert parse_policy(None) is None


def test_a_policy_of_another_make_is_a_problem_that_names_the_field() -> None:
    raw = {"metadata": {"name": "default"}, "spec": {"images": [IMAGE], "maxTimeoutSeconds": -1, "newRule": True}}
    problem = parse_policy(raw)
    assert isinstance(problem, PolicyProblem)
    assert "spec.maxTimeoutSeconds" in problem.message
    assert "spec.newRule" in problem.message
