"""What to install: without extras, codeexec brings nothing that talks to a cluster."""

from typing import Final

_OURS: Final = ("codeexec_api", "executor_client")


def missing_extra(what: str, error: ModuleNotFoundError, extra: str = "client") -> ImportError:
    """The error of something that can't be used because a package is not installed, on one line."""
    needed = (error.name or "").partition(".")[0]
    if needed in ("", *_OURS):
        return error
    text = f'{what} needs the package {needed!r}, which is not installed: pip install "codeexec[{extra}]"'
    return ModuleNotFoundError(text, name=error.name)
