"""Functions for the code, and AutoGen's habits with pip."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from autogen_core.code_executor import FunctionWithRequirements, ImportFromModule, with_requirements

from executor_client.autogen.functions import check_program, module_source, names, prompt, silence_pip

IMPORTS = ["json", ImportFromModule("__future__", ("annotations",)), "base64", ImportFromModule("os", ("path",))]


def plain(number: int) -> int:
    """Add one."""
    return number + 1


@with_requirements(python_packages=["pytest>=1"], global_imports=IMPORTS)  # type: ignore[arg-type]
def decorated() -> str:
    """Say something."""
    return "x"


FROM_CALLABLE = FunctionWithRequirements.from_callable(plain, ["no-such-package"])
FROM_TEXT = FunctionWithRequirements.from_str("def from_text(x: int) -> int:\n    return x\n", "pytest")


def test_the_module_is_the_same_each_time_and_can_be_imported(tmp_path: Path) -> None:
    source = module_source([plain, decorated, FROM_TEXT])
    head = source.split("\n")[:4]
    assert head == ["from __future__ import annotations", "from os import path", "import base64", "import json"]
    (tmp_path / "tools.py").write_text(source)
    check = check_program([plain, decorated, FROM_TEXT], "tools")
    assert run(check + "import tools\nprint(tools.plain(1), tools.from_text(3))\n", tmp_path) == (0, "2 3\n", "")


def test_a_package_that_is_missing_is_named_and_no_name_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "tools.py").touch()
    exit_code, _, complaint = run(check_program([FROM_CALLABLE], "tools"), tmp_path)
    assert exit_code == 1
    assert complaint.startswith(
        "Pip install failed. the sandbox image lacks no-such-package; nothing is installed at run time. It has: "
    )
    before_and_after = "before = set(dir())\n{}print(sorted(set(dir()) - before - {{'before'}}))"
    assert run(before_and_after.format(check_program([plain], "tools")), tmp_path) == (0, "[]\n", "")


def run(program: str, folder: Path) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_prompt_has_stubs_of_all_kinds_of_functions() -> None:
    text = prompt([plain, decorated, FROM_CALLABLE, FROM_TEXT], "tools", "$module_name: $functions")
    assert text.startswith('tools: def plain(number: int) -> int:\n    """Add one."""\n')
    assert "def decorated() -> str:" in text
    assert "def from_text(x: int) -> int:" in text
    assert names([plain, decorated, FROM_CALLABLE, FROM_TEXT]) == ["plain", "decorated", "plain", "from_text"]


@pytest.mark.parametrize(
    ("language", "code", "expected"),
    [
        ("sh", "ls\npip install a\n", "ls\npip install -qqq a\n"),
        ("Bash", "pip install a && pip install b", "pip install -qqq a && pip install -qqq b"),
        ("shell", "pip install -qqq a", None),
        ("pwsh", "pip install a", "pip install -qqq a"),
        ("sh", "  pip install a\nsudo pip install a\npip3 install a", None),
        ("python", "! pip install a\n!pip install b", "! pip install -qqq a\n!pip install -qqq b"),
        ("Python", "!pip install b", "!pip install -qqq b"),
        ("py", "!pip install b", None),
        ("python", "pip install a", None),
        ("javascript", "pip install a", None),
    ],
)
def test_pip_is_quiet_as_with_autogen(language: str, code: str, expected: str | None) -> None:
    from autogen_ext.code_executors._common import silence_pip as autogens

    assert silence_pip(code, language) == (code if expected is None else expected)
    assert silence_pip(code, language) == autogens(code, language.lower())


def test_functions_may_be_anything_with_a_name() -> None:
    given: list[Any] = [len]
    assert names(given) == ["len"]
