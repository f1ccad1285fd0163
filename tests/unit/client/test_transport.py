"""The pure parts of the doorway to the API server; the rest is tried on a real one."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio.client.exceptions import ApiException

from executor_client import transport
from executor_client.transport import _lines, _message, _missing, past_quota_races


class Pieces:
    """A body that arrives in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([], []),
        ([b"one\ntwo\n"], [b"one", b"two"]),
        ([b"o", b"ne", b"\nt", b"wo", b"\n\n"], [b"one", b"two", b""]),
        ([b"one\nnot ended"], [b"one"]),
        ([b"x" * 11, b"x\nshort\n"], [b"short"]),
        ([b"x" * 6, b"y" * 6, b"z" * 6, b"\nshort\n", b"x" * 11, b"\nlast\n"], [b"short", b"last"]),
    ],
)
async def test_lines_of_a_log(pieces: list[bytes], lines: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_MAX_LINE_BYTES", 10)
    content: Any = Pieces(*pieces)
    assert [line async for line in _lines(content)] == lines


@pytest.mark.parametrize(
    ("body", "missing", "message"),
    [
        ({"details": {"name": "x", "kind": "codeexecutions"}, "message": "gone"}, "codeexecutions", "gone"),
        ({"details": {"name": "x", "kind": "namespaces"}, "message": "gone"}, "", "gone"),
        ({"details": {}, "message": "no such kind"}, "", "no such kind"),
        ([1], "", "[1]"),
    ],
)
def test_what_a_refusal_says(body: Any, missing: str, message: str) -> None:
    assert (_missing(json.dumps(body)), _message(json.dumps(body))) == (missing, message)


def test_a_refusal_that_is_no_json() -> None:
    assert (_missing("404 page not found"), _message("404 page not found")) == ("", "404 page not found")


class Creating:
    """A request that is refused so often."""

    def __init__(
        self, refusals: int, reason: str = 'Operation cannot be fulfilled on resourcequotas "codeexec"'
    ) -> None:
        self.refusals, self.calls = refusals, 0
        self._error = ApiException(status=409, reason="Conflict")
        self._error.body = reason

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.refusals:
            raise self._error
        return "created"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_RACE_SECONDS", (0.0, 0.0))


@pytest.mark.usefixtures("at_once")
class TestQuotaRaces:
    @pytest.mark.parametrize("refusals", [0, 1, 2])
    async def test_who_loses_one_tries_again(self, refusals: int) -> None:
        create = Creating(refusals)
        assert await past_quota_races(create) == "created"
        assert create.calls == refusals + 1

    async def test_who_loses_each_time_hears_of_it(self) -> None:
        create = Creating(3)
        with pytest.raises(ApiException, match="resourcequotas"):
            await past_quota_races(create)
        assert create.calls == 3

    async def test_another_conflict_is_none(self) -> None:
        create = Creating(1, "already exists")
        with pytest.raises(ApiException, match="already exists"):
            await past_quota_races(create)
        assert create.calls == 1
