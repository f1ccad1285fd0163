"""Several operators: one leads, and another takes over when it ends, hangs or is cut off. No code runs twice."""

import asyncio
import time

import pytest
from api_calls import Match
from cluster_tools import wait_for
from component_stage import OPERATOR, in_thread
from fault_proxy import FaultProxy
from faults import Stall

from executor_client import PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)
LEASE_SECONDS = 30
"""Of those whose Lease another one takes after that time. The chart says less, but a leader that a busy machine lets
stand still for two thirds of it ends.
"""
LASTING = 300
"""Of a leader from whom nobody is to take it. Its standby looks as often as LEASE_SECONDS says."""
LOOKS = Match("get", "leases", name=OPERATOR)
WRITES = Match("create,patch,delete")


@pytest.fixture
def another(stage, nobody_leads):
    """Starts operators in place of the one that other tests share, and ends them after the test."""
    made = []

    def start(*, leads=True, **options):
        made.append(stage.operator(**{"lease_seconds": LEASE_SECONDS, **options}))
        made[-1].start(leads=leads)
        return made[-1]

    yield start
    for one in made:
        one.end()
    stage.free_lease()  # one that stood still or whose clock was wrong did not


@pytest.fixture
def own_proxy(stage, stack):
    """Makes proxies for one operator each, so that its calls are told from those of the others."""
    return lambda: stack.enter_context(FaultProxy(stage.plane.kubeconfig_with_token("none")))


async def taken_over(how: str, standby, begun: float, client, asking) -> None:
    """Wait until the standby leads and has run code, and tell how long that took."""
    await in_thread(standby.wait_until_it_leads)
    led = time.monotonic() - begun
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    print(f"takeover, {how}: leads after {led:.1f} s, has run code after {time.monotonic() - begun:.1f} s")


async def test_the_second_stands_by_and_the_first_runs_all(another, stage, client, asking, agent):
    first = await in_thread(lambda: another(lease_seconds=LASTING))
    second = await in_thread(lambda: another(leads=False))
    outcomes = await asyncio.gather(*(client.execute(HELLO, asking()) for _ in range(20)))
    assert [one.output for one in outcomes] == ["hello\n"] * 20
    for record in stage.records(agent=agent):
        stage.ran_once(record)
    assert stage.script.pods_used_twice == 0
    assert (first.leads, second.leads) == (True, False)
    print(f"memory: the leader holds {first.memory_mib()} MiB, the replica that stands by {second.memory_mib()} MiB")
    assert second.answers("readyz")
    assert second.answers("livez")


async def test_the_standby_takes_over_when_the_leader_is_killed(another, stage, client, asking):
    first = await in_thread(another)
    second = await in_thread(lambda: another(leads=False))
    epoch = stage.lease()["leaseTransitions"]
    await in_thread(first.kill, keeps_lease=True)
    await taken_over("killed", second, time.monotonic(), client, asking)
    assert stage.lease()["leaseTransitions"] > epoch


async def test_a_leader_that_is_told_to_go_hands_over_at_once(another, own_proxy, stage, client, asking):
    mine = own_proxy()
    first = await in_thread(lambda: another(through=mine, lease_seconds=LASTING))
    second = await in_thread(lambda: another(leads=False))
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    begun = time.monotonic()
    assert await in_thread(first.stop) == 0
    await taken_over("told to go", second, begun, client, asking)
    last = mine.seen(WRITES)[-1]
    assert (last.call.resource, b'"holderIdentity":""' in last.call.body.replace(b" ", b"")) == ("leases", True)


async def test_a_standby_that_is_told_to_go_disturbs_nobody(another, stage, client, asking):
    first = await in_thread(lambda: another(lease_seconds=LASTING))
    second = await in_thread(lambda: another(leads=False))
    epoch = stage.lease()["leaseTransitions"]
    await in_thread(second.stop)
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    assert first.leads
    assert stage.lease()["leaseTransitions"] == epoch


async def test_a_leader_that_is_cut_off_has_stopped_before_the_next_one_leads(
    another, own_proxy, stage, client, asking, agent
):
    mine = own_proxy()
    first = await in_thread(lambda: another(through=mine))
    second = await in_thread(lambda: another(leads=False))
    taken = Match("patch", "leases", name=OPERATOR)
    before = len(stage.proxy.seen(taken))
    with mine.fault(Match(), Stall()) as cut:
        mine.silence_open(Match())
        begun = time.monotonic()
        queued = [await client.submit(HELLO, asking()) for _ in range(3)]
        await cut.hit()
        assert await in_thread(first.ended) == 1
        await taken_over("cut off", second, begun, client, asking)
    assert [(await one.result()).output for one in queued] == ["hello\n"] * 3
    [new] = stage.proxy.seen(taken)[before : before + 1]
    assert max(one.at for one in mine.seen()) < new.at, "it has asked for nothing more once another led"
    for record in stage.records(agent=agent):
        stage.ran_once(record)


async def test_a_leader_that_stood_still_does_nothing_more(another, own_proxy, stage, client, asking, agent):
    """As after its node slept: it wakes when another leads, and believes that no time has passed."""
    mine = own_proxy()
    first = await in_thread(lambda: another(through=mine))
    second = await in_thread(lambda: another(leads=False))
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    first.pause()
    await taken_over("stood still", second, time.monotonic(), client, asking)
    before = len(mine.seen())
    first.resume()
    assert await in_thread(first.ended) == 1
    assert mine.seen()[before:] == []
    for record in stage.records(agent=agent):
        stage.ran_once(record)


@pytest.mark.parametrize(("first", "second"), [("-300s", "+300s"), ("+300s", "-300s")])
async def test_a_clock_that_is_wrong_takes_nothing_from_a_leader(
    another, own_proxy, stage, client, asking, agent, first, second
):
    leader = await in_thread(lambda: another(clock=first, lease_seconds=LASTING))  # less than the clocks differ
    mine = own_proxy()
    standby = await in_thread(lambda: another(clock=second, leads=False, through=mine))
    epoch = stage.lease()["leaseTransitions"]
    await in_thread(wait_for, "the standby to look again and again", lambda: len(mine.seen(LOOKS)) > 6)
    assert (leader.leads, standby.leads, stage.lease()["leaseTransitions"]) == (True, False, epoch)
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    await in_thread(leader.stop)
    await in_thread(standby.wait_until_it_leads)
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    for record in stage.records(agent=agent):
        stage.ran_once(record)


@pytest.mark.parametrize("offset", ["+90s", "-4s"])
async def test_an_operator_whose_clock_is_wrong_runs_code(another, stage, client, asking, agent, offset):
    await in_thread(lambda: another(clock=offset, lease_seconds=LASTING))
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    stage.ran_once(stage.record(agent))
