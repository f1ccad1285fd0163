"""What a run of failures waits for, and what it leaves in the log."""

import itertools
import logging
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from kubernetes.aio.client.exceptions import ApiException

from codeexec_operator.adapters import retries as module
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.adapters.retries import Retries


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("0")


@pytest.fixture
def retries(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> Retries:
    caplog.set_level(logging.INFO)
    return Retries("codeexec-sandbox/run-1", metrics)


def refused(status: int, **headers: str) -> ApiException:
    error = ApiException(status=status)
    error.headers = headers
    return error


def test_a_run_of_failures_has_two_lines_in_the_log(retries: Retries, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(9):
        retries.failed(refused(503))
    retries.succeeded()
    begun, ended = caplog.messages
    assert begun == "codeexec-sandbox/run-1: the API server answered 503; trying again with growing pauses"
    assert ended.startswith("codeexec-sandbox/run-1: succeeded after 9 failed tries in ")


def test_another_failure_in_the_same_run_is_told(retries: Retries, caplog: pytest.LogCaptureFixture) -> None:
    for error in (refused(503), TimeoutError(), TimeoutError(), refused(429)):
        retries.failed(error)
    assert [line.split(": ")[1].split(";")[0] for line in caplog.messages] == [
        "the API server answered 503",
        "TimeoutError",
        "the API server answered 429",
    ]


def test_a_conflict_is_tried_again_at_once_and_told_by_nobody(
    retries: Retries, caplog: pytest.LogCaptureFixture
) -> None:
    assert retries.failed(refused(409)) == 0
    retries.succeeded()
    assert retries.failed(refused(409)) == 0, "a success has come in between"
    assert caplog.messages == []
    assert retries.failed(refused(409)) > 0


def test_pauses_grow_until_a_success(retries: Retries) -> None:
    pauses = [retries.failed(TimeoutError()) for _ in range(5)]
    assert all(later >= earlier for earlier, later in itertools.pairwise(pauses))
    retries.succeeded()
    assert retries.failed(TimeoutError()) <= 0.1


def test_what_the_server_asks_for_is_waited_for(retries: Retries) -> None:
    assert retries.failed(refused(429, **{"Retry-After": "7"})) >= 7


def test_failed_requests_are_counted_by_answer(retries: Retries, metrics: Metrics) -> None:
    for error in (refused(503), refused(503), TimeoutError(), ValueError()):
        retries.failed(error)
    count: Callable[[str], float | None] = lambda status: metrics.registry.get_sample_value(  # noqa: E731
        "codeexec_api_retries_total", {"status": status}
    )
    assert (count("503"), count("none")) == (2, 1)


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codeexec_operator.core.backoff.FIRST_SECONDS", 0)


@pytest.mark.parametrize(("fails", "succeeds"), [(0, True), (2, True), (3, False), (9, False)])
async def test_a_call_is_tried_so_many_times(
    retries: Retries, without_pauses: None, fails: int, succeeds: bool
) -> None:
    tried: list[str] = []

    async def call(name: str) -> None:
        tried.append(name)
        if len(tried) <= fails:
            raise refused(500)

    with nullcontext() if succeeds else pytest.raises(ApiException):
        await retries.attempt("the pod was not deleted", 3, call, "run-1")
    assert len(tried) == min(fails + 1, 3)


async def test_an_error_of_our_own_is_not_tried_again(retries: Retries) -> None:
    async def call() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await retries.attempt("the pod was not deleted", 3, call)


async def test_tries_in_vain_log_what_the_server_said(
    retries: Retries, without_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def call() -> None:
        error = refused(429)
        error.body = '{"message": "too many requests for this flow"}'
        raise error

    with pytest.raises(ApiException):
        await retries.attempt("the pod was not deleted", 2, call)
    assert caplog.messages[-1].endswith("the pod was not deleted, also not by 2 tries: too many requests for this flow")


@pytest.fixture
def played_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each pause was. Time passes by pauses alone."""
    pauses: list[float] = []

    async def sleep(pause: float) -> None:
        pauses.append(pause)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    monkeypatch.setattr(module.time, "monotonic", lambda: sum(pauses))
    return pauses


@pytest.mark.parametrize(
    ("error", "outage", "seconds", "outlived"),
    [
        (OSError("connection refused"), 6.5, 60, True),
        (refused(503), 59.0, 60, True),
        (OSError("connection refused"), 80.0, 60, False),
        (refused(403), 14.0, 60, False),
        (OSError("connection refused"), 6.5, 0, False),
    ],
    ids=["refused connections", "503", "too long", "refused for good", "control: seven tries are over sooner"],
)
async def test_an_outage_is_outlived_by_what_is_tried_for_so_long(
    retries: Retries, played_clock: list[float], error: Exception, outage: float, seconds: float, outlived: bool
) -> None:
    async def call() -> None:
        if sum(played_clock) < outage:
            raise error

    with nullcontext() if outlived else pytest.raises(type(error)):
        await retries.attempt("a part was not stored", 7, call, seconds=seconds)
