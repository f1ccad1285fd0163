"""What the roles can do where an operator and a node are, and that the operator uses each right that it has.

The tables of rights themselves are held to an API server alone: tests/api/test_rbac.py.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

import pytest
from chart.reviews import OPERATOR_ACCOUNT, Account, an_account_for_each_role, rules_of
from chart.rights import OPERATOR_AT_HOME_BY_NAME, OPERATOR_BY_NAME, Cell
from cluster_fixtures import ControlPod, Pool
from cluster_tools import SANDBOX, SYSTEM, Admin, a_name, a_session, age_the_sealing_key
from held_code import HELD, held, let_go_on
from kube import Refusal

from codeexec_api.names import EXECUTION_LABEL
from executor_client import ApprovalWait, ClusterRef, CodeExecutionClient, Limits, Request, SourceBlock, prepare

# Rights that the operator needs only where this cluster isn't.
UNUSED_HERE: dict[Cell, str] = {
    ("", "pods/attach", "create"): "the verb of an attachment from Kubernetes 1.35 on; it is `get` before",
    ("coordination.k8s.io", "leases", "get"): "of a session that is idle for 9 s: component/test_client_gone.py",
    ("coordination.k8s.io", "leases", "delete"): "of a client that is gone for an hour",
}


@pytest.fixture(scope="module")
def accounts(admin) -> Iterator[dict[str, Account]]:
    with an_account_for_each_role(admin) as accounts:
        yield accounts


def _is_ready(session: dict) -> bool:
    return session.get("status", {}).get("phase") == "Ready"


@pytest.fixture(scope="module")
def session(admin) -> Iterator[tuple[str, str]]:
    """Name of a session that is ready, and of its pod."""
    name = a_name("session")
    admin.create(a_session(name))
    ready = admin.wait_until(f"session {name} to be ready", "codesession", name, _is_ready)
    yield name, ready["status"]["podName"]
    admin.delete("codesession", name)


@pytest.mark.parametrize("role", ["agent", "approver", "viewer"])
def test_logs_are_read_in_the_sandbox_namespace_only(admin, accounts, kubeconfig_of, session, role):
    user = Admin(kubeconfig_of(*accounts[role]))
    user.logs(SANDBOX, session[1])
    for namespace, labels in (
        (SYSTEM, "app.kubernetes.io/component=operator"),
        ("kube-system", "component=kube-apiserver"),
    ):
        pod = admin.list("pod", namespace, labels=labels)[0]["metadata"]["name"]
        assert admin.logs(namespace, pod, tailLines=1), "control"
        with pytest.raises(Refusal) as refused:
            user.logs(namespace, pod, tailLines=1)
        assert (refused.value.code, refused.value.reason) == (403, "Forbidden"), namespace


# --- the operator's rights and its calls ---------------------------------------------

AUDIT_LOG = """
import glob, json
from datetime import datetime
since = datetime.fromisoformat({since!r})
def calls():
    found = set()
    logs = glob.glob("/proc/1/root/var/log/kubernetes/audit*.log")
    for log in logs:
        for line in open(log):
            if {user!r} not in line or not line.endswith("\\n"):
                continue  # of somebody else, or being written
            event = json.loads(line)
            if datetime.fromisoformat(event["requestReceivedTimestamp"]) < since:
                continue
            decision = event.get("annotations", {{}}).get("authorization.k8s.io/decision")
            target = event.get("objectRef", {{}})
            resource = "/".join(filter(None, (target.get("resource"), target.get("subresource"))))
            if target.get("name") in {names!r} and event["verb"] != "create":  # no rule limits that to a name
                resource += ":" + target["name"]
            if decision:  # none: turned away before, as when there are too many requests
                found.add((event["user"]["username"], decision, target.get("apiGroup", ""), resource, event["verb"]))
    return sorted(found) if logs else None
"""


class Calls(NamedTuple):
    """What an account has asked the API server for, by what authorization said to it."""

    allowed: set[Cell]
    refused: set[Cell]


class AuditLog:
    """The API server's audit log, from when the operator and its rights became what they are now.

    What authorization refuses counts, and not the status 403: that is the answer to a pod over the quota, too.
    """

    def __init__(self, admin: Admin, node_shell: ControlPod) -> None:
        self._since = _last_change(admin)
        self._names = sorted(name for _, _, name in OPERATOR_BY_NAME | OPERATOR_AT_HOME_BY_NAME)
        self._node_shell = node_shell

    def _code(self, account: Account) -> str:
        return AUDIT_LOG.format(since=self._since.isoformat(), user=account.user, names=self._names)

    def wait_for(self, what: str, account: Account, cell: Cell) -> None:
        """Until the account has done this, which it was allowed to."""
        done = (account.user, "allow", *cell)
        self._node_shell.wait_for(what, f"{done!r} in (calls() or ())", self._code(account), every=1)

    def __call__(self, account: Account) -> Calls:
        calls = json.loads(self._node_shell(f"{self._code(account)}print(json.dumps(calls()))"))
        assert calls is not None, (
            "the API server keeps no audit log: `make cluster` makes the test cluster anew, with one; "
            "a cluster of your own needs tests/cluster/audit-policy.yaml and --audit-log-path as in kind-config.yaml"
        )
        ours = [(decision, tuple(cell)) for user, decision, *cell in calls if user == account.user]
        made = {decision: {cell for verdict, cell in ours if verdict == decision} for decision in ("allow", "forbid")}
        discovery = {cell for cell in made["allow"] if not cell[1]}  # `/api`, `/apis`: open to every account
        return Calls(made["allow"] - discovery, made["forbid"])


@pytest.fixture
def calls_of(admin, node_shell) -> AuditLog:
    return AuditLog(admin, node_shell)


def _last_change(admin: Admin) -> datetime:
    """When the operator was deployed, or a right of it was changed, whichever is later."""
    times = set()
    for kind in ("role", "rolebinding", "clusterrole", "clusterrolebinding", "replicaset"):
        for thing in admin.list(kind, None, labels="app.kubernetes.io/part-of=codeexec"):
            times.add(thing["metadata"]["creationTimestamp"])
            if kind != "replicaset":  # its status changes with each restart of the operator
                times.update(entry["time"] for entry in thing["metadata"]["managedFields"])
    return max(map(datetime.fromisoformat, times))


def _make_the_operator_do_all_it_does(
    admin: Admin, pool: Pool, put_policy: Callable[..., None], node_shell: ControlPod
) -> str:
    """An execution whose pod goes, and one whose pod is still there when the operator starts again: name of the latter.

    Besides, a session that ends, an execution that looks for one in vain, output that expires, a payload that is too
    large to be held when it is seen, an execution that makes a pod of a pool its own, one with a way out of the
    network, one that waits for a human, and a sealing key that is a day old.
    """
    gone, kept, opened, lost = (a_name(what) for what in ("gone", "kept", "opened", "lost"))
    pool.ready(1)
    pooled = a_name("pooled")
    limits = {"cpu": "100m", "memory": "96Mi"}
    admin.submit(pooled, f"{HELD}#{'#' * 600_000}", limits=limits, timeoutSeconds=600)
    uid = held(admin, pooled)
    running = admin.execution(pooled)["status"]
    assert running["poolName"] == pool.name
    adopted = lambda pod: pod["metadata"]["labels"].get(EXECUTION_LABEL) == pooled  # noqa: E731
    admin.wait_until("the pod to be its own", "pod", running["podName"], adopted)  # that of short code stays the pool's
    let_go_on(uid, node_shell)
    admin.wait_for_phase(pooled, "Succeeded")
    admin.create(a_session(opened, limits={"cpu": "100m"}))
    admin.submit(lost, "print(1)", sessionRef={"name": a_name("nowhere")})
    permitted = {"podSelector": {"matchLabels": {"app": "nobody"}}, "port": 443}
    put_policy(egress=[permitted], maxTimeoutSeconds=60, withApproval={"maxTimeoutSeconds": 90})
    way_out = a_name("way-out")
    admin.submit(way_out, "print(1)", egress=[permitted])
    admin.wait_for_phase(way_out, "Succeeded")
    waiting = asyncio.run(_ask_a_human(admin.kubeconfig))
    assert admin.exists("secret", admin.wait_for_phase(waiting, "AwaitingApproval")["status"]["approval"]["codeSecret"])
    admin.patch("cex", waiting, {"spec": {"cancelled": True}})
    admin.submit(kept, "print(1)", ttlSecondsAfterFinished=300)
    admin.submit(gone, "print('x' * 2_000_000)", ttlSecondsAfterFinished=0)
    admin.wait_for_phase(kept, "Succeeded")
    status = admin.wait_for_phase(gone, "Succeeded")["status"]
    pod, outputs = status["podName"], [one["name"] for one in status["outputRefs"]]
    admin.wait_until_gone("pod", pod)
    assert admin.wait_for_phase(lost, "Denied")["status"]["reason"] == "SessionNotFound"
    admin.wait_until(f"session {opened} to be ready", "codesession", opened, _is_ready)
    admin.delete("codesession", opened, wait=True)
    expired = {"codeexec.dev/expires-at": "2000-01-01T00:00:00+00:00"}
    admin.patch("configmap", outputs[0], {"metadata": {"annotations": expired}})
    age_the_sealing_key(admin, timedelta(hours=25))
    _scale_the_operator(admin, 0)
    admin.delete("lease", "codeexec-operator", SYSTEM)
    _scale_the_operator(admin, 1)
    admin.wait_until_gone("configmap", outputs[0])  # its time is over
    return kept


def _scale_the_operator(admin: Admin, replicas: int) -> None:
    admin.patch("deployment", "codeexec-operator", {"spec": {"replicas": replicas}}, SYSTEM)
    admin.wait_until_all(
        f"{replicas} pods of the operator to be ready, and no other to be there",
        "pod",
        lambda pods: len(pods) == replicas and all(map(_ready, pods)),
        90,
        SYSTEM,
        labels="app.kubernetes.io/component=operator",
    )


def _ready(pod: dict) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)


async def _ask_a_human(kubeconfig: str) -> str:
    """Name of an execution whose code has come sealed, and that waits for approval."""
    request = Request(agent="tester", timeout_seconds=90, limits=Limits(cpu="100m"), approval=ApprovalWait("return"))
    async with CodeExecutionClient(ClusterRef(SANDBOX, kubeconfig)) as client:
        return (await client.execute(prepare([SourceBlock("python", "print(1)")]).blocks, request)).name


@pytest.fixture
def stranger(admin) -> Iterator[Account]:
    """A new account beside the operator's, without rights: what the log says of it is said of this test."""
    account = Account(SYSTEM, a_name("stranger"))
    metadata = {"name": account.name, "namespace": account.namespace}
    admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    yield account
    admin.delete("serviceaccount", account.name, SYSTEM)


@pytest.mark.release
def test_the_operator_uses_each_of_its_rights_and_asks_for_no_other(
    admin, calls_of, stranger, kubeconfig_of, make_pool, policy, node_shell
):
    refused = Admin(kubeconfig_of(*stranger)).try_list("configmap")
    assert refused is not None
    assert refused.reason == "Forbidden"
    assert calls_of(stranger).refused == {("", "configmaps", "list")}, "control: the log shows what is refused"

    kept = _make_the_operator_do_all_it_does(admin, make_pool(1), policy, node_shell)
    taken_up = ("codeexec.dev", "codeexecutions", "get")
    calls_of.wait_for("the operator to look up whose pod it finds", OPERATOR_ACCOUNT, taken_up)
    admin.delete("codeexecution", kept, wait=True)

    granted = set().union(*(rules_of(admin, OPERATOR_ACCOUNT, namespace) for namespace in (SANDBOX, SYSTEM, "default")))
    calls = calls_of(OPERATOR_ACCOUNT)
    assert calls.refused == set()
    assert calls.allowed <= granted, "allowed by a right that is not the chart's"
    assert granted - calls.allowed <= set(UNUSED_HERE), "granted and never used"
