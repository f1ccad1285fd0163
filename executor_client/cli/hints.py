"""What to do about a failure that the output of the code shows, for somebody at the command line: pure."""

import re
from typing import Final

from executor_client.model.results import ExecutionResult

_NO_PIP: Final = re.compile(r"\bpip3?: (?:command )?not found|No module named '?pip\b")
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_NOTHING_INSTALLED: Final = "packages can't be installed at run time: use an image that has the package (--image)"


def hint_about(result: ExecutionResult) -> str:
    """What the output doesn't say itself; empty if there is nothing to add."""
    if _NO_PIP.search(result.stderr):
        return f"{_NOTHING_INSTALLED}. See docs/images.md"
    if result.exit_code and (missing := _NO_MODULE.findall(result.stderr)):
        return (
            f"the sandbox has no module {missing[-1]!r}, and {_NOTHING_INSTALLED}, or send your own module with -f. "
            "See docs/images.md"
        )
    return ""
