"""The lines of a log that comes in pieces."""

from collections.abc import AsyncGenerator
from typing import Final

import aiohttp

_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""Longest line of a log that is looked at; those of the runner are much shorter."""


async def lines_of(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Whole lines without their ends; one that is longer than _MAX_LINE_BYTES is left out."""
    rest = bytearray()
    too_long = False
    async for data in content.iter_any():
        *whole, last = data.split(b"\n")
        for piece in whole:
            rest += piece
            if not too_long:
                yield bytes(rest)
            rest.clear()
            too_long = False
        rest += last
        if len(rest) > _MAX_LINE_BYTES:
            rest.clear()
            too_long = True
