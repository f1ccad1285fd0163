"""Reads large JSON without the memory that one character outside of ASCII takes.

Python gives each character of a text four bytes if one of them is an emoji. An agent can fill a page of a list with
what the API server writes with six bytes each, such as `<`, and add an emoji: the text would take four times the page.
"""

import codecs
import json
import re
from typing import Any, Final

_LARGE: Final = 1024 * 1024
"""Bytes of JSON of which the text may take four times as much."""
_PIECE: Final = 64 * 1024
_FOUR_BYTES: Final = tuple(bytes([first]) for first in range(0xF0, 0xF5))
"""What characters begin with in UTF-8 that have four bytes there, and twelve if they are escaped in JSON."""
_OTHERS: Final = re.compile(r"[^\x00-\x7f]+")


def parse(body: bytes) -> Any:
    """What JSON says.

    Raises:
        ValueError: it is no JSON.
    """
    return json.loads(body if len(body) < _LARGE or body.isascii() else _narrow(body))


def _narrow(body: bytes) -> str:
    """The same JSON. If it takes less so, it is in ASCII, with an escape for each other character.

    It is decoded in pieces: at once, that takes four bytes for each byte if there is an emoji, whatever else there is.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    pieces = [decoder.decode(body[start : start + _PIECE]) for start in range(0, len(body), _PIECE)]
    pieces.append(decoder.decode(b"", final=True))
    faces, characters = sum(map(body.count, _FOUR_BYTES)), sum(map(len, pieces))
    if faces and 4 * characters > characters + 11 * faces:
        pieces = [piece if piece.isascii() else _OTHERS.sub(_escaped, piece) for piece in pieces]
    return "".join(pieces)


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found.group())[1:-1]
