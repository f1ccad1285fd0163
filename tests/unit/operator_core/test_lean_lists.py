"""Lists of metadata hold what the operator uses: whoever writes an object can put much into the rest."""

import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from answered_cluster import answered_by

from codeexec_api.names import (
    EXECUTION_LABEL,
    EXECUTION_PLURAL,
    EXPIRES_ANNOTATION,
    POOL_LABEL,
    POOL_PLURAL,
    SESSION_LABEL,
    SESSION_PLURAL,
)
from codeexec_operator.adapters.cluster import Cluster

BOX = "codeexec-sandbox"
MUCH = "<" * 4000
NEEDED = {"name", "namespace", "uid", "resourceVersion", "creationTimestamp"}
OURS = {EXECUTION_LABEL: "run-1", SESSION_LABEL: "session-1", POOL_LABEL: "pool-1"}
AT_MOST = 100
"""Objects of a page: with all that admission lets an agent put into their metadata, these are 14 MiB of JSON."""


class Played:
    """An API server with so much metadata of each object, and two pages of each list."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    async def listed(self, request: web.Request) -> web.Response:
        self.limits.append(int(request.query["limit"]))
        plural = request.path.rpartition("/")[2]
        last = "continue" in request.query
        meta = {
            **dict.fromkeys(NEEDED, "1"),
            "name": f"{plural}-{last}",
            "annotations": {"a": MUCH, EXPIRES_ANNOTATION: "today"},
            "labels": {"b": MUCH, **OURS},
            "ownerReferences": [{"uid": "owner"}],
            "managedFields": [{"manager": MUCH}],
            "generateName": MUCH,
        }
        page = {"metadata": {} if last else {"continue": "more"}, "items": [{"metadata": meta}]}
        return web.json_response(page)


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.fixture
async def cluster(played: Played) -> AsyncIterator[Cluster]:
    async with answered_by(played.listed) as made:
        yield made


async def test_what_is_not_over_is_known_by_name_and_version_only(cluster: Cluster, played: Played) -> None:
    found = await cluster.list_unfinished(BOX)
    kinds = (EXECUTION_PLURAL, SESSION_PLURAL, POOL_PLURAL)
    assert [one["metadata"]["name"] for one in found] == [f"{kind}-{last}" for kind in kinds for last in (False, True)]
    assert [one["plural"] for one in found] == [kind for kind in kinds for _ in range(2)]
    for one in found:
        assert one.keys() == {"metadata", "plural"}
        assert one["metadata"].keys() == NEEDED
    assert max(played.limits) <= AT_MOST


LISTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "payloads": (Cluster.list_payloads, {"labels": {EXECUTION_LABEL: "run-1"}}),
    "outputs": (Cluster.list_outputs, {"annotations": {EXPIRES_ANNOTATION: "today"}}),
    "policies": (
        Cluster.list_network_policies,
        {"labels": {EXECUTION_LABEL: "run-1"}, "ownerReferences": [{"uid": "owner"}]},
    ),
    "pods": (Cluster.list_pod_metadata, {"labels": OURS, "ownerReferences": [{"uid": "owner"}]}),
}


@pytest.mark.parametrize(("listed", "also"), LISTS.values(), ids=LISTS)
async def test_of_other_lists_only_what_is_asked_for_is_held(
    cluster: Cluster, played: Played, listed: Any, also: dict[str, Any]
) -> None:
    found = await listed(cluster, BOX)
    assert len(found) == 2
    for one in found:
        meta = one.get("metadata", one)
        assert {name: value for name, value in meta.items() if name not in NEEDED} == also
    assert max(played.limits) <= AT_MOST


async def test_of_unfinished_executions_of_another_shard_only_the_names_of_keys_are_held() -> None:
    pages, data = 20, "A" * 2**20

    async def listed(request: web.Request) -> web.Response:
        page = int(request.query.get("continue", "0")) + 1
        more = {"continue": str(page)} if page < pages else {}
        sealed = {"sealedPayload": {"keyName": f"key-{page % 2}", "data": data}}
        return web.json_response({"metadata": more, "items": [{"spec": sealed}, {"spec": {}}]})

    async with answered_by(listed) as cluster:
        tracemalloc.start()
        try:
            assert await cluster.keys_of_unfinished(BOX) == {"key-0", "key-1"}
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < pages / 2 * len(data)
