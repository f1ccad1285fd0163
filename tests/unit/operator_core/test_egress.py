"""What an egress proof shows, and what it does not."""

import json

import pytest
from factories import NOW, TARGET, seconds

from codeexec_api import EgressProof, EgressVerdict, OpenedEgress
from codeexec_operator.core.egress import _LONGEST_TARGETS, FRESH, Target, explain, judge, parse_targets

API = Target("api-server", "10.96.0.1", 443)
DNS = Target("dns", "fd00::a", 53, "UDP")


@pytest.mark.parametrize(
    ("answered", "reached", "verdict"),
    [
        ({API: False, DNS: False}, {API: 0, DNS: 0}, EgressVerdict.CLOSED),
        ({API: False, DNS: True}, {API: 0, DNS: 0}, EgressVerdict.OPEN),
        ({API: True}, {}, EgressVerdict.OPEN),
        ({API: False, DNS: False}, {API: 0}, EgressVerdict.UNPROVEN),
        ({API: False}, {API: -61}, EgressVerdict.UNPROVEN),
        ({API: False}, {API: -60}, EgressVerdict.CLOSED),
        ({API: False}, {API: 0, DNS: 0}, EgressVerdict.CLOSED),
        ({}, {API: 0}, EgressVerdict.UNPROVEN),
        ({}, {}, EgressVerdict.UNPROVEN),
    ],
    ids=[
        "closed",
        "one answered",
        "one answered that the operator did not reach",
        "one could not have answered",
        "seen too long ago",
        "seen just in time",
        "one that was not asked for is no part of it",
        "nothing was tried",
        "nothing is known",
    ],
)
def test_verdict(answered: dict[Target, bool], reached: dict[Target, float], verdict: EgressVerdict) -> None:
    proof = judge(answered.keys(), answered, {target: NOW + seconds(after) for target, after in reached.items()}, NOW)
    assert proof.verdict is verdict
    assert proof.checked_at == NOW
    assert EgressProof.model_validate(proof.dump()) == proof


@pytest.mark.parametrize(
    "answered", [{API: False}, {API: False, DNS: False, Target("canary", "10.0.0.1", 8081): False}]
)
def test_a_runner_that_tried_something_else_proves_nothing(answered: dict[Target, bool]) -> None:
    assert judge([API, DNS], answered, dict.fromkeys([API, DNS], NOW), NOW).verdict is EgressVerdict.UNPROVEN


def test_the_record_names_each_target() -> None:
    other = Target("kubelet", "172.18.0.2", 10250)
    proof = judge([API, DNS, other], {DNS: True, API: False}, {API: NOW}, NOW)
    assert [one.dump() for one in proof.targets] == [
        API.dump() | {"refused": True, "reachable": True},
        DNS.dump() | {"refused": False},
        other.dump(),
    ]


def test_the_message_names_what_answered_and_what_to_do() -> None:
    message = explain(judge([API, DNS], {API: False, DNS: True}, {API: NOW, DNS: NOW}, NOW))
    assert "dns [fd00::a]:53/UDP answered from inside the pod" in message
    assert "api-server" not in message
    assert "NetworkPolicy codeexec-deny-all" in message


def test_the_message_names_what_the_operator_did_not_reach() -> None:
    message = explain(judge([API, DNS], {API: False, DNS: False}, {API: NOW, DNS: NOW - FRESH - seconds(1)}, NOW))
    assert "did not reach dns [fd00::a]:53/UDP either" in message
    assert "operator.networkPolicy" in message


@pytest.mark.parametrize("answered", [False, True])
def test_the_message_names_what_is_permitted_and_what_was_left_out_of_it(answered: bool) -> None:
    whole, cut = "10.1.2.3/32:443/TCP", "10.0.0.0/8:443/TCP"
    opened = (OpenedEgress(permit=whole), OpenedEgress(permit=cut, left_out=("10.96.0.1/32", "10.9.0.0/16")))
    message = explain(judge([API], {API: answered}, {API: NOW}, NOW, opened=opened), opened)
    assert f"{whole}, {cut} without 10.96.0.1/32, 10.9.0.0/16" in message


def test_a_runner_that_reports_other_targets_makes_a_proof_of_nothing_that_a_record_can_hold() -> None:
    others = {Target("other", f"10.0.0.{number}", 1): False for number in range(16)}
    proof = judge([API, DNS], others, dict.fromkeys([API, DNS], NOW), NOW)
    assert proof.verdict is EgressVerdict.UNPROVEN
    assert [one.name for one in proof.targets[:2]] == [API.name, DNS.name]
    assert len(proof.targets) == 16


def test_no_more_of_what_a_pod_was_told_is_read_than_the_operator_would_write() -> None:
    text = json.dumps([TARGET.dump()])
    assert parse_targets(text.ljust(_LONGEST_TARGETS)) == {TARGET}
    assert parse_targets(text.ljust(_LONGEST_TARGETS + 1)) is None
