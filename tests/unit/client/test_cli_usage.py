"""What the command line says about its options, and about values that it refuses."""

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from factories import an_execution

from codeexec_api import Phase
from executor_client.cli import main
from executor_client.cli.diagnosis import (
    RIGHTS,
    Finding,
    Outcome,
    judge_clock,
    judge_kinds,
    judge_probe,
    judge_rights,
    judge_runtime_class,
    judge_versions,
)
from executor_client.testing import FakeCluster, FakeOutcome

PHASES = Phase.SUCCEEDED, Phase.FAILED, Phase.DENIED, Phase.AWAITING_APPROVAL
EXECUTION = {"apiVersion": "codeexec.dev/v1alpha1", "kind": "CodeExecution", "metadata": {"name": "a"}}


@pytest.fixture
def codeexec() -> Callable[..., Result]:
    fake = FakeCluster(run=lambda _: FakeOutcome())

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments, obj=lambda ref: fake.client())

    return call


def commands(of: click.Command = main, name: str = "codeexec") -> Iterator[tuple[str, click.Command]]:
    yield name, of
    for one in of.commands.values() if isinstance(of, click.Group) else ():
        yield from commands(one, f"{name} {one.name}")


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda one: one if isinstance(one, str) else "")
def test_no_option_calls_its_value_by_a_type(name, command) -> None:
    """`--timeout SECONDS` says more than `--timeout INTEGER RANGE`."""
    context = click.Context(command)
    shown = {one.opts[-1]: one.make_metavar(context) for one in command.params if isinstance(one, click.Option)}
    values = {
        option: value for option, value in shown.items() if value.split("[")[0].strip() in ("TEXT", "PATH", "URL")
    }
    assert not values | {option: value for option, value in shown.items() if "INTEGER" in value}


def test_the_help_says_where_to_start(codeexec) -> None:
    assert "Start with: codeexec doctor, then codeexec run -c 'print(1)'." in codeexec("--help").stdout


def findings() -> Iterator[Finding]:
    """One of each kind that the checks make of what they see."""
    yield judge_kinds([])
    yield judge_rights(dict.fromkeys(RIGHTS, False), "here")
    for exists in (True, False, None):
        yield judge_runtime_class("gvisor", exists)
    moment = an_execution().metadata.creation_timestamp
    assert moment
    yield judge_clock(None, moment, moment)
    yield judge_versions("0.2.0", "1.2.0")
    yield judge_versions("0.2.0", "")
    for phase in PHASES:
        yield from judge_probe(an_execution(phase=phase, status={"reason": "QuotaExceeded"}), "0.2.0")


@pytest.mark.parametrize("finding", list(findings()), ids=lambda one: f"{one.check}, {one.outcome}")
def test_each_finding_that_is_not_ok_says_what_to_do(finding) -> None:
    assert (finding.outcome is Outcome.OK) == (not finding.advice)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--cpu", "9", "--callers", "3", "--no-run"), "--callers and --cpu need --capacity"),
        (("--memory", "1Gi"), "--memory needs --capacity"),
        (("--operator-namespace", "here"), "--operator-namespace needs --capacity"),
        (("--measure", "2"), "--measure needs --capacity"),
        (("--capacity", "--no-run"), "give either --capacity or --no-run"),
        (("--capacity", "--callers", "3"), "--callers needs --measure"),
        (("--capacity", "--cpu", "abc"), "Invalid value for '--cpu': 'abc' is not a quantity"),
        (
            ("--runtime-class", "A B!"),
            "Invalid value for '--runtime-class': 'A B!' is not a valid name: use lower-case",
        ),
    ],
)
def test_doctor_ignores_no_option(codeexec, options, told) -> None:
    done = codeexec("doctor", *options)
    assert (done.exit_code, told in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (
            ("--runtime-class", "A B!"),
            2,
            "Error: Invalid value for '--runtime-class': 'A B!' is not a valid name: use lower-case letters, digits, - "
            "and .; kubectl get runtimeclasses lists them",
        ),
        (("--mount", "pvc:a:/mnt/a", "--mount", "pvc:b:/mnt/a"), 1, "Error: --mount: "),
        (("--egress", "1.2.3.4:99999"), 2, "Error: Invalid value for '--egress': "),
        (("--cpu", "1.5555555555555"), 2, "Error: Invalid value for '--cpu': "),
    ],
)
def test_a_wrong_value_is_said_with_its_option_and_in_our_words(codeexec, options, code, told) -> None:
    done = codeexec("run", "-c", "x", *options)
    assert done.exit_code == code
    assert told in done.stderr
    assert not [words for words in ("Value error", "String should", ": :", "mounts") if words in done.stderr]


@pytest.mark.parametrize("content", ["just text", "[1]", yaml.safe_dump({**EXECUTION, "spec": "text"})])
def test_a_file_that_is_no_policy_or_no_request_is_said_without_a_place(codeexec, tmp_path, content) -> None:
    for name in ("request", "policy"):
        (tmp_path / name).write_text(content if name == "request" or "spec" not in content else "spec: text")
    request = tmp_path / "request"
    if "spec" not in content:
        request.write_text(yaml.safe_dump({**EXECUTION, "spec": {}}))
    done = codeexec("policy", "explain", str(request), "--policy", str(tmp_path / "policy"))
    assert done.exit_code == 1
    assert ": : " not in done.stderr
    assert done.stderr.startswith("Error: ")


def test_a_path_outside_the_workspace_is_called_so(codeexec, tmp_path) -> None:
    done = codeexec("cp", "run-1:/etc/x", str(tmp_path / "y"))
    assert done.stderr == (
        "Error: '/etc/x' is outside the workspace: give a relative path, or a path that begins with /workspace/\n"
    )


def test_a_log_without_audit_lines_is_called_so(codeexec, tmp_path) -> None:
    (tmp_path / "log").write_text("started\n")
    done = codeexec("audit", "verify", "--no-cluster", str(tmp_path / "log"))
    assert done.exit_code == 1
    assert (
        "the given logs contain no audit line: pass the operator's log with its JSON lines unchanged "
        "(docs/audit.md#keep-the-log)" in done.stdout
    )


def test_a_key_that_exists_asks_for_another_file(codeexec, tmp_path: Path) -> None:
    (tmp_path / "key").touch()
    done = codeexec("audit", "keygen", "prod", str(tmp_path / "key"))
    assert done.exit_code == 1
    assert done.stderr.endswith("File exists: a key is never replaced; give the name of a new file\n")


def test_what_nobody_can_open_asks_for_another_destination(codeexec) -> None:
    done = codeexec("run", "-c", "x", "--egress", "169.254.169.254:80")
    assert (
        "169.254.0.0/16 has link-local addresses and cloud metadata, which no policy or approver can open: request "
        "another destination" in done.stderr
    )


@pytest.mark.parametrize("command", [("checkpoint", "--to"), ("export", "--to"), ("verify", "--checkpoint")])
def test_the_help_of_a_place_says_what_a_place_is(codeexec, command) -> None:
    told = " ".join(codeexec("audit", command[0], "--help").stdout.split())
    assert f"{command[1]} PLACE" in told
    assert "an existing folder" in told
