"""The source of blocks in the caller's own work_dir: inside it, whatever stands there."""

import os
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from executor_client import ClusterUnreachable, KubernetesCodeExecutor

Keep: TypeAlias = Callable[..., Awaitable[None]]


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "victim").write_text("before")
    return tmp_path / "work"


@pytest.fixture
def keep(work_dir: Path) -> Keep:
    """Executes Python blocks up to the connection, for which there is no cluster: their source is kept by then."""
    executor = KubernetesCodeExecutor(kubeconfig="/no/such/file", work_dir=work_dir)

    async def execute(*codes: str) -> None:
        with pytest.raises(ClusterUnreachable):
            await executor.execute_code_blocks([CodeBlock(code, "python") for code in codes], CancellationToken())

    return execute


async def test_the_source_is_kept_under_its_name(keep: Keep, work_dir: Path) -> None:
    longest = "n" * 255
    await keep("# filename: pkg/a b.py\n", f"# filename: {longest}\n", "print(1)")
    assert (work_dir / "pkg" / "a b.py").read_text() == "# filename: pkg/a b.py\n"
    assert (work_dir / longest).is_file()
    [unnamed] = work_dir.glob("tmp_code_*.py")
    assert unnamed.read_text() == "print(1)"
    assert sorted(path.name for path in work_dir.iterdir()) == [longest, "pkg", unnamed.name]
    plain = work_dir / "plain"
    plain.touch()
    assert unnamed.stat().st_mode == plain.stat().st_mode


async def test_names_that_differ_in_case_or_normalization_are_two_files_or_the_later_one(
    keep: Keep, work_dir: Path
) -> None:
    names = ["Straße.py", "straße.py", "t\u00e4st.py", "ta\u0308st.py"]
    (work_dir / "probe").touch()
    folds = (work_dir / "PROBE").exists()
    (work_dir / "t\u00e4").touch()
    normalizes = (work_dir / "ta\u0308").exists()
    await keep(*(f"# filename: {name}\n" for name in names))
    assert (work_dir / names[0]).read_text() == f"# filename: {names[1] if folds else names[0]}\n"
    assert (work_dir / names[1]).read_text() == f"# filename: {names[1]}\n"
    assert (work_dir / names[2]).read_text() == f"# filename: {names[3] if normalizes else names[2]}\n"
    assert (work_dir / names[3]).read_text() == f"# filename: {names[3]}\n"


@pytest.mark.parametrize("plant", [os.symlink, os.link], ids=["symbolic link", "hard link"])
async def test_a_link_is_replaced_and_not_followed(
    plant: Callable[[Path, Path], None], keep: Keep, work_dir: Path
) -> None:
    victim, path = work_dir.parent / "outside" / "victim", work_dir / "x.py"
    plant(victim, path)
    path.write_text("through")  # the control: an ordinary write goes through
    assert victim.read_text() == "through"
    await keep("# filename: x.py\n")
    assert victim.read_text() == "through"
    assert path.read_text() == "# filename: x.py\n"
    assert not path.is_symlink()
    assert path.stat().st_nlink == 1


async def test_a_link_into_nothing_makes_no_file_outside(keep: Keep, work_dir: Path) -> None:
    new = work_dir.parent / "outside" / "new"
    (work_dir / "control").symlink_to(new)
    (work_dir / "control").write_text("through")
    assert new.exists()
    new.unlink()
    (work_dir / "x.py").symlink_to(new)
    await keep("# filename: x.py\n")
    assert not new.exists()
    assert (work_dir / "x.py").is_file()


async def test_a_fifo_gets_nothing_and_is_not_waited_for(keep: Keep, work_dir: Path) -> None:
    path = work_dir / "x.py"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    path.write_text("through")
    assert os.read(reader, 100) == b"through"
    await keep("# filename: x.py\n")
    assert os.read(reader, 100) == b""
    assert stat.S_ISREG(path.lstat().st_mode)
    os.close(reader)


async def test_a_socket_is_replaced(keep: Keep, work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work_dir)  # the path of a socket has to be short
    with closing(socket.socket(socket.AF_UNIX)) as planted:
        planted.bind("x.py")
    await keep("# filename: x.py\n")
    assert (work_dir / "x.py").read_text() == "# filename: x.py\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
async def test_a_device_is_replaced(keep: Keep, work_dir: Path) -> None:
    path = work_dir / "x.py"
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
    await keep("# filename: x.py\n")
    assert path.read_text() == "# filename: x.py\n"


@pytest.mark.parametrize("name", ["d/x.py", "d/new/x.py"])
async def test_a_folder_that_leads_out_is_an_error_and_nothing_is_run(name: str, work_dir: Path) -> None:
    outside = work_dir.parent / "outside"
    (work_dir / "d").symlink_to(outside)
    (work_dir / "d" / "control").write_text("through")
    before = sorted(outside.iterdir())
    assert outside / "control" in before
    executor = KubernetesCodeExecutor(kubeconfig="/no/such/file", work_dir=work_dir)
    with pytest.raises(ValueError, match=f"'{name}', which leads out of work_dir .* Nothing was run"):
        await executor.execute_code_blocks([CodeBlock(f"# filename: {name}\n", "python")], CancellationToken())
    assert sorted(outside.iterdir()) == before


IN_THE_WAY: dict[str, tuple[Callable[[Path], object], str]] = {
    "link to itself": (lambda work: (work / "d").symlink_to("d"), "d/x.py"),
    "folder of that name": (lambda work: (work / "x.py").mkdir(), "x.py"),
    "file for a folder": (lambda work: (work / "d").touch(), "d/x.py"),
    "FIFO for a folder": (lambda work: os.mkfifo(work / "d"), "d/x.py"),
}


@pytest.mark.parametrize(("plant", "name"), IN_THE_WAY.values(), ids=IN_THE_WAY)
async def test_what_can_not_be_kept_is_an_error_that_names_it_and_nothing_is_run(
    plant: Callable[[Path], object], name: str, work_dir: Path
) -> None:
    plant(work_dir)
    before = sorted(work_dir.parent.rglob("*"))
    executor = KubernetesCodeExecutor(kubeconfig="/no/such/file", work_dir=work_dir)
    blocks = [CodeBlock(f"# filename: {name}\n", "python")]
    with pytest.raises(ValueError, match=f"^'{name}' can't be saved in work_dir: .*; nothing was run$"):
        await executor.execute_code_blocks(blocks, CancellationToken())
    assert sorted(work_dir.parent.rglob("*")) == before


async def test_a_link_that_stays_inside_is_followed(keep: Keep, work_dir: Path) -> None:
    (work_dir / "real").mkdir()
    (work_dir / "d").symlink_to("real")
    await keep("# filename: d/x.py\n")
    assert (work_dir / "real" / "x.py").is_file()
