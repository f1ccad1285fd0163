"""What to install: without extras, codeexec brings nothing that talks to a cluster."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

_OURS: Final = ("codeexec", "codeexec_api", "executor_client")


def missing_extra(what: str, error: ModuleNotFoundError, extra: str = "client") -> ImportError:
    """The error of something that can't be used because a package is not installed, on one line."""
    needed = (error.name or "").partition(".")[0]
    if needed in ("", *_OURS):
        return error
    text = f'{what} needs the package {needed!r}, which is not installed: pip install "codeexec[{extra}]"'
    return ModuleNotFoundError(text, name=error.name)


def load(package: str, name: str, modules: Mapping[str, str]) -> Any:
    """What a package gives out under a name, from the module that this name stands for in `modules`.

    Raises:
        AttributeError: there is none of this name.
        ModuleNotFoundError: its module needs a package that is not installed; the text says how to install it.
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(import_module(modules[name]), name)
    except ModuleNotFoundError as error:
        raise missing_extra(name, error) from None
