"""The pure parts of the doorway to the API server; the rest is tried on a real one."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from executor_client import transport
from executor_client.transport import _lines, _message, _missing


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
