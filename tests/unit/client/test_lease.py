"""The thread that renews the Lease of a client, whatever becomes of the client's event loops."""

import asyncio
import gc
import logging
import random
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from executor_client import ClusterRef, CodeExecutionClient
from executor_client.client import lease as leases
from executor_client.client.lease import ClientLease, _keep
from executor_client.exceptions import ClusterUnreachable
from executor_client.testing import FakeCluster


@pytest.fixture(autouse=True)
def waits_for_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, too."""
    monkeypatch.setattr(leases, "_FAREWELL_SECONDS", 60)


class Recorder:
    """A connection that notes what is asked of it."""

    def __init__(self, *, fails: int = 0) -> None:
        self.fails = fails
        self.said: list[str] = []
        self.changed = threading.Condition()

    async def connect(self) -> Any:
        return self

    async def renew_lease(self, name: str, seconds: int, now: datetime) -> None:
        assert (seconds, now.tzinfo is not None) == (35, True)
        self.fails -= 1
        if self.fails >= 0:
            raise ClusterUnreachable("no answer")
        self._note(f"renew {name}")

    async def delete_lease(self, name: str) -> None:
        self._note(f"delete {name}")

    async def close(self) -> None:
        self._note("close")

    def _note(self, what: str) -> None:
        with self.changed:
            self.said.append(what)
            self.changed.notify_all()

    def wait(self, what: Callable[[list[str]], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: what(self.said), 30), self.said


def test_it_is_renewed_while_no_loop_runs_and_deleted_in_the_end() -> None:
    recorder = Recorder()
    lease = ClientLease(recorder.connect, every=0.01)
    name = lease.hold()
    assert lease.hold() == name
    recorder.wait(lambda said: said.count(f"renew {name}") >= 3)
    asyncio.run(lease.close())
    assert recorder.said[-2:] == [f"delete {name}", "close"]
    assert lease.hold() != name, "it can be held again"
    asyncio.run(lease.close())


def test_it_goes_on_after_an_error_which_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(fails=3)
    lease = ClientLease(recorder.connect, every=0.01)
    with caplog.at_level(logging.WARNING):
        name = lease.hold()
        recorder.wait(lambda said: f"renew {name}" in said)
    asyncio.run(lease.close())
    [record] = caplog.records
    assert record.getMessage() == (
        f"could not renew Lease {name}; idle sessions of this client end after 35 s: no answer"
    )


def test_it_ends_with_a_client_that_nobody_closes() -> None:
    recorder = Recorder()
    client = CodeExecutionClient(ClusterRef())
    held = client._lease
    assert held
    held._connect, held._every = recorder.connect, 3600
    name = held.hold()
    recorder.wait(lambda said: f"renew {name}" in said)
    del client, held
    gc.collect()
    recorder.wait(lambda said: said[-2:] == [f"delete {name}", "close"])


def test_an_error_of_any_kind_is_no_end_of_it(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        async def renew_lease(self, name: str, seconds: int, now: datetime) -> None:
            if "broken" not in self.said:
                self._note("broken")
                raise ValueError("a kubeconfig that is being written")
            await super().renew_lease(name, seconds, now)

    recorder = Broken()
    lease = ClientLease(recorder.connect, every=0.01)
    name = lease.hold()
    recorder.wait(lambda said: f"renew {name}" in said)
    asyncio.run(lease.close())
    assert "a kubeconfig that is being written" in caplog.text


@pytest.mark.parametrize(("chance", "share"), [(min, 0.5), (max, 1)], ids=["shortest", "longest"])
def test_renewals_that_go_on_failing_are_made_ever_later(
    monkeypatch: pytest.MonkeyPatch, chance: Any, share: float
) -> None:
    monkeypatch.setattr(random, "uniform", chance)
    pauses: list[float] = []

    class Over:
        def wait(self, seconds: float) -> bool:
            pauses.append(seconds)
            return len(pauses) == 8

    connect = Recorder(fails=6).connect
    _keep(connect, "one", 35, 10, Over())  # type: ignore[arg-type]
    assert pauses == [2, *(share * seconds for seconds in (1, 2, 4, 8, 10, 10)), 10]


def test_a_client_that_is_closed_in_one_event_loop_keeps_the_sessions_of_another() -> None:
    recorder, fake = Recorder(), FakeCluster().client()
    client = CodeExecutionClient(ClusterRef())
    client._connect = fake.connect
    assert client._lease
    client._lease._connect, client._lease._every = recorder.connect, 0.01
    name = client._lease.hold()

    async def use_and_close() -> None:
        await client.check()
        await client.close()

    async def use_beside_another() -> None:
        await client.check()
        await asyncio.to_thread(asyncio.run, use_and_close())
        before = recorder.said.count(f"renew {name}")
        await asyncio.to_thread(recorder.wait, lambda said: said.count(f"renew {name}") > before)
        assert f"delete {name}" not in recorder.said
        await client.close()

    asyncio.run(use_beside_another())
    assert recorder.said[-2:] == [f"delete {name}", "close"], "the control: the last one lets go"


def test_a_client_whose_close_is_broken_off_lets_go() -> None:
    """With the end of its event loop, which cancels all tasks."""
    recorder, fake = Recorder(), FakeCluster().client()
    client = CodeExecutionClient(ClusterRef())
    client._connect = fake.connect
    assert client._lease
    client._lease._connect, client._lease._every = recorder.connect, 3600
    name = client._lease.hold()
    recorder.wait(lambda said: f"renew {name}" in said)

    async def leave() -> None:
        transport: Any = await client.connect()
        closing = asyncio.Event()

        async def hang() -> None:
            if not closing.is_set():  # the fake's own client closes it, too
                closing.set()
                await asyncio.Event().wait()

        transport.close = hang
        left = asyncio.create_task(client.close())
        await closing.wait()
        left.cancel()

    asyncio.run(leave())
    recorder.wait(lambda said: said[-2:] == [f"delete {name}", "close"])


def test_a_client_that_lets_go_at_once_makes_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_FIRST_SECONDS", 3600)
    recorder = Recorder()
    lease = ClientLease(recorder.connect, every=3600)
    lease.hold()
    asyncio.run(lease.close())
    assert recorder.said == []


def test_a_renewal_that_failed_is_made_again_soon() -> None:
    recorder = Recorder(fails=1)
    lease = ClientLease(recorder.connect, every=60)
    name = lease.hold()
    recorder.wait(lambda said: f"renew {name}" in said)
    asyncio.run(lease.close())
