"""The job signs checkpoints of a real operator's log, and finds what an administrator has forged on the node."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from audit_command import AuditCommand
from audit_world import recomputed
from cluster_fixtures import ControlPod, claimed_folder
from cluster_tools import SANDBOX, SYSTEM, Admin, a_name, helm, operator_pod, upgrade_release, wait_for
from release_fixtures import audit_lines, operator_log

from codeexec_api import CodeExecution
from codeexec_api.audit import Facts, facts_of, status_digest
from codeexec_api.signed_note import SigningKey

pytestmark = pytest.mark.release

JOB = "codeexec-checkpoints"
FOLDER = "/var/lib/codeexec-checkpoints"
KEY = SigningKey.generate("e2e")
SMALL = {"limits": {"cpu": "100m", "memory": "96Mi"}}
READ = """
import json, pathlib
print(json.dumps({one.name: one.read_text() for one in pathlib.Path("/kept").iterdir()}))
"""
LOG = "/proc/1/root/var/log/pods/{namespace}_{name}_{uid}/operator/0.log"


@pytest.fixture(scope="module")
def kept(kubeconfig: str, admin: Admin, make_control_pod) -> Iterator[Callable[[Path], Path]]:
    """A release that signs checkpoints, into a folder of the node. Copies those that are there into another folder."""
    meta = {"name": JOB, "namespace": SYSTEM}
    admin.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"signing.key": str(KEY)}})
    mounted = {"command": ["sleep", "infinity"], "volumeMounts": [{"name": "kept", "mountPath": "/kept"}]}
    with claimed_folder(admin, JOB, SYSTEM, FOLDER) as source:
        volumes = [{"name": "kept", **source}]
        folder = make_control_pod(a_name("kept"), mounted | {"securityContext": {"runAsUser": 0}}, volumes=volumes)
        folder("import os\nos.chmod('/kept', 0o777)\nfor one in os.listdir('/kept'): os.remove(f'/kept/{one}')")
        values = {"enabled": "true", "schedule": "0 0 1 1 *", "signingKeySecret.name": JOB, "claimName": JOB}
        upgrade_release(kubeconfig, *(f"--set=audit.checkpoints.{name}={value}" for name, value in values.items()))

        def copy(target: Path) -> Path:
            for name, content in json.loads(folder(READ)).items():
                (target / name).write_text(content)
            return target

        yield copy
        helm(kubeconfig, "rollback", "codeexec", "--wait", "--timeout", "2m")
    admin.delete("secret", JOB, SYSTEM)


@pytest.fixture
def run_job(admin: Admin) -> Iterator[Callable[[], tuple[bool, str]]]:
    """Runs the job now. Returns whether it succeeded, and what it printed."""
    made = []

    def run() -> tuple[bool, str]:
        spec = admin.get("cronjob", JOB, SYSTEM)["spec"]["jobTemplate"]["spec"] | {"backoffLimit": 0}
        made.append(a_name("checkpoint"))
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": made[-1], "namespace": SYSTEM}}
        admin.create(job | {"spec": spec})

        def ended(one: dict) -> bool:
            return any(found["type"] in ("Complete", "Failed") for found in one.get("status", {}).get("conditions", ()))

        status = admin.wait_until("the job to end", "job", made[-1], ended, namespace=SYSTEM)["status"]
        [pod] = admin.list("pod", SYSTEM, labels=f"batch.kubernetes.io/job-name={made[-1]}")
        return bool(status.get("succeeded")), admin.logs(SYSTEM, pod["metadata"]["name"])

    yield run
    for name in made:
        admin.delete("job", name, SYSTEM, propagationPolicy="Background")


@pytest.fixture
def node_log(admin: Admin, node_shell: ControlPod) -> Iterator[Callable[[str | None], str]]:
    """Reads the operator's log on the node, and forges it. Afterwards the log is as it was when it was forged."""
    honest: list[str] = []
    path = LOG.format(namespace=SYSTEM, **{key: operator_pod(admin)["metadata"][key] for key in ("name", "uid")})

    def access(new: str | None = None) -> str:
        before = node_shell(f"print(open({path!r}).read(), end='')")
        if new is not None:
            honest.append(before)
            node_shell(f"open({path!r}, 'r+').close()\nwith open({path!r}, 'w') as log: log.write({new!r})")
        return before

    yield access
    if honest:
        access(honest[0])


@pytest.mark.suspect
def test_a_chain_that_was_recomputed_whole_on_the_node_is_found(admin, kubeconfig, kept, run_job, node_log, tmp_path):
    """The attack: node and API server are the administrator's. What was signed and taken away before is not."""
    wait_for("the operator to have told which chain came before", lambda: _told_of_earlier(operator_log(admin)))
    name = a_name("failed")
    admin.submit(name, "raise SystemExit(3)", **SMALL)
    admin.wait_for_phase(name, "Failed")
    succeeded, said = run_job()
    assert (succeeded, said.startswith("signed 0000000001.checkpoint: ")) == (True, True), said

    audit = AuditCommand(kubeconfig)
    checkpoints = ["--checkpoint", str(kept(tmp_path)), "--key", str(KEY.public)]
    from_cluster = ["--from-cluster", "-n", SANDBOX]
    assert audit.verify(*from_cluster, *checkpoints) == []

    raw = admin.execution(name)
    record = CodeExecution.parse(raw)
    forged = record.model_copy(update={"status": record.status.model_copy(update={"exit_code": 0})})

    def change(body: Facts) -> None:
        if body["hash"] == record.status.audit.hash:
            body |= {"record": facts_of(forged), "statusSHA256": status_digest(forged.status.dump())}

    texts, anchors = recomputed(node_log().splitlines(), change)
    node_log("\n".join(texts) + "\n")
    anchor = anchors[record.status.audit.hash]
    status = {"exitCode": 0, "audit": {**raw["status"]["audit"], "hash": anchor.hash}}
    admin.patch("codeexecution", name, {"status": status}, subresource="status")
    assert audit.verify(*from_cluster) == [], "control: hashes alone find nothing"
    found = audit.verify(*from_cluster, *checkpoints)
    assert [one["kind"] for one in found] == ["Rewritten"]
    succeeded, said = run_job()
    assert (succeeded, "Rewritten" in said, "nothing was signed" in said) == (False, True, True)
    assert sorted(one.name for one in kept(tmp_path).iterdir()) == ["0000000001.checkpoint"]
    admin.delete("codeexecution", name)


def _told_of_earlier(log: str) -> bool:
    """That the chain here has its line Continues, or will have none: 20 s after its first line is its time."""
    lines = [one for one in audit_lines(log) if one["namespace"] == SANDBOX]
    if any(one["event"] == "Continues" for one in lines):
        return True
    began = [datetime.fromisoformat(one["time"]) for one in lines if one["event"] == "OperatorStarted"]
    return bool(began) and (datetime.now(UTC) - began[-1]).total_seconds() > 40
