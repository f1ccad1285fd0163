"""Two operators share the namespaces: each serves its own, and no namespace is ever served by both."""

import asyncio
import base64
from datetime import UTC, datetime, timedelta

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, SYSTEM, Admin, a_name, wait_for
from component_stage import OPERATOR, in_thread
from fault_proxy import FaultProxy

from codeexec_api.sealing import make_private_key, publish
from codeexec_operator.core.keyring import Keyring, SealingKey
from codeexec_operator.core.shard import Shard
from executor_client import PreparedBlock
from executor_client.client import execution

HELLO = (PreparedBlock("python", b'print("hello")'),)
LEASE_SECONDS = 30
"""A leader that a busy machine lets stand still for two thirds of this ends."""
WRITES = Match("create,patch,delete", where=lambda call: call.resource != "leases")
RELEASE = {"logLevel": "INFO", "shards": 2}
"""What gives operators the rights to both Leases."""
HERE = next(one for one in range(2) if Shard(one, 2).serves(SANDBOX))
"""The shard of the sandbox namespace that other tests use; another namespace is the other shard's."""


def waiting_at(gate: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", f'wait("{gate}")\nprint("done")'.encode()),)


@pytest.fixture
async def team(stage, nobody_leads):
    """A sandbox namespace of the other shard. The operator that serves all namespaces is ended."""
    name = next(one for one in iter(lambda: a_name("team"), None) if not Shard(HERE, 2).serves(one))
    await in_thread(lambda: stage.upgrade(namespaces=(SANDBOX, name), operator=RELEASE))
    yield name
    await in_thread(lambda: stage.upgrade(namespaces=(SANDBOX,), operator=RELEASE | {"shards": 1}))


@pytest.fixture
def begin(stage, stack):
    """Starts operators, each with a proxy of its own, and ends them after the test."""
    made = []

    def start(index, count, *, leads=True, **options):
        proxy = stack.enter_context(FaultProxy(stage.plane.kubeconfig_with_token("none")))
        made.append(stage.operator(shard=(index, count), lease_seconds=LEASE_SECONDS, through=proxy, **options))
        made[-1].start(ready=leads, leads=leads)
        return made[-1], proxy

    yield start
    for one in made:
        one.end()


@pytest.mark.suspect
async def test_each_serves_its_namespaces_and_goes_on_without_the_other(
    team, begin, stage, make_client, client, asking, agent, monkeypatch
):
    monkeypatch.setattr(execution, "OPERATOR_SECONDS", 600)  # the Lease of one that was killed lasts, and a start, too
    elsewhere = make_client(namespace=team)
    ours, mine = await in_thread(begin, HERE, 2)
    _, theirs = await in_thread(begin, 1 - HERE, 2)
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    assert (await elsewhere.execute(HELLO, asking())).output == "hello\n"
    assert {one.call.namespace for one in mine.seen(WRITES)} - {SYSTEM} == {SANDBOX}
    assert team in {one.call.namespace for one in theirs.seen(WRITES)}
    await in_thread(ours.kill, keeps_lease=True)
    heard = []
    waits = asyncio.create_task(client.execute(HELLO, asking(on_wait=heard.append)))
    assert (await elsewhere.execute(HELLO, asking())).output == "hello\n"
    assert not waits.done()
    await in_thread(begin, HERE, 2)
    assert (await waits).output == "hello\n"
    assert heard[0].reason == "WaitingForOperator"
    for namespace in (SANDBOX, team):
        for record in stage.records(namespace, agent=agent):
            stage.ran_once(record)


@pytest.mark.suspect
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
async def test_code_goes_on_while_the_number_of_shards_changes(
    team, begin, stage, make_client, client, asking, agent, before, after
):
    """The operators of the new number are there before those of the old one have gone, and do nothing yet."""
    old = [(await in_thread(begin, index, before))[0] for index in range(before)]
    clients = {SANDBOX: client, team: make_client(namespace=team)}
    running = [asyncio.create_task(one.execute(waiting_at(agent + name), asking())) for name, one in clients.items()]
    for name in clients:
        await stage.script.reached(agent + name)

    first_free = after - 1 if after > before else 0  # the Lease of this one is free, or the next to become so
    if first_free < before:
        await in_thread(old[first_free].stop)
    early, proxy = await in_thread(lambda: begin(first_free, after, leads=False))
    seen = Match("get", "leases")
    looked = len(proxy.seen(seen))
    await in_thread(wait_for, "it to look at the Leases again and again", lambda: len(proxy.seen(seen)) > looked + 60)
    assert proxy.seen(WRITES) == []
    assert "replicas that count another number of shards hold" in early.log.read_text()

    for one in old:
        if one.running:
            await in_thread(one.stop)
    for index in set(range(after)) - {first_free}:
        await in_thread(begin, index, after)
    await in_thread(early.wait_until_it_leads)
    for name in clients:
        stage.script.open(agent + name)
    assert [one.output for one in await asyncio.gather(*running)] == ["done\n"] * 2
    for name, one in clients.items():
        assert (await one.execute(HELLO, asking())).output == "hello\n"
        for record in stage.records(name, agent=agent):
            stage.ran_once(record)


async def test_a_shard_has_a_higher_epoch_than_all_that_served_its_namespaces_before(team, begin, stage, admin):
    """A replica whose clock is behind refuses nobody, and runners don't refuse it."""
    first, _ = await in_thread(begin, 0, 1)
    before = stage.lease()["leaseTransitions"]
    await in_thread(first.stop)
    ahead = {"spec": {"leaseTransitions": before + 10_000_000}}
    await in_thread(admin.patch, "lease", OPERATOR, ahead, SYSTEM)
    await in_thread(begin, 1, 2)
    other = admin.get("lease", f"{OPERATOR}-1", SYSTEM)
    assert other["spec"]["leaseTransitions"] > before + 10_000_000
    assert other["metadata"]["annotations"]["codeexec.dev/shards"] == "2"


async def test_a_key_stays_as_long_as_a_namespace_of_another_shard_needs_it(
    stage, nobody_leads, begin, admin, make_client, asking
):
    """The key was followed by another two days ago. The shard of the namespace is away, so its code waits."""
    elsewhere = next(one for one in iter(lambda: a_name("team"), None) if Shard(1, 2).serves(one))
    await in_thread(lambda: stage.upgrade(namespaces=(SANDBOX, elsewhere)))
    now = datetime.now(UTC)
    names = {"old": 3, "needed": 2, "newest": 0}
    keys = [SealingKey(name, make_private_key(), now - timedelta(days=age)) for name, age in names.items()]
    ring = Keyring((*keys[:2], SealingKey("between", make_private_key(), now - timedelta(days=1, hours=1)), keys[2]))
    itself = Admin(stage.plane.kubeconfig_with_token(stage.token(SYSTEM, OPERATOR)))  # admission refuses all others
    change = {"stringData": {"keys.json": ring.dump()}}
    await in_thread(lambda: itself.patch("secret", "codeexec-sealing", change, namespace=SYSTEM))
    published = {"data": publish(keys[1].name, keys[1].private)}
    await in_thread(lambda: itself.patch("configmap", "codeexec-sealing-key", published, namespace=elsewhere))
    waits = await make_client(namespace=elsewhere).submit(HELLO, asking())

    def kept() -> set[str]:
        data = admin.get("secret", "codeexec-sealing", SYSTEM)["data"]["keys.json"]
        return {one.name for one in Keyring.load(base64.b64decode(data).decode()).keys}

    await in_thread(lambda: begin(0, 2, clock="+0 x10"))
    await in_thread(wait_for, "the key that nobody needs to be thrown away", lambda: "old" not in kept(), 200)
    assert {"needed", "newest"} <= kept()
    await waits.cancel()
    await in_thread(lambda: stage.upgrade(namespaces=(SANDBOX,)))
