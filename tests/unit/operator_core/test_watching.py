"""kopf's operators within one process: what their ends cost together, and the connections of their watches."""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import kopf
import pytest
import yaml
from aiohttp import web
from polling import until

from codeexec_operator.adapters.supervision import end
from codeexec_operator.handlers import watching

FEW, MANY = 4, 64
RESOURCES = ("codeexecutions", "codesessions", "pods")
OTHERS = 5
"""Tasks that each namespace has besides."""


class Kopf:
    """Begins the watches of a namespace, and leaves them behind when it ends."""

    def __init__(self, watches: Callable[[str], int]) -> None:
        self.begun: list[asyncio.Task[Any]] = []
        self._watches = watches

    async def spawn_tasks(self, *, namespaces: list[str], **_: Any) -> list[asyncio.Task[Any]]:
        [namespace] = namespaces
        for plural in RESOURCES[: self._watches(namespace)]:
            self._begin(f"watcher for {plural}.v1@{namespace}")
        return [self._begin(f"{number} of {namespace}") for number in range(OTHERS)]

    def _begin(self, name: str) -> asyncio.Task[Any]:
        self.begun.append(asyncio.create_task(asyncio.Event().wait(), name=name))
        return self.begun[-1]


class Watches(watching._Watches):
    """Remembers for each namespace how many it has told of."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, int] = {}

    def known(self, namespace: str, resources: Collection[str]) -> set[asyncio.Task[None]]:
        found = super().known(namespace, resources)
        self.told[namespace] = len(found)
        return found


async def visits_of(
    count: int, kopf_played: Kopf, monkeypatch: pytest.MonkeyPatch, late: Callable[[], object] = lambda: None
) -> int:
    """How many tasks are looked at for the end of so many namespaces; `late` happens when all watches are known."""
    found = Watches()
    monkeypatch.setattr(watching, "_watches", found)
    monkeypatch.setattr(kopf, "spawn_tasks", kopf_played.spawn_tasks)
    monkeypatch.setattr(watching, "keep_signals", lambda _: None)
    monkeypatch.setattr(watching, "_LOOK_SECONDS", 0.01)
    jobs = [
        asyncio.create_task(
            watching.watch(kopf.OperatorRegistry(), watching.settings(), f"n-{number}", asyncio.Event(), RESOURCES)
        )
        for number in range(count)
    ]
    await until(lambda: len(found.told) == count)
    await until(lambda: sum(found.told.values()) == len(kopf_played.begun) - OTHERS * count)
    late()
    visits, all_tasks = 0, asyncio.all_tasks

    def counted() -> Any:
        nonlocal visits
        found = all_tasks()
        visits += len(found)
        return found

    monkeypatch.setattr(watching.asyncio, "all_tasks", counted)
    await end(*jobs)
    monkeypatch.setattr(watching.asyncio, "all_tasks", all_tasks)
    assert all(task.done() for task in kopf_played.begun), "nothing is left behind"
    return visits


@pytest.mark.parametrize("watches", [len(RESOURCES), 1], ids=["all are known", "not all have begun"])
async def test_the_end_of_a_namespace_costs_the_same_however_many_end(
    watches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop, or a short outage of the API server, ends all of them. Meanwhile nobody gives the Lease back."""
    few, many = [await visits_of(count, Kopf(lambda _: watches), monkeypatch) / count for count in (FEW, MANY)]
    most = OTHERS + len(RESOURCES) + 2
    assert few <= 2 * most
    assert many <= 2 * most, f"{FEW} others: {few} visits for each; {MANY} others: {many}"


async def test_a_watch_that_began_after_the_last_look_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Kopf(lambda namespace: len(RESOURCES) - (namespace == "n-0"))
    await visits_of(FEW, played, monkeypatch, late=lambda: played._begin(f"watcher for {RESOURCES[-1]}.v1@n-0"))


@pytest.fixture
async def logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kubeconfig that leads to a server here; returns that, and what logs in."""

    async def begin(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    app = web.Application()
    app.router.add_get("/", begin)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    path, named = tmp_path / "kubeconfig", {"name": "here"}

    def write(token: str) -> None:
        clusters, users = [{**named, "cluster": {"server": url}}], [{**named, "user": {"token": token}}]
        contexts = [{**named, "context": {"cluster": "here", "user": "here"}}]
        parts = {"clusters": clusters, "users": users, "contexts": contexts}
        path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "here", **parts}))

    write("first")
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    memo = kopf.Memo()
    about = {"logger": logging.getLogger("test"), "settings": watching.settings()}
    yield url, write, lambda: watching.login(memo=memo, **about)
    await runner.cleanup()


async def test_the_connections_of_watches_notice_a_peer_that_is_gone(logged_in: Any) -> None:
    url, _, login = logged_in
    info = await login()
    async with info.aiohttp_session as session, session.get(url) as answer:
        made = answer.connection.transport.get_extra_info("socket")
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        assert session.headers["Authorization"] == "Bearer first"


async def test_credentials_that_were_refused_are_not_tried_for_ever(logged_in: Any) -> None:
    """kopf would take each new session for other credentials, and ask as often as it can."""
    _, write, login = logged_in
    first = await login()
    assert await login() is None
    write("second")
    second = await login()
    assert second.aiohttp_session.headers["Authorization"] == "Bearer second"
    for one in (first, second):
        await one.aiohttp_session.close()
