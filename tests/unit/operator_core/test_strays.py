"""A job that no execution claims holds up its session until the runner says that the job is over."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from factories import NOW, UID, a_policy, a_report, a_sandbox, a_session
from played_pod import PlayedPod
from polling import until

from codeexec_api import SessionPhase
from codeexec_operator.adapters.connection import Connection
from codeexec_operator.core.observed import ObservedSession
from codeexec_operator.core.placement import has_turn

NEXT: Any = SimpleNamespace(claim=SimpleNamespace(uid="next"))


class Pod(PlayedPod):
    """Says what it is made to say."""

    def __init__(self) -> None:
        self.heard: list[Mapping[str, Any]] = []
        self._to_say: asyncio.Queue[bytes] = asyncio.Queue()
        self.ends_before_the_cancellation = False

    def say(self, **frame: Any) -> None:
        self._to_say.put_nowait(json.dumps(frame).encode() + b"\n")

    async def received(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._to_say.get()

    async def send(self, message: Mapping[str, Any]) -> None:
        self.heard.append(message)
        if "cancel" in message and self.ends_before_the_cancellation:
            self.say(id=UID, seq=0, done=True)
            await until(self._to_say.empty)
            await asyncio.sleep(0)


@asynccontextmanager
async def running(pod: Pod) -> AsyncIterator[Connection]:
    """A connection to a runner that has a job of which nobody wants to hear."""
    connection = pod.connect("pod")
    connection.open()
    pod.say(**a_report(job=UID))
    await until(lambda: connection.view.ready)
    yield connection
    connection.close()


def next_has_turn(connection: Connection) -> bool:
    seen = ObservedSession(session=a_session(phase=SessionPhase.READY), policy=a_policy(), since=NOW)
    return has_turn(NEXT, seen, replace(a_sandbox(), runner=connection.view))


@pytest.mark.parametrize("end", [{"done": True}, {"fault": {}}, {"error": "no"}], ids=lambda end: next(iter(end)))
async def test_the_next_has_its_turn_once_such_a_job_has_ended_and_not_once_it_was_cancelled(
    end: dict[str, Any],
) -> None:
    pod = Pod()
    async with running(pod) as connection:
        assert not next_has_turn(connection), "control"
        await connection.cancel_stray(UID)
        assert pod.heard[-1]["cancel"] == UID
        assert not next_has_turn(connection)
        assert connection.view.ready
        assert connection.view.ready.job is None, "else it would be cancelled again and again"
        assert connection.view.handed_at, "from then on it has its time"
        pod.say(id=UID, seq=0, **end)
        await until(lambda: next_has_turn(connection), seconds=10)


async def test_a_job_that_ends_while_it_is_cancelled_holds_up_nobody() -> None:
    """Nobody would say once more that it is over."""
    pod = Pod()
    pod.ends_before_the_cancellation = True
    async with running(pod) as connection:
        await connection.cancel_stray(UID)
        await until(lambda: next_has_turn(connection), seconds=10)


async def test_a_stray_that_has_ended_takes_no_time_from_what_was_handed_over_since() -> None:
    pod = Pod()
    async with running(pod) as connection:
        pod.say(id=UID, seq=0, done=True)
        await until(lambda: next_has_turn(connection), seconds=10)
        job: Any = SimpleNamespace(uid="next", cut_off=lambda: None, share=SimpleNamespace(settle=lambda _: None))
        await connection.start(job, [])
        handed_at = connection.view.handed_at
        await connection.cancel_stray(UID)
        assert (connection.view.handed, connection.view.handed_at) == ("next", handed_at)
