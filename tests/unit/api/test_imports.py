"""What code imports, by its syntax tree: every form of an import, and whatever else somebody may send."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patient import unnice

from codeexec_api import imports
from codeexec_api.code_rules import Inquiry
from codeexec_api.imports import Unreadable, imported

OS = ("os",)


def found(code: str | bytes, *modules: str) -> set[str]:
    return set(imported(code if isinstance(code, bytes) else code.encode(), modules or OS))


def unreadable(code: str | bytes, *modules: str) -> bool:
    try:
        found(code, *modules)
    except Unreadable:
        return True
    return False


# --- forms of an import ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "import os as harmless",
        "import json, os",
        "import os.path",
        "import os.path as p",
        "from os import path",
        "from os import path as p, sep",
        "from os import *",
        "from os.path import join",
        "import ｏｓ",  # noqa: RUF001 - the parser makes it the same name
        "def f():\n    class A:\n        async def g(self):\n            import os",
        "if False:\n    import os",
        "try:\n    import os\nexcept ImportError:\n    pass",
        "match 1:\n    case 1:\n        import os",
        "lambda: __import__('os')",
        "__import__('os')",
        "__import__('os.path')",
        "__import__(name='os')",
        "__import__('os', fromlist=['path'])",
        "__import__('os', level=0)",
        "builtins.__import__('os')",
        "__builtins__.__import__('os')",
        "import importlib\nimportlib.import_module('os')",
        "import importlib as i\ni.import_module('os.path')",
        "import importlib\nimportlib.import_module(name='os')",
        "from importlib import import_module\nimport_module('os')",
        "from importlib import import_module as load\nload('os')",
        "load('os')\nfrom importlib import import_module as load",
        "from importlib import __import__ as load\nload('os')",
        "from builtins import __import__ as load\nload('os')",
        "from importlib import *\nimport_module('os')",
        "import importlib\nimportlib.import_module('.path', 'os')",
        "import importlib\nimportlib.import_module('.path', package='os')",
        "f'{__import__(\"os\").sep}'",
        "@__import__('os').register\ndef f(): pass",
        "def f(a=__import__('os')): pass",
        "x: __import__('os') = 1",
    ],
)
def test_it_imports_os(code: str) -> None:
    assert found(code) == {"os"}


@pytest.mark.parametrize(
    "code",
    [
        "",
        "x = 1",
        "import osmium",
        "import posix",
        "from . import os",
        "from .os import path",
        "from .. import os",
        "from ..os import path",
        "from a import os",
        "import a.os",
        "os = 1\nos.path",
        "'import os'",
        "# import os",
        "__import__('o' + 's')",
        "__import__(name)",
        "__import__()",
        "__import__(*['os'])",
        "__import__('os', globals(), locals(), [], 1)",
        "__import__('path', level=2)",
        "import_module('.os')",
        "load('os')",
        "print('os')",
        "getattr(__builtins__, '__imp' + 'ort__')('os')",  # advice, and no isolation
        "exec('import os')",
    ],
)
def test_it_does_not(code: str) -> None:
    assert found(code) == set()


@pytest.mark.parametrize(
    ("code", "modules", "expected"),
    [
        ("import os.path", ("os.path", "os"), {"os.path", "os"}),
        ("import os", ("os.path",), set()),
        ("from os import path", ("os.path",), {"os.path"}),
        ("from os import path as p", ("os.path.x",), set()),
        ("from os import *", ("os.path", "os.path.x", "a"), {"os.path"}),
        ("from os.path import join", ("os.path",), {"os.path"}),
        ("import os.pathology", ("os.path",), set()),
        ("__import__('os', fromlist=('path',))", ("os.path",), {"os.path"}),
        ("import_module('..c', 'a.b')", ("a.c", "a.b"), {"a.c"}),
        ("import_module('.', 'a.b')", ("a.b",), {"a.b"}),
        ("import_module('....x', 'a.b')", ("a", "x"), {"x"}),
        ("import urllib.request as u", ("urllib.request", "urllib.error"), {"urllib.request"}),
        ("import os.ä", ("os",), {"os"}),
        (f"import {'a.' * 200}b", ("a.a", "b"), {"a.a"}),
    ],
)
def test_modules_with_dots(code: str, modules: Sequence[str], expected: set[str]) -> None:
    assert found(code, *modules) == expected


# --- as it would run ------------------------------------------------------------------------------------------------


def test_an_encoding_is_heeded_as_in_a_file_and_not_as_in_a_kernel() -> None:
    """With this encoding the import is in a string, in a file; a kernel takes text, in which it stands as it is."""
    hidden = "# coding: latin-1\nimport ºs"  # in UTF-8 this letter is an o to the parser
    assert found(hidden) == {"os"}
    assert found("import ºs") == {"os"}
    assert found("# coding: latin-1\nx = 'é'".encode("latin-1")) == set()
    assert found("# coding: latin-1\nimport os\nx = 'é'".encode("latin-1")) == {"os"}
    assert found("\r# vim: set fileencoding=ascii :\rimport os\r") == {"os"}


def test_a_byte_order_mark_changes_nothing() -> None:
    assert found(b"\xef\xbb\xbfimport os") == {"os"}
    assert found(b"\xef\xbb\xbf# coding: utf-8\nimport os") == {"os"}


@pytest.mark.parametrize(
    "code",
    [
        "import os; !ls",
        "%run other.py",
        "%%bash\nls",
        "!ls",
        "help?",
        ">>> import os",
        "print 'two'",
        "def f(:",
        "    import os",
        "x = $1",
        b"import os\x00",
        b"\x00",
        b"\xff\xfe",
        b"x = '\xe9'",
        b"# coding: rot13\nvzcbeg bf",
        b"# coding: utf-16\nimport os",
        b"# coding: no-such\nimport os",
        b"# coding: utf-7\nACI=1\n+ACI-+ACI-+ACI-1\nimport os\n+ACI-+ACI-+ACI-1",
        b"\xef\xbb\xbf# coding: latin-1\nimport os",
        "x = " + "9" * 5000,
        "(" * 100_000,
        "-" * 100_000 + "1",
        "1+" * 100_000 + "1",
        "a." * 100_000 + "a",
        "lambda:" * 100_000 + "1",
        "".join(" " * depth + "if 1:\n" for depth in range(200)),
        "{" * 300 + "}" * 300,
        "f'" + "{f'" * 200,
        "\ud800".encode("utf-8", "surrogatepass"),
    ],
    ids=repr,
)
def test_what_can_not_be_read_is_said_to_be_so(code: str | bytes) -> None:
    assert unreadable(code)


# --- whatever somebody may send -------------------------------------------------------------------------------------

TOKENS = [
    *("import ", "from ", "os", ".", " as ", "*", "(", ")", "\n", "    ", "'", '"', "#", "\\", "__import__", ",", "="),
    *("importlib", "import_module", "if 1:", "def f():", ":", "%", "!", "\x00", "\ufeff", "# coding: latin-1\n", "é"),
]
texts = st.text() | st.lists(st.sampled_from(TOKENS)).map("".join)
contents = st.binary() | texts.map(lambda one: one.encode("utf-8", "surrogatepass"))
module_names = st.lists(st.sampled_from(["os", "os.path", "subprocess", "a.b.c", "importlib"]), max_size=4, unique=True)


@given(content=contents, modules=module_names)
def test_of_any_bytes_it_names_modules_of_the_list_or_says_that_it_can_not(content: bytes, modules: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child is told to, too
        with suppress(Unreadable):
            assert imported(content, modules) <= set(modules)


@given(content=contents, modules=module_names, more=module_names)
def test_what_is_found_of_one_module_does_not_depend_on_the_others(
    content: bytes, modules: list[str], more: list[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not unreadable(content):
            assert found(content, *modules, "x") <= found(content, *modules, *more, "x")
            alone = set().union(*(found(content, one) for one in modules)) if modules else set()
            assert found(content, *modules, "x") == alone


# --- the child process ----------------------------------------------------------------------------------------------


def child(*sources: bytes, modules: Sequence[str] = OS) -> list[list[int] | None]:
    """What it answers, as far as it comes. Its limit is CPU time, which a busy machine may take long to give."""
    told = f"{' '.join(modules)}\n{' '.join(str(len(one)) for one in sources)}\n".encode() + b"".join(sources)
    done = subprocess.run(unnice(Inquiry.command()), input=told, capture_output=True, env={})
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_it_answers_for_each_part() -> None:
    parts = (b"import os.path", b"x", b"%ls", b"", b"from subprocess import run; import os")
    assert child(*parts, modules=("os", "subprocess")) == [[0], [], None, [], [0, 1]]


HOSTILE = {
    "deep": b"(" * 1_000_000,
    "deep, and a tree": b"-" * 1_000_000 + b"1",
    "long": b"1+" * 450_000 + b"1",
    "attributes": b"a." * 450_000 + b"a",
    "dense": b"a\n" * 500_000,
    "dense list": b"[" + b"1," * 490_000 + b"]",
    "nulls": b"\x00" * 1_000_000,
    "not UTF-8": b"\xff" * 1_000_000,
    "large number": b"x=" + b"9" * 990_000,
    "large power": b"x=" + b"9**" * 300_000 + b"9",
    "large repetition": b"x='a'*10**12",
    "deep strings": b"f'" + b"{f'" * 300_000,
    "blocks": b"if 1:\n" * 160_000,
    "dictionaries": b"{1:" * 300_000,
    "comparisons": b"1<" * 490_000 + b"1",
    "decorators": b"@a\n" * 300_000 + b"def f(): pass",
    "a name of its own for all": b"import " + b"a." * 490_000 + b"a",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_code_is_unreadable_or_harmless_and_takes_little_time(name: str) -> None:
    before = os.times()
    answers = child(HOSTILE[name], b"import os", modules=("os", "a.a"))
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 2 * imports.CPU_SECONDS, "twice as much as it may take"
    assert all(one is None or set(one) <= {0, 1} for one in answers)
    if len(answers) == 2:  # else it has ended, and what is missing counts as unreadable
        assert answers[1] == [0], "the next part is read as ever"


def test_memory_is_limited_and_what_comes_next_is_read() -> None:
    assert child(HOSTILE["dense"], b"import os") == [None, [0]]


def test_names_need_not_be_ascii_and_are_read_as_python_does() -> None:
    assert child("größe = 1".encode(), "数 = 1".encode(), "import \uff4f\uff53".encode()) == [[], [], [0]]


@pytest.mark.suspect
def test_time_is_limited() -> None:
    """Each part takes a while, all of them longer than there is."""
    part = b"def f(a):\n    return [a.b(c, d=1) for c in a if c]\n" * 5_000
    answers = child(*[part] * 64)
    assert 0 < len(answers) < 64
    assert answers == [[]] * len(answers)


def test_it_can_not_open_files_nor_sockets_nor_start_processes() -> None:
    """Whatever somebody makes of a hole in the parser. Without its limits all of it works, and root may start some."""
    tries = (
        "import os, sys, _socket\n"
        "def attempt(what, *arguments):\n"
        "    try: what(*arguments)\n"
        "    except OSError: return False\n"
        "    return True\n"
        "def fork():\n"
        "    if os.fork() == 0: os._exit(0)\n"
    )
    report = "print([attempt(os.open, '/dev/null', 0), attempt(_socket.socket), attempt(fork)])"
    script = "import runpy\nimports = runpy.run_path(sys.argv[1])\n"
    for confine, expected in (("", [True] * 3), ("imports['_confine']()\n", [False, False, os.geteuid() == 0])):
        program = tries + script + confine + report
        # With -S, as it runs: coverage, which follows child processes, could not write its file.
        words = [sys.executable, "-I", "-S", "-c", program, imports.__file__]
        assert json.loads(subprocess.check_output(words).decode().lower()) == expected


def test_it_knows_nothing_of_the_environment() -> None:
    program, *options = Inquiry.command()
    assert program == sys.executable
    assert options[:2] == ["-I", "-S"]
    loaded = "import sys; print(' '.join(sys.modules))"
    known = subprocess.check_output([program, *options[:-1], "-c", loaded], env={"PYTHONPATH": "/nowhere"}, text=True)
    assert "site" not in known.split()
