"""The operator goes and another comes, once: code goes on in real pods, sessions keep what they have, logs verify.

The fixture `restarted` sets the scene; what came of it is told by the tests, the slowest last. What needs no real pods
is in the component tier: test_restarts.py, test_between_operators.py, test_pools.py and test_full_pool.py.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from audit_command import AuditCommand, while_nothing_is_written
from cluster_tools import SYSTEM, Admin, a_name, a_session, operator_pod, scale_operator, wait_for
from held_code import HELD, OUTPUT, held, let_go_on
from release_fixtures import audit_lines, operator_log
from waits import SECONDS

pytestmark = pytest.mark.release

ALONE = {"cpu": "120m", "memory": "96Mi"}
"""Limits that no pool has: an execution with them gets a pod of its own."""
IN_SESSION = {"cpu": "100m", "memory": "64Mi"}
OUTLASTING = ("outlasts", "ends-meanwhile")
"""Executions that end when the next operator is there, and before."""
ENDING = {"timeoutSeconds": 600, "ttlSecondsAfterFinished": 1}
MARKS_TIME = "import time\nwhile True: open('alive', 'w').write(str(time.time())); time.sleep(.05)"
STILL = "import time; a = open('alive').read(); time.sleep(.5); print(open('note').read(), a == open('alive').read())"


@dataclass
class Scene:
    """What there was before the restart."""

    logs: Path
    names: dict[str, str] = field(default_factory=dict)
    """Of executions and the session, by what they are for."""
    uids: dict[str, str] = field(default_factory=dict)
    """Of pods, by the execution."""
    without_operator: str = ""
    """When the last operator had gone."""

    def __getitem__(self, what: str) -> str:
        return self.names.setdefault(what, a_name(what))


@contextmanager
def _written_to(path: Path, admin: Admin, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """What kubectl says goes into a file, as long as it runs."""
    with path.open("wb") as file:
        command = ["kubectl", "--kubeconfig", admin.kubeconfig, *arguments]
        with subprocess.Popen(command, stdout=file) as process:
            yield process
            process.terminate()


@pytest.fixture(scope="module")
def restarted(observed, admin, node_shell, tmp_path_factory) -> Iterator[Scene]:
    """The scene, when the second operator has begun."""
    scene = Scene(tmp_path_factory.mktemp("logs"))
    with ExitStack() as stack:
        stack.callback(admin.delete, "codesession", scene["session"])
        _fill(admin, scene)
        stack.callback(scale_operator, admin, 1)
        name = operator_pod(admin)["metadata"]["name"]
        follow = ("-n", SYSTEM, "logs", "--follow", name)
        with _written_to(scene.logs / "first", admin, *follow) as log:
            scale_operator(admin, 0)
            log.wait(SECONDS)
        scene.without_operator = datetime.now(UTC).isoformat()
        let_go_on(scene.uids["ends-meanwhile"], node_shell)
        scale_operator(admin, 1)
        let_go_on(scene.uids["outlasts"], node_shell)
        yield scene
        _cancel(admin, scene["loop"])


def _fill(admin: Admin, scene: Scene) -> None:
    session = {"session": scene["session"], "limits": IN_SESSION, "timeoutSeconds": 600}
    admin.apply(a_session(scene["session"], limits=IN_SESSION))
    for name in OUTLASTING:
        admin.submit(scene[name], HELD, limits=ALONE, **ENDING)
    admin.submit_to(scene["notes"], "open('note', 'w').write('kept')", **session)
    admin.wait_for_phase(scene["notes"], "Succeeded")
    admin.submit_to(scene["loop"], MARKS_TIME, **session)
    admin.wait_for_phase(scene["loop"], "Running")
    for name in OUTLASTING:
        scene.uids[name] = held(admin, scene[name])


def _cancel(admin: Admin, name: str) -> None:
    admin.patch("codeexecution", name, {"spec": {"cancelled": True}})


@pytest.mark.parametrize("name", OUTLASTING)
def test_what_ran_ends_with_its_true_result_and_its_pod_goes(admin, restarted, name):
    status = admin.wait_for_phase(restarted[name], "Succeeded")["status"]
    assert status["stdout"]["text"] == OUTPUT
    assert status["startedAt"] < restarted.without_operator < status["finishedAt"], "control: the next one recorded it"
    admin.wait_until_gone("pod", status["podName"])


def test_a_session_keeps_its_files_and_what_runs_in_it(admin, restarted):
    assert admin.phase(restarted["loop"]) == "Running"
    _cancel(admin, restarted["loop"])
    admin.wait_for_phase(restarted["loop"], "Cancelled")
    admin.submit_to(restarted["looks"], STILL, restarted["session"], limits=IN_SESSION)
    assert admin.wait_for_phase(restarted["looks"], "Succeeded")["status"]["stdout"]["text"] == "kept True\n"


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
