"""A kubeconfig with `as` sends each request as that user, whichever client makes the request."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from codeexec_api import CodeExecution
from executor_client import ClusterRef, ClusterUnreachable
from executor_client.transport.cluster import Transport
from executor_client.transport.kube_api import KubeApi
from executor_client.transport.kube_config import find
from executor_client.workspace import session_finalizer

ANALYST = {
    "token": "raw",
    "as": "system:serviceaccount:agents:analyst",
    "as-uid": "42",
    "as-groups": ["agents", "reviewers, all"],
    "as-user-extra": {"Scopes": ["read", "write"], "acme.com/team %": ["é"]},
}
SHOWN = [
    ("Authorization", "Bearer raw"),
    ("Impersonate-User", "system:serviceaccount:agents:analyst"),
    ("Impersonate-Uid", "42"),
    ("Impersonate-Group", "agents"),
    ("Impersonate-Group", "reviewers, all"),
    ("Impersonate-Extra-scopes", "read"),
    ("Impersonate-Extra-scopes", "write"),
    ("Impersonate-Extra-acme.com%2fteam%20%25", "é"),
]


class Cluster:
    """An API server that keeps the credentials of each request, and answers nothing of use."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.shown: list[list[tuple[str, str]]] = []

    def write(self, server: str, user: dict[str, Any]) -> None:
        context = {"name": "one", "context": {"cluster": "one", "user": "one"}}
        clusters, users = [{"name": "one", "cluster": {"server": server}}], [{"name": "one", "user": user}]
        config = {"current-context": "one", "clusters": clusters, "contexts": [context], "users": users}
        self.kubeconfig.write_text(yaml.safe_dump(config))

    async def answer(self, request: web.Request) -> web.Response:
        names = ("authorization", "impersonate-")
        self.shown.append([one for one in request.headers.items() if one[0].lower().startswith(names)])
        return web.json_response({"status": {"userInfo": {"username": "the user that the cluster sees"}}})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", cluster.answer)
    async with TestServer(app) as server:
        cluster.write(str(server.make_url("")).rstrip("/"), ANALYST)
        yield cluster


async def test_each_request_of_the_client_is_made_as_the_user_of_the_kubeconfig(cluster: Cluster) -> None:
    api = await KubeApi.connect(kubeconfig=str(cluster.kubeconfig), context=None, namespace="sandboxes")
    transport = Transport(api)
    try:
        assert await transport.whoami() == "the user that the cluster sees"
        await api.patch_object(CodeExecution, "one", {})
        (await api.stream("/apis", {"watch": "true"})).close()
    finally:
        await transport.close()
    assert cluster.shown == [SHOWN] * 3


async def test_the_farewell_of_a_session_is_sent_as_the_user_of_the_kubeconfig(cluster: Cluster) -> None:
    await asyncio.to_thread(session_finalizer._end, "session-1", ClusterRef("here", str(cluster.kubeconfig)))
    assert cluster.shown == [SHOWN]


@pytest.mark.parametrize(
    ("user", "told"),
    [
        ({"as-groups": ["agents"]}, "names as-groups without as"),
        ({"as-uid": "1", "as-user-extra": {"a": ["b"]}}, "names as-uid, as-user-extra without as"),
        ({"as": 7}, "as is 7, but must be a string"),
        ({"as": "a\nb"}, r"as is 'a\\nb', but must be a string without line breaks"),
        ({"as": "a", "as-groups": "agents"}, "as-groups is 'agents', but must be a list of strings"),
        ({"as": "a", "as-user-extra": {"b": "c"}}, r"as-user-extra.b is 'c', but must be a list of strings"),
        ({"as": "a", "as-user-extra": ["b"]}, r"as-user-extra is \['b'\], but must have a list of strings by key"),
    ],
)
async def test_an_impersonation_that_is_none_is_an_error_and_never_left_out(
    tmp_path: Path, user: dict[str, Any], told: str
) -> None:
    cluster = Cluster(tmp_path)
    cluster.write("http://127.0.0.1:1", {"token": "raw", **user})
    with pytest.raises(ClusterUnreachable, match=told) as error:
        await find(str(cluster.kubeconfig), None)
    assert str(cluster.kubeconfig) in str(error.value)


async def test_empty_fields_of_impersonation_are_none(cluster: Cluster) -> None:
    cluster.write("http://127.0.0.1:1", {"token": "raw", "as": "", "as-groups": [], "as-user-extra": None})
    _, credentials = await find(str(cluster.kubeconfig), None)
    assert credentials.identity.headers == (("Authorization", "Bearer raw"),)
