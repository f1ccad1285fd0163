"""How audit lines get into a file, whole or not at all."""

import os
from typing import Final

_CUT_OFF: Final = " (cut off)\n"


class LogFile:
    """Writes whole lines to a file descriptor, past all buffers, so that a failure is known at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._torn = False

    def __call__(self, line: str) -> None:
        """Write one line.

        Raises:
            OSError: it was not written, or only a part of it, which the next one turns into no line at all.
        """
        data = f"{_CUT_OFF if self._torn else ''}{line}\n".encode()
        self._torn = True
        while data:
            data = data[os.write(self._descriptor, data) :]
        self._torn = False
