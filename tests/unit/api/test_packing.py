"""Compressed output: what one side packs, the other reads, and nothing grows beyond what was agreed."""

import contextlib
import gzip
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api.packing import pack, unpack


@given(pieces=st.lists(st.binary(max_size=200), max_size=5))
def test_members_are_joined(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    packed = b"".join(map(pack, pieces))
    assert unpack(packed, len(data)) == data
    assert gzip.decompress(packed) == data, "any other program reads it, too"


def test_the_same_makes_the_same() -> None:
    assert pack(b"x" * 1000) == pack(bytearray(b"x" * 1000))


@given(data=st.binary(max_size=300), most=st.integers(0, 300))
def test_whatever_comes_is_never_more_than_agreed(data: bytes, most: int) -> None:
    for packed in (data, pack(data), pack(data)[:-3], pack(data) + data):
        with contextlib.suppress(ValueError):
            assert len(unpack(packed, most)) <= most


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (b"xy", "not gzip: "),
        (pack(b"x")[:-1], "gzip that ends too early"),
        (pack(b"x") + b"xy", "not gzip: "),
        (pack(b"abc"), "more than 2 bytes"),
        (pack(b"a") + pack(b"bc"), "more than 2 bytes"),
    ],
)
def test_an_error_says_what_is_wrong(packed: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unpack(packed, 2)


def test_one_member_alone() -> None:
    assert unpack(pack(b"a"), 9, alone=True) == b"a"
    with pytest.raises(ValueError, match="something behind the end"):
        unpack(pack(b"a") + pack(b"b"), 9, alone=True)


def test_a_bomb_takes_no_memory() -> None:
    bomb = pack(bytes(2**26))
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        unpack(bomb, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
