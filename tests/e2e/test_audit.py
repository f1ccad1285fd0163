"""What was run can be told afterwards, what was changed is found, and code and output are where they belong only.

The log of these tests is that of the operator as `helm upgrade` has started it; test_restart.py has two logs. What was
done to a log or to a record is found in component/test_record_retention.py.
"""

import json
import os
from typing import Any, NamedTuple

import pytest
from audit_command import AuditCommand
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, SYSTEM, Admin, a_name, wait_for
from release_fixtures import FETCH, METRICS, audit_lines, operator_log

from executor_client import Limits

pytestmark = [
    pytest.mark.release,
    pytest.mark.usefixtures("observed"),
]

SMALL = {"limits": {"cpu": "100m", "memory": "96Mi"}}
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


def events_of(admin: Admin, name: str) -> list[dict[str, Any]]:
    return admin.list("event", fields=f"involvedObject.name={name}")


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
def ran(observed: None, admin: Admin, words: Words) -> dict[str, str]:
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
    executor = make_executor(agent=a_name("auditor"), session="per-executor", limits=Limits(cpu="100m", memory="96Mi"))
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
        "Events": (json.dumps(admin.list("event", None)), ran["Denied"]),
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
def audit(kubeconfig: str) -> AuditCommand:
    return AuditCommand(kubeconfig)


def test_the_operators_log_is_read_from_the_cluster_while_it_goes_on(admin, audit, ran):
    """Nobody waits until nothing is written: what is newer than the log, or than the records, is no finding."""
    names = [a_name("meanwhile") for _ in range(3)]
    for name in names:
        admin.submit(name, "import time\nfor _ in range(20): print('on', flush=True); time.sleep(0.1)", **SMALL)
    done = audit("verify", "--from-cluster", "--operator-namespace", SYSTEM, "-n", SANDBOX, "-o", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["findings"]) == (0, []), done.stderr
    assert found["records"] >= len(ran), "control: these were compared with it"
    assert f"reading the operator's log in namespace '{SYSTEM}'" in done.stderr
    name = ran["Failed"]
    before = admin.execution(name)["status"]
    admin.patch("codeexecution", name, {"status": {"exitCode": 0}}, subresource="status")
    try:
        forged = audit.verify("--from-cluster", "-n", SANDBOX)
        assert [(one["kind"], one["where"]) for one in forged] == [("RecordChanged", f"CodeExecution {name}")]
    finally:
        admin.patch("codeexecution", name, {"status": {"exitCode": before["exitCode"]}}, subresource="status")
    for name in names:
        admin.wait_for_phase(name, "Succeeded")


def test_show_list_and_report_of_the_real_cluster(admin, audit, ran, tmp_path):
    log, page = tmp_path / "operator.log", tmp_path / "report.html"
    log.write_text(operator_log(admin))
    shown = audit("show", ran["Succeeded"], "--log", str(log))
    assert shown.returncode == 0, shown.stderr
    assert "created" in shown.stdout
    listed = audit("list", "--phase", "TimedOut", "--since", "1h", "--requested-by", admin.me)
    assert ran["TimedOut"] in listed.stdout
    assert ran["Succeeded"] not in listed.stdout
    written = audit("report", "-o", str(page), "--log", str(log), "--since", "1h")
    assert written.returncode == 0, written.stderr
    assert ran["Denied"] in page.read_text()
