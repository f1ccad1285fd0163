"""What comes back from code: the text, the displays, the error."""

import io
import pickle
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from fnmatch import fnmatchcase
from typing import Any

import pytest

import codeexec
from codeexec._result import displays_of, exception_in
from codeexec.testing import FakeBlock, FakeCluster, FakeOutcome
from codeexec_api import ExecutionPolicySpec, Limits
from executor_client.testing import FAKE_IMAGE

FRAMES = "def f():\n    return 1 / 0\n"
RAISED = {
    "plain": (f"{FRAMES}f()", "ZeroDivisionError", "division by zero", 1),
    "from another": (
        f"{FRAMES}try:\n    f()\nexcept Exception as e:\n    raise KeyError('x') from e",
        "KeyError",
        "'x'",
        2,
    ),
    "while another": (f"{FRAMES}try:\n    f()\nexcept Exception:\n    raise KeyError('x')", "KeyError", "'x'", 2),
    "syntax": ("x = = 1", "SyntaxError", "invalid syntax", 0),
    "indentation": (
        "if 1:\nprint(1)",
        "IndentationError",
        "expected an indented block after 'if' statement on line 1",
        0,
    ),
    "lines and notes": ("e = ValueError('a\\nb')\ne.add_note('c: d')\nraise e", "ValueError", "a\nb\nc: d", 1),
    "no message": ("class A:\n    class E(Exception): pass\nraise A.E", "E", "", 1),
    "of a module": ("import json; json.loads('{')", "JSONDecodeError", "Expecting property name enclosed", 1),
    "recursion": (
        "import sys; sys.setrecursionlimit(300)\ndef f(): f()\nf()",
        "RecursionError",
        "maximum recursion depth exceeded",
        1,
    ),
    "after one that was logged": (
        f"import logging\n{FRAMES}try:\n    f()\nexcept Exception:\n    logging.exception('oops')\nraise KeyError('x')",
        "KeyError",
        "'x'",
        1,
    ),
}


def in_python(code: str) -> str:
    return subprocess.run([sys.executable, "-I", "-"], input=code, capture_output=True, text=True, check=False).stderr


def in_ipython(code: str) -> str:
    """As the kernel of a session writes it: see `operator/sandbox/kernel_app.py`."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}), colors="nocolor")
    written = io.StringIO()
    shell._showtraceback = lambda _type, _value, stb: print("\n".join(stb), file=written)  # type: ignore[method-assign]
    with redirect_stderr(written), redirect_stdout(io.StringIO()):
        shell.run_cell(code)
    return written.getvalue()


@pytest.mark.parametrize("run", [in_python, in_ipython])
@pytest.mark.parametrize(("code", "name", "message", "tracebacks"), RAISED.values(), ids=RAISED)
def test_an_exception_is_read_from_what_python_prints(
    run: Any, code: str, name: str, message: str, tracebacks: int
) -> None:
    error = exception_in(run(code))
    assert error
    assert (error.name, error.message[: len(message)]) == (name, message)
    headings = error.traceback.count("Traceback (most recent call last)")
    assert headings == tracebacks if run is in_python else headings <= max(tracebacks, 1)
    assert error.message in error.traceback


def test_of_a_group_the_group_counts() -> None:
    error = exception_in(in_python("raise ExceptionGroup('many', [ValueError('a'), KeyError('b')])"))
    assert error
    assert (error.name, error.message) == ("ExceptionGroup", "many (2 sub-exceptions)")
    assert "ValueError: a" in error.traceback


@pytest.mark.parametrize(
    "stderr", ["", "bye: bye\n", "ERROR:root:oops\n", "Traceback (most recent call last):\n", "  File x\n"]
)
def test_what_is_no_exception(stderr: str) -> None:
    assert exception_in(stderr) is None


def client_of(**outcome: Any) -> codeexec.Client:
    return codeexec.Client(agent="a", backend=FakeCluster(run=lambda _: FakeOutcome(**outcome)).client())


async def test_a_call_that_succeeds_has_no_error() -> None:
    result = await client_of(stdout="42\n", stderr="KeyError: 1").run("40 + 2")
    assert (result.text, result.error, result.exit_code) == ("42", None, 0)
    assert result.raise_for_error() is result
    assert result.execution.startswith("run-")


async def test_an_exception_of_the_code() -> None:
    stderr = in_python(f"{FRAMES}f()")
    result = await client_of(stdout="so far\n", stderr=stderr, exit_code=1).run("f()")
    assert result.error == codeexec.CodeError("ZeroDivisionError", "division by zero", stderr.strip())
    with pytest.raises(codeexec.CodeFailed, match=r"run-.*: ZeroDivisionError: division by zero") as raised:
        result.raise_for_error()
    assert raised.value.result is result
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.result.stdout) == (str(raised.value), "so far\n")


async def test_an_exit_code_without_an_exception() -> None:
    """Also when an exception was logged before: Python ends with 1 if one isn't caught."""
    result = await client_of(stderr=in_python("1 / 0"), exit_code=3).run("exit(3)")
    assert result.error == codeexec.CodeError("NonZeroExit", "the last block ended with exit code 3")
    assert (await client_of(stderr="bye: bye\n", exit_code=1).run("exit('bye: bye')")).error == codeexec.CodeError(
        "NonZeroExit", "the last block ended with exit code 1"
    )


async def test_code_that_takes_too_long() -> None:
    result = await client_of(stdout="so far\n", takes=61).run("while True: pass")
    assert (result.stdout, result.exit_code, result.error and result.error.name) == (
        "so far\n",
        124,
        "DeadlineExceeded",
    )
    with pytest.raises(codeexec.CodeTimeout) as raised:
        result.raise_for_error()
    assert isinstance(raised.value, (codeexec.Timeout, TimeoutError))
    assert raised.value.result.stdout == "so far\n"


async def test_code_that_needs_too_much_memory() -> None:
    result = await client_of(out_of_memory=True).run("x")
    assert result.error
    assert (result.error.name, result.exit_code) == ("OutOfMemory", 137)
    with pytest.raises(codeexec.CodeFailed):
        result.raise_for_error()


async def test_what_the_policy_refuses() -> None:
    fake = FakeCluster(policy=ExecutionPolicySpec(images=(FAKE_IMAGE,), max_timeout_seconds=10))
    client = codeexec.Client(agent="a", backend=fake.client(), limits=Limits())
    result = await client.run("print(1)", timeout=11)
    assert result.error
    assert (result.error.name, result.exit_code) == ("PolicyViolation", 1)
    assert "timeout=11" in result.error.message
    with pytest.raises(codeexec.CodeDenied, match="timeout=11"):
        result.raise_for_error()


async def test_what_waits_for_approval_has_not_failed() -> None:
    policy = {"images": [FAKE_IMAGE], "maxTimeoutSeconds": 10, "withApproval": {"maxTimeoutSeconds": 60}}
    fake = FakeCluster(policy=ExecutionPolicySpec.model_validate(policy), run=lambda _: FakeOutcome(stdout="42\n"))
    client = codeexec.Client(agent="a", backend=fake.client(), approval=codeexec.ApprovalWait(mode="return"))
    result = await client.run("print(42)", timeout=60)
    with pytest.raises(codeexec.CodeNotApproved, match="a human has to approve") as raised:
        result.raise_for_error()
    assert isinstance(raised.value, codeexec.CodeFailed)
    approver = codeexec.Client(agent="b", backend=fake.client("boss"))
    await approver.approvals.approve(await approver.approvals.get(result.execution))
    assert (await client.executions.result(result.execution)).raise_for_error().text == "42"


SHOWN = {
    "output-1-1.png": b"\x89PNG",
    "output-1-2.jpg": b"\xff\xd8",
    "output-1-10.html": "<b>ü</b>".encode(),
    "output-2-1.svg": b"<svg/>",
    "output-2-2.json": b'{"a": [1]}',
    "output-2-3.txt": b"text\xff",
}
OTHERS = {"output-1.png": b"", "output-1-1.exe": b"", "a/output-1-1.png": b"", "output-x-1.png": b"", "plot.png": b""}


async def test_displays_by_type_in_the_order_in_which_they_were_shown() -> None:
    def show(block: FakeBlock) -> FakeOutcome:
        for path, content in {**OTHERS, **SHOWN}.items():
            block.files[path] = content
        return FakeOutcome()

    client = codeexec.Client(agent="a", backend=FakeCluster(run=show).client())
    async with client.session() as session:
        in_session = (await session.run("show()")).displays
    assert (await client.run("show()")).displays == in_session == displays_of({**OTHERS, **SHOWN})
    assert [one.path for one in in_session] == list(SHOWN)
    png, jpeg, html, svg, json, text = in_session
    assert (png.mime_type, png.png, png.jpeg, png.text, png.json) == ("image/png", b"\x89PNG", None, None, None)
    assert (jpeg.mime_type, jpeg.jpeg) == ("image/jpeg", b"\xff\xd8")
    assert (html.mime_type, html.html, html.svg) == ("text/html", "<b>ü</b>", None)
    assert (svg.mime_type, svg.svg) == ("image/svg+xml", "<svg/>")
    assert (json.mime_type, json.json) == ("application/json", {"a": [1]})
    assert (text.mime_type, text.text) == ("text/plain", "text\ufffd")


@pytest.mark.parametrize("content", [b"[" * 200_000, b"\xff", b"{"], ids=["too deep", "no text", "no JSON"])
def test_json_that_can_not_be_read_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"too deeply|decode byte|property name"):
        _ = codeexec.Display("application/json", content, "output-1-1.json").json


UNASKED = {**SHOWN, **OTHERS, "output-2-report.final.csv": b"", "output-1-2-3.png": b"", "output-1-2.png.txt": b""}


async def test_files_are_those_that_were_asked_for() -> None:
    def show(block: FakeBlock) -> FakeOutcome:
        for path, content in UNASKED.items():
            block.files[path] = content
        return FakeOutcome()

    async with codeexec.Client(agent="a", backend=FakeCluster(run=show).client()) as client:
        for fetch in ([], ["plot.png"], ["output-1-*"]):
            result = await client.run("show()", fetch=fetch)
            later = await client.executions.result(result.execution)
            async with client.session() as session:
                in_session = await session.run("show()", fetch=fetch)
            assert [one.path for one in result.displays] == list(SHOWN)
            assert later.displays == in_session.displays == result.displays
            assert later.files == in_session.files == result.files
            assert set(result.files) == {path for path in UNASKED if any(fnmatchcase(path, one) for one in fetch)}


@pytest.mark.parametrize("fetch", [[], ["output-1-1.png"]])
async def test_files_of_the_caller_that_the_code_leaves_alone_are_no_displays(fetch: list[str]) -> None:
    def show(block: FakeBlock) -> FakeOutcome:
        block.files["output-1-2.png"] = b"changed"
        return FakeOutcome()

    files: dict[str, bytes | str] = {"output-1-1.png": b"mine", "output-1-2.png": b"mine"}
    async with codeexec.Client(agent="a", backend=FakeCluster(run=show).client()) as client:
        alone = await client.run("show()", files=files, fetch=fetch)
        later = await client.executions.result(alone.execution)
        async with client.session() as session:
            in_session = await session.run("show()", files=files, fetch=fetch)
    for result in (alone, later, in_session):
        assert [one.png for one in result.displays] == [b"changed"]
        assert [one.path for one in result.artifacts] == [*fetch, "output-1-2.png"]
        assert list(result.files) == fetch


async def test_a_display_does_not_push_out_what_was_asked_for() -> None:
    def show(block: FakeBlock) -> FakeOutcome:
        block.files["output-1-1.png"] = bytes(2 * 2**20)
        block.files["output-1-2.png"] = b"small"
        block.files["results.bin"] = bytes(15 * 2**20)
        return FakeOutcome()

    result = await codeexec.Client(agent="a", backend=FakeCluster(run=show).client()).run("x", fetch=["results.bin"])
    assert {path: len(content) for path, content in result.files.items()} == {"results.bin": 15 * 2**20}
    assert [one.path for one in result.displays] == ["output-1-2.png"]
    assert [(one.path, one.fetched) for one in result.artifacts] == [
        ("output-1-1.png", False),
        ("output-1-2.png", True),
        ("results.bin", True),
    ]


async def test_a_call_has_its_own_displays_and_not_those_of_earlier_ones() -> None:
    def show(block: FakeBlock) -> FakeOutcome:
        block.files[f"output-{block.code}-1.png"] = block.code.encode()
        return FakeOutcome()

    fake = FakeCluster(run=show)
    async with codeexec.Client(agent="a", backend=fake.client()).session() as session:
        assert [one.png for one in (await session.run("1")).displays] == [b"1"]
        assert [one.png for one in (await session.run("2")).displays] == [b"2"]


async def test_a_display_that_is_too_large_stands_in_the_artifacts_only() -> None:
    def show(block: FakeBlock) -> FakeOutcome:
        block.files["output-1-1.png"] = bytes(16 * 2**20 + 1)
        return FakeOutcome()

    async with codeexec.Client(agent="a", backend=FakeCluster(run=show).client()).session() as session:
        result = await session.run("show()")
    assert result.displays == ()
    assert [(one.path, one.size_bytes) for one in result.artifacts] == [("output-1-1.png", 16 * 2**20 + 1)]


async def test_a_display_whose_digest_the_record_lacks_is_shown_in_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record has digests for at most 64 MiB."""
    monkeypatch.setattr("executor_client.testing.output._MAX_HASHED_BYTES", 0)

    def show(block: FakeBlock) -> FakeOutcome:
        block.files["output-1-1.png"] = b"png"
        return FakeOutcome()

    async with codeexec.Client(agent="a", backend=FakeCluster(run=show).client()).session() as session:
        result = await session.run("show()")
    assert [one.sha256 for one in result.artifacts] == [None]
    assert [one.png for one in result.displays] == [b"png"]


async def test_displays_that_can_not_be_fetched_do_not_hide_the_result(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(block: FakeBlock) -> FakeOutcome:
        block.files["output-1-1.png"] = b""
        return FakeOutcome(stdout="done\n")

    async def fail(*_: Any, **__: Any) -> None:
        raise codeexec.SessionEnded("session is over")

    async with codeexec.Client(agent="a", backend=FakeCluster(run=show).client()).session() as session:
        monkeypatch.setattr(session._handle, "execute", fail)
        result = await session.run("show()")
    assert (result.text, result.displays) == ("done", ())
    assert f"files of execution {result.execution} were not fetched: output-1-1.png: session is over" in caplog.text
