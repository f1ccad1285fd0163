"""The command line: `codeexec`, and `kubectl codeexec`."""

import sys
from typing import TYPE_CHECKING, Any, NoReturn

from executor_client.runtime.extras import missing_extra

__all__ = ["main"]

if TYPE_CHECKING:
    from executor_client.cli.commands import main
else:
    try:
        from executor_client.cli.commands import main
    except ModuleNotFoundError as error:
        _lacking = missing_extra("codeexec", error)
        if _lacking is error:
            raise

        def main(**_: Any) -> NoReturn:
            """Say what to install: this is no trouble that a traceback would explain."""
            sys.exit(f"Error: {_lacking}")
