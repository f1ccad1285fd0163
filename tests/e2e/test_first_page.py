"""The first page of docs/api.md on a cluster. It runs on the fake and locally, too: tests/unit/codeexec."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from cluster_tools import SANDBOX, a_name
from first_page import first_page

import codeexec
from codeexec import sync

LIMITS = codeexec.Limits(cpu="400m", memory="512Mi")


@pytest.fixture
async def client(agent_kubeconfig: str) -> AsyncIterator[codeexec.Client]:
    options = {"namespace": SANDBOX, "kubeconfig": agent_kubeconfig, "limits": LIMITS}
    async with codeexec.Client(agent=a_name("page"), **options) as client:
        yield client


async def test_the_first_page(client: codeexec.Client) -> None:
    plot = await first_page(client)
    assert plot
    assert plot.startswith(b"\x89PNG")


async def test_what_a_notebook_shows(client: codeexec.Client) -> None:
    async with client.session() as session:
        assert (await session.run("x = 41\nx + 1")).text == "42"
        frame = await session.run("import pandas as pd\npd.DataFrame({'a': [1]})")
        assert [one.mime_type for one in frame.displays] == ["text/html"]
        assert "<table" in (frame.displays[0].html or "")
        failed = await session.run("def f():\n    1 / 0\nf()")
        assert failed.error
        assert (failed.error.name, failed.error.message) == ("ZeroDivisionError", "division by zero")
        assert "in f()" in failed.error.traceback
        assert (await session.run("raise ExceptionGroup('many', [ValueError('a')])")).error is not None
        again = await session.run("from IPython.display import SVG\nSVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')")
        assert [one.mime_type for one in again.displays] == ["image/svg+xml"]


async def test_files_of_a_workspace(client: codeexec.Client) -> None:
    async with client.session(stateful=False) as session:
        await session.files.write("/workspace/a b's.txt", "ü")
        await session.run("import os; os.makedirs('d/e'); open('d/e/f', 'wb').write(b'1')")
        assert [one.path for one in await session.files.list() if not one.path.startswith("tmp_code")] == [
            "a b's.txt",
            "d/e/f",
        ]
        assert await session.files.read_text("a b's.txt") == "ü"
        await session.files.remove("a b's.txt")
        assert not await session.files.exists("a b's.txt")
        assert await session.files.exists("d/e/f")
        with pytest.raises(codeexec.FileMissing):
            await session.files.remove("a b's.txt")
        with pytest.raises(codeexec.FileMissing):
            await session.files.read("gone")


async def test_code_is_stopped_with_its_caller_and_at_its_limit(client: codeexec.Client) -> None:
    async with client.session() as session:
        await session.run("pass")  # its pod and its kernel have started
        begun, loop = asyncio.Event(), asyncio.get_running_loop()
        code = "print('begun', flush=True)\nwhile True: pass"
        seen = lambda _: loop.call_soon_threadsafe(begun.set)  # noqa: E731
        call = asyncio.create_task(session.run(code, timeout=60, on_output=seen))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await session.run("1 + 1")).text == "2"
        with pytest.raises(codeexec.CodeTimeout):
            (await session.run("while True: pass", timeout=1)).raise_for_error()


def test_the_first_page_without_async(agent_kubeconfig: str) -> None:
    options = {"namespace": SANDBOX, "kubeconfig": agent_kubeconfig, "limits": LIMITS}
    with sync.Client(agent=a_name("page"), **options) as client:
        assert client.run("print(6 * 7)").stdout == "42\n"
        with client.session() as session:
            session.run("import matplotlib.pyplot as plt")
            png = session.run("plt.plot([1, 2])").displays[0].png
    assert png
    assert png.startswith(b"\x89PNG")
