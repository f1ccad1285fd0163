"""Which decision about an execution counts, and why the others don't."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from factories import AGENT, APPROVER, NOW, UID, an_approval, an_execution, seconds
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import ExecutionApproval, Grant, Ruling, judge
from codeexec_api.v1alpha1.bounds import MAX_UNUSED_APPROVALS

MEMORY = ("spec.limits.memory", "2Gi")
TIMEOUT = ("spec.timeoutSeconds", "3600")
HOUR = NOW + seconds(3600)


def ruling(
    *approvals: ExecutionApproval,
    asked: Sequence[tuple[str, str]] = (MEMORY,),
    now: datetime = NOW,
    requested_by: str | None = AGENT,
) -> Ruling:
    execution = an_execution(requestedBy=requested_by) if requested_by else an_execution()
    return judge(approvals, execution, [Grant(field=field, value=value) for field, value in asked], now)


def a_denial(name: str = "denial-1", **changes: Any) -> ExecutionApproval:
    return an_approval(name, decision="Deny", **changes)


def reasons(result: Ruling) -> dict[str, str]:
    return {one.name: one.reason for one in result.unused}


def test_an_approval_of_exactly_this_counts() -> None:
    approval = an_approval()
    result = ruling(approval)
    assert (result.counts, result.approved, result.denied, result.unused) == (approval, True, False, ())


def test_without_a_decision_nothing_is_decided() -> None:
    assert ruling() == Ruling()
    assert (Ruling().approved, Ruling().denied) == (False, False)


@pytest.mark.parametrize(
    ("changes", "reason", "told"),
    [
        ({"uid": "another"}, "OtherExecution", f"it names UID another, but this execution has UID {UID}"),
        ({"requested_by": "eve"}, "OtherExecution", f"it says that 'eve' requested the execution, but '{AGENT}' did"),
        # The CRD refuses this one; whoever has written it has gone round the CRD.
        ({"approver": AGENT}, "SelfApproval", f"'{AGENT}' requested the execution, so another user has to decide"),
        ({"revoked": True, "revokedBy": "bob"}, "Revoked", "it was revoked by 'bob'"),
        ({"expiresAt": NOW}, "Expired", "it expired at 2026-11-21 12:00:00+00:00"),
        (
            {"grants": [MEMORY, TIMEOUT]},
            "OtherGrants",
            "it approves spec.limits.memory=2Gi, spec.timeoutSeconds=3600, but the execution asks for",
        ),
        (
            {"grants": [("spec.limits.memory", "4Gi")]},
            "OtherGrants",
            "it approves spec.limits.memory=4Gi, but the execution asks for spec.limits.memory=2Gi",
        ),
        (
            {"grants": [("spec.limits.cpu", "2Gi")]},
            "OtherGrants",
            "it approves spec.limits.cpu=2Gi, but the execution asks for",
        ),
    ],
)
def test_an_approval_that_does_not_count_is_named_with_the_reason(
    changes: dict[str, Any], reason: str, told: str
) -> None:
    result = ruling(an_approval(**changes))
    assert (result.counts, result.approved) == (None, False)
    [unused] = result.unused
    assert (unused.name, unused.reason) == ("decision-1", reason)
    assert unused.approver == changes.get("approver", APPROVER)
    assert unused.message.startswith(told)


def test_an_approval_of_less_does_not_count() -> None:
    assert reasons(ruling(an_approval(), asked=[MEMORY, TIMEOUT])) == {"decision-1": "OtherGrants"}


def test_the_order_of_the_grants_does_not_matter() -> None:
    assert ruling(an_approval(grants=[TIMEOUT, MEMORY]), asked=[MEMORY, TIMEOUT]).approved


def test_an_approval_counts_until_it_expires_and_not_at_that_moment() -> None:
    approval = an_approval(expiresAt=HOUR)
    assert ruling(approval, now=HOUR - seconds(0.001)).approved
    assert reasons(ruling(approval, now=HOUR)) == {"decision-1": "Expired"}


@pytest.mark.parametrize("decision", ["Approve", "Deny"])
@pytest.mark.parametrize("named", [AGENT, "unknown", "None"])
def test_who_is_not_known_can_not_be_told_from_the_approver(decision: str, named: str) -> None:
    result = ruling(an_approval(decision=decision, requested_by=named), requested_by=None)
    assert (result.counts, reasons(result)) == (None, {"decision-1": "OtherExecution"})


class TestDenials:
    def test_a_denial_needs_no_grants_and_does_not_expire(self) -> None:
        denial = a_denial()
        assert denial.spec.grants is None
        result = ruling(denial, now=NOW + seconds(10**8))
        assert (result.counts, result.denied, result.approved) == (denial, True, False)

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_one_is_enough_however_many_have_approved_before_or_after(self, place: int) -> None:
        decisions = [an_approval("yes-1", created=NOW), an_approval("yes-2", created=NOW + seconds(2))]
        denial = a_denial(created=NOW + seconds(place))
        assert ruling(*decisions[:place], denial, *decisions[place:]).counts == denial

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"revoked": True, "revokedBy": "bob"}, "Revoked"),
            ({"uid": "another"}, "OtherExecution"),
            ({"requested_by": "eve"}, "OtherExecution"),
            ({"approver": AGENT}, "SelfApproval"),
        ],
    )
    def test_one_that_does_not_count_stops_no_approval(self, changes: dict[str, Any], reason: str) -> None:
        result = ruling(a_denial(**changes), an_approval())
        assert result.approved
        assert reasons(result) == {"denial-1": reason}

    def test_the_oldest_is_the_one_that_is_named(self) -> None:
        first, second = a_denial("b"), a_denial("a", created=NOW + seconds(1))
        assert ruling(second, first).counts == first


class TestSeveral:
    def test_the_oldest_approval_counts(self) -> None:
        older, newer = an_approval("b"), an_approval("a", created=NOW + seconds(1))
        assert ruling(newer, older).counts == older

    def test_of_the_same_second_the_first_by_name(self) -> None:
        assert ruling(an_approval("b"), an_approval("a")).counts == an_approval("a")

    def test_the_oldest_is_that_of_those_that_count(self) -> None:
        revoked = an_approval("a", revoked=True, revokedBy="bob")
        later = an_approval("b", created=NOW + seconds(1))
        assert ruling(revoked, later).counts == later

    def test_only_the_newest_that_do_not_count_are_listed_oldest_first(self) -> None:
        many = [
            an_approval(f"no-{number}", created=NOW + seconds(number), revoked=True, revokedBy="bob")
            for number in range(MAX_UNUSED_APPROVALS + 3)
        ]
        assert MAX_UNUSED_APPROVALS == 8
        result = ruling(*reversed(many), an_approval())
        assert result.approved
        assert list(reasons(result)) == [f"no-{number}" for number in range(3, 11)]

    @pytest.mark.parametrize("name", ["x" * 512, "\ue000" * 512, "\\" * 512])
    @pytest.mark.parametrize("field", ["requested_by", "approver", "revokedBy"])
    def test_whatever_an_approval_holds_there_is_room_for_the_reason(self, field: str, name: str) -> None:
        """An approval that can't be recorded would stop what it names."""
        changes: dict[str, Any] = {field: name} | ({"revoked": True} if field == "revokedBy" else {})
        [unused] = ruling(an_approval(**changes), requested_by=name if field == "approver" else AGENT).unused
        assert 0 < len(unused.message) <= 1024

    def test_long_grants_are_cut(self) -> None:
        [unused] = ruling(an_approval(grants=[(f"spec.{number}", "x" * 500) for number in range(64)])).unused
        assert len(unused.message) == 1024


some_grants = st.lists(st.sampled_from([MEMORY, TIMEOUT]), min_size=1, max_size=3)
users = st.sampled_from([AGENT, APPROVER, "bob"])
approvals = st.builds(
    lambda decision, grants, expires, **rest: an_approval(
        decision=decision, **rest, **({"grants": grants, "expiresAt": expires} if decision == "Approve" else {})
    ),
    name=st.sampled_from("abcdefgh"),
    decision=st.sampled_from(["Approve", "Approve", "Deny"]),
    grants=some_grants,
    expires=st.sampled_from([NOW, HOUR]),
    uid=st.sampled_from([UID, UID, UID, "another"]),
    requested_by=st.sampled_from([AGENT, AGENT, AGENT, "bob"]),
    approver=users,
    created=st.integers(-3, 0).map(lambda ago: NOW + seconds(ago)),
    revoked=st.sampled_from([False, False, True]),
)


@given(
    decisions=st.lists(approvals, max_size=10, unique_by=lambda one: one.metadata.name),
    asked=some_grants,
    requested_by=st.sampled_from([AGENT, AGENT, "bob", None]),
    now=st.sampled_from([NOW - seconds(1), NOW, HOUR]),
    data=st.data(),
)
def test_approved_only_with_an_approval_of_exactly_this_and_without_a_denial(
    decisions: list[ExecutionApproval],
    asked: list[tuple[str, str]],
    requested_by: str | None,
    now: datetime,
    data: st.DataObject,
) -> None:
    result = ruling(*decisions, asked=asked, requested_by=requested_by, now=now)
    by_somebody_else = [
        one.spec
        for one in decisions
        if (one.spec.execution_ref.uid, one.spec.execution_ref.requested_by) == (UID, requested_by)
        and one.spec.approver != requested_by
        and not one.spec.revoked
    ]
    denials = [spec for spec in by_somebody_else if spec.decision == "Deny"]
    good = [
        spec
        for spec in by_somebody_else
        if spec.decision == "Approve"
        and spec.expires_at
        and spec.expires_at > now
        and {(one.field, one.value) for one in spec.grants or ()} == set(asked)
    ]
    assert result.denied == bool(denials)
    assert result.approved == bool(good and not denials)
    assert len(result.unused) == min(len(decisions) - len(denials) - len(good), MAX_UNUSED_APPROVALS)
    # In whatever order they are heard of.
    assert ruling(*data.draw(st.permutations(decisions)), asked=asked, requested_by=requested_by, now=now) == result
