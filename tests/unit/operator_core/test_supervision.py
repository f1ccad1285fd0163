"""Jobs of the operator go on: what fails is said once and tried again ever later, and no other job notices."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from kubernetes.aio.client.exceptions import ApiException
from polling import settled

from codeexec_operator.adapters.supervision import JobFailure, Supervisor, supervise
from codeexec_operator.core.backoff import FIRST_SECONDS


class Waits:
    """Waits that take no time; the job is cancelled in the last one."""

    def __init__(self, last: int) -> None:
        self.seconds: list[float] = []
        self._last = last

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) == self._last:
            raise asyncio.CancelledError


def failing(*errors: Exception | None) -> Callable[[], Awaitable[None]]:
    """A job that fails with these, one after the other, and ends well where there is None."""
    left = list(errors)

    async def job() -> None:
        if error := left.pop(0):
            raise error

    return job


async def test_a_job_that_fails_is_tried_again_ever_later_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    waits, told = Waits(99), list[str | None]()
    job = failing(ApiException(status=403), ApiException(status=403), TimeoutError(), None)
    await supervise("box: watch", job, tell=told.append, sleep=waits)
    forbidden, silence = "the API server answered 403", "no answer from the API server (TimeoutError)"
    assert told == [forbidden, forbidden, silence, None]
    assert waits.seconds[0] <= FIRST_SECONDS < waits.seconds[2] <= 4 * FIRST_SECONDS
    assert caplog.messages == [f"box: watch: {one}; trying again" for one in (forbidden, silence)]


async def test_after_a_success_the_waits_begin_anew() -> None:
    waits = Waits(4)
    job = failing(TimeoutError(), TimeoutError(), None, TimeoutError())
    with pytest.raises(asyncio.CancelledError):
        await supervise("a job", job, every=60, sleep=waits)
    assert waits.seconds[2] == 60
    assert waits.seconds[3] <= FIRST_SECONDS


async def test_an_error_that_nobody_has_foreseen_is_logged_with_its_place_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted: list[str] = []
    job = failing(KeyError("secret text"), None)
    await supervise("a job", job, unexpected=lambda: counted.append("one"), sleep=Waits(99))
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "a job: unexpected KeyError; trying again")
    assert record.exc_info
    assert counted == ["one"]


async def test_a_failure_that_was_foreseen_says_all_there_is_to_know(caplog: pytest.LogCaptureFixture) -> None:
    await supervise("a job", failing(JobFailure("the disk is full"), None), sleep=Waits(99))
    [record] = caplog.records
    assert (record.getMessage(), bool(record.exc_info)) == ("a job: the disk is full; trying again", False)


async def test_jobs_that_fail_leave_the_others_alone_and_all_end_together() -> None:
    well, supervisor, ended = asyncio.Event(), Supervisor(lambda: None), list[str]()

    async def broken() -> None:
        raise ApiException(status=500)

    async def lasting() -> None:
        well.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("lasting")

    supervisor.add("broken", broken)
    supervisor.add("lasting", lasting)
    async with asyncio.timeout(60):
        await well.wait()
        await supervisor.stop()
    assert ended == ["lasting"]


async def test_a_job_that_is_added_again_takes_the_place_of_the_one_before() -> None:
    begun, supervisor = list[str](), Supervisor(lambda: None)

    async def job(name: str) -> None:
        begun.append(name)
        await asyncio.Event().wait()

    for name in ("key", "pool", "key"):
        supervisor.add(name, partial(job, name))
        await settled()
    assert begun == ["key", "pool", "key"]
    await settled()
    assert len([task for task in supervisor._tasks if not task.done()]) == 2
    await supervisor.stop()
