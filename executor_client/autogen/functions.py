"""Python functions that code may import, and other habits of AutoGen's command-line executors: pure."""

import re
from collections.abc import Callable, Sequence
from string import Template
from typing import Any, Final, TypeAlias

from autogen_core.code_executor import FunctionWithRequirements, FunctionWithRequirementsStr
from autogen_core.code_executor._func_with_reqs import build_python_functions_file, to_stub

UserFunction: TypeAlias = Callable[..., Any] | FunctionWithRequirements[Any, Any] | FunctionWithRequirementsStr

PROMPT_TEMPLATE: Final = """You have access to the following user defined functions. They can be imported from the \
module `$module_name`:

$functions"""

_REQUIREMENT_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_CHECK: Final = """\
import importlib, importlib.metadata, sys
missing = []
for name in {packages!r}:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        missing.append(name)
if missing:
    there = sorted({{one.metadata["Name"] for one in importlib.metadata.distributions()}})
    print(f"Pip install failed. {where} lacks {{', '.join(missing)}}; nothing is installed at run time. It has: "
          f"{{', '.join(there) or 'no packages'}}", file=sys.stderr)
    sys.exit(1)
importlib.import_module({module!r})
"""
_PIP: Final = {"python": re.compile(r"! ?pip install")} | dict.fromkeys(
    ("bash", "shell", "sh", "pwsh", "powershell", "ps1"), re.compile(r"pip install")
)


def module_source(functions: Sequence[UserFunction]) -> str:
    """The functions as a Python module, the same each time: AutoGen itself has the imports in the order of a set."""
    imports = {one for function in functions for one in getattr(function, "global_imports", ())}
    lines = build_python_functions_file(functions).split("\n")
    lines[: len(imports)] = sorted(lines[: len(imports)], key=lambda line: ("__future__" not in line, line))
    return "\n".join(lines)


def check_program(functions: Sequence[UserFunction], module: str, where: str = "the sandbox image") -> str:
    """A Python program that fails unless the packages are there and the module can be imported.

    Its names are its own, also where variables outlive it.

    Args:
        functions: that code may import.
        module: from which.
        where: what has the packages, for the message.
    """
    source = _CHECK.format(packages=_packages(functions), module=module, where=where)
    return f"exec({source!r}, {{'__name__': 'check'}})\n"


def prompt(functions: Sequence[UserFunction], module: str, template: str) -> str:
    """A text for a model, with `$module_name`, and stubs of the functions for `$functions`."""
    stubs = "\n\n".join(to_stub(_plain(function)) for function in functions)
    return Template(template).substitute(module_name=module, functions=stubs)


def silence_pip(code: str, language: str) -> str:
    """Make `pip install` quiet where it begins a line, as AutoGen's executors do.

    Args:
        code: of one block.
        language: as the caller writes it, in any case.
    """
    command = _PIP.get(language.lower())
    if command is None:
        return code
    return "\n".join(
        line.replace(found[0], f"{found[0]} -qqq") if (found := command.match(line)) and "-qqq" not in line else line
        for line in code.split("\n")
    )


def _plain(function: UserFunction) -> Callable[..., Any] | FunctionWithRequirementsStr:
    return function.func if isinstance(function, FunctionWithRequirements) else function


def _packages(functions: Sequence[UserFunction]) -> list[str]:
    requirements: list[str] = []
    for function in functions:
        packages = getattr(function, "python_packages", ())
        requirements += [packages] if isinstance(packages, str) else packages
    names = [_REQUIREMENT_NAME.match(requirement.strip()) for requirement in requirements]
    return sorted({match[0] for match in names if match})


def names(functions: Sequence[UserFunction]) -> list[str]:
    """Names of the functions, as code imports them."""
    plain = [_plain(function) for function in functions]
    return [(one.compiled_func if isinstance(one, FunctionWithRequirementsStr) else one).__name__ for one in plain]
