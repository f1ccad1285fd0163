"""Old records go by age and by number, on a real API server, and the audit log says which did, and what was changed."""

import json
from contextlib import ExitStack
from datetime import timedelta

import pytest
from api_calls import Match
from audit_command import AuditCommand
from cluster_tools import SANDBOX, SYSTEM, a_name, wait_for
from component_stage import LIMITS, Stage
from faults import Answer, Lose, Stall
from old_records import OldRecords

from codeexec_api.names import EXECUTION_PLURAL, EXPORT_CURSOR

pytestmark = pytest.mark.timeout(400)

HOUR = timedelta(hours=1)
DELETE = Match("delete", EXECUTION_PLURAL)
POLICY = ("executionpolicy", "default", SANDBOX)


@pytest.fixture(scope="module")
def keeping(tmp_path_factory):
    """A stage whose operator may delete records, with a job that exports them."""
    values = {
        "operator": {"logLevel": "INFO", "deleteRecords": True},
        "audit": {"export": {"enabled": True, "claimName": "export"}},
    }
    with Stage(tmp_path_factory.mktemp("keeping"), values=values, forked=True) as stage:
        yield stage


@pytest.fixture
def keeper(keeping):
    """An operator whose timers run ten times as fast: it looks at records a few seconds after its start."""
    operator = keeping.operator(clock="+0 x10")
    yield operator
    operator.end()
    if keeping.admin.exists(*POLICY):
        keeping.admin.delete(*POLICY)
    for kind in ("codeexecution", "codesession"):
        for name in names(keeping, kind):
            keeping.admin.delete(kind, name, SANDBOX)


@pytest.fixture
def old(keeping, keeper) -> OldRecords:
    return OldRecords(keeping.admin, keeping.admin.me, keeper)


@pytest.fixture
def audit(keeping, keeper, old, tmp_path):
    """Runs `codeexec audit verify --complete` on the logs; gives kind and place of each finding."""
    command = AuditCommand(keeping.plane.kubeconfig)

    def verify(*options: str) -> list[tuple[str, str]]:
        logs = old.write_log(tmp_path / "before.log"), str(keeper.log)
        done = command("verify", "--complete", "-n", SANDBOX, "-o", "json", *options, *logs)
        assert done.stdout, done.stderr
        return [(one["kind"], one["where"]) for one in json.loads(done.stdout)["findings"]]

    return verify


def names(stage: Stage, kind: str = "codeexecution") -> set[str]:
    return {one["metadata"]["name"] for one in stage.admin.list(kind, SANDBOX)}


def left(stage: Stage, expected: set[str], kind: str = "codeexecution") -> None:
    wait_for(f"only {sorted(expected)} to be left", lambda: names(stage, kind) == expected)


@pytest.mark.suspect
def test_the_newest_stay_though_requests_fail_and_the_operator_is_killed(keeping, keeper, old, audit):
    made = [old.execution(HOUR * (20 - number)) for number in range(16)]
    keeping.admin.apply(keeping.a_policy(records={"maxCount": 4}))
    with ExitStack() as stack:
        held = stack.enter_context(keeping.proxy.fault(DELETE, Stall()))  # until it is killed: it tries again
        rules = [
            stack.enter_context(keeping.proxy.fault(DELETE, fault, times=1))
            for fault in (Lose(), Lose("504"), Answer(500), Answer(409))  # the last one first
        ]
        keeper.start()
        held.wait(seconds=300)  # between tries it rests for ten times as long as it looked
        keeper.kill()
    begun = names(keeping)
    assert set(made[-4:]) < begun < set(made), "it was killed in the middle"
    assert [rule.met for rule in rules] == [1] * 4

    keeper.start()
    left(keeping, set(made[-4:]))
    assert audit() == []
    by_hand = made[-1]
    keeping.admin.delete("codeexecution", by_hand, SANDBOX)
    assert audit() == [("RecordMissing", f"CodeExecution {by_hand}")]


def test_old_ones_go_and_a_session_after_its_executions(keeping, keeper, old, audit):
    work = old.session("work", 3 * HOUR)
    in_work, young = old.execution(3 * HOUR, work), old.execution(HOUR / 2)
    kept_work = old.session("kept", 3 * HOUR)
    held = old.execution(HOUR / 2, kept_work)
    settled = old.execution(timedelta(seconds=1))
    assert names(keeping) == {in_work, young, held, settled}
    keeping.admin.apply(keeping.a_policy(records={"maxAgeSeconds": 3600}))
    keeper.start()
    left(keeping, {kept_work}, "codesession")
    assert names(keeping) == {young, held, settled}
    assert audit() == []


@pytest.mark.suspect
def test_nothing_goes_that_was_not_exported_where_that_is_required(keeping, keeper, old, audit, tmp_path):
    first = {old.execution(3 * HOUR) for _ in range(3)} | {old.execution(2 * HOUR)}
    keeping.admin.apply(keeping.a_policy(records={"maxAgeSeconds": 3600, "requireExport": True}))
    keeper.start()
    wait_for("the operator to say what records wait for", lambda: "audit export --confirm" in keeper.log.read_text())
    assert names(keeping) == first

    place = tmp_path / "evidence"
    place.mkdir()
    job = AuditCommand(keeping.plane.kubeconfig_with_token(keeping.token(SYSTEM, "codeexec-export")))
    before = old.write_log(tmp_path / "first.log")
    done = job("export", "--to", str(place), "-n", SANDBOX, "--confirm", before)
    assert "4 records and 5 audit lines in 1 new file" in done.stderr, done.stderr
    keeper.stop()
    later = old.execution(3 * HOUR)
    keeper.start()
    left(keeping, {later})
    assert audit("--export", str(place)) == []

    done = job("export", "--to", str(place), "-n", SANDBOX, "--confirm", old.write_log(tmp_path / "second.log"))
    assert "1 record and 1 audit line in 1 new file" in done.stderr, done.stderr
    left(keeping, set())
    assert audit("--export", str(place)) == []
    cursor = keeping.admin.get("configmap", EXPORT_CURSOR, SANDBOX)["data"]
    assert cursor.keys() == {"codeexecutions", "codesessions", "file", "sha256"}
    keeper.stop()
    old.execution(3 * HOUR)
    agent = AuditCommand(keeping.agent_kubeconfig())
    done = agent("export", "--to", str(place), "-n", SANDBOX, "--confirm")
    assert (done.returncode, "could not write the ConfigMap codeexec-export" in done.stderr) == (1, True), done.stderr


# --- what nobody deleted --------------------------------------------------------------------------------------------


def test_what_was_done_to_the_log_or_to_a_record_is_found(keeping, keeper):
    """The log is that of an operator that has run code and has been stopped, so nothing is written meanwhile."""
    code = {"Succeeded": 'print("hello")', "Failed": 'print("hello")\nexit(3)'}
    ran = {end: a_name(end.lower()) for end in code}
    with keeper:
        for end, name in ran.items():
            keeping.admin.submit(name, code[end], limits=LIMITS, timeoutSeconds=600)
        for end, name in ran.items():
            keeping.admin.wait_for_phase(name, end)
    command, lines = AuditCommand(keeping.plane.kubeconfig), keeper.log.read_text().splitlines()
    ours = [index for index, line in enumerate(lines) if ran["Failed"] in line and '"StatusWrite"' in line]
    assert len(ours) > 1, "control: there are two to swap"
    first, last = ours[0], ours[-1]

    def found(log: list[str]) -> set[tuple[str, str]]:
        return {(one["kind"], one["where"]) for one in command.verify("-", "-n", SANDBOX, stdin="\n".join(log))}

    verified = json.loads(command("verify", "-", "-n", SANDBOX, "-o", "json", stdin="\n".join(lines)).stdout)
    assert (verified["findings"], verified["records"]) == ([], len(ran)), "control: these were held against it"
    edited, dropped, swapped = list(lines), list(lines), list(lines)
    edited[first] = lines[first].replace(f'"name":"{ran["Failed"]}"', '"name":"somebody-elses"')
    del dropped[first]
    swapped[first], swapped[last] = lines[last], lines[first]
    assert ("Changed", f"stdin:{first + 1}") in found(edited)
    assert "Missing" in {kind for kind, _ in found(dropped)}
    assert "Reordered" in {kind for kind, _ in found(swapped)}

    name = ran["Failed"]
    before = keeping.admin.execution(name)["status"]
    for forged in ({"exitCode": 0}, {"message": "nothing happened"}, {"stdout": {**before["stdout"], "text": "fine"}}):
        keeping.admin.patch("codeexecution", name, {"status": forged}, subresource="status")
        assert found(lines) == {("RecordChanged", f"CodeExecution {name}")}, forged
        as_it_was = {field: before[field] for field in forged}
        keeping.admin.patch("codeexecution", name, {"status": as_it_was}, subresource="status")
    assert found(lines) == set(), "control: as it was, it is fine again"
