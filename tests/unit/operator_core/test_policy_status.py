"""The status of an ExecutionPolicy says whether the policy is in force, and is written only where it doesn't say so."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from factories import IMAGE, a_policy
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import ExecutionPolicyStatus
from codeexec_api.names import API_VERSION, POLICY_KIND
from codeexec_operator.adapters import policy_statuses
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.policies import Policies
from codeexec_operator.adapters.policy_statuses import PolicyStatuses
from codeexec_operator.core.observed import PolicyProblem, parse_policy
from codeexec_operator.core.outcome import MESSAGE_LENGTH
from codeexec_operator.core.policy_status import status_due

NAMESPACE = "codeexec-sandbox"
NOW = datetime(2026, 11, 27, 8, 0, tzinfo=UTC)
Raw = dict[str, Any]


def raw(version: int = 7, generation: int = 3, status: Mapping[str, Any] | None = None, **spec: Any) -> Raw:
    meta = {"name": "default", "namespace": NAMESPACE, "uid": "u-1"}
    meta |= {"resourceVersion": str(version), "generation": generation}
    found: Raw = {"apiVersion": API_VERSION, "kind": POLICY_KIND, "metadata": meta, "spec": {"images": [IMAGE], **spec}}
    return found if status is None else {**found, "status": status}


def due(policy: Raw, now: datetime = NOW) -> ExecutionPolicyStatus | None:
    parsed = parse_policy(policy)
    assert parsed
    return status_due(policy, parsed, now)


def written(policy: Raw, now: datetime = NOW) -> Raw:
    """The same policy once its status is written."""
    status = due(policy, now)
    assert status
    return {**policy, "status": status.dump()}


# --- what it says ---------------------------------------------------------------------------------------------------


def test_a_policy_that_is_valid_is_in_force() -> None:
    status = due(raw())
    assert status
    assert status.observed_generation == 3
    [ready] = status.conditions
    assert (ready.type, ready.status, ready.reason, ready.observed_generation) == ("Ready", "True", "PolicyInForce", 3)
    assert ready.last_transition_time == NOW


def test_one_that_is_not_valid_says_which_field_is_wrong_what_was_found_and_what_is_allowed() -> None:
    status = due(raw(maxTimeoutSeconds=-1, newRule=True))
    assert status
    [ready] = status.conditions
    assert (ready.status, ready.reason) == ("False", "PolicyInvalid")
    assert "spec.maxTimeoutSeconds: found -1: Input should be greater than or equal to 1" in ready.message
    assert "spec.newRule: found true, but this version knows no such field" in ready.message
    assert ready.message.endswith("Nothing runs in the namespace until the platform owner corrects it")


def test_a_message_is_as_long_as_a_record_may_hold() -> None:
    status = due(raw(images=["x" * 2000] * 64))
    assert status
    assert len(status.conditions[0].message) <= MESSAGE_LENGTH
    assert "x" * 101 not in status.conditions[0].message, "of a value, its beginning is shown"


# --- when it is written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [{}, {"maxBlocks": 0}], ids=["valid", "invalid"])
def test_what_is_on_record_is_not_due_again(spec: Raw) -> None:
    assert due(written(raw(**spec)), NOW + timedelta(days=1)) is None


def test_a_new_generation_is_due_and_the_transition_stays_where_the_answer_is_the_same() -> None:
    before = written(raw(generation=3))["status"]
    status = due(raw(generation=4, status=before), NOW + timedelta(hours=1))
    assert status
    assert (status.observed_generation, status.conditions[0].observed_generation) == (4, 4)
    assert status.conditions[0].last_transition_time == NOW


def test_a_policy_that_was_mended_is_in_force_from_then_on() -> None:
    before = written(raw(generation=3, maxBlocks=0))["status"]
    status = due(raw(generation=4, status=before), NOW + timedelta(hours=1))
    assert status
    assert status.conditions[0].status == "True"
    assert status.conditions[0].last_transition_time == NOW + timedelta(hours=1)


@pytest.mark.parametrize("status", [{"conditions": "none"}, {"conditions": [{"type": 7}]}, {"newer": True}], ids=str)
def test_a_status_that_cannot_be_read_makes_no_policy_invalid_and_is_replaced(status: Raw) -> None:
    policy = raw(status=status)
    assert parse_policy(policy) == a_policy()
    assert due(policy)


# --- what a write sets off ------------------------------------------------------------------------------------------


def a_controller() -> tuple[Controller, list[str]]:
    """One that tells of which namespace's policy was looked at anew."""
    cluster: Any = SimpleNamespace()
    context: Any = SimpleNamespace(policies=Policies(cluster, a_policy(), "the default"))
    controller, told = Controller(context), []
    controller.policy_changed = told.append  # type: ignore[method-assign]
    return controller, told


def test_a_write_of_the_status_makes_nobody_decide_anew() -> None:
    controller, told = a_controller()
    controller.on_policy(raw(version=7), deleted=False)
    controller.on_policy(raw(version=8, status=written(raw())["status"]), deleted=False)
    assert told == [NAMESPACE]
    controller.on_policy(raw(version=9, maxBlocks=1), deleted=False)
    assert told == [NAMESPACE] * 2, "control: what changes the policy does"
    controller.on_policy(raw(version=10, maxBlocks=1), deleted=True)
    assert told == [NAMESPACE] * 3, "control: its deletion, too"


async def test_what_was_heard_of_while_the_policy_was_read_is_not_passed_over() -> None:
    """The answer has a version that the watch has not told of yet: whoever knows the older one hears of it then."""
    late: Any = SimpleNamespace()
    policies = Policies(late, a_policy(), "the default")

    async def get_policy(namespace: str) -> Raw:
        policies.observe(raw(version=7, maxBlocks=1), deleted=False)
        return raw(version=8, maxBlocks=2)

    late.get_policy = get_policy
    await policies.of(NAMESPACE)
    assert policies.observe(raw(version=8, maxBlocks=2), deleted=False)


# --- the writer -----------------------------------------------------------------------------------------------------


class Played:
    """An API server that answers writes of a status with these statuses of HTTP, then with 200."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.tried: list[str] = []
        self.writes: list[Raw] = []

    async def write_policy_status(self, meta: Any, status: ExecutionPolicyStatus) -> None:
        self.tried.append(meta.resource_version)
        if self.answers:
            raise ApiException(status=self.answers.pop(0), reason="played")
        self.writes.append(status.dump())


def a_writer(*answers: int) -> tuple[PolicyStatuses, Played]:
    played: Any = Played(*answers)
    return PolicyStatuses(played), played


def seen(statuses: PolicyStatuses, policy: Raw | None) -> None:
    statuses.observe(NAMESPACE, policy, parse_policy(policy))


async def is_idle(statuses: PolicyStatuses) -> bool:
    """True if there is nothing to write."""
    try:
        async with asyncio.timeout(0):
            await statuses.write(NAMESPACE)
    except TimeoutError:
        return True
    return False


async def test_what_is_due_is_written_once() -> None:
    statuses, played = a_writer()
    seen(statuses, raw(maxBlocks=0))
    await statuses.write(NAMESPACE)
    [status] = played.writes
    assert status["conditions"][0]["status"] == "False"
    assert await is_idle(statuses)
    seen(statuses, written(raw(version=8, maxBlocks=0)))
    assert await is_idle(statuses), "as after a restart"


async def test_a_policy_that_went_is_not_written() -> None:
    statuses, _ = a_writer()
    seen(statuses, raw())
    seen(statuses, None)
    assert await is_idle(statuses)


async def test_what_failed_is_still_due_and_the_newest_version_is_written() -> None:
    statuses, played = a_writer(500)
    seen(statuses, raw(version=7))
    with pytest.raises(ApiException):  # for the supervisor, which tries again after growing pauses
        await statuses.write(NAMESPACE)
    seen(statuses, raw(version=8, generation=4))
    await statuses.write(NAMESPACE)
    assert played.tried == ["7", "8"]
    assert played.writes[0]["observedGeneration"] == 4


async def test_what_has_changed_meanwhile_waits_for_the_next_version() -> None:
    statuses, played = a_writer(409)
    seen(statuses, raw(version=7))
    await statuses.write(NAMESPACE)
    assert await is_idle(statuses)
    seen(statuses, raw(version=8))
    await statuses.write(NAMESPACE)
    assert len(played.writes) == 1


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_what_is_refused_is_told_once_and_left_alone_for_a_while(
    status: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    statuses, played = a_writer(status, status)
    seen(statuses, raw(version=7))
    await statuses.write(NAMESPACE)
    seen(statuses, raw(version=7))  # as once a minute
    assert await is_idle(statuses)
    seen(statuses, raw(version=8))
    await statuses.write(NAMESPACE)
    assert len(caplog.messages) == 1
    assert f"answered {status}" in caplog.messages[0]
    monkeypatch.setattr(policy_statuses, "_REFUSED_SECONDS", 0)
    seen(statuses, raw(version=8))
    await statuses.write(NAMESPACE)
    assert (played.tried, len(played.writes)) == (["7", "8", "8"], 1)


async def test_policies_that_are_read_again_are_told_of_again() -> None:
    """So that a write that was given up is made up for."""
    told: list[Any] = []
    policy = raw()

    async def get_policy(namespace: str) -> Raw:
        return policy

    cluster: Any = SimpleNamespace(get_policy=get_policy)
    policies = Policies(cluster, a_policy(), "the default", tell=lambda *arguments: told.append(arguments))
    await policies.of(NAMESPACE)
    assert not await policies.read_again(NAMESPACE)
    assert told == [(NAMESPACE, policy, a_policy())] * 2
    assert isinstance(parse_policy(raw(maxBlocks=0)), PolicyProblem), "control"
