"""What to install: AutoGen, the command line, the local sandbox and object storages are extras."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

_OURS: Final = ("codeexec", "codeexec_api", "executor_client")
_EXTRAS: Final = {
    "autogen_core": "autogen",
    "click": "cli",
    "jinja2": "cli",
    "rich": "cli",
    "obstore": "checkpoints",
    "sandlock": "local",
}
"""Which extra brings a package; all others come with codeexec itself."""


def missing_extra(what: str, error: ModuleNotFoundError) -> ImportError:
    """The error of something that can't be used because a package is not installed, on one line."""
    needed = (error.name or "").partition(".")[0]
    if needed in ("", *_OURS):
        return error
    text = f"{what} needs the package {needed!r}, which is not installed: {how_to_install(needed)}"
    return ModuleNotFoundError(text, name=error.name)


def how_to_install(package: str) -> str:
    """What to install that brings a package. codeexec is not published: its name alone may bring another's package."""
    extra = _EXTRAS.get(package)
    what, path = (f"codeexec with its extra {extra!r}", f'".[{extra}]"') if extra else ("codeexec", ".")
    return f"install {what}, in a checkout with `pip install {path}` (docs/install.md)"


def load(package: str, name: str, modules: Mapping[str, str]) -> Any:
    """What a package gives out under a name, from the module that this name stands for in `modules`.

    Raises:
        AttributeError: the package has no such name.
        ModuleNotFoundError: its module needs a package that is not installed; the text says how to install it.
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(import_module(modules[name]), name)
    except ModuleNotFoundError as error:
        raise missing_extra(name, error) from None
