"""A page of a list takes about as much memory as it has bytes, whatever characters are in it."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeexec_operator.adapters import narrow_json
from codeexec_operator.adapters.narrow_json import parse

FACE = "\N{GRINNING FACE}"
MIB = 1024 * 1024


def a_page(text: str) -> bytes:
    """As Go's encoder writes it."""
    return json.dumps({"items": [{"a": text}]}, ensure_ascii=False).replace("<", "\\u003c").encode()


@pytest.mark.parametrize(
    ("text", "times"),
    [("<" * MIB + FACE, 3.5), ("x" * 4 * MIB, 2.5), (FACE * MIB, 3.5), (f"xx{FACE}" * (MIB // 2), 6.5)],
    ids=["escaped", "ASCII", "emoji", "half of it emoji"],
)
def test_little_more_is_held_than_the_page_has(text: str, times: float) -> None:
    """Beside it: the page again as text, its pieces, and what is made of it."""
    page = a_page(text)
    tracemalloc.start()
    try:
        found = parse(page)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    same, more = found == {"items": [{"a": text}]}, most / len(page)
    assert same
    assert more < times


@given(st.text())
def test_what_is_read_is_the_same(text: str) -> None:
    body = json.dumps({"a": text}, ensure_ascii=False).encode()
    assert json.loads(narrow_json._narrow(body)) == {"a": text}


@pytest.mark.parametrize("piece", range(1, 9))
def test_a_character_may_lie_in_two_pieces(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(narrow_json, "_PIECE", piece)
    text = f'a{FACE}b\u00e9"\\\u4e2d{FACE}{"x" * 99}'
    assert json.loads(narrow_json._narrow(json.dumps(text, ensure_ascii=False).encode())) == text


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'"\xff"', b"<" * 2 * MIB + FACE.encode(), b'"' + b"x" * 2 * MIB + b"\xf0"],
    ids=["empty", "open", "no UTF-8", "large", "cut"],
)
def test_what_is_no_json_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse(body)
