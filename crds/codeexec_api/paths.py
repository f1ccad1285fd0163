"""Names of files in the workspace: the one place that says which are taken.

Client and models call `check_workspace_path`; the CRD holds the same rules in CEL (`v1alpha1.fields.WorkspacePath`).
"""

import re
from typing import Final

MAX_PATH_BYTES: Final = 255
"""Of the whole path in UTF-8. No part can then be longer than file systems take."""

# First and last code point of each range. Spelled out, because what a class such as \p{C} holds depends on the
# version of the Unicode tables, and the API server, the operator and the client each have their own.
_REFUSED: Final = (
    (0x0000, 0x001F),  # controls
    (0x005C, 0x005C),  # backslash, which separates folders on Windows
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
    (0x1BCA0, 0x1BCA3),  # shorthand format characters
    (0x1D173, 0x1D17A),  # musical format characters
    (0x40000, 0x10FFFF),  # planes without characters, tags, selectors, private use
)
REFUSED_CHARACTERS: Final = "[" + "".join(rf"\x{{{first:04X}}}-\x{{{last:04X}}}" for first, last in _REFUSED) + "]"
"""Class of the characters that no path may hold, as a regular expression of the API server (RE2)."""
_REFUSED_HERE: Final = re.compile("[" + "".join(rf"\U{first:08X}-\U{last:08X}" for first, last in _REFUSED) + "]")


def check_workspace_path(path: str) -> str:
    """The path itself, if it is that of a file in the workspace, whatever stands there.

    Such a path is relative and has no part that is empty, `.` or `..`, or begins or ends with a space. It has at most
    MAX_PATH_BYTES bytes and no character that is a control, a separator, private or invisible. Names that differ in
    case or in Unicode normalization are different files; nothing is normalized.

    Raises:
        ValueError: names the path and what is wrong with it.
    """
    if found := _REFUSED_HERE.search(path):
        raise ValueError(f"{path!r} contains U+{ord(found[0]):04X}; use letters, digits, punctuation and plain spaces")
    if (size := len(path.encode())) > MAX_PATH_BYTES:
        raise ValueError(f"{path!r} has {size} bytes; at most {MAX_PATH_BYTES} are allowed")
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise ValueError(f"{path!r} has the part {part!r}; give a path relative to the workspace")
        if part != part.strip(" "):
            raise ValueError(f"{path!r} has the part {part!r}; no part may begin or end with a space")
    return path
