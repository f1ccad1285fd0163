"""The requests for the Lease wait for no others: a leader that can't renew in time ends, and the next one does, too."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from answered_cluster import answered_by
from polling import until

from codeexec_operator.adapters import api_server
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.core.leadership import LeaseRecord

SYSTEM, NAME = "codeexec-system", "codeexec-operator"
BOXES = 4
"""Namespaces that have the operator's whole number of requests together."""
LEASE = {
    "metadata": {"name": NAME, "resourceVersion": "1"},
    "spec": {"holderIdentity": "me", "leaseTransitions": 1, "leaseDurationSeconds": 10},
}


class Played:
    """An API server that answers for Leases only."""

    def __init__(self) -> None:
        self.unanswered = 0
        self.answer = asyncio.Event()

    async def asked(self, request: web.Request) -> web.Response:
        if "/leases" not in request.path:
            self.unanswered += 1
            await self.answer.wait()
        return web.json_response(LEASE)


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.fixture
async def cluster(played: Played) -> AsyncIterator[Cluster]:
    async with answered_by(played.asked) as made:
        yield made


@pytest.mark.parametrize("stored", [True, False], ids=["renewed", "created"])
async def test_the_lease_waits_for_no_request_of_any_namespace(cluster: Cluster, played: Played, stored: bool) -> None:
    each = api_server._REQUESTS_OF_ONE + 1
    slow = [
        asyncio.create_task(cluster.delete_pod(f"box-{box}", f"run-{one}"))
        for box in range(BOXES)
        for one in range(each)
    ]
    await until(lambda: played.unanswered == api_server._REQUESTS)
    other = asyncio.create_task(cluster.get_lease(SYSTEM, NAME))
    record = LeaseRecord("me", 1, 10, "", "", "1" if stored else "")
    assert await asyncio.wait_for(cluster.get_leadership(SYSTEM, NAME), 10)
    assert await asyncio.wait_for(cluster.write_leadership(SYSTEM, NAME, record), 10)
    assert played.unanswered == api_server._REQUESTS
    assert not other.done(), "control: other requests wait for a turn"
    played.answer.set()
    await asyncio.gather(*slow, other)
