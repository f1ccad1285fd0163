"""Namespaces, default policy and default pool change while the operator runs. One namespace in trouble is alone."""

import asyncio

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, SYSTEM, a_name, an_approval, wait_for
from component_stage import LIMITS, OPERATOR, in_thread
from faults import WatchError

from codeexec_api.names import EXECUTION_PLURAL
from executor_client import PreparedBlock
from executor_client.client import execution

HELLO = (PreparedBlock("python", b'print("hello")'),)


def waiting_block(agent: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", f'wait("{agent}")\nprint("hello")'.encode()),)


@pytest.fixture
def same_process(operator):
    """The operator, which must not have been restarted when the test is over."""
    before = operator.pid
    yield operator
    assert operator.running
    assert operator.pid == before


@pytest.fixture
async def team(stage, same_process):
    """A sandbox namespace that was added while the operator runs, and that is taken away again."""
    name = a_name("team")
    await in_thread(lambda: stage.upgrade(namespaces=(SANDBOX, name)))
    await served(same_process, name, 1)
    yield name
    await in_thread(lambda: stage.upgrade(namespaces=(SANDBOX,)))
    await served(same_process, name, None)


async def served(operator, namespace: str, value: int | None) -> None:
    """Wait until the operator tells this of a namespace; None: nothing."""

    def told() -> float | None:
        start = f'codeexec_namespace_served{{sandbox_namespace="{namespace}"}} '
        lines = [line for line in operator.metrics().splitlines() if line.startswith(start)]
        return float(lines[0].removeprefix(start)) if lines else None

    await in_thread(wait_for, f"{namespace} to be told of as {value}", lambda: told() == value)


async def configured(operator, *, valid: bool) -> None:
    line = f"codeexec_configuration_valid {float(valid)}"
    await in_thread(wait_for, f"it to tell: {line}", lambda: line in operator.metrics().splitlines())


async def test_a_namespace_that_is_added_is_served_by_the_same_process(team, stage, make_client, asking):
    assert (await make_client(namespace=team).execute(HELLO, asking())).output == "hello\n"


async def test_a_namespace_whose_rights_are_gone_is_reported_and_no_other_notices(
    team, same_process, stage, admin, make_client, client, asking, agent
):
    running = asyncio.create_task(client.execute(waiting_block(agent), asking()))
    await stage.script.reached(agent, running)
    binding = stage._objects["RoleBinding", team, OPERATOR]
    watch = Match("watch", EXECUTION_PLURAL, namespace=team)
    await in_thread(wait_for, "the team to be watched", lambda: stage.proxy.open_streams(watch))
    await in_thread(admin.delete, "rolebinding", OPERATOR, team)
    stage.proxy.cut_open(watch)  # else it lasts some minutes
    await served(same_process, team, 0)
    assert await in_thread(same_process.answers, "readyz")
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    stage.script.open(agent)
    assert (await running).output == "hello\n"
    assert f"{team}: not served (the API server answered 403)" in same_process.log.read_text()
    await in_thread(admin.apply, binding)
    await served(same_process, team, 1)
    assert (await make_client(namespace=team).execute(HELLO, asking())).output == "hello\n"


async def test_a_namespace_that_is_deleted_is_reported_and_no_other_notices(
    team, same_process, stage, admin, client, asking, agent
):
    running = asyncio.create_task(client.execute(waiting_block(agent), asking()))
    await stage.script.reached(agent, running)
    await in_thread(admin.kubectl, "-n", team, "delete", "role,rolebinding,networkpolicy,limitrange", "--all")
    await in_thread(admin.delete, "namespace", team)
    stage.proxy.cut_open(Match("watch", namespace=team))
    await served(same_process, team, 0)
    stage.script.open(agent)
    assert (await running).output == "hello\n"
    stage.ran_once(stage.record(agent))


async def test_what_runs_in_a_namespace_that_is_taken_away_ends_and_nothing_else_starts(
    team, same_process, stage, admin, make_client, client, asking, agent, monkeypatch
):
    monkeypatch.setattr(execution, "OPERATOR_SECONDS", 600)  # nobody serves one of them for as long as others take
    there, waits = make_client(namespace=team), a_name("agent")
    running = asyncio.create_task(there.execute(waiting_block(agent), asking()))
    await stage.script.reached(agent, running)
    full = stage.configuration
    without = {**full, "data": {**full["data"], "namespaces.yaml": f'["{SANDBOX}"]'}}
    await in_thread(admin.apply, without)  # the rights are left, so that the record can tell how it ended
    await served(same_process, team, None)
    later = asyncio.create_task(there.execute(HELLO, asking(agent=waits)))
    await in_thread(stage.made, waits, team)
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    stage.script.open(agent)
    assert (await running).output == "hello\n"
    [unserved] = stage.records(team, agent=waits)
    assert "status" not in unserved
    await in_thread(admin.apply, full)
    assert (await later).output == "hello\n"


async def test_what_waits_in_a_namespace_goes_on_waiting_when_it_is_served_again(
    team, same_process, stage, admin, make_client, asking, agent
):
    await in_thread(lambda: stage.put_policy(team, languages=["bash"], withApproval={"languages": ["python"]}))
    running = asyncio.create_task(make_client(namespace=team).execute(HELLO, asking()))
    record = await in_thread(stage.in_phase, agent, "AwaitingApproval", team)
    full = stage.configuration
    await in_thread(admin.apply, {**full, "data": {**full["data"], "namespaces.yaml": f'["{SANDBOX}"]'}})
    await served(same_process, team, None)
    await in_thread(admin.apply, full)
    await served(same_process, team, 1)
    await in_thread(admin.apply, an_approval(record, admin.me))
    assert (await running).output == "hello\n"


async def test_a_changed_default_policy_counts_in_the_same_process(same_process, stage, client, asking):
    policy = stage._values["policy"]
    await in_thread(lambda: stage.upgrade(policy={**policy, "languages": ["bash"]}))
    try:
        while (await client.execute(HELLO, asking())).exit_code == 0:
            continue
    finally:
        await in_thread(lambda: stage.upgrade(policy=policy))
    while (await client.execute(HELLO, asking())).exit_code != 0:
        continue


async def test_a_default_pool_that_is_switched_on_is_made_in_the_same_process(team, stage, admin):
    pool = {"enabled": True, "replicas": 1, "limits": LIMITS}
    await in_thread(lambda: stage.upgrade(defaultPool=pool))
    try:
        for namespace in (SANDBOX, team):
            made = lambda namespace=namespace: admin.exists("sandboxpool", "default", namespace)  # noqa: E731
            await in_thread(wait_for, f"the pool of {namespace}", made)
    finally:
        await in_thread(lambda: stage.upgrade(defaultPool={"enabled": False}))
        for namespace in (SANDBOX, team):
            await in_thread(admin.delete, "sandboxpool", "default", namespace, wait=True)
            gone = lambda namespace=namespace: not any(one.startswith("default-") for one in stage.pods(namespace))  # noqa: E731
            await in_thread(wait_for, "its pods to be deleted", gone)


@pytest.mark.parametrize(
    ("key", "text"), [("policy.yaml", "images: []"), ("namespaces.yaml", "[]"), ("pool.yaml", "replicas: many")]
)
async def test_a_configuration_that_is_not_valid_is_reported_and_the_last_one_stays(
    same_process, stage, admin, client, asking, key, text
):
    good = stage.configuration
    await in_thread(admin.apply, {**good, "data": {**good["data"], key: text}})
    await configured(same_process, valid=False)
    assert f"the ConfigMap {SYSTEM}/{OPERATOR} is not valid" in same_process.log.read_text()
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    await in_thread(admin.apply, good)
    await configured(same_process, valid=True)


async def test_an_operator_that_is_started_without_a_valid_configuration_serves_nothing_until_there_is_one(
    nobody_leads, stage, admin, request
):
    good = stage.configuration
    await in_thread(admin.apply, {**good, "data": {**good["data"], "policy.yaml": "images: []"}})
    one = stage.operator()
    request.addfinalizer(one.end)
    try:
        await in_thread(lambda: one.start(ready=False))
        await in_thread(wait_for, "the reason to be logged", lambda: "nothing is served yet" in one.log.read_text())
        assert not await in_thread(one.answers, "readyz")
        assert await in_thread(one.answers, "livez")
    finally:
        await in_thread(admin.apply, good)
    await in_thread(one.wait_until_ready)


@pytest.mark.parametrize("fault", [WatchError(500), WatchError(410)], ids=str)
async def test_a_watch_on_the_configuration_that_fails_is_opened_again(same_process, stage, fault):
    watch = Match("watch", "configmaps")
    with stage.proxy.fault(watch, fault, times=1) as rule:
        stage.proxy.cut_open(watch)
        await rule.hit()
    name = a_name("team")
    await in_thread(lambda: stage.upgrade(namespaces=(SANDBOX, name)))
    await served(same_process, name, 1)
    await in_thread(lambda: stage.upgrade(namespaces=(SANDBOX,)))
    await served(same_process, name, None)
