"""etcd is put back to what it was some time ago, as from a backup, and all that uses it is started again."""

import json
import shutil

import pytest
from audit_command import AuditCommand
from cluster_tools import SANDBOX, wait_for
from component_stage import Stage, in_thread

from executor_client import ClusterRef, CodeExecutionClient, Limits, PreparedBlock, Request

PROGRAMS = ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")


@pytest.fixture
def restored(tmp_path):
    """A stage of this test's own: the objects of others would be put back, too."""
    with Stage(tmp_path / "stage", forked=True) as stage:
        yield stage


@pytest.fixture
async def client(restored):
    client = CodeExecutionClient(ClusterRef(kubeconfig=restored.agent_kubeconfig(), namespace=SANDBOX))
    yield client
    await client.close()


def back_up(stage, place) -> None:
    stage.plane.stop_etcd()
    shutil.copytree(stage.plane.folder / "etcd", place)
    stage.plane.start_etcd()


def restore(stage, place) -> None:
    for name in PROGRAMS:
        stage.plane.programs[name].stop()
    shutil.rmtree(stage.plane.folder / "etcd")
    shutil.copytree(place, stage.plane.folder / "etcd")
    for name in reversed(PROGRAMS):
        stage.plane.start(name)


def asking(agent: str) -> Request:
    return Request(agent=agent, timeout_seconds=600, limits=Limits(cpu="100m", memory="96Mi"))


@pytest.mark.parametrize("restarted", [False, True], ids=["same leader", "another leader"])
async def test_after_a_restore_the_operator_begins_anew_and_the_audit_log_tells_what_is_gone(
    restored, client, tmp_path, restarted
):
    stage, place = restored, tmp_path / "backup"
    hello, waits = (PreparedBlock("python", one) for one in (b'print("hello")', b'wait("gate")\nprint("done")'))
    operator = stage.operator()
    await in_thread(operator.start)
    await client.execute((hello,), asking("before"))
    running = await client.submit((waits,), asking("running"))
    await stage.script.reached("gate")
    await in_thread(back_up, stage, place)
    stage.script.open("gate")
    assert (await running.result()).output == "done\n"
    late = await client.submit((hello,), asking("late"))
    assert (await late.result()).output == "hello\n"
    if restarted:
        await in_thread(operator.restart)
    else:
        renewed = (await in_thread(stage.lease))["renewTime"]
        await in_thread(wait_for, "the Lease to be renewed", lambda: stage.lease()["renewTime"] > renewed)
    epoch = (await in_thread(stage.lease))["leaseTransitions"]

    await in_thread(restore, stage, place)
    await in_thread(operator.ended)
    why = "is held by" if restarted else "is older than it was, as when etcd was restored from a backup"
    assert f"this replica leads no more: the Lease {why}" in await in_thread(operator.log.read_text)
    await in_thread(stage.free_lease)
    await in_thread(operator.start)
    assert (await in_thread(stage.lease))["leaseTransitions"] > epoch
    assert (await client.execute((hello,), asking("new"))).output == "hello\n"
    # Its pod is back, and no node has it any more.
    pod = (await in_thread(stage.record, "running"))["status"]["podName"]
    await in_thread(stage.admin.delete, "pod", pod)
    record = await in_thread(stage.ended, "running")
    assert (record["status"]["phase"], record["status"]["reason"]) == ("Lost", "PodLost")
    records = await in_thread(stage.records)
    assert {one["spec"]["source"]["agent"] for one in records} == {"before", "running", "new"}
    for one in records:
        stage.ran_once(one)
    await in_thread(wait_for, "all pods to be deleted", lambda: not stage.pods())
    await in_thread(operator.stop)

    audit = AuditCommand(stage.plane.kubeconfig)
    done = await in_thread(lambda: audit("verify", "--complete", "-n", SANDBOX, "-o", "json", str(operator.log)))
    found = {(one["kind"], one["where"]) for one in json.loads(done.stdout)["findings"]}
    assert found == {("RecordMissing", f"CodeExecution {late.name}")}
