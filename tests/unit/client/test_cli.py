"""The command line on a cluster in memory: what it prints, where, and how it ends."""

import asyncio
import dataclasses
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import click
import pytest
from click.testing import CliRunner, Result
from polling import clock_jumps_once

from codeexec_api import CodeExecution, Reason
from executor_client.cli import main
from executor_client.cli.display import Printer, age, size
from executor_client.cli.escaping import visible
from executor_client.cli.files import save_artifact
from executor_client.cli.run import _tell_wait
from executor_client.client import request
from executor_client.client.request import Request
from executor_client.client.waiting import WaitNotice
from executor_client.model.blocks import PreparedBlock
from executor_client.model.results import OutputChunk
from executor_client.testing import FAKE_IMAGE, FakeBlock, FakeCluster, FakeOutcome
from executor_client.testing.transport import FakeTransport

ESCAPE = "\x1b]0;title\x07"


def make_files(block: FakeBlock) -> FakeOutcome:
    block.files["plot.png"] = b"\x89PNG"
    block.files["out/table.csv"] = b"a,b\n"
    return FakeOutcome(stdout="made\n")


def behave(block: FakeBlock) -> FakeOutcome:
    """What the code of these tests does."""
    if block.code == "make files":
        return make_files(block)
    if block.code == "list files":
        return FakeOutcome(
            stdout="".join(f"{path}={content.decode(errors='replace')}\n" for path, content in block.files.items())
        )
    return {
        "good": FakeOutcome(stdout="out\n", stderr="err\n"),
        "bad": FakeOutcome(stderr="broken\n", exit_code=3),
        "slow": FakeOutcome(stdout="so far", takes=1000),
        "endless": FakeOutcome(stdout="so far\n", never_ends=True),
        "escape": FakeOutcome(stdout=ESCAPE),
    }[block.code]


@pytest.fixture
def fake() -> FakeCluster:
    return FakeCluster(run=behave)


@pytest.fixture
def codeexec(fake: FakeCluster) -> Callable[..., Result]:
    def call(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, arguments, input=stdin, obj=lambda ref: fake.client())

    return call


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("plain\n\ttext é😀\r\n", "plain\n\ttext é😀\n"),
        (ESCAPE, "\\x1b]0;title\\x07"),
        ("\x9b2J\x7f\x00\b", "\\x9b2J\\x7f\\x00\\x08"),
        ("over\rwritten", "over\\x0dwritten"),
    ],
)
def test_output_can_not_control_a_terminal(output: str, shown: str) -> None:
    assert visible(output) == shown


def test_line_end_in_two_pieces_is_one_line_end_on_a_terminal(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    printer = Printer()
    for text in ("one\r", "\ntwo\r", "three\r"):
        printer(OutputChunk("stdout", text))
    printer.finish()
    assert capsys.readouterr().out == "one\ntwo\\x0dthree\\x0d"


# --- run ---


def test_an_error_shows_what_a_terminal_would_obey() -> None:
    fake = FakeCluster(run=lambda _: FakeOutcome())
    fake.fail_to_start(Reason.RUNNER_FAILED, "the container ended: \x1b]0;owned\x07\x1b[2J")
    done = CliRunner().invoke(main, ["run", "-c", "x"], obj=lambda ref: fake.client(), color=True)
    assert "the container ended: " in done.output
    assert not {"\x1b", "\x07"} & set(done.output)


def test_an_error_is_one_line_whatever_it_quotes(codeexec) -> None:
    done = codeexec("get", "run-1\nok: it is approved")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "\\nok: it is approved" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--agent", "", "-c", "good"), "Error: agent is '', but must be a name of 1 to 128 characters"),
        (("--agent", "a" * 129, "-c", "good"), f"Error: agent is '{'a' * 129}', but must be a name of 1 to 128"),
        (("--agent", "a  b", "-c", "good"), "Error: agent is 'a b', which contains two blanks in a row"),
        (("-c", "\udcff"), "Error: --code is not UTF-8: "),
    ],
)
def test_what_run_can_not_send_is_one_line_without_a_traceback(codeexec, options, told) -> None:
    done = codeexec("run", *options)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 1
    assert done.stderr.startswith(told)
    assert done.stderr.count("\n") == 1


def test_run_keeps_the_streams_apart_and_exits_as_the_code_did(codeexec) -> None:
    good, bad = codeexec("run", "-c", "good"), codeexec("run", "-c", "bad")
    assert (good.stdout, good.stderr, good.exit_code) == ("out\n", "err\n", 0)
    assert (bad.stdout, bad.stderr, bad.exit_code) == ("", "broken\n", 3)


def test_output_into_a_pipe_is_as_it_is(codeexec) -> None:
    assert codeexec("run", "-c", "escape").stdout == ESCAPE


def test_code_comes_from_a_file_or_from_standard_input(codeexec, fake, tmp_path) -> None:
    script = tmp_path / "script.sh"
    script.write_bytes(b"good")
    assert codeexec("run", str(script)).exit_code == 0
    assert codeexec("run", "-", stdin="good").exit_code == 0
    assert [one.spec.languages for one in fake.executions] == [("sh",), ("python",)]
    assert all(fake.code(one.metadata.name) == [b"good"] for one in fake.executions)


def test_a_file_that_is_no_code_is_not_run(codeexec, fake, tmp_path) -> None:
    data, script, bare = tmp_path / "data.csv", tmp_path / "SCRIPT.PY", tmp_path / "script"
    for file in (data, script, bare):
        file.write_text("good")
    refused = codeexec("run", str(data))
    assert refused.exit_code == 2
    assert f"can't tell the language of '{data}': .csv is not one of .py, .sh, .js, .ps1; give" in refused.stderr
    assert "--language (python, bash, sh, javascript, pwsh)" in refused.stderr
    assert fake.executions == []
    assert codeexec("run", str(data), "--language", "python").exit_code == 0
    assert codeexec("run", str(script)).exit_code == codeexec("run", str(bare)).exit_code == 0
    assert [one.spec.languages for one in fake.executions] == [("python",)] * 3


def test_what_is_asked_for_is_in_the_record(codeexec, fake) -> None:
    asked = [
        "--cpu",
        "250m",
        "--memory",
        "64Mi",
        "--timeout",
        "9",
        "--agent",
        "me",
        "--image",
        FAKE_IMAGE,
        "-l",
        "Bash",
    ]
    assert codeexec("run", "-c", "good", *asked).exit_code == 0
    spec = fake.executions[0].spec
    assert (spec.limits.cpu, spec.limits.memory, spec.timeout_seconds) == ("250m", "64Mi", 9)
    assert (spec.source.agent, spec.image, spec.languages) == ("me", FAKE_IMAGE, ("bash",))


def test_time_out_is_said_on_stderr(codeexec) -> None:
    done = codeexec("run", "-c", "slow")
    assert (done.stdout, done.exit_code) == ("so far", 124)
    assert done.stderr == "codeexec: Timeout: the block ran longer than --timeout 60 and was killed\n"


def test_a_lack_of_memory_is_said_with_the_limit_and_its_option() -> None:
    fake = FakeCluster(run=lambda block: FakeOutcome(out_of_memory=True))
    done = CliRunner().invoke(main, ["run", "-c", "x"], obj=lambda ref: fake.client())
    assert done.exit_code == 137
    assert done.stderr.startswith("codeexec: OutOfMemory: the code used more memory than --memory 256Mi; files")
    done = CliRunner().invoke(main, ["run", "-c", "x", "-o", "json"], obj=lambda ref: fake.client())
    assert "--memory 256Mi" in json.loads(done.stdout)["output"]


NO_MODULE = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'requests'\n"


@pytest.mark.parametrize(
    ("code", "stderr", "exit_code", "hint"),
    [
        ("no module", NO_MODULE, 1, "the sandbox has no module 'requests', and packages can't be installed"),
        ("caught", NO_MODULE, 0, ""),
        ("no pip", "job.sh: 1: pip: not found\n", 0, "packages can't be installed at run time: use an image"),
        ("no pip", "job.sh: line 1: pip3: command not found\n", 127, "packages can't be installed at run time"),
        ("no pip", "/usr/bin/python3: No module named pip\n", 1, "packages can't be installed at run time"),
        ("other", "pipe: not found\n", 1, ""),
    ],
)
def test_that_nothing_can_be_installed_is_a_hint_beside_the_output(code, stderr, exit_code, hint) -> None:
    fake = FakeCluster(run=lambda block: FakeOutcome(stderr=stderr, exit_code=exit_code))
    done = CliRunner().invoke(main, ["run", "-c", code], obj=lambda ref: fake.client())
    output, _, said = done.stderr.partition("codeexec: ")
    assert (output, done.stdout, done.exit_code) == (stderr, "", exit_code)
    assert said.startswith(hint)
    assert bool(said) == bool(hint)
    assert not said or said.endswith("See docs/images.md\n")


def test_refusal_by_policy_is_said_on_stderr(codeexec) -> None:
    done = codeexec("run", "-c", "good", "--memory", "1Ti")
    assert (done.stdout, done.exit_code) == ("", 1)
    assert "--memory 1Ti is not allowed by the policy" in done.stderr


def test_result_as_json(codeexec) -> None:
    done = codeexec("run", "-c", "make files", "-o", "json")
    result = json.loads(done.stdout)
    assert (result["stdout"], result["exit_code"], result["phase"]) == ("made\n", 0, "Succeeded")
    assert [one["path"] for one in result["artifacts"]] == ["out/table.csv", "plot.png"]
    assert result["blocks"][0]["reason"] == "Completed"
    assert (done.stderr, done.exit_code) == ("", 0)


def test_ctrl_c_stops_the_code_in_the_cluster(codeexec, fake, monkeypatch) -> None:
    def interrupt(printer: Printer, chunk: OutputChunk) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Printer, "__call__", interrupt)
    done = codeexec("run", "-c", "endless")
    assert done.exit_code == 130
    assert "Code execution was cancelled." in done.stderr
    assert fake.executions[0].status.phase == "Cancelled"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "either FILE or --code"),
        (("-c", "1", "-"), "either FILE or --code"),
        (("-c", "1", "-l", "cobol"), "unknown language cobol"),
        (("-c", "# filename: ../x"), "Filename is not in the workspace"),
        (("-c", "1", "--cpu", "much"), "'much' is not a quantity"),
        (("-c", "1", "--memory", "0"), "must be greater than 0"),
        (("-c", "1", "--image", "python:3"), "python:3"),
        (("-c", "1", "--timeout", "0"), "--timeout"),
        (("-c", "1", "-f", "nowhere"), "can't read 'nowhere'"),
        (("-c", "1", "-f", "/etc/hostname:../x"), "can't be a path in the workspace"),
        (("-c", "1", "--session", "s", "--new-session"), "either --session or --new-session"),
        (("-c", "1", "--session", "s", "--cpu", "1"), "can't be combined with --session"),
        (("-c", "1", "--stateful"), "goes with --new-session"),
        (("-c", "1", "--sleep-after", "60"), "--sleep-after goes with --new-session"),
        (("-c", "1", "--new-session", "--sleep-after", "1800"), "1<=x<=1799"),
        (("-c", "1", "--new-session", "--stateful", "--sleep-after", "60"), "can't be combined: variables would be"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(codeexec, fake, arguments, complaint) -> None:
    done = codeexec("run", *arguments)
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert fake.executions == []


@pytest.mark.parametrize("command", [["run", "-c", "good"], ["get"], ["logs", "x"], ["cancel", "x"], ["sessions"]])
def test_trouble_with_the_cluster_is_one_message(codeexec, fake, command) -> None:
    fake.fail()
    done = codeexec(*command)
    assert (done.stdout, done.stderr, done.exit_code) == ("", "Error: the fake cluster was told to fail\n", 1)


# --- files and sessions ---


def test_files_go_into_the_workspace_and_what_the_code_makes_comes_back(codeexec, tmp_path) -> None:
    (tmp_path / "in:put.txt").write_text("there")
    put = ["-f", str(tmp_path / "in:put.txt"), "-f", f"{tmp_path}/in:put.txt:data/renamed.txt"]
    shown = codeexec("run", "-c", "list files", *put)
    assert "data/renamed.txt=there\nin:put.txt=there\n" in shown.stdout
    made = codeexec("run", "-c", "make files", *put, "--artifacts", str(tmp_path / "made"))
    assert made.exit_code == 0
    found = {str(path.relative_to(tmp_path / "made")): path.read_bytes() for path in (tmp_path / "made").rglob("*.*")}
    assert found == {"plot.png": b"\x89PNG", "out/table.csv": b"a,b\n"}


def test_a_new_session_may_be_asked_to_sleep(codeexec, fake) -> None:
    refused = codeexec("run", "-c", "1", "--new-session", "--sleep-after", "60")
    assert fake.sessions[0].spec.sleep_after_seconds == 60
    assert "--sleep-after 60 is not allowed by the policy" in refused.stderr + refused.stdout


@pytest.mark.parametrize("more", [(), ("-o", "json")], ids=["text", "json"])
def test_a_file_that_can_not_be_saved_costs_no_result_and_no_other_file(tmp_path, more) -> None:
    """The code has run: its output and its exit code are what the caller has waited for."""

    def behave(block: FakeBlock) -> FakeOutcome:
        return dataclasses.replace(make_files(block), exit_code=3)

    fake = FakeCluster(run=behave)
    (tmp_path / "out").write_text("a file in the place of the folder")
    (tmp_path / "plot.png").mkdir()
    arguments = ["run", "-c", "x", "--artifacts", str(tmp_path), "--overwrite", *more]
    done = CliRunner().invoke(main, arguments, obj=lambda ref: fake.client())
    assert done.exit_code == 3
    assert (json.loads(done.stdout)["stdout"] if more else done.stdout) == "made\n"
    told = done.stderr.splitlines()
    assert [line.split(" was not saved: ")[0] for line in told] == ["codeexec: out/table.csv", "codeexec: plot.png"]
    name = fake.executions[0].metadata.name
    assert all(line.endswith(f"; `codeexec cp {name}:PATH LOCAL` saves it") for line in told)


def test_session_keeps_files_until_it_is_ended(codeexec, fake, tmp_path) -> None:
    first = codeexec("run", "-c", "make files", "--new-session", "--stateful")
    name = fake.sessions[0].metadata.name
    assert first.stderr == f"codeexec: started session {name}; end it with `codeexec sessions end {name}`\n"
    assert fake.sessions[0].spec.stateful
    folder = tmp_path / "made"
    second = codeexec("run", "-c", "list files", "--session", name, "--artifacts", str(folder))
    assert "out/table.csv=a,b" in second.stdout.replace("\n", "")
    assert not folder.exists()  # this one has made nothing
    listed = codeexec("sessions").stdout.splitlines()
    assert listed[0].split()[:3] == ["NAME", "AGENT", "PHASE"]
    assert listed[1].split()[:3] == [name, "codeexec-cli", "Ready"]
    assert f"Name:          {name}\n" in codeexec("sessions", name).stdout
    assert json.loads(codeexec("sessions", name, "-o", "json").stdout)["kind"] == "CodeSession"
    assert codeexec("sessions", "end", name).stdout == f"{name} is being ended\n"
    assert codeexec("sessions", "end", name).stdout == f"{name} has ended already: Ended/EndRequested\n"
    ended = codeexec("run", "-c", "good", "--session", name)
    assert ended.exit_code == 1
    assert "SessionEnded" in ended.stderr


def test_artifacts_of_a_session_are_those_of_the_call(codeexec, fake, tmp_path) -> None:
    codeexec("run", "-c", "good", "--new-session")
    name = fake.sessions[0].metadata.name
    codeexec("run", "-c", "good", "--session", name, "-f", f"{__file__}:old.py")
    done = codeexec("run", "-c", "make files", "--session", name, "--artifacts", str(tmp_path))
    assert done.exit_code == 0
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["plot.png", "table.csv"]


def test_cp_into_and_out_of_a_session(codeexec, fake, tmp_path) -> None:
    codeexec("run", "-c", "good", "--new-session")
    name = fake.sessions[0].metadata.name
    (tmp_path / "a.bin").write_bytes(b"\x00\xff")
    assert codeexec("cp", str(tmp_path / "a.bin"), f"{name}:in/").exit_code == 0
    assert codeexec("cp", f"{name}:/workspace/in/a.bin", str(tmp_path / "b.bin")).exit_code == 0
    (tmp_path / "folder").mkdir()
    assert codeexec("cp", f"{name}:in/a.bin", str(tmp_path / "folder")).exit_code == 0
    assert (tmp_path / "b.bin").read_bytes() == (tmp_path / "folder" / "a.bin").read_bytes() == b"\x00\xff"
    for odd, length in (("a[1]", 1), ("a1", 15_000_000), ("a?", 2_000_000)):
        (tmp_path / odd).write_bytes(bytes(length))
        assert codeexec("cp", str(tmp_path / odd), f"{name}:in/").exit_code == 0
    assert codeexec("cp", f"{name}:in/a?", str(tmp_path / "c.bin")).exit_code == 0, "no other file is fetched"
    missing = codeexec("cp", f"{name}:nothing", str(tmp_path))
    assert (missing.exit_code, missing.stderr) == (1, f"Error: session {name} has no file 'nothing'\n")


def test_cp_out_of_an_execution(codeexec, fake, tmp_path) -> None:
    codeexec("run", "-c", "make files", "--artifacts", str(tmp_path / "made"))
    codeexec("run", "-c", "make files")
    fetched, listed = (one.metadata.name for one in fake.executions)
    assert codeexec("cp", f"{fetched}:plot.png", str(tmp_path / "here")).exit_code == 0
    assert (tmp_path / "here").read_bytes() == b"\x89PNG"
    refused = codeexec("cp", f"{listed}:plot.png", str(tmp_path / "there"))
    assert refused.exit_code == 1
    assert "has not fetched 'plot.png'" in refused.stderr
    assert not (tmp_path / "there").exists()


def test_cp_writes_to_a_pipe_and_leaves_it_there(codeexec, fake, tmp_path) -> None:
    codeexec("run", "-c", "good", "--new-session")
    name = fake.sessions[0].metadata.name
    (tmp_path / "a").write_bytes(b"content")
    codeexec("cp", str(tmp_path / "a"), f"{name}:a")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        assert codeexec("cp", f"{name}:a", str(pipe)).exit_code == 0
        assert read.result(30) == b"content"
    assert pipe.is_fifo()


@pytest.mark.parametrize("source", ["x" * 300, "/proc/self/mem"])
def test_a_local_file_that_can_not_be_read_is_one_message(codeexec, fake, source) -> None:
    """Its name is too long, or the system reports an error."""
    for arguments, code in ((("cp", source, "session-x:y"), 1), (("run", "-c", "good", "-f", source), 2)):
        done = codeexec(*arguments)
        assert (done.exit_code, type(done.exception)) == (code, SystemExit)
        assert f"can't read '{source}': " in done.stderr
        assert fake.executions == []


def test_a_local_file_that_can_not_be_written_is_one_message(codeexec, fake) -> None:
    codeexec("run", "-c", "make files", "--new-session")
    done = codeexec("cp", f"{fake.sessions[0].metadata.name}:plot.png", "x" * 300)
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)
    assert "can't write 'xxx" in done.stderr


@pytest.mark.parametrize("arguments", [("a", "b"), ("one:a", "two:b"), ("./a:b", "/c:d")])
def test_cp_wants_one_side_in_the_cluster(codeexec, arguments) -> None:
    assert codeexec("cp", *arguments).exit_code == 2


def test_nothing_is_written_through_a_link(tmp_path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    (outside / "kept").write_bytes(b"kept")
    (folder / "link").symlink_to(outside / "kept")
    (folder / "way").symlink_to(outside)
    assert save_artifact(folder, "link", b"new", overwrite=True) == ""
    assert (folder / "link").read_bytes() == b"new"
    for path in ("way/kept", "../outside/kept"):
        assert "leads out of" in save_artifact(folder, path, b"new", overwrite=True)
    assert (outside / "kept").read_bytes() == b"kept"


# --- what there is ---


def test_get_lists_the_newest_last(codeexec, fake) -> None:
    for code in ("good", "bad", "good"):
        codeexec("run", "-c", code, "--agent", f"agent {code}")
        fake.advance(1)
    names = [one.metadata.name for one in fake.executions]
    header, *rows = codeexec("get").stdout.splitlines()
    assert header.split() == ["NAME", "AGENT", "LANGUAGE", "PHASE", "REASON", "EXIT", "DURATION", "SESSION", "AGE"]
    assert [row.split()[0] for row in rows] == names
    for arguments, expected in (
        (["--agent", "agent bad"], names[1:2]),
        (["--phase", "Succeeded"], [names[0], names[2]]),
        (["--limit", "2"], names[1:]),
    ):
        listed = json.loads(codeexec("get", *arguments, "-o", "json").stdout)
        assert [one["metadata"]["name"] for one in listed["items"]] == expected


def test_get_leaves_out_transfers_of_files(codeexec, fake, tmp_path) -> None:
    codeexec("run", "-c", "good", "--new-session")
    name = fake.sessions[0].metadata.name
    (tmp_path / "a").write_bytes(b"a")
    codeexec("cp", str(tmp_path / "a"), f"{name}:a")
    codeexec("cp", f"{name}:a", str(tmp_path / "b"))
    code, sent, fetched = (one.metadata.name for one in fake.executions)
    listed = codeexec("get").stdout.splitlines()[1:]
    assert [row.split()[0] for row in listed] == [code]
    everything = {row.split()[0]: row for row in codeexec("get", "--all").stdout.splitlines()[1:]}
    assert everything.keys() == {code, sent, fetched}
    for transfer in (sent, fetched):
        assert everything[transfer].startswith(f"{transfer}   codeexec-cli   files      Succeeded")
    assert "Code:" in codeexec("get", sent).stdout
    assert "Code:" not in codeexec("get", fetched).stdout, "the digest of nothing says nothing"


def test_get_shows_all_of_one(codeexec, fake, monkeypatch) -> None:
    monkeypatch.setattr(request, "check_agent", lambda _: None)  # records of an older version have such names
    codeexec("run", "-c", "make files", "--agent", f"me{ESCAPE}\n")
    name = fake.executions[0].metadata.name
    shown = codeexec("get", name).stdout
    assert "Agent:         me\\x1b]0;title\\x07\\n\n" in shown
    for text in ("Phase:         Succeeded", "CONDITION", "EgressClosed", "BLOCK", "EGRESS CLOSED", "out/table.csv"):
        assert text in shown
    raw = json.loads(codeexec("get", name, "-o", "json").stdout)
    assert (raw["kind"], raw["status"]["exitCode"]) == ("CodeExecution", 0)


def test_tables_on_a_terminal_are_in_colour_and_lose_nothing(codeexec, fake, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    codeexec("run", "-c", "good", "--agent", "[bold]an agent with a long name that has room below its beginning only")
    shown = codeexec("get").stdout
    assert "\x1b[1mNAME" in shown
    assert "\x1b[32mSucceeded" in shown
    assert "[bold]" in shown  # nothing in a record is taken for markup
    for word in (fake.executions[0].metadata.name, "beginning", "Completed"):
        assert word in shown


NARROW = 60
FORGED = "Runtime class: kata"


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """The lines that a narrow terminal shows of a text."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(NARROW))

    def rows(text: str) -> list[str]:
        lines = click.unstyle(text).splitlines()
        return [line[start : start + NARROW] for line in lines for start in range(0, max(len(line), 1), NARROW)]

    return rows


@pytest.mark.parametrize("path", ["a" * 80 + FORGED, "a" * 60 + FORGED, "a " * 29 + FORGED], ids=["80", "60", "words"])
def test_text_of_an_agent_can_not_look_like_a_field_on_a_narrow_terminal(codeexec, fake, narrow, path) -> None:
    fake._run = lambda block: block.files.update({path: b""}) or FakeOutcome()
    codeexec("run", "-c", "x")
    shown = codeexec("get", fake.executions[0].metadata.name).stdout
    assert "kata" in shown, "control"
    assert not [row for row in narrow(shown) if row.startswith(("Runtime", "class", "kata", "aa", "a "))]


def test_logs_of_what_has_ended(codeexec, fake) -> None:
    codeexec("run", "-c", "good")
    codeexec("run", "-c", "slow")
    good, slow = (one.metadata.name for one in fake.executions)
    done = codeexec("logs", good)
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 0)
    assert codeexec("logs", slow, "-f").stderr.startswith("codeexec: Timeout: ")


def test_logs_of_what_has_ended_are_whole_however_long_it_takes_to_read_them(fake, codeexec, monkeypatch) -> None:
    read = FakeTransport.read_output

    async def read_slowly(self: FakeTransport, execution: CodeExecution, part: int) -> Mapping[str, bytes]:
        clock_jumps_once(lambda: True, 60)
        for _ in range(3):  # a limit that is over has its turn
            await asyncio.sleep(0)
        return await read(self, execution, part)

    fake._run = lambda _: FakeOutcome(stdout="x" * 3_000_000)
    codeexec("run", "-c", "much")
    monkeypatch.setattr(FakeTransport, "read_output", read_slowly)
    done = codeexec("logs", fake.executions[0].metadata.name)
    assert (len(done.stdout), done.stderr, done.exit_code) == (3_000_000, "", 0)


async def test_logs_of_what_ends_meanwhile_are_whole_however_long_it_takes_to_read_them(
    fake, codeexec, monkeypatch
) -> None:
    read, write = FakeTransport.read_output, Printer.__call__

    async def read_slowly(self: FakeTransport, execution: CodeExecution, part: int) -> Mapping[str, bytes]:
        clock_jumps_once(lambda: True, 60)
        for _ in range(3):  # a limit that is over has its turn
            await asyncio.sleep(0)
        return await read(self, execution, part)

    def end_it(printer: Printer, chunk: OutputChunk) -> None:
        write(printer, chunk)
        fake.advance(1000)

    fake._run = lambda _: FakeOutcome(pieces=(("stdout", "first\n"), ("stdout", "x" * 3_000_000)), never_ends=True)
    handle = await fake.client().submit([PreparedBlock("python", b"endless")], Request(agent="me"))
    monkeypatch.setattr(FakeTransport, "read_output", read_slowly)
    monkeypatch.setattr(Printer, "__call__", end_it)
    done = await asyncio.to_thread(codeexec, "logs", handle.name)
    assert (len(done.stdout), done.stderr[:18]) == (3_000_006, "codeexec: Timeout:")


async def test_logs_and_cancel_of_what_runs(codeexec, fake, monkeypatch) -> None:
    monkeypatch.setattr("executor_client.cli.show._QUIET_SECONDS", 0.3)
    handle = await fake.client().submit([PreparedBlock("python", b"endless")], Request(agent="me"))
    so_far = await asyncio.to_thread(codeexec, "logs", handle.name)
    assert (so_far.stdout, so_far.exit_code) == ("so far\n", 0)
    assert so_far.stderr == f"codeexec: {handle.name} has not ended; use -f to follow its output\n"
    assert (await asyncio.to_thread(codeexec, "cancel", handle.name)).stdout == f"{handle.name} is being stopped\n"
    again = await asyncio.to_thread(codeexec, "cancel", handle.name)
    assert again.stdout == f"{handle.name} has ended already: Cancelled\n"


@pytest.mark.parametrize("command", [["get", "x"], ["logs", "x"], ["cancel", "x"], ["sessions", "x"]])
def test_what_is_not_there_is_said(codeexec, command) -> None:
    done = codeexec(*command)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
    assert "x" in done.stderr


def test_ages_and_sizes_are_said_as_kubectl_does(fake) -> None:
    ages = [age(fake.now, fake.now + timedelta(seconds=seconds)) for seconds in (-1, 0, 119, 120, 7199, 7200, 86_400)]
    assert ages == ["0s", "0s", "119s", "2m", "119m", "2h", "1d"]
    assert [size(count) for count in (0, 999, 1000, 1_250_000)] == ["0 B", "999 B", "1.0 kB", "1.2 MB"]


def test_version() -> None:
    assert "version" in CliRunner().invoke(main, ["--version"]).stdout


def leaves(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """Every command, by the words that call it."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from leaves(command, *path, name)
        else:
            yield (*path, name)


CLUSTER = {"--namespace", "--kubeconfig", "--context"}
LACKS = {("audit", "keygen"): CLUSTER, ("audit", "checkpoint"): {"--namespace"}}
"""A key has no cluster, and a checkpoint is of all namespaces."""


@pytest.mark.parametrize("command", list(leaves(main)), ids=" ".join)
def test_each_command_explains_itself_and_takes_the_cluster(command) -> None:
    text = CliRunner().invoke(main, [*command, "--help"]).stdout
    assert {option for option in CLUSTER if f" {option} " in text} == CLUSTER - LACKS.get(command, set())


def test_each_command_asks_the_cluster_that_is_named(fake, monkeypatch) -> None:
    asked = []

    def connect(ref):
        asked.append((ref.namespace, ref.context))
        return fake.client()

    CliRunner().invoke(main, ["get", "-n", "mine", "--context", "there"], obj=connect)
    CliRunner().invoke(main, ["get"], obj=connect, env={"CODEEXEC_NAMESPACE": "named"})
    CliRunner().invoke(main, ["get"], obj=connect)
    assert asked == [("mine", "there"), ("named", None), ("codeexec-sandbox", None)]


def test_run_says_what_the_code_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    _tell_wait(WaitNotice("run-1", "box", "Unschedulable", "no node has room.\nEnd sessions"))
    assert capsys.readouterr() == ("", "codeexec: waiting (Unschedulable): no node has room.\\nEnd sessions\n")
