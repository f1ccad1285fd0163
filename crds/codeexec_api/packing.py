"""Output that is compressed on its way: by the runner in its frames, by the operator in ConfigMaps."""

import zlib
from collections.abc import Iterator
from typing import Final

GZIP_SUFFIX: Final = ".gz"
"""Ends the keys of output ConfigMaps whose values are gzip members (RFC 1952), one after the other."""
_GZIP: Final = 31
"""zlib's `wbits` for gzip with a header."""
_LEVEL: Final = 1
_WINDOW: Final = 4096
"""How much is looked at in one go: what follows a member in it is copied for each member."""


def pack(data: bytes | bytearray) -> bytes:
    """One gzip member."""
    return zlib.compress(data, _LEVEL, _GZIP)


def unpack(packed: bytes, most_bytes: int, *, alone: bool = False) -> bytes:
    """What gzip members hold, joined. Never holds more than that in memory.

    Args:
        packed: any number of members, and nothing else.
        most_bytes: the largest size of the result.
        alone: there may be one member only.

    Raises:
        ValueError: it is not gzip, ends too early, or holds more.
    """
    return b"".join(pieces_of(packed, most_bytes, alone=alone))


def pieces_of(packed: bytes, most_bytes: int, *, alone: bool = False) -> Iterator[bytes]:
    """The same, piece by piece, so that what compresses very well is never in memory as a whole.

    Raises:
        ValueError: see `unpack`; not before the pieces ahead of the fault were given out.
    """
    left, start, members = most_bytes, 0, 0
    member = None
    while start < len(packed):
        if member is None:
            member, members = zlib.decompressobj(_GZIP), members + 1
        if alone and members > 1:
            raise ValueError("something behind the end of the gzip member")
        window = packed[start : start + _WINDOW]
        try:
            piece = member.decompress(window, left + 1)
        except zlib.error as error:
            raise ValueError(f"not gzip: {error}") from error
        if len(piece) > left:
            raise ValueError(f"more than {most_bytes} bytes")
        yield piece
        left -= len(piece)
        start += len(window) - len(member.unused_data)
        if member.eof:
            member = None
    if member:
        raise ValueError("gzip that ends too early")
