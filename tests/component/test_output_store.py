"""100 MB of output go to a store of the owner's, and not through etcd; the operator holds a part of them at a time."""

import pytest
from cluster_tools import SANDBOX
from component_stage import LIMITS, in_thread

from codeexec_api import Phase
from codeexec_api.output_store import STORE_VARIABLE
from codeexec_api.v1alpha1.bounds import MAX_OUTPUT_BYTES, MAX_STORED_BYTES
from executor_client import ExecutionResult, Limits, PreparedBlock

MUCH = 100_000_000
MOST_RATIO = 1.3
"""The operator's peak with 100 MB in a store, by its peak with 16 MiB in ConfigMaps."""


@pytest.fixture
async def run(stage, nobody_leads, admin, client, asking):
    """Runs code that prints so much, with an operator of its own, whose peak of memory it tells, too."""
    policy = stage.a_policy()
    policy["spec"]["maxLimits"]["outputBytes"] = MAX_STORED_BYTES
    await in_thread(admin.apply, policy)
    started = []

    async def with_operator(size: int, limit: int, store: str = "") -> tuple[ExecutionResult, int]:
        other = stage.operator(direct=True)
        started.append(other)
        if store:
            other.environment[STORE_VARIABLE] = store
        await in_thread(other.start)
        request = asking(limits=Limits(**LIMITS, output_bytes=limit), timeout_seconds=300)
        try:
            result = await client.execute([PreparedBlock("python", f"noise({size})".encode())], request)
            return result, other.peak_mib()
        finally:
            await in_thread(other.end)
            await in_thread(stage.free_lease)

    yield with_operator
    await in_thread(admin.delete, "executionpolicy", "default", wait=True)
    for other in started:
        await in_thread(other.end)


def outputs(admin) -> list[str]:
    return [one["metadata"]["name"] for one in admin.list("configmap") if "binaryData" in one]


@pytest.mark.timeout(400)
async def test_100_mb_reach_the_caller_and_cost_the_operator_no_more_than_16(
    run, stage, admin, client, agent, tmp_path, monkeypatch
):
    store = tmp_path / "store"
    monkeypatch.setenv(STORE_VARIABLE, store.as_uri())
    small, without = await run(MAX_OUTPUT_BYTES, MAX_OUTPUT_BYTES)
    assert len(small.stdout) == MAX_OUTPUT_BYTES
    before = await in_thread(outputs, admin)
    assert len(before) > 10, "control: without a store it goes through etcd"

    result, with_store = await run(MUCH, MAX_STORED_BYTES, store.as_uri())
    assert (len(result.stdout), result.truncated, result.exit_code) == (MUCH, False, 0)
    assert await in_thread(outputs, admin) == before

    record = (await client.get(result.name)).status
    objects = {one.relative_to(store).as_posix() for one in store.rglob("*") if one.is_file()}
    uid = next(one["metadata"]["uid"] for one in stage.records(agent=agent) if one["metadata"]["name"] == result.name)
    assert record.output_store
    assert record.output_store.url == store.as_uri()
    assert objects == {f"{SANDBOX}/{uid}/{part}" for part in record.output_store.parts}
    print(
        f"operator's peak: {with_store} MiB with {MUCH} bytes in a store, {without} MiB with {MAX_OUTPUT_BYTES} bytes "
        f"in ConfigMaps, ratio {with_store / without:.2f}"
    )
    assert with_store < MOST_RATIO * without


async def test_without_a_store_so_much_is_denied_and_the_denial_says_what_to_do(run):
    result, _ = await run(1, MUCH)
    assert result.phase is Phase.DENIED
    assert (
        f"Limits(output_bytes={MUCH}) is not allowed by the policy (allowed: at most {MAX_OUTPUT_BYTES}; more than "
        f"{MAX_OUTPUT_BYTES} needs an output store (Helm value outputStore.url)"
    ) in result.message
