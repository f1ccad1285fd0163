"""Names that programs of the caller act on unasked: nothing that code made gets one, by no way out of a sandbox."""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from click.testing import CliRunner, Result
from planted import acts_on, for_a_repository, for_any_folder, git, plant

from executor_client import FileTransferError, KubernetesCodeExecutor
from executor_client.autogen.kubernetes import SessionMode
from executor_client.cli import main
from executor_client.testing import FakeBlock, FakeCluster, FakeOutcome
from executor_client.workspace.unasked import acted_on
from executor_client.workspace.work_dir import NameRefused, write_inside

TOKEN = CancellationToken()

REFUSED = (
    *(".git", ".git/config", "sub/.env", ".envrc", "a/.github/workflows/x.yml", ".npmrc", ".bashrc", "...", ".x"),
    *("HEAD", "head", "a/HEAD", "HEAD/x", "HEAD.", "HEAD...", "HEAD::", "HEAD::$DATA", "HEAD:x", "C:.git", "x:HEAD"),
    *("\uff28\uff25\uff21\uff24", "\uff0egit", "\u2024git", "_darcs/prefs/defaults", "_FOSSIL_"),
    *("git~1", "GIT~1", "git~1/config", "VSCODE~1/tasks.json", "GITATT~2", "envrc~1", "bashrc~1.x"),
    *("desktop.ini", "Desktop.ini.", "autorun.inf", "a/AutoRun.INF", "x.lnk", "x.URL", "x.scf", "a.desktop"),
    *("git.exe", "git.bat", "GIT.CMD", "a/x.com", "x.vbs", "x.wsf", "x.jse", "x.exe.", "git.exe::$DATA"),
    *("sitecustomize.py", "sitecustomize/__init__.py", "usercustomize.cpython-311-x86_64-linux-gnu.so"),
    *("venv/pyvenv.cfg", "lib/python3.11/site-packages/x.pth", "dist-packages/x", "__pycache__/a.cpython-311.pyc"),
    *("node_modules/a/b.js", "mise.toml", "mise.local.toml", "mise/config.toml", "_vimrc", "_exrc", "_netrc"),
    *("Library/LaunchAgents/x.plist", "AppData/Roaming/x", "Microsoft.PowerShell_profile.ps1", "profile.ps1"),
    *("AGENTS.md", "agents.md", "CLAUDE.md", "claude.local.md", "a/GEMINI.md", "AGENTS.override.md"),
    *("QWEN.md", "crush.md", "WARP.md", "codex.md", "opencode.json", "a/OpenCode.jsonc", "crush.json"),
)
ORDINARY = (
    *("data.csv", "plot.png", "out/plot.png", "script.py", "script.sh", "main.js", "Makefile", "conftest.py"),
    *("setup.py", "package.json", "tox.ini", "justfile", "pytest.ini", "Dockerfile", "README.md", "model.pth"),
    *("config", "objects/x", "refs/x", "hooks/pre-commit", "head.csv", "HEADER", "AHEAD", "agents.csv", "agents.py"),
    *("plot-12:30.png", "a~", "a~b", "plot~", "v1.2.3", "x.", "example.com/index.html", "site.py", "sites/x"),
    *(
        "json.py",
        "git",
        "git.py",
        "desktop.txt",
        "customize.py",
        "profile.txt",
        "t\u00e4st.py",
        "-rf",
        "$HOME",
        "~root",
    ),
)


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_programs_act_on_is_found_out(name: str, tmp_path: Path) -> None:
    assert acted_on(name)
    with pytest.raises(NameRefused, match="programs act on the name"):
        write_inside(tmp_path, name, b"")
    assert not list(tmp_path.iterdir())
    assert write_inside(tmp_path, name, b"typed", any_name=True).read_bytes() == b"typed"


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_name_is_written(name: str, tmp_path: Path) -> None:
    assert write_inside(tmp_path, name, b"x").read_bytes() == b"x"


def test_what_file_systems_ignore_hides_no_name(tmp_path: Path) -> None:
    """HFS+ takes `.g<U+200C>it` for `.git`: such names are none, in the workspace as here."""
    for name in (".g\u200cit/config", "H\u200dEAD", "\ufeffHEAD", "HEAD ", "a\\.git"):
        with pytest.raises(ValueError, match=r"contains U\+|begin or end with a space"):
            write_inside(tmp_path, name, b"")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("marker", "name"), [("HEAD", "config"), ("HEAD", "new/x"), ("pyvenv.cfg", "bin/activate")])
@pytest.mark.parametrize("where", ["", "sub/"])
def test_a_folder_of_git_or_of_a_virtual_environment_gets_nothing(
    marker: str, name: str, where: str, tmp_path: Path
) -> None:
    folder = tmp_path / where
    folder.mkdir(exist_ok=True)
    write_inside(tmp_path, where + name, b"the control")
    (folder / marker).touch()
    with pytest.raises(NameRefused, match=f"holds {marker}, and so is the folder of a"):
        write_inside(tmp_path, where + name, b"theirs")
    assert (folder / name).read_bytes() == b"the control"


def test_a_link_to_a_folder_that_programs_act_on_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / ".github").mkdir()
    (tmp_path / "docs").symlink_to(".github")
    (tmp_path / "docs" / "control").write_text("through")
    with pytest.raises(NameRefused, match=r"'\.github'"):
        write_inside(tmp_path, "docs/x.yml", b"")
    assert [path.name for path in (tmp_path / ".github").iterdir()] == ["control"]


def test_nothing_that_code_made_can_be_executed(tmp_path: Path) -> None:
    tool = tmp_path / "tool.sh"
    tool.write_text("echo mine")
    tool.chmod(0o754)
    write_inside(tmp_path, "tool.sh", b"echo typed", any_name=True)
    assert os.access(tool, os.X_OK)
    assert tool.stat().st_mode & 0o777 == 0o754
    write_inside(tmp_path, "tool.sh", b"echo theirs")
    assert tool.stat().st_mode & 0o777 == 0o644


# --- every way out, with git itself ---


def behave(block: FakeBlock) -> FakeOutcome:
    """Code that makes the files that its text lists."""
    block.files.update({name: content.encode() for name, content in json.loads(block.code).items()})
    return FakeOutcome()


Way: TypeAlias = Callable[[Path, str], str]
"""Lets code run, by its text, whose files are to come into a folder; returns what the caller was told."""


def artifacts(*options: str) -> Way:
    def way(folder: Path, code: str) -> str:
        fake = FakeCluster(run=behave)
        command = ("run", "-c", code, "--artifacts", str(folder), *options)
        done = CliRunner().invoke(main, command, obj=lambda ref: fake.client())
        assert done.exit_code == 0, done.stderr
        return done.stderr

    return way


def work_dir(session: SessionMode) -> Way:
    def way(folder: Path, code: str) -> str:
        executor = KubernetesCodeExecutor(client=FakeCluster(run=behave).client(), work_dir=folder, session=session)
        result = asyncio.run(executor.execute_code_blocks([CodeBlock(code, "python")], TOKEN))
        return "\n".join(f"{one.path} was not saved" for one in result.artifacts if not one.fetched)

    return way


def sources(folder: Path, code: str) -> str:
    """Each file as the source of a block, under the name that the block gives itself."""
    blocks = [CodeBlock(f"# filename: {name}\n{content}", "python") for name, content in json.loads(code).items()]
    fake = FakeCluster(run=lambda block: FakeOutcome())
    executor = KubernetesCodeExecutor(client=fake.client(), work_dir=folder)
    asyncio.run(executor.execute_code_blocks(blocks, TOKEN))
    return ""


def downloads(folder: Path, code: str) -> str:
    """All files that are there, and then each by its name."""

    async def download() -> str:
        executor = KubernetesCodeExecutor(client=FakeCluster(run=behave).client(), work_dir=folder)
        await executor.execute_code_blocks([CodeBlock(code, "python")], TOKEN)
        (folder / "result.txt").unlink(missing_ok=True)
        told = []
        for names in ([*await executor.get_file_list(TOKEN)], *([name] for name in json.loads(code))):
            try:
                await executor.download_files([*names], TOKEN)
            except FileTransferError as error:
                told.append(str(error))
        return "\n".join(told)

    return asyncio.run(download())


WAYS = {
    "--artifacts": artifacts(),
    "--artifacts --overwrite": artifacts("--overwrite"),
    "--artifacts of a session": artifacts("--new-session"),
    "work_dir": work_dir("per-executor"),
    "work_dir, per call": work_dir("per-call"),
    "sources of blocks": sources,
    "download_files": downloads,
}


def in_a_repository(folder: Path) -> None:
    git(folder, "init")


def in_a_bare_repository(folder: Path) -> None:
    git(folder, "init", "--bare")


PLACES: dict[str, tuple[Callable[[Path], None], Callable[[Path], dict[str, str]], set[str]]] = {
    "a repository": (in_a_repository, for_a_repository, {".git/config", ".envrc", ".vscode/tasks.json", "CLAUDE.md"}),
    "an empty folder": (lambda folder: None, for_any_folder, {"HEAD"}),
    "a bare repository": (in_a_bare_repository, lambda marker: _without_head(for_any_folder(marker)), {"config"}),
}


def _without_head(files: Mapping[str, str]) -> dict[str, str]:
    return {name: content for name, content in files.items() if name != "HEAD"}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("prepare", "files", "refused"), PLACES.values(), ids=PLACES)
def test_git_status_does_nothing_that_code_wants(
    way: Way,
    prepare: Callable[[Path], None],
    files: Callable[[Path], dict[str, str]],
    refused: set[str],
    tmp_path: Path,
) -> None:
    marker, control, folder = tmp_path / "marker", tmp_path / "control", tmp_path / "folder"
    for place in (control, folder):
        place.mkdir()
        prepare(place)
    planted = files(marker)
    plant(control, planted)
    assert acts_on(control, marker)

    told = way(folder, json.dumps(planted))
    assert not acts_on(folder, marker)
    assert not [path for path in (".envrc", ".vscode", "CLAUDE.md") if (folder / path).exists()]
    if way is not sources:
        assert all(any(name in line for line in told.splitlines()) for name in refused)
    if "bare" not in prepare.__name__ and way is not sources:
        assert (folder / "result.txt").read_text() == "honest"


def test_what_the_caller_types_is_saved(tmp_path: Path) -> None:
    fake = FakeCluster(run=behave)

    def codeexec(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments, obj=lambda ref: fake.client())

    ran = codeexec("run", "-c", '{".env": "x", "a": "1"}', "--artifacts", str(tmp_path / "out"))
    [name] = [one.metadata.name for one in fake.executions]
    why = "programs act on the name '.env' by themselves"
    assert ran.stderr == f"codeexec: .env was not saved: {why}; `codeexec cp {name}:PATH LOCAL` saves it\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]
    assert codeexec("cp", f"{name}:.env", str(tmp_path / "out")).exit_code == 0
    assert (tmp_path / "out" / ".env").read_text() == "x"


async def test_a_name_given_twice_is_downloaded(tmp_path: Path) -> None:
    executor = KubernetesCodeExecutor(client=FakeCluster(run=behave).client())
    await executor.execute_code_blocks([CodeBlock('{".env": "x", "a": "1"}', "python")], TOKEN)
    assert await executor.get_file_list(TOKEN) == ["a"]
    with pytest.raises(FileTransferError, match=r"'\.env' is not saved in .* allow_names, too; nothing was"):
        await executor.download_files(["a", ".env"], TOKEN)
    a, env = await executor.download_files(["a", ".env"], TOKEN, allow_names=["./.env"])
    assert (Path(a).read_text(), Path(env).read_text()) == ("1", "x")


def test_artifacts_replace_no_file_unless_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("mine")
    told = artifacts()(tmp_path, '{"Makefile": "theirs", "new": "1"}')
    assert "Makefile was not saved: it exists in" in told
    assert "--overwrite is not set" in told
    assert (tmp_path / "Makefile").read_text() == "mine"
    assert (tmp_path / "new").read_text() == "1"
    assert artifacts("--overwrite")(tmp_path, '{"Makefile": "theirs"}') == ""
    assert (tmp_path / "Makefile").read_text() == "theirs"
