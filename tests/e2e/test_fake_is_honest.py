"""The public fake of the cluster side does as the cluster does: each case of `fake_cases` is played on both.

On the cluster some cases are played at the same time: they begin with the first test, and each test waits for its own.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from cluster_tools import SANDBOX, Admin
from fake_cases import CASES, Case, FakeStage

from codeexec_api import Reason
from executor_client import ClusterRef, CodeExecutionClient

AT_THE_SAME_TIME = 4
"""The node starts a few pods at a time only, and other tests have pods, too."""
IN_ORDER = sorted(CASES, key=lambda case: bool(case.policy))
"""Those last that change the policy of the namespace: then nothing else is played there."""


class RealStage:
    def __init__(self, client: CodeExecutionClient, admin: Admin, approver: Admin) -> None:
        self.client = client
        self._admin, self._approver = admin, approver

    async def lose_pod(self, name: str) -> None:
        kind = "execution" if name.startswith("run-") else "session"
        [pod] = await asyncio.to_thread(self._admin.list, "pod", labels=f"codeexec.dev/{kind}={name}")
        now = partial(self._admin.delete, "pod", pod["metadata"]["name"], gracePeriodSeconds=0)
        await asyncio.to_thread(now)

    async def wait_for_end(self, session: str, seconds: float) -> None:
        transport = await self.client.connect()
        current = await transport.get_session(session)
        async with asyncio.timeout(seconds + 30), aclosing(transport.session_changes(current)) as changes:
            while not current.status.phase.terminal:
                current = await anext(changes)

    def no_pod_starts(self, reason: Reason, message: str) -> None:
        """It finds that out by itself."""

    def somebody_else(self) -> CodeExecutionClient:
        return CodeExecutionClient(ClusterRef(SANDBOX, self._approver.kubeconfig))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(agent_kubeconfig: str, admin: Admin, approver: Admin) -> AsyncIterator[RealStage]:
    """With no more rights than an agent has; only pods are deleted by the administrator."""
    client = CodeExecutionClient(ClusterRef(SANDBOX, agent_kubeconfig))
    yield RealStage(client, admin, approver)
    await client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(real: RealStage, request: pytest.FixtureRequest) -> AsyncIterator[Mapping[str, "asyncio.Task[Any]"]]:
    """The chosen cases that the default policy is enough for, on the cluster."""
    room = asyncio.Semaphore(AT_THE_SAME_TIME)

    async def play(case: Case) -> Any:
        async with room:
            return await case.play(real)

    chosen = {item.callspec.params["case"].name for item in request.session.items if item.path == request.path}
    cases = [case for case in IN_ORDER if case.name in chosen and not case.policy]
    tasks = {case.name: asyncio.create_task(play(case)) for case in cases}
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", IN_ORDER, ids=lambda case: case.name)
async def test_the_fake_does_as_the_cluster_does(case: Case, real: RealStage, played, policy):
    if case.policy:
        await asyncio.wait(played.values())
        await asyncio.to_thread(partial(policy, **case.policy))
        on_the_cluster = await case.play(real)
    else:
        on_the_cluster = await played[case.name]
    on_the_fake = await case.play(FakeStage(case.script, case.policy, SANDBOX))
    assert on_the_fake == on_the_cluster
