"""Who gets which pod: who is first in line, which pool is asked, which pod is handed out, when a place is left."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from factories import (
    CLUSTER_VIEW,
    IMAGE,
    NOW,
    OTHER_IMAGE,
    SESSION_REF,
    UID,
    a_pod,
    a_policy,
    a_runner,
    a_sandbox,
    a_session,
    an_execution,
    seconds,
)
from hypothesis import given
from hypothesis import strategies as st
from plans import proof_of
from played_context import a_register

from codeexec_api import Limits, Phase, SandboxPool, Verdict
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.placement import Placement
from codeexec_operator.adapters.pool_pods import ClaimedPod
from codeexec_operator.adapters.worker import now
from codeexec_operator.core.line import Line
from codeexec_operator.core.observed import ObservedSession
from codeexec_operator.core.observed_pod import Sandbox
from codeexec_operator.core.observed_pool import Member, ObservedPool
from codeexec_operator.core.placement import Claim, Step, assign, has_turn, next_step, rank
from codeexec_operator.core.pod_template import Template, template_of
from codeexec_operator.core.timing import Timing


@dataclass(frozen=True)
class Waiting:
    claim: Claim
    wake: Callable[[], None] = lambda: None


def waiting(name: str = "a", created: float = 0, *, started: bool = False, image: str = IMAGE) -> Waiting:
    return Waiting(Claim(name, NOW + seconds(created), started, Verdict(image, None), Limits()))


def a_pool(name: str = "default", **spec: Any) -> ObservedPool:
    meta = {"name": name, "namespace": "codeexec-sandbox", "uid": name, "resourceVersion": "7", "generation": 1}
    pool = SandboxPool.model_validate({"metadata": meta, "spec": {"replicas": 2} | spec})
    return ObservedPool(pool, policy=a_policy(), cluster_view=CLUSTER_VIEW, members={})


def template() -> Template:
    made = template_of(a_pool())
    assert isinstance(made, Template)
    return made


def a_member(**changes: Any) -> Member:
    sandbox = a_sandbox()
    return replace(Member(NOW, template().digest, sandbox, proof_of(sandbox)), **changes)


class TestQueue:
    @given(st.lists(st.tuples(st.integers(0, 3), st.booleans())))
    def test_is_in_order_however_they_come(self, came: list[tuple[int, bool]]) -> None:
        queue: Line[Waiting] = Line(rank)
        for number, (created, started) in enumerate(came):
            queue.join(waiting(str(number), created, started=started))
        keys = [(not one.claim.started, one.claim.created, int(one.claim.uid)) for one in queue]
        assert keys == sorted(keys), "who has started, then who was created first, then who came first"

    @pytest.mark.parametrize(
        ("job", "unresponsive", "turn"),
        [(None, "", True), ("a", "", True), ("another", "", False), (None, "it hangs", False)],
    )
    def test_who_is_first_waits_until_the_session_has_nothing_else_to_do(
        self, job: str | None, unresponsive: str, turn: bool
    ) -> None:
        session = ObservedSession(a_session(), a_policy(), NOW, unresponsive=unresponsive)
        assert has_turn(waiting("a"), session, Sandbox(runner=a_runner(job=job))) is turn

    @pytest.mark.parametrize(("handed", "turn"), [("", True), ("a", True), ("another", False)])
    def test_who_is_first_waits_for_what_was_handed_to_the_runner_before(self, handed: str, turn: bool) -> None:
        """The report of the runner is from before that."""
        session = ObservedSession(a_session(), a_policy(), NOW)
        runner = replace(a_runner(), handed=handed)
        assert has_turn(waiting("a"), session, Sandbox(runner=runner)) is turn

    def test_a_runner_that_has_not_reported_keeps_nobody_waiting(self) -> None:
        assert has_turn(waiting(), ObservedSession(a_session(), a_policy(), NOW), Sandbox())

    def test_nothing_is_handed_to_a_session_whose_end_is_decided(self) -> None:
        session = ObservedSession(a_session(), a_policy(), NOW)
        assert has_turn(waiting(), session, a_sandbox()), "control"
        assert not has_turn(waiting(), replace(session, ending=True), a_sandbox())

    def test_nothing_is_handed_to_a_pod_that_was_taken_away_though_its_runner_still_answers(self) -> None:
        session = ObservedSession(a_session(), a_policy(), NOW)
        assert not has_turn(waiting(), session, replace(a_sandbox(), gone=True))


class TestPool:
    def test_the_first_in_order_that_serves_is_asked(self) -> None:
        context: Any = None
        controller = Controller(context)
        for name, first, serves in (("c", 1, True), ("d", 0, False), ("b", 1, True), ("a", 2, True)):
            meta = SimpleNamespace(namespace="box", name=name, uid=name)
            pool: Any = SimpleNamespace(
                meta=meta, order=(first, name), serves=lambda *_, serves=serves, stateful: serves and not stateful
            )
            controller._pools.add(pool)
        found = controller._find_pool("box", Verdict(IMAGE, None), Limits())
        assert found
        assert found.meta.name == "b"
        assert controller._find_pool("another", Verdict(IMAGE, None), Limits()) is None

    def test_the_pod_that_was_admitted_first_goes_to_the_first_that_it_is_for(self) -> None:
        queue = [waiting("wants another image", image=OTHER_IMAGE), waiting("a"), waiting("b"), waiting("c")]
        admitted = {"lost": a_member(sandbox=Sandbox(gone=True)), "one": a_member(), "two": a_member()}
        pairs = assign(queue, admitted.items(), template(), a_pool(), NOW, Timing())
        assert [(one.claim.uid, pod) for one, pod in pairs] == [("a", "one"), ("b", "two")]
        assert assign(queue[1:2], admitted.items(), template(), a_pool(), NOW, Timing()) == [(queue[1], "one")]

    def test_nobody_gets_one_who_has_asked_for_none(self) -> None:
        nobody = Waiting(replace(waiting().claim, asked=None))
        assert assign([nobody], [("one", a_member())], template(), a_pool(), NOW, Timing()) == []


class TestSteps:
    @pytest.mark.parametrize(
        ("phase", "joined", "step"),
        [
            (Phase.PENDING, False, Step.JOIN_SESSION),
            (Phase.RUNNING, False, Step.JOIN_SESSION),
            (Phase.STARTING, True, None),
            (Phase.AWAITING_APPROVAL, True, Step.LEAVE_SESSION),
            (Phase.AWAITING_APPROVAL, False, None),
            (Phase.SUCCEEDED, False, None),
        ],
    )
    def test_of_an_execution_in_a_session(self, phase: Phase, joined: bool, step: Step | None) -> None:
        execution = an_execution(phase=phase, **SESSION_REF)
        assert next_step(execution, session=joined, pool=False, served=False, pod=None) is step

    @pytest.mark.parametrize(
        ("phase", "asked", "served", "pod", "step"),
        [
            (Phase.STARTING, False, False, None, None),
            (Phase.STARTING, True, True, None, None),
            (Phase.STARTING, True, False, None, Step.LEAVE_POOL),
            (Phase.STARTING, True, False, a_sandbox(), None),
            (Phase.STARTING, True, False, Sandbox(gone=True), Step.RETURN_POD),
            (Phase.RUNNING, True, False, Sandbox(gone=True), None),
            (Phase.CANCELLED, True, False, None, None),
        ],
    )
    def test_of_an_execution_that_has_asked_a_pool(
        self, phase: Phase, asked: bool, served: bool, pod: Sandbox | None, step: Step | None
    ) -> None:
        assert next_step(an_execution(phase=phase), session=False, pool=asked, served=served, pod=pod) is step


@pytest.fixture
def claimed() -> tuple[Placement, Any, list[str]]:
    """An execution whose code has ended in a pod that it got from a pool; and what the pool and the API server hear."""
    heard: list[str] = []
    execution = an_execution(phase=Phase.SUCCEEDED, requestedBy="user")

    def take_back(pod: Any, *_: Any) -> bool:
        heard.append(f"take back {pod.pod_name}")
        return True

    async def insist(_: str, __: Any, ___: str, pod: str, ____: Any) -> bool:
        heard.append(f"adopt {pod}")
        return True

    pool: Any = SimpleNamespace(
        keeps_pods=True,
        take_back=take_back,
        join=lambda one: one.receive(pod),
        claims=SimpleNamespace(adopted=lambda _: None),
    )
    connection: Any = SimpleNamespace(changed=None)
    pod: Any = ClaimedPod("default-1", a_sandbox(), connection, None, None, NOW)  # type: ignore[arg-type]
    worker: Any = SimpleNamespace(
        meta=execution.metadata,
        context=SimpleNamespace(cluster=SimpleNamespace(patch_pod=None)),
        insist=insist,
        wake=lambda: None,
        observe_pod=None,
        pods=dict,
        has_besides=lambda *_: None,
        deleted=False,
    )
    place = Placement(worker, lambda: execution, a_register(pool=pool))
    place.ask(Verdict(IMAGE, None))
    assert (worker.pod_name, worker.connection) == ("default-1", connection)
    return place, worker, heard


async def test_a_pod_that_was_handed_back_is_not_adopted_any_more(claimed: tuple[Placement, Any, list[str]]) -> None:
    """Its adoption was decided, and had not begun."""
    place, worker, heard = claimed
    adoption = place.adopt({})
    place.hand_back()
    assert not await adoption
    assert (heard, worker.connection) == (["take back default-1"], None)


async def test_a_pod_that_is_being_adopted_is_not_handed_back(claimed: tuple[Placement, Any, list[str]]) -> None:
    place, _, heard = claimed
    assert await place.adopt({})
    place.hand_back()
    assert heard == ["adopt default-1"]


def test_a_pod_that_was_connected_to_anew_is_not_handed_back(claimed: tuple[Placement, Any, list[str]]) -> None:
    """The pool would hold the connection that has ended, and nobody would close the other."""
    place, worker, heard = claimed
    worker.connection = anew = SimpleNamespace(changed=None)
    place.hand_back()
    assert (heard, worker.connection) == ([], anew)


async def test_a_socket_that_is_closing_keeps_nobody_in_the_queue_of_a_session() -> None:
    """Its execution was deleted while it ran: who comes next must not wait for it for ever (B7)."""
    left: list[str] = []

    async def cancel(uid: str) -> bool:
        raise ConnectionResetError("Cannot write to closing transport")

    runner = SimpleNamespace(cancel=cancel, abandon=lambda uid: left.append(f"abandon {uid}"))
    session: Any = SimpleNamespace(
        connection=runner, join=lambda _: None, leave=lambda _, ran: left.append(f"leave {ran}"), over=False
    )
    execution = an_execution(phase=Phase.RUNNING, **SESSION_REF)
    worker: Any = SimpleNamespace(
        meta=execution.metadata, sandbox=Sandbox(), connection=None, wake=None, observe_pod=None
    )
    place = Placement(worker, lambda: execution, a_register(session=session))
    place.step()
    await asyncio.wait_for(place.abandon_session(), 5)
    place.leave()
    assert left == [f"abandon {UID}", "leave True"]


def test_one_that_is_let_go_of_while_it_lacks_room_asks_for_none_any_more() -> None:
    """Its namespace is served by another operator now, or by none. Pools there would give way to nobody."""
    execution = an_execution(phase=Phase.STARTING)
    blocked = a_sandbox(pod=a_pod(running=False, node_name="", unschedulable="0/1 nodes: 1 Insufficient cpu."))
    worker: Any = SimpleNamespace(
        meta=execution.metadata, sandbox=blocked, connection=None, deleted=False, wake=None, observe_pod=None
    )
    register = a_register()
    place = Placement(worker, lambda: execution, register)
    place.ask_for_room()
    where = execution.metadata.namespace
    assert register.rooms.unserved(where, now(), Timing()) == 1, "control"
    place.leave()
    assert register.rooms.unserved(where, now(), Timing()) == 0
