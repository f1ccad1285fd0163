"""What was run can be told afterwards, what was changed is found, and code and output are where they belong only.

The operator is told by `helm upgrade` to serve metrics, which starts it anew: the log of these tests begins there.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import ROOT, SANDBOX, SYSTEM, Admin, a_name, helm, restart_operator, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]  # Helm, and the minute after which an operator tells of others

BIN = Path(sys.executable).parent
SMALL = {"limits": {"cpu": "200m", "memory": "96Mi"}}
METRICS = f"http://codeexec-operator-metrics.{SYSTEM}:8082/metrics"
FETCH = "import urllib.request\nprint(urllib.request.urlopen({url!r}, timeout=5).read().decode())"
GREP = """
import glob, json
found = {{word: 0 for word in {words!r}}}
logs = glob.glob("/proc/1/root/var/log/kubernetes/audit*.log")
for log in logs:
    for line in open(log):
        for word in found:
            found[word] += word in line
print(json.dumps(found if logs else None))
"""


# --- what is looked into ----------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(make_control_pod):
    """A pod in the namespace that may read metrics."""
    return make_control_pod("audit-reader", {"command": ["sleep", "infinity"]})


@pytest.fixture(scope="module", autouse=True)
def measured(kubeconfig: str, reader) -> Iterator[None]:
    """An operator that serves metrics, for the tests of this file."""
    values = {"metrics.enabled": "true", "metrics.scrapeNamespaces": f"{{{reader.namespace}}}"}
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    chart = str(ROOT / "charts" / "codeexec")
    helm(kubeconfig, "upgrade", "codeexec", chart, "--reuse-values", "--wait", "--timeout", "2m", *settings)
    yield
    helm(kubeconfig, "rollback", "codeexec", "--wait", "--timeout", "2m")


def operator_log(admin: Admin) -> str:
    """Of the process that runs now, as far as the node keeps it."""
    return admin.kubectl("-n", SYSTEM, "logs", "deployment/codeexec-operator", "--tail=-1")


def audit_lines(log: str) -> list[dict[str, Any]]:
    found = (json.loads(line) for line in log.splitlines() if line.startswith("{") and '"audit"' in line)
    return [one["audit"] for one in found if isinstance(one.get("audit"), dict)]


def events_of(admin: Admin, name: str) -> list[dict[str, Any]]:
    selector = f"involvedObject.name={name}"
    return json.loads(admin.kubectl("-n", SANDBOX, "get", "events", "--field-selector", selector, "-o", "json"))[
        "items"
    ]


class Words(NamedTuple):
    """What stands in the code, in what it writes, and in names of files. None of them is a part of another."""

    code: str
    output: str
    file: str


@pytest.fixture(scope="module")
def words() -> Words:
    return Words(*(f"{what}{os.urandom(8).hex()}" for what in ("incode", "inoutput", "infile")))


def code_with(words: Words, *more: str) -> str:
    """Code that writes the one word without having it in its text, and has the other one only in a comment."""
    half = len(words.output) // 2
    pieces = f"{words.output[:half]!r} + {words.output[half:]!r}"
    return "\n".join(
        [
            f"# {words.code}",
            "import sys",
            f"word = {pieces}",
            "print(word)",
            "print(word, file=sys.stderr)",
            f"open('{words.file}.txt', 'w').write(word)",
            *more,
        ]
    )


@pytest.fixture(scope="module")
def ran(admin: Admin, words: Words) -> dict[str, str]:
    """Names of executions with these words, by how they ended."""
    names = {end: a_name(end.lower()) for end in ("Succeeded", "Failed", "TimedOut", "Denied")}
    admin.submit(names["Succeeded"], code_with(words), **SMALL)
    admin.submit(names["Failed"], code_with(words, "sys.exit(3)"), **SMALL)
    admin.submit(names["TimedOut"], code_with(words, "import time", "time.sleep(60)"), **SMALL | {"timeoutSeconds": 2})
    admin.submit(names["Denied"], code_with(words), **SMALL | {"timeoutSeconds": 86_400})
    for phase, name in names.items():
        admin.wait_for_phase(name, phase)
    return names


def without_output(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what the code wrote, and without the paths of files, which stand there in full."""
    status = dict(record.get("status", {}))
    for stream in ("stdout", "stderr"):
        if stream in status:
            status[stream] = {name: value for name, value in status[stream].items() if name != "text"}
    status["artifacts"] = [{**one, "path": ""} for one in status.get("artifacts", ())]
    return {**record, "status": status}


# --- the words are where they belong, and nowhere else ------------------------------------


def test_records_hold_output_where_it_belongs_and_no_code(admin, ran, words):
    for name in (ran["Succeeded"], ran["Failed"]):
        record = admin.execution(name)
        assert words.output in record["status"]["stdout"]["text"], "control"
        assert words.output in record["status"]["stderr"]["text"], "control"
        assert f"{words.file}.txt" in [one["path"] for one in record["status"]["artifacts"]], "control"
        assert words.code not in json.dumps(record)
        for word in words:
            assert word not in json.dumps(without_output(record)), name
    assert not any(word in json.dumps(admin.execution(ran["Denied"])) for word in words)


async def test_neither_sealed_code_nor_a_session_shows_them(admin, make_executor, words):
    executor = make_executor(agent=a_name("auditor"), session="per-executor")
    result = await executor.execute_code_blocks([CodeBlock(code_with(words), "python")], CancellationToken())
    assert result.output.count(words.output) == 2, "control"
    record = admin.execution(result.execution)
    assert "sealedPayload" in record["spec"], "control: it is in there, encrypted"
    session = admin.get("codesession", record["spec"]["sessionRef"]["name"])
    assert words.code not in json.dumps(record)
    for word in words:
        assert word not in json.dumps(without_output(record))
        assert word not in json.dumps(session)


def test_events_the_log_and_the_metrics_show_none_of_them(admin, ran, words, reader):
    wait_for("the Event of a denial", lambda: events_of(admin, ran["Denied"]))
    sinks = {
        "Events": (admin.kubectl("get", "events", "--all-namespaces", "-o", "json"), ran["Denied"]),
        "the log": (operator_log(admin), ran["Succeeded"]),
        "the audit lines": (json.dumps(audit_lines(operator_log(admin))), ran["Succeeded"]),
        "metrics": (reader(FETCH.format(url=METRICS)), "codeexec_audit_lines_total"),
    }
    for sink, (text, something) in sinks.items():
        assert something in text, f"control: this is what {sink} would show"
        for word in words:
            assert word not in text, sink


def test_the_audit_log_of_the_api_server_shows_none_of_them(ran, words, node_shell):
    found = json.loads(node_shell(GREP.format(words=[ran["Succeeded"], *words])))
    assert found is not None, "the API server keeps no audit log: `make cluster` makes the test cluster anew, with one"
    assert found.pop(ran["Succeeded"]) > 0, "control"
    assert found == dict.fromkeys(words, 0)


# --- lines ------------------------------------------------------------------------------


def test_each_status_has_its_line_and_a_call_is_two(admin, ran):
    lines = [one for one in audit_lines(operator_log(admin)) if one.get("record", {}).get("name") == ran["Succeeded"]]
    assert [one["record"]["phase"] for one in lines][-2:] == ["Running", "Succeeded"]
    record = admin.execution(ran["Succeeded"])
    last = lines[-1]
    assert {name: last[name] for name in ("chain", "sequence", "hash")}.items() <= record["status"]["audit"].items()
    assert last["record"]["digest"] == record["status"]["codeDigest"]
    assert (last["record"]["requestedBy"], last["record"]["exitCode"]) == (admin.me, 0)


# --- codeexec audit -----------------------------------------------------------------------


@pytest.fixture
def audit(kubeconfig: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`codeexec audit`, as a process of its own."""
    environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "KUBECONFIG": kubeconfig, "HOME": os.environ["HOME"]}

    def call(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = ["codeexec", "audit", *arguments]
        return subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, timeout=110)

    return call


def findings(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    """Of `audit verify -o json`."""
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["ok"] else 1), done.stderr
    return found["findings"]


def quiet(admin: Admin) -> str:
    """The operator's log, once nothing is being written."""

    def probe() -> str:
        before = operator_log(admin)
        running = admin.kubectl("-n", SANDBOX, "get", "codeexecutions", "--no-headers")
        busy = any(phase in row.split() for row in running.splitlines() for phase in ("Pending", "Starting", "Running"))
        return before if not busy and audit_lines(operator_log(admin)) == audit_lines(before) else ""

    return wait_for("the operator to have nothing to write", probe)


def test_the_log_of_a_real_operator_verifies_and_what_was_done_to_it_is_found(admin, audit, ran):
    log = quiet(admin)
    done = audit("verify", "-", "-o", "json", stdin=log)
    assert findings(done) == []
    assert json.loads(done.stdout)["records"] >= len(ran), "control: these were held against it"

    lines = log.splitlines()
    ours = [index for index, line in enumerate(lines) if ran["Failed"] in line and '"StatusWrite"' in line]
    first = ours[0]

    def after(change: Callable[[list[str]], None]) -> set[tuple[str, str]]:
        changed = list(lines)
        change(changed)
        found = findings(audit("verify", "-", "-o", "json", stdin="\n".join(changed)))
        return {(one["kind"], one["where"]) for one in found}

    def edit(changed: list[str]) -> None:
        changed[first] = changed[first].replace(f'"name":"{ran["Failed"]}"', '"name":"somebody-elses"')

    def drop(changed: list[str]) -> None:
        del changed[first]

    def swap(changed: list[str]) -> None:
        one, other = ours[0], ours[-1]
        changed[one], changed[other] = changed[other], changed[one]

    assert ("Changed", f"stdin:{first + 1}") in after(edit)
    assert "Missing" in {kind for kind, _ in after(drop)}
    assert len(ours) > 1, "control: there are two to swap"
    assert "Reordered" in {kind for kind, _ in after(swap)}


def test_a_record_that_an_administrator_changes_is_found(admin, audit, ran):
    log, name = quiet(admin), ran["Failed"]

    def patch(**status: Any) -> None:
        change = json.dumps({"status": status})
        admin.kubectl(
            "-n", SANDBOX, "patch", "codeexecution", name, "--type=merge", "--subresource=status", "-p", change
        )

    def found() -> list[tuple[str, str]]:
        return [(one["kind"], one["where"]) for one in findings(audit("verify", "-", "-o", "json", stdin=log))]

    before = admin.execution(name)["status"]
    assert found() == [], "control"
    for forged in ({"exitCode": 0}, {"message": "nothing happened"}, {"stdout": {**before["stdout"], "text": "fine"}}):
        patch(**forged)
        assert found() == [("RecordChanged", f"CodeExecution {name}")], forged
        patch(**{field: before[field] for field in forged})
        assert found() == [], "control: as it was, it is fine again"


def test_after_a_restart_both_logs_verify_and_the_second_tells_of_the_first(admin, audit, ran, tmp_path):
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    first.write_text(quiet(admin))
    restart_operator(admin)
    name = a_name("after")
    admin.submit(name, "print(1)", **SMALL)
    admin.wait_for_phase(name, "Succeeded")
    continues = "the operator to tell which chain came before"
    wait_for(continues, lambda: any(one["event"] == "Continues" for one in audit_lines(operator_log(admin))), 120)
    second.write_text(quiet(admin))
    assert findings(audit("verify", str(first), str(second), "-o", "json")) == []

    # The end of the first log is cut off: a record, or the second log, knows better.
    lines = first.read_text().splitlines()
    last = max(index for index, line in enumerate(lines) if '"StatusWrite"' in line)
    first.write_text("\n".join(lines[:last]))
    cut = findings(audit("verify", str(first), str(second), "-o", "json"))
    assert "Missing" in {one["kind"] for one in cut}


def test_show_list_and_report_of_the_real_cluster(admin, audit, ran, tmp_path):
    log, page = tmp_path / "operator.log", tmp_path / "report.html"
    log.write_text(quiet(admin))
    shown = audit("show", ran["Succeeded"], "--log", str(log))
    assert shown.returncode == 0, shown.stderr
    assert "created" in shown.stdout
    listed = audit("list", "--phase", "TimedOut", "--since", "1h", "--requested-by", admin.me)
    assert ran["TimedOut"] in listed.stdout
    assert ran["Succeeded"] not in listed.stdout
    written = audit("report", "-o", str(page), "--log", str(log), "--since", "1h")
    assert written.returncode == 0, written.stderr
    assert ran["Denied"] in page.read_text()


# --- Events -------------------------------------------------------------------------------


def test_kubectl_describe_tells_of_what_somebody_has_to_know(admin, ran):
    for end, reason in (("Denied", "PolicyViolation"), ("TimedOut", "DeadlineExceeded")):
        events = f"an Event {reason} of {ran[end]}"
        wait_for(events, lambda end=end, reason=reason: reason in described(admin, ran[end]))
    for end in ("Succeeded", "Failed"):
        assert events_of(admin, ran[end]) == [], "the usual way is told of by the record alone"


def described(admin: Admin, name: str) -> str:
    """What `kubectl describe` says below Events."""
    return admin.kubectl("-n", SANDBOX, "describe", "codeexecution", name).partition("\nEvents:")[2]


def test_approval_is_told_of(admin, policy):
    policy(maxLimits={"memory": "64Mi"}, withApproval={"maxLimits": {"memory": "256Mi"}})
    name = a_name("asks")
    admin.submit(name, "print(1)", limits={"memory": "128Mi", "cpu": "100m"})
    admin.wait_for_phase(name, "AwaitingApproval")
    wait_for("the Event of the question", lambda: "ApprovalRequired" in described(admin, name))
    assert "spec.limits.memory=128Mi" in described(admin, name)
    admin.kubectl("-n", SANDBOX, "patch", "codeexecution", name, "--type=merge", "-p", '{"spec": {"cancelled": true}}')
    admin.wait_for_phase(name, "Cancelled")
