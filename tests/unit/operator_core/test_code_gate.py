"""Rules for code on the way of an execution: when its code is read, what goes on record, and what never starts."""

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories import (
    AGENT,
    CLUSTER_VIEW,
    CODE,
    NOW,
    SECRETS,
    SESSION_REF,
    a_policy,
    a_raw_block,
    a_sandbox,
    a_spec,
    a_view,
    an_approval,
    an_execution,
)
from hypothesis import given
from hypothesis import strategies as st
from polling import clock_jumps_once

from codeexec_api import CodeExecutionStatus, ExecutionPolicySpec, Grant, Phase, Reason, evaluate
from codeexec_api.code_rules import Inquiry, Reading, unread
from codeexec_api.policy import policy_for
from codeexec_operator.adapters import code_reader
from codeexec_operator.adapters.code_reader import CodeReader
from codeexec_operator.core.actions import AskPool, CreatePod, Plan, ReadRequest, StartCode
from codeexec_operator.core.observed import Observed, PolicyProblem, PoolView
from codeexec_operator.core.payload import HeldPayload, Payload, PayloadProblem
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.startup import prove
from codeexec_operator.core.timing import Timing

TIMING = Timing()
IMPORTS_OS = b"import os\n"
PAYLOAD = Payload((IMPORTS_OS,), (), SECRETS)
HELD = HeldPayload(SECRETS)
GRANTS = (Grant(field="spec.blocks[0]", value="import os"),)
BLOCKS = {"blocks": [a_raw_block(IMPORTS_OS)], "requestedBy": AGENT}


def govern(action: str, *imports: str, **rest: Any) -> ExecutionPolicySpec:
    return a_policy(codeRules=[{"action": action, "imports": imports or ("os",)}], **rest)


def reading(*hits: int, policy: ExecutionPolicySpec | None = None, **spec: Any) -> Reading:
    """What is known of the code of `seen`, for the rules of this policy: it imports os, unless told otherwise."""
    rules = (policy or govern("Deny")).code_rules
    inquiry = Inquiry(a_spec(**(BLOCKS | spec)), (IMPORTS_OS,), (), rules)
    return inquiry.reading(str(list(hits or (0,))).encode())


def seen(phase: Phase = Phase.PENDING, **rest: Any) -> Observed:
    status, spec = rest.pop("status", {}), BLOCKS | rest.pop("spec", {})
    if isinstance(status, CodeExecutionStatus):
        execution = an_execution(**spec).model_copy(update={"status": status})
    else:
        execution = an_execution(phase=phase, status=status, **spec)
    known = {"policy": govern("Deny"), "since": NOW, "cluster_view": CLUSTER_VIEW, "payload": PAYLOAD}
    return Observed(execution=execution, **{"pool_asked": True, "reading": reading(), **known, **rest})


def plan(observed: Observed) -> Plan:
    return decide(observed, NOW, TIMING)


def status_of(result: Plan) -> CodeExecutionStatus:
    assert isinstance(result.status, CodeExecutionStatus)
    return CodeExecutionStatus.model_validate(result.status.dump())


def findings(status: CodeExecutionStatus) -> list[str]:
    return [f"{one.action.value} {one.found} {', '.join(one.places)}" for one in status.code_findings]


def started(result: Plan) -> bool:
    return any(isinstance(action, StartCode | CreatePod | AskPool) for action in result.actions)


# --- when it is accepted --------------------------------------------------------------------------------------------


def test_deny_ends_it_and_says_what_was_found() -> None:
    status = status_of(plan(seen()))
    assert (status.phase, status.reason) == (Phase.DENIED, "PolicyViolation")
    assert status.message.startswith("spec.blocks[0]: import os is not allowed by the policy")
    assert findings(status) == ["Deny import os spec.blocks[0]"]


def test_a_note_is_on_record_and_the_code_goes_on() -> None:
    result = plan(seen(policy=govern("Note")))
    assert started(result)
    assert findings(status_of(result)) == ["Note import os spec.blocks[0]"]


def test_approval_is_asked_for_and_the_code_goes_on_when_it_is_given() -> None:
    policy = govern("NeedApproval")
    asked = status_of(plan(seen(policy=policy)))
    assert asked.phase is Phase.AWAITING_APPROVAL
    assert asked.approval
    assert asked.approval.grants == GRANTS
    assert findings(asked) == ["NeedApproval import os spec.blocks[0]"]
    waiting = {"policy": policy, "payload": HELD}
    approvals = (an_approval(grants=[("spec.blocks[0]", "import os")]),)
    approved = status_of(plan(seen(status=asked, approvals=approvals, **waiting)))
    assert (approved.phase, approved.reason) == (Phase.APPROVED, "Approved")
    goes_on = plan(seen(status=approved, approvals=approvals, **waiting))
    assert started(goes_on)
    assert findings(status_of(goes_on)) == ["NeedApproval import os spec.blocks[0]"]
    other = (an_approval(grants=[("spec.blocks[0]", "import socket")]),)
    refused = status_of(plan(seen(status=asked, approvals=other, **waiting)))
    assert refused.phase is Phase.AWAITING_APPROVAL
    assert refused.approval
    assert [one.reason for one in refused.approval.unused] == ["OtherGrants"]


@pytest.mark.parametrize("action", ["Note", "NeedApproval", "Deny"])
def test_code_is_read_before_anything_else(action: str) -> None:
    assert plan(seen(policy=govern(action), reading=None)) == Plan(actions=(ReadRequest(),))


def test_what_will_not_run_in_any_case_is_not_read() -> None:
    cancelled = status_of(plan(seen(spec={"cancelled": True}, reading=None)))
    assert (cancelled.phase, findings(cancelled)) == (Phase.CANCELLED, [])
    too_long = status_of(plan(seen(spec={"timeout_seconds": 86_400}, reading=None)))
    assert (too_long.phase, too_long.reason) == (Phase.DENIED, "PolicyViolation")
    assert "spec.timeoutSeconds" in too_long.message
    assert "Python" not in too_long.message, "nobody has looked"


def test_without_rules_or_without_python_nothing_is_read() -> None:
    assert started(plan(seen(policy=a_policy(), reading=None)))
    assert findings(status_of(plan(seen(policy=a_policy())))) == []
    shell = {"blocks": [a_raw_block(IMPORTS_OS, language="bash")]}
    assert started(plan(seen(spec=shell, reading=None)))


@pytest.mark.parametrize(
    "problem",
    [PayloadProblem(Reason.PAYLOAD_MISMATCH, "another digest", SECRETS), PayloadProblem(Reason.PAYLOAD_FOREIGN, "no")],
)
def test_of_a_payload_that_is_none_the_problem_is_told_and_nothing_else(problem: PayloadProblem) -> None:
    status = status_of(plan(seen(payload=problem, reading=None)))
    assert (status.reason, findings(status)) == (problem.reason.value, [])


def test_a_policy_that_can_not_be_understood_stays_the_reason() -> None:
    status = status_of(plan(seen(policy=PolicyProblem("codeRules: wrong"), reading=None)))
    assert status.reason == "PolicyInvalid"


# --- and once more, before the code starts --------------------------------------------------------------------------

PROVEN = prove(a_sandbox().pod, a_sandbox().runner.ready, CLUSTER_VIEW, NOW, 1)  # type: ignore[arg-type]
POOL = PoolView("default", NOW, pod_name="default-1", image=a_policy().images[0], proven=PROVEN)
READY = {
    "alone": {"sandbox": a_sandbox()},
    "session": {"session": a_view(), "spec": SESSION_REF},
    "pool": {"pool": POOL, "sandbox": a_sandbox(), "status": {"pool_name": "default", "pod_name": ""}},
}


@pytest.mark.parametrize("where", READY)
def test_rules_that_came_meanwhile_count_in_the_last_moment(where: str) -> None:
    ready = seen(Phase.STARTING, policy=a_policy(), reading=None, **READY[where])
    assert any(isinstance(one, StartCode) for one in plan(ready).actions), "control"
    ruled = replace(ready, policy=govern("Deny"))
    assert plan(ruled) == Plan(actions=(ReadRequest(),)), "nobody has looked at it yet"
    result = plan(replace(ruled, reading=reading(**READY[where].get("spec", {}))))
    assert not any(isinstance(one, StartCode) for one in result.actions)
    assert (status_of(result).phase, findings(status_of(result))) == (Phase.DENIED, ["Deny import os spec.blocks[0]"])


@pytest.mark.parametrize("where", READY)
def test_a_payload_that_was_let_go_of_is_read_again_and_what_is_known_of_it_still_counts(where: str) -> None:
    policy = govern("Note")
    held = seen(Phase.STARTING, policy=policy, payload=HELD, **READY[where])
    assert plan(held).actions == (ReadRequest(),)
    result = plan(replace(held, payload=PAYLOAD))
    assert any(isinstance(one, StartCode) for one in result.actions)
    assert findings(status_of(result)) == ["Note import os spec.blocks[0]"]


def test_a_reading_of_other_code_starts_nothing() -> None:
    other = Inquiry(a_spec(), (CODE,), (), govern("Deny").code_rules).reading(b"[]")
    ready = seen(Phase.STARTING, reading=other, **READY["alone"])
    assert plan(ready) == Plan(actions=(ReadRequest(),))


def test_rules_that_list_more_while_it_waits_have_it_read_again() -> None:
    asked = status_of(plan(seen(policy=govern("NeedApproval"))))
    more = govern("NeedApproval", "os", "socket")
    waiting = seen(status=asked, policy=more, payload=HELD, approvals=())
    assert plan(waiting) == Plan(actions=(ReadRequest(),))
    assert plan(replace(waiting, reading=reading(policy=more))).wake_at, "it goes on waiting for the same"


ACTIONS = st.sampled_from(["Note", "NeedApproval", "Deny"])
MODULES = st.lists(st.sampled_from(["os", "socket"]), min_size=1, unique=True).map(tuple)


@given(
    phase=st.sampled_from([Phase.PENDING, Phase.APPROVED, Phase.STARTING]),
    where=st.sampled_from(list(READY)),
    rules=st.none() | st.tuples(ACTIONS, MODULES),
    known=st.none() | st.tuples(MODULES, st.lists(st.integers(0, 1), max_size=2)),
    payload=st.sampled_from([PAYLOAD, HELD, None]),
)
def test_no_code_starts_that_the_policy_does_not_allow_by_what_is_known_of_it(
    phase: Phase, where: str, rules: Any, known: Any, payload: Any
) -> None:
    policy = govern(rules[0], *rules[1]) if rules else a_policy()
    spec = READY[where].get("spec", {})
    of = known and reading(*(one % len(known[0]) for one in known[1]), policy=govern("Note", *known[0]), **spec)
    observed = seen(phase, policy=policy, payload=payload, approvals=(), **READY[where] | {"reading": of})
    if any(isinstance(action, StartCode) for action in plan(observed).actions):
        assert evaluate(observed.execution.spec, policy, of).allowed
        assert not unread(observed.execution.spec, policy_for(observed.execution.spec, policy).code_rules, of)
        assert payload == PAYLOAD


# --- the child process of the operator ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def patient(reading_takes_its_time: None) -> None:
    """A busy machine gives the child its CPU late."""


def inquiry(*codes: bytes, modules: tuple[str, ...] = ("os",)) -> Inquiry:
    spec = a_spec(blocks=[a_raw_block(code) for code in codes])
    return Inquiry(spec, codes, (), govern("Deny", *modules).code_rules)


def hits(read: Reading) -> dict[str, tuple[str, ...]]:
    return {one.module: one.places for one in read.hits}


async def test_it_reads_code_and_keeps_the_order() -> None:
    read = await CodeReader().read(
        inquiry(b"import socket", b"%ls", b"import os.path, socket", modules=("os", "socket"))
    )
    assert hits(read) == {
        "": ("spec.blocks[1]",),
        "os": ("spec.blocks[2]",),
        "socket": ("spec.blocks[0]", "spec.blocks[2]"),
    }


async def test_code_of_a_megabyte_and_hostile_code_at_the_same_time_leave_the_loop_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No child reads before the loop has turned often, which it can't where the code is read in it."""
    reader, may = CodeReader(), tmp_path / "may"
    waits = ("/bin/sh", "-c", 'until [ -e "$0" ]; do sleep 0.01; done; exec "$@"', str(may), *Inquiry.command())
    monkeypatch.setattr(Inquiry, "command", staticmethod(lambda: waits))
    codes = [b"(" * 900_000, b"a\n" * 450_000, b"#" * 900_000 + b"\nimport os"]
    reading = asyncio.gather(*(reader.read(inquiry(code)) for code in codes))
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert not reading.done()
    may.touch()
    assert [set(hits(one)) for one in await reading] == [{""}, {""}, {"os"}]


async def test_two_children_at_a_time_and_one_of_them_for_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0
    ask = code_reader._ask

    async def counted(*arguments: Any) -> bytes:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        answer = await ask(*arguments)
        running -= 1
        return answer

    monkeypatch.setattr(code_reader, "_ask", counted)
    reader = CodeReader()

    async def in_turn(namespace: str) -> None:
        async with reader.turn(namespace, 1):
            await reader.read(inquiry(IMPORTS_OS))

    await asyncio.gather(*(in_turn("one") for _ in range(4)))
    assert most == 1
    await asyncio.gather(*(in_turn(namespace) for namespace in ("one", "two", "two", "three", "four")))
    assert most == 2


async def test_code_that_takes_long_to_read_holds_up_no_other_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, never = CodeReader(), asyncio.Event()

    async def child(namespace: Any) -> None:
        if namespace == "hostile":
            await never.wait()

    monkeypatch.setattr(code_reader, "_read", child)

    async def take(namespace: Any) -> None:
        async with reader.turn(namespace, 1):
            await reader.read(namespace)

    hostile = [asyncio.create_task(take("hostile")) for _ in range(10)]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        for _ in range(5):
            await take("other")
    assert not any(one.done() for one in hostile)
    never.set()
    await asyncio.gather(*hostile)


async def test_much_code_that_takes_long_to_fetch_holds_up_no_little_code_of_another_namespace() -> None:
    """Two namespaces have all the room for much code, and wait for the API server."""
    reader, never = CodeReader(), asyncio.Event()

    async def fetch(namespace: str) -> None:
        async with reader.turn(namespace, 16_000_000):
            await never.wait()

    fetching = [asyncio.create_task(fetch(namespace)) for namespace in ("one", "two", "three", "one", "two")]
    await asyncio.sleep(0)
    async with asyncio.timeout(60), reader.turn("other", 200_000):
        assert not any(one.done() for one in fetching)
    never.set()
    await asyncio.gather(*fetching)


async def test_namespaces_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, order = CodeReader(), []

    async def no_child(namespace: Any) -> None:
        await asyncio.sleep(0)
        order.append(namespace)

    monkeypatch.setattr(code_reader, "_read", no_child)

    async def take(namespace: Any) -> None:
        async with reader.turn(namespace, 1):
            await reader.read(namespace)

    await asyncio.gather(*(take("many") for _ in range(5)), take("one"))
    assert order[:2] == ["many", "one"]
    assert len(order) == 6


async def test_a_namespace_whose_code_does_not_come_keeps_no_other_waiting() -> None:
    reader, fetched = CodeReader(), asyncio.Event()

    async def hang() -> None:
        async with reader.turn("hangs", 1000):
            await fetched.wait()

    hanging = asyncio.create_task(hang())
    async with asyncio.timeout(100):  # of a child; a lock would be held for ever
        async with reader.turn("other", 1000):
            assert hits(await reader.read(inquiry(IMPORTS_OS)))
    assert not hanging.done()
    fetched.set()
    await hanging


@pytest.mark.parametrize(("small", "room"), [(399, "_HELD_BYTES"), (400, "_SMALL_HELD_BYTES")])
async def test_no_more_code_is_held_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch, small: int, room: str
) -> None:
    monkeypatch.setattr(code_reader, "_SMALL", small)
    monkeypatch.setattr(code_reader, room, 1000)
    reader, held, most = CodeReader(), 0, 0

    async def hold(namespace: str) -> None:
        nonlocal held, most
        async with reader.turn(namespace, 400):
            held += 400
            most = max(most, held)
            await asyncio.sleep(0)
            held -= 400

    await asyncio.gather(*(hold(str(number)) for number in range(10)))
    assert most == 800


async def test_a_child_that_takes_too_long_is_killed_and_what_it_has_not_told_is_unreadable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow = ("/bin/sh", "-c", "echo '[0]'; exec sleep 600")
    monkeypatch.setattr(Inquiry, "command", staticmethod(lambda: slow))
    heard, read_some = [], asyncio.StreamReader.read

    async def hear(self: asyncio.StreamReader, size: int = -1) -> bytes:
        heard.append(await read_some(self, size))
        return heard[-1]

    monkeypatch.setattr(asyncio.StreamReader, "read", hear)
    clock_jumps_once(lambda: heard, code_reader.WALL_SECONDS)
    read = await CodeReader().read(inquiry(b"x = 1" + b"#" * 900_000, b"import os"))  # which it doesn't take
    assert hits(read) == {"os": ("spec.blocks[0]",), "": ("spec.blocks[1]",)}
    assert "it counts as unreadable" in caplog.text
    assert "import os" not in caplog.text


@pytest.mark.parametrize(
    "program",
    [
        f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})",
        "import sys; sys.stdout.write('[0]' * 10_000_000)",
        "import sys; sys.stdout.write('[1]\\n' * 10_000)",
        "",
    ],
)
async def test_a_child_that_dies_or_says_something_else_tells_nothing(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (Inquiry.command()[0], "-c", program)
    monkeypatch.setattr(Inquiry, "command", staticmethod(lambda: words))
    read = await CodeReader().read(inquiry(b"x = 1" + b"#" * 900_000))
    assert hits(read) == {"": ("spec.blocks[0]",)}


async def test_a_child_that_can_not_be_started_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inquiry, "command", staticmethod(lambda: ("/nowhere/python",)))
    with pytest.raises(OSError, match="nowhere"):
        await CodeReader().read(inquiry(IMPORTS_OS))


async def test_who_does_not_wait_any_more_leaves_no_child_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (Inquiry.command()[0], "-c", "import time; time.sleep(60)")
    reader = CodeReader()
    with monkeypatch.context() as patched:
        patched.setattr(Inquiry, "command", staticmethod(lambda: words))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await reader.read(inquiry(IMPORTS_OS))
    assert hits(await reader.read(inquiry(IMPORTS_OS))) == {"os": ("spec.blocks[0]",)}, "it is the next one's turn"
