"""What the operator has logged while the tests ran that run side by side. It is the first of those that run alone."""

import pytest
from cluster_tools import SYSTEM, Admin
from diagnostics import OPERATOR, tracebacks

pytestmark = pytest.mark.release


def test_the_operator_has_met_no_error_that_it_does_not_expect(admin: Admin) -> None:
    pods = admin.list("pod", SYSTEM, labels=OPERATOR)
    said = "\n".join(admin.logs(SYSTEM, pod["metadata"]["name"]) for pod in pods)
    assert "OperatorStarted" in said, "the control: this is the log of who leads"
    assert tracebacks(said) == []
