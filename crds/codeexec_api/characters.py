"""Characters that nobody sees, or that mislead: the one place that lists them.

Names of files may hold none of them (`paths`). In messages of records, and for a human who decides about code
(`executor_client.cli.escaping`), an escape stands for each of them.
"""

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]

# First and last code point of each range. Spelled out, because what a class such as \p{C} holds depends on the
# version of the Unicode tables, and the API server, the operator and the client each have their own. All characters of
# the property Default_Ignorable_Code_Point are among them: a terminal shows nothing for these.
UNSEEN: Final[Ranges] = (
    (0x0000, 0x001F),  # controls
    (0x007F, 0x00A0),  # more controls, no-break space
    (0x00AD, 0x00AD),  # soft hyphen
    (0x034F, 0x034F),  # grapheme joiner
    (0x0600, 0x0605),  # Arabic format characters, up to 08E2
    (0x061C, 0x061C),
    (0x06DD, 0x06DD),
    (0x070F, 0x070F),
    (0x0890, 0x0891),
    (0x08E2, 0x08E2),
    (0x115F, 0x1160),  # Hangul fillers
    (0x1680, 0x1680),  # Ogham space
    (0x17B4, 0x17B5),  # Khmer vowels that are not shown
    (0x180B, 0x180F),  # Mongolian selectors and separator
    (0x2000, 0x200F),  # wide and narrow spaces, zero-width characters, marks of direction
    (0x2028, 0x202F),  # line and paragraph separator, changes of direction, narrow space
    (0x205F, 0x206F),  # mathematical space, joiners, changes of direction
    (0x2800, 0x2800),  # Braille pattern without dots
    (0x3000, 0x3000),  # ideographic space
    (0x3164, 0x3164),  # Hangul filler
    (0xD800, 0xF8FF),  # surrogates, private use
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xFFA0, 0xFFA0),  # Hangul filler
    (0xFFF0, 0xFFFF),  # annotations, replacement characters: a decoder puts U+FFFD for what it can't read
    (0x110BD, 0x110BD),  # Kaithi number signs
    (0x110CD, 0x110CD),
    (0x13430, 0x1343F),  # Egyptian format characters
    (0x13441, 0x13442),  # Egyptian blanks
    (0x16FE4, 0x16FE4),  # Khitan filler
    (0x1BCA0, 0x1BCA3),  # shorthand format characters
    (0x1D159, 0x1D159),  # musical note without a head
    (0x1D173, 0x1D17A),  # musical format characters
    (0x40000, 0x10FFFF),  # planes without characters, tags, selectors, private use
)


def pattern(ranges: Iterable[tuple[int, int]]) -> re.Pattern[str]:
    """What finds one character of these ranges."""
    return re.compile("[" + "".join(rf"\U{first:08X}-\U{last:08X}" for first, last in ranges) + "]")


def character_class(ranges: Iterable[tuple[int, int]]) -> str:
    """The same as a regular expression of the API server (RE2)."""
    return "[" + "".join(rf"\x{{{first:04X}}}-\x{{{last:04X}}}" for first, last in ranges) + "]"


ONE_UNSEEN: Final = pattern(UNSEEN)
"""Finds one character of UNSEEN."""
_SHORT: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def escape(character: str) -> str:
    """The number of a character, as Python writes it."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0xA0 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def without_unseen(text: str) -> str:
    """The same text with an escape for each character of UNSEEN, and so in one line."""
    return ONE_UNSEEN.sub(lambda one: _SHORT.get(one[0]) or escape(one[0]), text)
