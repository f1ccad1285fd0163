"""What the shell offers after TAB: names from the cluster, and nothing at all when that doesn't work."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from codeexec_api import ExecutionPolicySpec, Limits
from executor_client.cli import completion, main
from executor_client.client.approvals import ApprovalWait
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import Request
from executor_client.model.blocks import SourceBlock, prepare
from executor_client.testing import FAKE_IMAGE, FakeCluster, FakeOutcome

POLICY = {
    "images": [FAKE_IMAGE],
    "maxLimits": {"memory": "256Mi"},
    "withApproval": {"maxLimits": {"memory": "1Gi"}},
}
Complete = Callable[..., list[str]]


def behave(block: Any) -> FakeOutcome:
    block.files["plot.png"] = b"png"
    return FakeOutcome(never_ends=block.code == "endless")


@pytest.fixture
def fake() -> FakeCluster:
    return FakeCluster(policy=ExecutionPolicySpec.model_validate(POLICY), run=behave)


@pytest.fixture
def names(fake: FakeCluster) -> dict[str, str]:
    """One of each kind, by what it is."""
    agent = fake.client()
    made: dict[str, str] = {}

    async def run(what: str, code: str, **options: Any) -> None:
        limits = Limits(memory=options.pop("memory", "256Mi"))
        request = Request(agent="me", limits=limits, approval=ApprovalWait("return"))
        handle = await agent.submit(prepare([SourceBlock("python", code)]).blocks, request, **options)
        made[what] = handle.name
        fake.advance(1)

    async def work() -> None:
        await run("done", "done")
        await run("fetched", "done", fetch=["*"])
        await run("running", "endless")
        await run("waiting", "asks", memory="512Mi")
        for what in ("live", "ended"):
            session = await agent.open_session(Request(agent="me"), wait=True)
            made[what] = session.name
            fake.advance(1)
        await agent.end_session(made["ended"])
        await run("queued-behind", "endless", session=made["live"])

    asyncio.run(work())
    return made


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Completion that takes too long ends the process, which is that of the tests here."""
    monkeypatch.setattr(completion, "_SECONDS", 60)
    monkeypatch.setattr(completion, "_HARD_SECONDS", 60)


@pytest.fixture
def complete(fake: FakeCluster) -> Complete:
    def call(*words: str, incomplete: str = "", connect: Any = None) -> list[str]:
        shell = ShellComplete(main, {"obj": connect or (lambda ref: fake.client())}, "codeexec", "_CODEEXEC_COMPLETE")
        return [one.value for one in shell.get_completions(list(words), incomplete) if one.type == "plain"]

    return call


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["get"], ["queued-behind", "waiting", "running", "fetched", "done"]),
        (["logs", "-f"], ["queued-behind", "waiting", "running", "fetched", "done"]),
        (["cancel"], ["queued-behind", "waiting", "running"]),
        (["approve"], ["waiting"]),
        (["deny", "--reason", "no"], ["waiting"]),
        (["approvals"], ["waiting"]),
        (["revoke"], []),
        (["sessions", "end"], ["live"]),
        (["run", "--session"], ["live"]),
        (["audit", "show"], ["queued-behind", "ended", "live", "waiting", "running", "fetched", "done"]),
    ],
    ids=" ".join,
)
def test_names_that_fit_are_offered_newest_first(complete: Complete, names, words: list[str], offered) -> None:
    assert complete(*words) == [names[what] for what in offered]


def test_names_begin_with_what_is_there_already(complete: Complete, names) -> None:
    assert complete("get", incomplete=names["running"][:8]) == [names["running"]]
    assert complete("get", incomplete="session-") == []


def test_none_is_offered_twice(complete: Complete, names) -> None:
    assert complete("cancel", names["running"]) == [names["queued-behind"], names["waiting"]]


def test_sessions_are_shown_or_ended(complete: Complete, names) -> None:
    assert complete("sessions") == ["end", names["ended"], names["live"]]
    assert complete("sessions", incomplete="e") == ["end"]
    assert complete("sessions", names["live"]) == []


def test_cp_offers_both_sides(complete: Complete, fake, names) -> None:
    shell = ShellComplete(main, {"obj": lambda ref: fake.client()}, "codeexec", "_CODEEXEC_COMPLETE")
    source = [(one.type, one.value) for one in shell.get_completions(["cp"], "")]
    assert source == [("file", ""), ("plain", f"{names['live']}:"), ("plain", f"{names['fetched']}:")]
    assert complete("cp", "here") == [f"{names['live']}:"]


def test_languages_are_offered_without_a_cluster(complete: Complete) -> None:
    def connect(ref: Any) -> CodeExecutionClient:
        raise AssertionError("nobody has to be asked")

    assert complete("run", "-l", connect=connect) == ["python", "bash", "sh", "javascript", "pwsh"]
    assert complete("run", "--language", incomplete="P", connect=connect) == ["python", "pwsh"]


def test_the_cluster_that_is_named_is_asked(complete: Complete, fake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def connect(ref: Any) -> CodeExecutionClient:
        asked.append((ref.namespace, ref.context))
        return fake.client()

    complete("get", "-n", "mine", "--context", "there", connect=connect)
    complete("get", connect=connect)
    monkeypatch.setenv("CODEEXEC_NAMESPACE", "named")
    complete("get", connect=connect)
    assert asked == [("mine", "there"), ("codeexec-sandbox", None), ("named", None)]


# --- trouble ---


def test_an_error_offers_nothing(complete: Complete, fake, names, capfd) -> None:
    fake.fail()
    assert complete("get") == []
    assert complete("sessions") == ["end"]

    def connect(ref: Any) -> CodeExecutionClient:
        raise RuntimeError("no way")

    assert complete("get", connect=connect) == []
    assert capfd.readouterr() == ("", "")


def test_what_takes_long_is_left_out(complete: Complete, fake, names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_SECONDS", 0.1)

    async def never() -> Any:
        await asyncio.Event().wait()

    assert complete("get", connect=lambda ref: CodeExecutionClient(transport=never)) == []


BLOCKED = """
import time
from executor_client.cli import completion, main
from executor_client.client.client import CodeExecutionClient

async def blocks():
    time.sleep(600)

main(prog_name="codeexec", obj=lambda ref: CodeExecutionClient(transport=blocks))
"""


def test_what_blocks_ends_the_completion(tmp_path: Path) -> None:
    """As the look-up of a name of a host may do, in a thread that nobody can stop."""
    shell = {"_CODEEXEC_COMPLETE": "bash_complete", "COMP_WORDS": "codeexec get ", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED],
        env=os.environ | shell,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("kubeconfig", ["/no/such/file", "unreachable"])
def test_a_real_process_says_nothing_but_names(tmp_path: Path, kubeconfig: str) -> None:
    if kubeconfig == "unreachable":
        path = tmp_path / "kubeconfig"
        path.write_text(
            "clusters: [{name: it, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: it, user: {}}]\n"
            "contexts: [{name: it, context: {cluster: it, user: it}}]\ncurrent-context: it\n"
        )
        kubeconfig = str(path)
    shell = {"_CODEEXEC_COMPLETE": "bash_complete", "COMP_WORDS": "codeexec get ", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "executor_client"],
        env=os.environ | shell | {"KUBECONFIG": kubeconfig},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("", "", 0)
