"""How text of others is shown: it controls no terminal, hides nothing, and looks like nothing that we say. Pure."""

import re
import unicodedata
from typing import Final

from codeexec_api.characters import ONE_UNSEEN, escape, pattern

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BLANKS: Final = re.compile(" {2,}")
_LINE_ENDS: Final = str.maketrans({"\t": "\\t", "\n": "\\n"})
_NOT_SIMPLE: Final = re.compile(r"[A-Za-z]?[^\n\t -~]+")
"""Characters that are to be looked at, with the letter that a mark may stand on."""
_JOINING_JAMO: Final = pattern(((0x1160, 0x11FF), (0xD7B0, 0xD7FF)))
"""Vowels and ends of Korean syllables. They are letters, but a terminal gives them no room of their own."""
_MARKS_OF_ALL: Final = pattern(((0x0300, 0x036F), (0x3099, 0x309A)))
"""Accents that stand on letters of several scripts. Other marks stand on letters of their own script."""
_MARKS_IN_A_ROW: Final = 4
"""As in section 5.4 of Unicode's Technical Standard 39: more of them cover what stands around."""


def visible(output: str) -> str:
    """Escape output for a terminal: control characters except line ends and tabs become hexadecimal numbers."""
    return _CONTROLS.sub(lambda one: escape(one[0]), output.replace("\r\n", "\n"))


def plain(text: str) -> str:
    """Escape what isn't seen as it is: controls, invisible characters, changes of direction, unusual spaces.

    Also marks that stand on no letter of their script, and marks beyond the fourth: they show nothing, or cover
    something. Line ends and tabs stay, and so does ordinary text of all languages.
    """
    return _NOT_SIMPLE.sub(lambda found: _shown(found[0]), text)


def _shown(text: str) -> str:
    shown: list[str] = []
    letter, marks = "", 0
    for one in text:
        if _is_mark(one):
            marks += 1
            fits = marks <= _MARKS_IN_A_ROW and _stands_on(one, letter)
        else:
            fits, marks = not ONE_UNSEEN.match(one) and unicodedata.category(one)[0] not in "CZ", 0
            letter = one
        if not fits:
            letter = ""  # the next mark would stand on the escape
        shown.append(one if fits else escape(one))
    return "".join(shown)


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M" or bool(_JOINING_JAMO.match(character))


def _stands_on(mark: str, letter: str) -> bool:
    """True if this is a letter that carries this mark. By their names, because Python knows no scripts."""
    if ONE_UNSEEN.match(mark) or not letter or unicodedata.category(letter)[0] != "L":
        return False
    script, _, _ = unicodedata.name(letter, "").partition(" ")
    its_own = unicodedata.name(mark, "").removeprefix("COMBINING ").startswith(f"{script} ")
    return its_own or bool(_MARKS_OF_ALL.match(mark))


def one_line(text: str) -> str:
    """Escape text for one table cell, so that it can't look like several cells or lines."""
    return _BLANKS.sub(" ", plain(text).translate(_LINE_ENDS))


def rows_of(text: str, room: int | None, *, words: bool = False) -> list[str]:
    """Cut escaped text into rows that fit into this many columns. None: there is no limit.

    A terminal that continues a row by itself does so at its left edge, where only we write. Terminals don't agree about
    the width of characters beyond ASCII, so each of these counts as two columns.

    Args:
        text: in one line.
        room: columns of a row.
        words: cut behind a blank, if there is one.
    """
    if room is None:
        return [text]
    rows, start, used = [], 0, 0
    for index, one in enumerate(text):
        columns = _columns(one)
        if used and used + columns > room:
            end = (words and text.rfind(" ", start, index) + 1) or index
            rows.append(text[start:end])
            start, used = end, sum(map(_columns, text[end:index]))
        used += columns
    return [*rows, text[start:]]


def _columns(character: str) -> int:
    return 1 if character.isascii() else 2


def behind_bars(content: str, *, name: str = "", width: int | None = None) -> list[str]:
    """Content of others, each row behind a bar, with the number of its line. Nothing of it stands at the left edge.

    A row without a number continues the line above. Tabs, and the last blank of a line that ends in one, are escaped.

    Args:
        content: the text.
        name: shown in front of the first line, if it is also a text of others.
        width: columns of the terminal. None: rows are as long as lines.
    """
    lines = lines_of(content)
    labels = [*(["name"] if name else []), *map(str, range(1, len(lines) + 1))]
    margin = max(len("name"), len(str(len(lines))))
    room = None if width is None else max(width - margin - len(" | "), 1)
    shown = []
    for label, line in zip(labels, [*([name] if name else []), *lines], strict=True):
        first, *others = rows_of(_shown_line(line), room)
        shown.append(f"{label:>{margin}} | {first}")
        shown += [f"{'':{margin}} | {one}" for one in others]
    return shown


def lines_of(content: str) -> list[str]:
    """The lines of a text. A line end at its end begins no line."""
    lines = content.split("\n")
    return lines if lines[-1] else lines[:-1]


def _shown_line(line: str) -> str:
    shown = plain(line).translate(_LINE_ENDS)
    return shown[:-1] + "\\x20" if shown.endswith(" ") else shown
