"""When credentials are read again, and what requests do while they can't be read."""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kubernetes.aio import client
from polling import clock_jumps_once, until

from executor_client import ClusterUnreachable
from executor_client.transport.credentials import Credentials, Identity, Reading

EXPIRED = datetime(2020, 1, 1, tzinfo=UTC)


class Plugin:
    """Fails, or answers with a token, when the test lets it."""

    def __init__(self, file: Path) -> None:
        self.file, self.reads, self.answers = file, 0, False
        self.go_on = asyncio.Event()

    async def read(self) -> Reading:
        self.reads += 1
        await self.go_on.wait()
        if not self.answers:
            raise ClusterUnreachable(f"no login ({self.reads})")
        return Reading(client.Configuration(), Identity(f"Bearer {self.reads}"), (self.file,))

    def credentials(self, identity: Identity) -> Credentials:
        return Credentials(self.read, Reading(client.Configuration(), identity, (self.file,)))


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    (tmp_path / "kubeconfig").touch()
    return Plugin(tmp_path / "kubeconfig")


async def test_requests_that_wait_share_a_failure(plugin: Plugin) -> None:
    credentials = plugin.credentials(Identity("Bearer old", expires_at=EXPIRED))
    asking = [asyncio.create_task(credentials.current()) for _ in range(4)]
    asking += [asyncio.create_task(credentials.after(credentials.identity)) for _ in range(4)]  # type: ignore[arg-type]
    await until(lambda: plugin.reads)
    plugin.go_on.set()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(one) for one in results] == ["no login (1)"] * 8
    assert {type(one) for one in results} == {ClusterUnreachable}
    assert len(set(map(id, results))) == 8, "each has a traceback of its own"


async def test_what_was_read_last_goes_on_without_a_read_for_each_request(plugin: Plugin) -> None:
    plugin.go_on.set()
    credentials = plugin.credentials(Identity("Bearer old"))
    os.utime(plugin.file, (1, 1))
    identities = [await credentials.current() for _ in range(8)]
    assert ({one.authorization for one in identities}, plugin.reads) == ({"Bearer old"}, 1)


async def test_it_is_read_again_after_some_seconds_or_when_a_file_changes(plugin: Plugin) -> None:
    plugin.go_on.set()
    credentials = plugin.credentials(Identity("Bearer old", expires_at=EXPIRED))
    for reads in (1, 2):
        with pytest.raises(ClusterUnreachable, match=rf"no login \({reads}\)"):
            await credentials.current()
        os.utime(plugin.file, (reads, reads))
    plugin.answers = True
    assert (await credentials.current()).authorization == "Bearer 3"
    plugin.answers = False
    credentials.identity = Identity("Bearer old", expires_at=EXPIRED)
    with pytest.raises(ClusterUnreachable):
        await credentials.current()
    plugin.answers = True
    clock_jumps_once(lambda: True, 5)
    assert (await credentials.current()).authorization == "Bearer 5"


async def test_a_read_that_was_cancelled_has_not_failed(plugin: Plugin) -> None:
    credentials = plugin.credentials(Identity("Bearer old", expires_at=EXPIRED))
    first, second = asyncio.create_task(credentials.current()), asyncio.create_task(credentials.current())
    await until(lambda: plugin.reads)
    first.cancel()
    plugin.answers = True
    plugin.go_on.set()
    assert (await second).authorization == "Bearer 2"
