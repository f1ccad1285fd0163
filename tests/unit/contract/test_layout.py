"""The house is where its map says: packages, names and imports."""

import ast
import importlib
import operator
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from codeexec_api.names import GROUP

ROOT = Path(__file__).parents[3]
PACKAGES = {
    "codeexec_api": ROOT / "crds" / "codeexec_api",
    "codeexec_operator": ROOT / "operator" / "codeexec_operator",
    "executor_client": ROOT / "executor_client",
    "codeexec": ROOT / "codeexec",
}
MODULES = [path for folder in PACKAGES.values() for path in sorted(folder.rglob("*.py"))]
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_CLASS = 400, 250
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HARDENING = PACKAGES["codeexec_operator"] / "manifests" / "hardening.py"
SECURITY_FIELDS = re.compile(
    r"runAs(NonRoot|User|Group)|fsGroup|seccompProfile|allowPrivilegeEscalation|readOnlyRootFilesystem|capabilities"
    r"|privileged|host(Network|PID|IPC|Users)|automountServiceAccountToken|enableServiceLinks|dnsPolicy|emptyDir"
)


WRITERS = {
    "executor_client/workspace/work_dir.py": "the one door for what comes from a sandbox",
    "executor_client/cli/files.py": "a pipe or a device that the caller names",
    "executor_client/cli/audit.py": "the report, to the file that the caller names",
    "executor_client/cli/checkpoints.py": "a new key and checkpoints, in the folder that the caller names",
    "executor_client/cli/streams.py": "/dev/null, in the place of a closed stream",
    "executor_client/local/audit.py": "the audit log, at the path that the caller names",
}
"""Which modules of the client open files to write, and what."""
WRITING = re.compile(
    r"write_(bytes|text)|copy(2|file|fileobj|tree)?|move|symlink(_to)?|(hard)?link(_to)?|mkstemp|rename|touch"
)
WRITING_MODE = re.compile(r"[rbt]*[wax+][wax+rbt]*")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def strings(path: Path) -> Iterator[str]:
    """String constants of a module, without its docstrings."""
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def test_the_operator_folder_can_not_shadow_the_standard_library() -> None:
    assert not list((ROOT / "operator").glob("*.py"))
    assert operator.itemgetter(1)("ab") == "b"
    assert not Path(str(operator.__file__)).is_relative_to(ROOT / "operator")


def test_the_standard_library_is_intact_from_the_root_of_the_checkout() -> None:
    code = "import operator, collections; assert operator.eq(1, 1)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_each_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def lengths_of_classes(text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and node.end_lineno:
            yield node.name, node.end_lineno - node.lineno + 1


def test_no_file_has_more_than_400_lines_and_no_class_more_than_250() -> None:
    files = {name_of(path): path.read_text() for path in [*MODULES, *(ROOT / "operator" / "sandbox").rglob("*.py")]}
    assert not {name: lines for name, text in files.items() if (lines := text.count("\n")) > MOST_LINES_OF_A_FILE}
    classes = {
        name + kind: lines for name, text in files.items() for kind, lines in lengths_of_classes(ast.parse(text))
    }
    assert not {name: lines for name, lines in classes.items() if lines > MOST_LINES_OF_A_CLASS}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_the_api_group_is_written_in_one_place(path: Path) -> None:
    if path != PACKAGES["codeexec_api"] / "names.py":
        assert not [text for text in strings(path) if GROUP in text]


@pytest.mark.parametrize("path", sorted(PACKAGES["codeexec_operator"].rglob("*.py")), ids=name_of)
def test_security_settings_stand_in_one_place(path: Path) -> None:
    if path != HARDENING:
        assert not [text for text in strings(path) if SECURITY_FIELDS.search(text)]


@pytest.mark.parametrize("package", ["codeexec_api", "executor_client", "codeexec"])
def test_public_names_are_sorted_and_there(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ == sorted(module.__all__, key=lambda name: (not name.isupper(), name)), "constants first"
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_what_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        importlib.import_module("executor_client").Nothing  # noqa: B018


@pytest.mark.parametrize(
    ("imported", "unwanted"),
    [
        ("codeexec", ["autogen_core", "kopf", "kubernetes", "rich", "click", "pydantic", "codeexec_api"]),
        ("codeexec.sync", ["autogen_core", "kopf", "kubernetes", "rich", "click", "executor_client.local"]),
        ("codeexec.local", ["autogen_core", "kopf", "kubernetes", "rich", "click", "codeexec_operator"]),
        ("codeexec.testing", ["autogen_core", "kopf", "rich", "click", "pytest", "executor_client.local"]),
        ("executor_client", ["autogen_core", "kopf", "codeexec_operator", "sandlock", "executor_client.local"]),
        ("executor_client.autogen.kubernetes", ["kopf", "codeexec_operator", "sandlock", "executor_client.local"]),
        ("executor_client.local.executor", ["kopf", "codeexec_operator", "sandlock"]),
        ("executor_client.client.client", ["autogen_core", "kopf", "codeexec_operator"]),
        ("executor_client.testing", ["autogen_core", "kopf", "codeexec_operator", "pytest"]),
        ("executor_client.cli", ["autogen_core", "kopf", "codeexec_operator"]),
        ("codeexec_api", ["kubernetes", "kopf", "autogen_core", "yaml"]),
        ("codeexec_operator.core.reconcile", ["kubernetes", "kopf", "autogen_core", "executor_client"]),
        ("codeexec_operator.core.session", ["kubernetes", "kopf", "autogen_core", "executor_client"]),
    ],
)
def test_an_import_brings_in_only_what_it_needs(imported: str, unwanted: list[str]) -> None:
    code = f"import sys, {imported}; print([name for name in {unwanted} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_import_contracts_hold() -> None:
    result = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_kubectl_runs_the_same_program() -> None:
    assert PROJECT["scripts"]["kubectl-codeexec"] == PROJECT["scripts"]["codeexec"]


def test_extras() -> None:
    assert set(PROJECT["optional-dependencies"]) == {
        "autogen",
        "cli",
        "checkpoints",
        "local",
        "client",
    }


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=name_of)
def test_locked_requirements_have_hashes_and_name_no_index(path: Path) -> None:
    text = path.read_text()
    pinned = re.findall(r"^[a-z0-9][^\n]*(?:\n    --hash[^\n]*)*", text, re.MULTILINE)
    assert pinned
    assert all("==" in one and "--hash=sha256:" in one for one in pinned)
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text)


def test_the_changelog_begins_with_this_version() -> None:
    [newest, *_] = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest == PROJECT["version"]


def writes_files(path: Path) -> bool:
    """Whether a module opens or makes a file to write: by a function's name, a mode, or a flag of `os.open`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in ("O_WRONLY", "O_RDWR", "O_CREAT"):
            return True
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = [*node.args[:2], *(one.value for one in node.keywords)]
        texts = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if name in ("open", "open_file") and any(map(WRITING_MODE.fullmatch, texts)):
            return True
        if WRITING.fullmatch(name):
            return True
    return False


def test_files_of_a_sandbox_get_to_the_caller_s_disk_by_one_door() -> None:
    ours = (PACKAGES["executor_client"], PACKAGES["codeexec"])
    client = [path for path in MODULES if any(path.is_relative_to(folder) for folder in ours)]
    assert {name_of(path) for path in client if writes_files(path)} == set(WRITERS)
