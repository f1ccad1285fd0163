"""Which of some modules Python code imports, told by its syntax tree. The standard library only.

Code is hostile: to parse it can take memory and time without end, and has crashed interpreters. So nobody calls
`imported` on code of agents in a process that does anything else: this file is also a script, which confines itself
before it looks at anything. `code_rules.Inquiry` says how it is started, what it is told and what it answers.
"""

from __future__ import annotations

import os
import sys

# What `ast` is made of. That and `typing` take longer to import than Python takes to start.
from _ast import AST, Attribute, Call, Constant, Import, ImportFrom, List, Name, PyCF_ONLY_AST, Tuple, keyword

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Final

MEMORY_BYTES: Final = 128 * 1024 * 1024
"""Address space of the script. Code of the usual kind takes about 70 times its size, all but noise 900 times."""
CPU_SECONDS: Final = 2
"""For all code of one execution. 1 MB of the usual kind takes less than half a second."""

_IMPORTERS: Final = frozenset({"__import__", "import_module"})
_THEIR_MODULES: Final = frozenset({"builtins", "importlib"})
_ENCODINGS: Final = ("ascii", "latin-1")
"""Those besides UTF-8 that code can be read in; any other makes it unreadable."""


class Unreadable(Exception):
    """Python can't read it: for this version it is not Python, or it is too deep or too large."""


def imported(source: bytes, modules: Collection[str]) -> frozenset[str]:
    """Those of the modules that code imports, or imports something of, by their absolute names.

    Args:
        source: as it stands in a file.
        modules: names such as `os` or `os.path`; with `os`, what is below it counts, too.

    Raises:
        Unreadable: nothing can be told.
    """
    try:
        names = {name for text in _as_it_may_run(source) for name in _names(_parse(text))}
    except Exception as error:  # of any kind: it is the parser's answer to any text
        raise Unreadable(type(error).__name__) from None
    return _listed(names, modules)


def _as_it_may_run(source: bytes) -> Iterator[bytes | str]:
    """In a file, the first two lines may name an encoding. An IPython kernel takes text, and heeds no such name."""
    yield source
    if any(b"coding" in line for line in source.replace(b"\r", b"\n").split(b"\n", 2)[:2]):
        try:
            yield source.removeprefix(b"\xef\xbb\xbf").decode()
        except UnicodeDecodeError:
            return  # so it can't be a block, and a kernel is not given files


def _parse(source: bytes | str) -> AST:
    tree: AST = compile(source, "<code>", "exec", PyCF_ONLY_AST, dont_inherit=True)
    return tree


def _walk(tree: AST) -> Iterator[AST]:
    """All nodes, without recursion."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            for one in value if isinstance(value, list) else (value,):
                if isinstance(one, AST):
                    waiting.append(one)


def _names(tree: AST) -> Iterator[str]:
    """Absolute names of all that is imported: `a.b` for `from a import b`, `a.*` for all of it."""
    calls: list[Call] = []
    importers = set(_IMPORTERS)
    for node in _walk(tree):
        if isinstance(node, Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ImportFrom) and not node.level and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            if node.module in _THEIR_MODULES:
                importers |= {alias.asname for alias in node.names if alias.asname and alias.name in _IMPORTERS}
        elif isinstance(node, Call):
            calls.append(node)
    for call in calls:
        if _is_import(call, importers):
            yield from _called_for(call)


def _is_import(call: Call, importers: Collection[str]) -> bool:
    function = call.func
    if isinstance(function, Attribute):  # of whatever it is: `importlib` may have any name
        return function.attr in _IMPORTERS
    return isinstance(function, Name) and function.id in importers


def _called_for(call: Call) -> Iterator[str]:
    """What `__import__(name, …, …, fromlist, level)` or `import_module(name, package)` imports, if that is literal."""
    name, package = _text(_argument(call, 0, "name")), _text(_argument(call, 1, "package"))
    level = _argument(call, 4, "level")
    if not name or (isinstance(level, Constant) and level.value):
        return
    if not name.startswith("."):
        yield name
        listed = _argument(call, 3, "fromlist")
        items = listed.elts if isinstance(listed, List | Tuple) else ()
        yield from (f"{name}.{item}" for one in items if (item := _text(one)))
    elif package:
        rest = name.lstrip(".")
        parents = package.split(".")[: 1 - (len(name) - len(rest)) or None]
        yield ".".join((*parents, rest)) if rest else ".".join(parents)


def _argument(call: Call, position: int, name: str) -> AST | None:
    if position < len(call.args):
        return call.args[position]
    return next((one.value for one in call.keywords if isinstance(one, keyword) and one.arg == name), None)


def _text(node: AST | None) -> str:
    return node.value if isinstance(node, Constant) and isinstance(node.value, str) else ""


def _listed(names: Collection[str], modules: Collection[str]) -> frozenset[str]:
    """The modules that the names are, are in, or, with `a.*`, may be."""
    lengths = {len(module) for module in modules}
    found = {
        module
        for name in names
        for length in lengths
        if (module := name[:length]) in modules and name[length : length + 1] in ("", ".")
    }
    all_of = {name.removesuffix(".*") for name in names if name.endswith(".*")}
    return frozenset(found | {module for module in modules if module.rpartition(".")[0] in all_of})


# --- the script ---


def _confine() -> None:
    """From here on: no file, no socket, no process, and not much time or memory."""
    for encoding in _ENCODINGS:
        _parse(f"# coding: {encoding}".encode())  # each is a file, which is opened now
    _parse("ö".encode())  # the same for names that are not ASCII
    os.nice(10)
    try:
        import resource
    except ImportError:  # Windows: the command line of a user, with code of their own
        return
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(limit, (most, most))


def _answer() -> None:
    """Read modules, sizes and code from stdin; write a line of JSON for each, as soon as it is known."""
    told = sys.stdin.buffer
    modules = told.readline().decode("ascii").split()
    for size in map(int, told.readline().split()):
        try:
            found = imported(told.read(size), modules)
            answer = str([index for index, module in enumerate(modules) if module in found])
        except Unreadable:
            answer = "null"
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _confine()
    _answer()
