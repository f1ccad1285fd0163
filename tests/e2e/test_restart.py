"""All operators go and others come, once, with something in every phase: nothing is lost, and nothing runs twice.

The fixture `restarted` sets the scene; what came of it is told by the tests, the slowest last.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from audit_command import AuditCommand, while_nothing_is_written
from cluster_fixtures import ControlPod, Pool
from cluster_tools import (
    SANDBOX,
    SYSTEM,
    Admin,
    a_name,
    a_sealed_execution,
    a_session,
    age_the_sealing_key,
    an_approval,
    operator_pod,
    policies,
    scale_operator,
    wait_for,
)
from release_fixtures import audit_lines, operator_log, the_one
from waits import SECONDS

pytestmark = [pytest.mark.e2e, pytest.mark.release]

ASKED = {"cpu": "100m", "memory": "192Mi"}
"""What the policy of the scene allows with approval only."""
POOLED = {"cpu": "100m", "memory": "96Mi"}
ALONE = {"cpu": "120m", "memory": "96Mi"}
"""Limits that no pool has: an execution with them gets a pod of its own."""
IN_SESSION = {"cpu": "100m", "memory": "64Mi"}
OUTLASTING = ("outlasts", "ends-meanwhile")
"""Executions that end when the next operator is there, and before."""
ENDING = {"timeoutSeconds": 600, "ttlSecondsAfterFinished": 1}
ENDLESSLY = ("runs", "runs-too", "loop")
ENDLESS = "import time; time.sleep(600)"
MARKS_TIME = "import time\nwhile True: open('alive', 'w').write(str(time.time())); time.sleep(.05)"
STILL = "import time; a = open('alive').read(); time.sleep(.5); print(open('note').read(), a == open('alive').read())"
OUTLASTS = """
import signal, time
signalled = []
signal.signal(signal.SIGUSR1, lambda *_: signalled.append(True))
print("before", flush=True)
while not signalled: time.sleep(0.05)
print("after")
"""
GOES_ON = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        of_the_pod = {uid!r} in open(f"/proc/{{pid}}/cgroup").read().replace("_", "-")
        [caught] = [line.split()[1] for line in open(f"/proc/{{pid}}/status") if line.startswith("SigCgt")]
        if of_the_pod and int(caught, 16) >> signal.SIGUSR1 - 1 & 1:
            os.kill(int(pid), signal.SIGUSR1)
            print("signalled")
    except OSError:
        pass
"""
"""Runs on the node: the code of this pod goes on, to which no operator has to say anything."""
QUOTA = "no-more-pods"


@dataclass
class Scene:
    """What there was before the restart."""

    logs: Path
    names: dict[str, str] = field(default_factory=dict)
    """Of executions and the session, by what they are for."""
    uids: dict[str, str] = field(default_factory=dict)
    """Of pods, by the execution."""
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, set[str]] = field(default_factory=dict)
    """Of each pool."""
    under_way: dict[str, Any] = field(default_factory=dict)
    """An execution that was sealed before, and is submitted afterwards."""
    old_key: str = ""
    without_operator: str = ""
    """When the last operator had gone."""

    def __getitem__(self, what: str) -> str:
        return self.names.setdefault(what, a_name(what))

    def let_go_on(self, name: str, node_shell: ControlPod) -> None:
        told = node_shell(GOES_ON.format(uid=self.uids[name]))
        assert told == "signalled\n", "control: the code, and nothing else"


@pytest.fixture(scope="module")
def strict_policy(admin: Admin) -> Iterator[None]:
    with policies(admin) as put:
        put(maxLimits={"memory": "128Mi"}, withApproval={"maxLimits": {"memory": "256Mi"}})
        yield


@pytest.fixture(scope="module")
def pools(admin: Admin, strict_policy: None) -> Iterator[tuple[Pool, Pool]]:
    """One whose pods are all taken, and one that nobody uses."""
    made = []
    for replicas, limits in ((2, POOLED), (1, {"cpu": "110m", "memory": "96Mi"})):
        pool = Pool(admin, a_name("pool"))
        meta, spec = {"name": pool.name, "namespace": SANDBOX}, {"replicas": replicas, "limits": limits}
        admin.apply({"apiVersion": "codeexec.dev/v1alpha1", "kind": "SandboxPool", "metadata": meta, "spec": spec})
        made.append(pool)
    yield made[0], made[1]
    for pool in made:
        admin.delete("sandboxpool", pool.name)


@contextmanager
def _written_to(path: Path, admin: Admin, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """What kubectl says goes into a file, as long as it runs."""
    with path.open("wb") as file:
        command = ["kubectl", "--kubeconfig", admin.kubeconfig, *arguments]
        with subprocess.Popen(command, stdout=file) as process:
            yield process
            process.terminate()


@pytest.fixture(scope="module")
def restarted(observed, admin, approver, pools, node_shell, tmp_path_factory) -> Iterator[Scene]:
    """The scene, when the second operator has begun."""
    scene = Scene(tmp_path_factory.mktemp("logs"))
    used, idle = pools
    watch = ("-n", SANDBOX, "get", "pods", "-l", f"codeexec.dev/pool={idle.name}", "--watch", "-o", "name")
    with ExitStack() as stack:
        stack.callback(admin.delete, "codesession", scene["session"])
        _fill(admin, scene)
        used.ready(2)
        idle.ready(1)
        scene.pods = {pool.name: set(pool.pods()) for pool in pools}
        stack.enter_context(_written_to(scene.logs / "idle-pods", admin, *watch))
        stack.callback(admin.delete, "resourcequota", QUOTA)
        _take_all_pods_of(used, scene)
        scene.old_key = age_the_sealing_key(admin, timedelta(hours=25))
        stack.callback(scale_operator, admin, 1)
        name = operator_pod(admin)["metadata"]["name"]
        follow = ("-n", SYSTEM, "logs", "--follow", name)
        with _written_to(scene.logs / "first", admin, *follow) as log:
            scale_operator(admin, 0)
            log.wait(SECONDS)
        scene.without_operator = datetime.now(UTC).isoformat()
        _meanwhile(admin, scene, approver)
        scene.let_go_on("ends-meanwhile", node_shell)
        scale_operator(admin, 1)
        scene.let_go_on("outlasts", node_shell)
        yield scene
        for name in ENDLESSLY:
            _cancel(admin, scene[name])


def _fill(admin: Admin, scene: Scene) -> None:
    session = {"session": scene["session"], "limits": IN_SESSION, "timeoutSeconds": 600}
    admin.apply(a_session(scene["session"], limits=IN_SESSION))
    admin.submit(scene["done"], "print(1)", limits=ALONE, ttlSecondsAfterFinished=300)
    for name in OUTLASTING:
        admin.submit(scene[name], OUTLASTS, limits=ALONE, **ENDING)
    for name in ("patient", "approved", "denied"):
        admin.submit(scene[name], "print('approved')", limits=ASKED)
    admin.submit_to(scene["notes"], "open('note', 'w').write('kept')", **session)
    admin.wait_for_phase(scene["notes"], "Succeeded")
    admin.submit_to(scene["loop"], MARKS_TIME, **session)
    admin.wait_for_phase(scene["loop"], "Running")
    sealed = a_sealed_execution(admin, scene["early"], "print('waited')", sessionRef={"name": scene["session"]})
    admin.create(sealed)
    scene.under_way = a_sealed_execution(admin, scene["late"], "print('under way')")
    for name in OUTLASTING:
        admin.wait_for_phase(scene[name], "Running")
        admin.wait_for_output(scene[name], "before")
        scene.uids[name] = admin.pod(SANDBOX, admin.execution(scene[name])["status"]["podName"])["metadata"]["uid"]
    admin.wait_for_phase(scene["done"], "Succeeded")
    for name in ("patient", "approved", "denied"):
        scene.records[name] = admin.wait_for_phase(scene[name], "AwaitingApproval")


def _take_all_pods_of(pool: Pool, scene: Scene) -> None:
    """Two executions run in them, two are in line, and there can be no other pod: the quota is used up."""
    admin, meta = pool.admin, {"name": QUOTA, "namespace": SANDBOX}
    admin.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": {"pods": "0"}}})
    wait_for("the quota to count", lambda: admin.get("resourcequota", QUOTA).get("status", {}).get("used"))
    for name in ("runs", "runs-too"):
        admin.submit(scene[name], ENDLESS, limits=POOLED, **ENDING)
        admin.wait_for_phase(scene[name], "Running")
    for name in ("first-in-line", "second-in-line"):
        admin.submit(scene[name], "print('after all')", limits=POOLED)
        wait_for(f"{scene[name]} to be in line", lambda name=name: _in_line(admin.execution(scene[name])))


def _in_line(record: dict[str, Any]) -> bool:
    conditions = record.get("status", {}).get("conditions", ())
    return any((one["type"], one["status"]) == ("Queued", "True") for one in conditions)


def _meanwhile(admin: Admin, scene: Scene, approver: Admin) -> None:
    """What is done while no operator runs."""
    admin.delete("resourcequota", QUOTA)
    admin.submit(scene["came-meanwhile"], "print(2)", limits=ALONE)
    approver.create(an_approval(scene.records["approved"], approver.me))
    denial = an_approval(scene.records["denied"], approver.me, decision="Deny")
    del denial["spec"]["grants"], denial["spec"]["expiresAt"]
    approver.create(denial)


def _cancel(admin: Admin, name: str) -> None:
    admin.patch("codeexecution", name, {"spec": {"cancelled": True}})


@pytest.mark.parametrize("name", OUTLASTING)
def test_what_ran_ends_with_its_true_result_and_its_pod_goes(admin, restarted, name):
    status = admin.wait_for_phase(restarted[name], "Succeeded")["status"]
    assert status["stdout"]["text"] == "before\nafter\n"
    assert status["startedAt"] < restarted.without_operator < status["finishedAt"], "control: the next one recorded it"
    admin.wait_until_gone("pod", status["podName"])


def test_what_came_meanwhile_is_taken_up_and_what_was_over_stays_so(admin, restarted):
    """Nobody could come for its payload in time, but it was there."""
    assert admin.wait_for_phase(restarted["came-meanwhile"], "Succeeded")["status"]["stdout"]["text"] == "2\n"
    assert admin.phase(restarted["done"]) == "Succeeded"


def test_who_was_in_line_gets_a_new_pod_each(admin, restarted, pools):
    names = [restarted["first-in-line"], restarted["second-in-line"]]
    done = [admin.wait_for_phase(name, "Succeeded")["status"] for name in names]
    before = restarted.pods[pools[0].name]
    ran_in = {admin.execution(restarted[name])["status"]["podName"] for name in ("runs", "runs-too")}
    assert ran_in == before, "control: these had the pods of the pool"
    assert not before & {one["podName"] for one in done}, "no pod is used twice"


def test_pods_that_nobody_used_are_kept_and_not_one_too_many_is_made(restarted, pools):
    idle = pools[1]
    idle.ready(1)
    assert set(idle.pods()) == restarted.pods[idle.name]
    seen = {line.removeprefix("pod/") for line in (restarted.logs / "idle-pods").read_text().split()}
    assert seen == restarted.pods[idle.name]


@pytest.mark.parametrize("name", ["runs", "runs-too"])
def test_what_goes_on_running_can_be_cancelled(admin, restarted, name):
    assert admin.phase(restarted[name]) == "Running"
    _cancel(admin, restarted[name])
    status = admin.wait_for_phase(restarted[name], "Cancelled")["status"]
    admin.wait_until_gone("pod", status["podName"])


def test_a_session_keeps_its_files_and_what_runs_in_it(admin, restarted):
    assert admin.phase(restarted["loop"]) == "Running"
    _cancel(admin, restarted["loop"])
    admin.wait_for_phase(restarted["loop"], "Cancelled")
    admin.submit_to(restarted["looks"], STILL, restarted["session"], limits=IN_SESSION)
    assert admin.wait_for_phase(restarted["looks"], "Succeeded")["status"]["stdout"]["text"] == "kept True\n"


def test_a_sealing_key_that_is_a_day_old_is_replaced_and_still_opens(admin, restarted):
    wait_for("another key", lambda: _sealing_key(admin) != restarted.old_key)
    admin.create(restarted.under_way)
    admin.create(a_sealed_execution(admin, restarted["new"], "print('new')"))
    for name, output in (("early", "waited\n"), ("late", "under way\n"), ("new", "new\n")):
        record = admin.wait_for_phase(restarted[name], "Succeeded")
        assert record["status"]["stdout"]["text"] == output
        assert (record["spec"]["sealedPayload"]["keyName"] == restarted.old_key) is (name != "new")


def _sealing_key(admin: Admin) -> str:
    return admin.get("configmap", "codeexec-sealing-key")["data"]["keyName"]


def test_what_was_decided_meanwhile_counts(admin, restarted):
    assert admin.wait_for_phase(restarted["approved"], "Succeeded")["status"]["stdout"]["text"] == "approved\n"
    assert admin.wait_for_phase(restarted["denied"], "Denied")["status"]["reason"] == "ApprovalDenied"


def test_who_waits_for_approval_goes_on_waiting(admin, approver, restarted):
    assert admin.phase(restarted["patient"]) == "AwaitingApproval"
    approver.create(an_approval(restarted.records["patient"], approver.me))
    admin.wait_for_phase(restarted["patient"], "Succeeded")


def test_an_execution_that_outlasts_its_operator_has_its_trace(admin, restarted, spans_of):
    """The operator that began it is gone; the next one makes the spans, of what the record knows."""
    admin.wait_for_phase(restarted["outlasts"], "Succeeded")
    spans = spans_of(restarted["outlasts"])
    assert {"handle_execution", "accept", "start_sandbox", "run_blocks"} <= {one["name"] for one in spans}
    assert "error.type" not in the_one(spans, "run_blocks").get("attributes", {})


def test_both_logs_verify_and_the_second_tells_of_the_first(admin, kubeconfig, restarted):
    """Last: an operator tells of others after some time."""
    audit, first, second = AuditCommand(kubeconfig), restarted.logs / "first", restarted.logs / "second"

    def continues() -> bool:
        return any(one["event"] == "Continues" for one in audit_lines(operator_log(admin)))

    wait_for("the operator to tell which chain came before", continues)
    cut = restarted.logs / "first-cut-off"
    lines = first.read_text().splitlines()
    last = max(index for index, line in enumerate(lines) if '"StatusWrite"' in line)
    cut.write_text("\n".join(lines[:last]))

    def verify(log: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
        second.write_text(log)
        return audit.verify(str(first), str(second)), audit.verify(str(cut), str(second))

    whole, shortened = while_nothing_is_written(admin, verify)
    assert whole == []
    assert "Missing" in {one["kind"] for one in shortened}, "a record, or the second log, knows better"
