"""The public fake of the cluster side does as the cluster does: each case of `fake_cases` is played on both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial

import pytest
from cluster_tools import SANDBOX, Admin
from fake_cases import CASES, Case, FakeStage

from executor_client import ClusterRef, CodeExecutionClient

pytestmark = pytest.mark.e2e


class RealStage:
    def __init__(self, client: CodeExecutionClient, admin: Admin) -> None:
        self.client = client
        self._admin = admin

    async def lose_pod(self, name: str) -> None:
        label = f"codeexec.dev/execution={name}" if name.startswith("run-") else f"codeexec.dev/session={name}"
        delete = ("-n", SANDBOX, "delete", "pod", "--selector", label, "--force", "--grace-period", "0")
        await asyncio.to_thread(self._admin.kubectl, *delete)

    async def wait_for_end(self, session: str, seconds: float) -> None:
        transport = await self.client.connect()
        current = await transport.get_session(session)
        async with asyncio.timeout(seconds + 30), aclosing(transport.session_changes(current)) as changes:
            while not current.status.phase.terminal:
                current = await anext(changes)


@pytest.fixture
async def real(agent_kubeconfig: str, admin: Admin) -> AsyncIterator[RealStage]:
    """With no more rights than an agent has; only pods are deleted by the administrator."""
    client = CodeExecutionClient(ClusterRef(kubeconfig=agent_kubeconfig))
    yield RealStage(client, admin)
    await client.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_fake_does_as_the_cluster_does(case: Case, real: RealStage, policy):
    if case.policy:
        await asyncio.to_thread(partial(policy, **case.policy))
    on_the_cluster = await case.play(real)
    on_the_fake = await case.play(FakeStage(case.script, case.policy))
    assert on_the_fake == on_the_cluster
