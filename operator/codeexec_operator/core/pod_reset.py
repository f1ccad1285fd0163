"""What a runner says of its pod after a job, when the pod is to be used again."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from codeexec_api import PodReset

_ROW: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,31}")
_MOST_ROWS: Final = 64
_WORDS: Final = 300
_LONGEST_MS: Final = 3_600_000


@dataclass(frozen=True)
class Reset:
    """Whether a pod was shown to be as it was before any code."""

    job: str
    """After which it was looked at."""
    clean: bool
    checked: tuple[str, ...]
    found: str
    """What was not as before, for a log."""
    milliseconds: int

    def recorded(self, use: int) -> PodReset:
        """For the record of the execution that gets the pod."""
        return PodReset(use=use, clean=self.clean, checked=self.checked, milliseconds=self.milliseconds)


def reset_of(frame: Mapping[str, Any]) -> Reset:
    """From the frame that says so.

    Raises:
        Exception: the frame is not one, of whatever type; the caller treats all alike.
    """
    checked, found = tuple(frame["checked"]), frame["found"]
    if len(checked) > _MOST_ROWS or len(found) > _MOST_ROWS or not all(map(_ROW.fullmatch, (*checked, *found))):
        raise ValueError("more than a reset can hold")
    words = "; ".join(f"{row}: {words}" for row, words in found.items())
    clean = frame["clean"] is True and not found and bool(checked)
    milliseconds = min(_LONGEST_MS, max(0, round(frame["ms"])))
    return Reset(str(frame["reset"]), clean, tuple(sorted(set(checked))), ascii(words)[1:-1][:_WORDS], milliseconds)
