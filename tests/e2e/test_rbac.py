"""Who may do what, as the API server answers: each role exactly its table, and the operator no more than it uses."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from chart.rights import (
    AGENT,
    APPROVER,
    OPERATOR,
    OPERATOR_AT_HOME_BY_NAME,
    OPERATOR_BY_NAME,
    OPERATOR_EVERYWHERE,
    VIEWER,
    VIEWER_EVERYWHERE,
    Cell,
    NamedRights,
    cells,
)
from cluster_fixtures import Pool
from cluster_tools import (
    SANDBOX,
    SYSTEM,
    Admin,
    a_name,
    a_secret,
    a_session,
    age_the_sealing_key,
    an_execution,
    wait_for,
)
from kubernetes import client, config

from executor_client import ApprovalWait, ClusterRef, CodeExecutionClient, Limits, Request, SourceBlock, prepare

pytestmark = pytest.mark.e2e

ROLES = {"agent": AGENT, "approver": APPROVER, "viewer": VIEWER, "operator": OPERATOR | OPERATOR_EVERYWHERE}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
RESOURCES = {
    "codeexec.dev": "codeexecutions codeexecutions/status codesessions codesessions/status executionapprovals"
    " executionpolicies"
    " sandboxpools sandboxpools/scale sandboxpools/status",
    "": "pods pods/attach pods/binding pods/ephemeralcontainers pods/eviction pods/exec pods/log pods/portforward"
    " pods/proxy pods/resize pods/status secrets configmaps serviceaccounts serviceaccounts/token services"
    " services/proxy endpoints events limitranges persistentvolumeclaims resourcequotas"
    " namespaces nodes nodes/proxy nodes/status persistentvolumes",
    "apps": "daemonsets deployments deployments/scale replicasets statefulsets",
    "batch": "cronjobs jobs",
    "networking.k8s.io": "ingresses networkpolicies",
    "rbac.authorization.k8s.io": "clusterrolebindings clusterroles rolebindings roles",
    "admissionregistration.k8s.io": "mutatingwebhookconfigurations validatingadmissionpolicies"
    " validatingadmissionpolicybindings validatingwebhookconfigurations",
    "apiextensions.k8s.io": "customresourcedefinitions",
    "certificates.k8s.io": "certificatesigningrequests certificatesigningrequests/approval",
    "coordination.k8s.io": "leases",
    "events.k8s.io": "events",
    "node.k8s.io": "runtimeclasses",
    "*": "*",
}
POWERS = {  # verbs that make more of what one has
    ("", "groups", "impersonate"),
    ("", "serviceaccounts", "impersonate"),
    ("", "users", "impersonate"),
    ("certificates.k8s.io", "signers", "approve"),
    ("certificates.k8s.io", "signers", "sign"),
    ("rbac.authorization.k8s.io", "clusterroles", "bind"),
    ("rbac.authorization.k8s.io", "clusterroles", "escalate"),
    ("rbac.authorization.k8s.io", "roles", "bind"),
    ("rbac.authorization.k8s.io", "roles", "escalate"),
}
TABLE = POWERS | {(group, name, verb) for group, names in RESOURCES.items() for name in names.split() for verb in VERBS}

# Rights that the operator needs only where this cluster isn't.
UNUSED_HERE: dict[Cell, str] = {
    ("", "pods/attach", "create"): "the verb of an attachment from Kubernetes 1.35 on; it is `get` before",
}


class Account(NamedTuple):
    """A service account."""

    namespace: str
    name: str

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def groups(self) -> list[str]:
        return ["system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated"]


AGENT_ACCOUNT = Account(SANDBOX, "codeexec-agent")
OPERATOR_ACCOUNT = Account(SYSTEM, "codeexec-operator")
NOBODY = Account("default", "default")


@pytest.fixture(scope="module")
def accounts(admin) -> Iterator[dict[str, Account]]:
    """An account of each role. The chart's default values name no approver and no viewer, so two are made here."""
    made = {role: Account(SANDBOX, a_name(role)) for role in ("approver", "viewer")}
    for role, (namespace, name) in made.items():
        admin.kubectl("-n", namespace, "create", "serviceaccount", name)
        subject = f"--serviceaccount={namespace}:{name}"
        admin.kubectl("-n", namespace, "create", "rolebinding", name, f"--role=codeexec-{role}", subject)
    yield {"agent": AGENT_ACCOUNT, "operator": OPERATOR_ACCOUNT, **made}
    for namespace, name in made.values():
        admin.kubectl("-n", namespace, "delete", f"serviceaccount/{name}", f"rolebinding/{name}")


# --- the tables ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def allowed(kubeconfig) -> Callable[[str, list[str]], set[Cell]]:
    """Asks for every cell of the table whether a user may do it in the sandbox namespace."""
    api = client.AuthorizationV1Api(config.new_client_from_config(kubeconfig))

    def ask(user: str, groups: list[str]) -> set[Cell]:
        def may(group: str, name: str, verb: str) -> bool:
            resource, _, subresource = name.partition("/")
            action = {"namespace": SANDBOX, "group": group, "resource": resource, "subresource": subresource}
            spec = {"user": user, "groups": groups, "resourceAttributes": {**action, "verb": verb}}
            return api.create_subject_access_review({"spec": spec}).status.allowed

        return {cell for cell in TABLE if may(*cell)}

    return ask


@pytest.mark.parametrize("role", ROLES)
def test_role_may_do_what_its_table_says_and_nothing_else(accounts, allowed, role):
    assert allowed(accounts[role].user, accounts[role].groups) == cells(ROLES[role])


def test_an_administrator_may_do_all_of_it(allowed):
    """The control: each question of the tables can be answered with yes."""
    assert allowed("root", ["system:masters"]) == TABLE


@pytest.fixture(scope="module")
def rules_of(kubeconfig) -> Callable[[Account, str], set[Cell]]:
    """All that an account may do in a namespace, without what every account may: also what no table thinks of.

    Where it may do something with one object only, its name stands behind the resource, with a colon.
    """

    def review(account: Account, namespace: str) -> set[Cell]:
        api = config.new_client_from_config(kubeconfig)
        api.set_default_header("Impersonate-User", account.user)
        status = (
            client.AuthorizationV1Api(api).create_self_subject_rules_review({"spec": {"namespace": namespace}}).status
        )
        assert not status.incomplete, status.evaluation_error
        return {
            (group, f"{resource}{name}", verb)
            for rule in status.resource_rules
            for group in rule.api_groups
            for resource in rule.resources
            for name in [f":{name}" for name in rule.resource_names or ()] or [""]
            for verb in rule.verbs
        }

    return lambda account, namespace: review(account, namespace) - review(NOBODY, namespace)


@pytest.mark.parametrize("role", ROLES)
def test_role_has_no_right_that_the_table_does_not_ask_for_and_none_elsewhere(accounts, rules_of, role):
    everywhere, here, at_home = set(), set(), set()
    if role == "operator":
        everywhere = cells(OPERATOR_EVERYWHERE)
        here, at_home = by_name(OPERATOR_BY_NAME), by_name(OPERATOR_AT_HOME_BY_NAME)
    assert rules_of(accounts[role], SANDBOX) == cells(ROLES[role]) | here
    assert rules_of(accounts[role], SYSTEM) == everywhere | at_home
    for namespace in ("kube-system", "default"):
        assert rules_of(accounts[role], namespace) == everywhere, namespace


def by_name(rights: NamedRights) -> set[Cell]:
    return {(group, f"{resource}:{name}", verb) for (group, resource, name), verbs in rights.items() for verb in verbs}


@pytest.mark.parametrize(
    ("role", "verb", "resource", "answer"),
    [
        ("agent", "create", "codeexecutions.codeexec.dev", "yes"),
        ("agent", "get", "secrets", "no"),
        ("agent", "create", "pods", "no"),
        ("agent", "create", "pods/exec", "no"),
        ("agent", "get", "pods/log", "yes"),
        ("agent", "get", "configmaps", "yes"),
        ("agent", "list", "configmaps", "no"),
        ("agent", "patch", "codesessions.codeexec.dev", "yes"),
        ("agent", "delete", "codesessions.codeexec.dev", "no"),
        ("approver", "patch", "codesessions.codeexec.dev", "yes"),
        ("approver", "create", "codesessions.codeexec.dev", "no"),
        ("approver", "patch", "codeexecutions.codeexec.dev", "yes"),
        ("approver", "create", "codeexecutions.codeexec.dev", "no"),
        ("viewer", "list", "codeexecutions.codeexec.dev", "yes"),
        ("viewer", "patch", "codeexecutions.codeexec.dev", "no"),
        ("viewer", "patch", "codesessions.codeexec.dev", "no"),
        ("operator", "create", "configmaps", "yes"),
        ("operator", "get", "configmaps", "no"),
        ("operator", "get", "pods/attach", "yes"),
        ("operator", "create", "pods/exec", "no"),
    ],
)
def test_kubectl_says_the_same(admin, accounts, role, verb, resource, answer):
    kind, _, subresource = resource.partition("/")  # kubectl would take what follows a slash for a name
    question = ["auth", "can-i", verb, kind, "--subresource", subresource, "-n", SANDBOX, "--as", accounts[role].user]
    assert admin.try_kubectl(*question).stdout.strip() == answer


# --- the built-in role "view" --------------------------------------------------------


def test_view_reads_executions_sessions_and_policies_in_any_namespace_and_still_no_secrets(admin, rules_of):
    """The chart adds to a role that holds all over the cluster."""
    name, namespace = a_name("onlooker"), a_name("elsewhere")
    admin.kubectl("create", "namespace", namespace)
    try:
        admin.kubectl("-n", namespace, "create", "serviceaccount", name)
        admin.kubectl(
            "-n", namespace, "create", "rolebinding", name, "--clusterrole=view", f"--serviceaccount={namespace}:{name}"
        )
        rights = wait_for("the binding to count", lambda: rules_of(Account(namespace, name), namespace))
    finally:
        admin.kubectl("delete", "namespace", namespace, "--wait=false")
    assert {("", "configmaps", "get"), ("", "pods/log", "get")} <= rights, "control: it is the built-in role"
    assert {cell for cell in rights if cell[0] == "codeexec.dev"} == cells(VIEWER_EVERYWHERE)
    assert ("", "secrets", "get") not in rights


# --- sessions ------------------------------------------------------------------------


def _objection(user: Admin, *arguments: str, stdin: object = None) -> str:
    """What the API server objects to in the sandbox namespace; empty if it lets the user do it."""
    done = user.try_kubectl("-n", SANDBOX, *arguments, stdin=json.dumps(stdin) if stdin else None)
    return done.stderr if done.returncode else ""


def _ready(admin: Admin, name: str) -> str:
    """Name of the session's pod, once executions can run in it."""

    def status() -> dict[str, Any]:
        return admin.get("codesession", name).get("status", {})

    wait_for(f"session {name} to be ready", lambda: status().get("phase") == "Ready")
    return status()["podName"]


@pytest.fixture
def session(admin) -> Iterator[tuple[str, str]]:
    """Name of a session that is ready, and of its pod."""
    name = a_name("session")
    admin.kubectl("create", "-f", "-", stdin=json.dumps(a_session(name)))
    yield name, _ready(admin, name)
    admin.kubectl("-n", SANDBOX, "delete", "codesession", name)


@pytest.mark.parametrize("role", ["agent", "approver"])
def test_a_session_is_ended_and_nothing_else_is_done_with_it(admin, accounts, kubeconfig_of, session, role):
    user, (name, _) = Admin(kubeconfig_of(*accounts[role])), session

    def patch(who: Admin, change: dict, *options: str) -> str:
        target = ["patch", "codesession", name, "--type=merge", *options]
        return _objection(who, *target, "-p", json.dumps(change))

    # What the role keeps from the user, and an administrator may do.
    stored = admin.get("codesession", name)
    del stored["metadata"]["resourceVersion"]  # kubectl takes the newest
    for arguments, stdin in (
        (("delete", "--dry-run=server", "codesession", name), None),
        (("replace", "--dry-run=server", "-f", "-"), stored),
    ):
        assert _objection(admin, *arguments, stdin=stdin) == "", "control"
        assert "Forbidden" in _objection(user, *arguments, stdin=stdin), arguments
    forged = {"status": {"phase": "Ended", "executions": 0}}
    assert patch(admin, forged, "--subresource=status", "--dry-run=server") == "", "control"
    assert "Forbidden" in patch(user, forged, "--subresource=status", "--dry-run=server")

    # What the role lets through, and the CRD or an admission policy stops.
    assert patch(user, {"metadata": {"labels": {"example.com/ticket": "7"}}}) == "", "control: a patch as such"
    owner = {"apiVersion": "v1", "kind": "Secret", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}
    assert "ownerReferences must be empty" in patch(user, {"metadata": {"ownerReferences": [owner]}})
    assert "finalizers must be empty" in patch(user, {"metadata": {"finalizers": ["example.com/for-ever"]}})
    assert "immutable" in patch(user, {"spec": {"maxLifetimeSeconds": 604_800}})
    assert "immutable" in patch(user, {"spec": {"limits": {"memory": "1Gi"}}})

    refused = _objection(
        user, "create", "--dry-run=server", "-f", "-", stdin=a_session(a_name("own"), requestedBy=user.me)
    )
    assert "Forbidden" in refused if role == "approver" else refused == ""

    assert patch(user, {"spec": {"ended": True}}) == ""
    wait_for("the session to be over", lambda: admin.get("codesession", name)["status"]["phase"] == "Ended")
    assert "spec.ended can't be taken back" in patch(user, {"spec": {"ended": False}})


# --- output and logs -----------------------------------------------------------------


def _log(namespace: str, pod: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{pod}/log"


@pytest.mark.parametrize("role", ["agent", "approver", "viewer"])
def test_logs_are_read_in_the_sandbox_namespace_only(admin, accounts, kubeconfig_of, session, role):
    user = Admin(kubeconfig_of(*accounts[role]))
    assert _objection(user, "get", "--raw", _log(SANDBOX, session[1])) == ""
    for namespace, selector in (
        (SYSTEM, "app.kubernetes.io/component=operator"),
        ("kube-system", "component=kube-apiserver"),
    ):
        pod = admin.kubectl("-n", namespace, "get", "pods", "-l", selector, "-o", "name").strip().removeprefix("pod/")
        path = f"{_log(namespace, pod)}?tailLines=1"
        assert _objection(admin, "get", "--raw", path) == "", "control"
        assert "Forbidden" in _objection(user, "get", "--raw", path), namespace


@pytest.mark.parametrize("role", ["agent", "approver", "viewer"])
def test_nobody_gets_into_a_pod_or_at_its_ports(admin, accounts, kubeconfig_of, session, role):
    """Who may would be answered that the connection has to be upgraded, with which the attempt ends here."""
    user, pod = Admin(kubeconfig_of(*accounts[role])), f"/api/v1/namespaces/{SANDBOX}/pods/{session[1]}"
    for attempt in ("exec?command=true", "attach?stdin=true", "portforward?ports=80"):
        for arguments, stdin in ((("get", "--raw"), None), (("create", "-f", "-", "--raw"), {"any": "body"})):
            path = f"{pod}/{attempt}"
            assert "Upgrade request required" in _objection(admin, *arguments, path, stdin=stdin), "control"
            assert "Forbidden" in _objection(user, *arguments, path, stdin=stdin), attempt


@pytest.mark.parametrize("role", ["agent", "approver", "viewer"])
def test_output_is_read_by_name_and_never_written(admin, accounts, kubeconfig_of, role):
    user = Admin(kubeconfig_of(*accounts[role]))
    there = "kube-root-ca.crt"  # Kubernetes puts it into every namespace
    new = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": a_name("forged")}, "data": {"stdout": "x"}}
    assert _objection(user, "get", "configmap", there) == ""
    for arguments, stdin in (
        (("get", "configmaps"), None),
        (("create", "--dry-run=server", "-f", "-"), new),
        (("patch", "configmap", there, "--dry-run=server", "-p", '{"data": {"stdout": "x"}}'), None),
        (("delete", "--dry-run=server", "configmap", there), None),
        (("-n", SYSTEM, "get", "configmap", "codeexec-operator"), None),
    ):
        assert _objection(admin, *arguments, stdin=stdin) == "", "control"
        assert "Forbidden" in _objection(user, *arguments, stdin=stdin), arguments


# --- the approver --------------------------------------------------------------------


def test_an_approver_stops_an_execution_and_can_do_nothing_else_with_it(
    admin, accounts, agent_kubeconfig, kubeconfig_of
):
    approver, agent = Admin(kubeconfig_of(*accounts["approver"])), Admin(agent_kubeconfig)
    name = a_name("approved")
    admin.submit(name, "import time; time.sleep(300)", timeoutSeconds=300)
    pod = admin.wait_for_phase(name, "Running")["status"]["podName"]
    block = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
    new = an_execution(a_name("own"), [block], requestedBy=agent.me)
    payload = a_secret(a_name("own"), {"block-0": b"x"})

    def patch(user: Admin, change: dict, *options: str) -> str:
        target = ["patch", "codeexecution", name, "--type=merge", "--dry-run=server", *options]
        return _objection(user, *target, "-p", json.dumps(change))

    # What the role keeps from the approver, and somebody else may do.
    for other, arguments, stdin in (
        (agent, ("create", "--dry-run=server", "-f", "-"), new),
        (agent, ("create", "--dry-run=server", "-f", "-"), payload),
        (admin, ("delete", "--dry-run=server", "codeexecution", name), None),
        (admin, ("get", "secrets"), None),
        (admin, ("get", "pod", pod), None),
        (admin, ("exec", pod, "--", "true"), None),
        (admin, ("delete", "--dry-run=server", "pod", pod), None),
    ):
        assert _objection(other, *arguments, stdin=stdin) == "", "control"
        assert "Forbidden" in _objection(approver, *arguments, stdin=stdin), arguments
    forged = {"status": {"phase": "Succeeded"}}
    assert patch(admin, forged, "--subresource=status") == "", "control"
    assert "Forbidden" in patch(approver, forged, "--subresource=status")

    # What the role lets through, and the CRD or an admission policy stops.
    assert patch(approver, {"metadata": {"labels": {"example.com/ticket": "7"}}}) == "", "control: a patch as such"
    owner = {"apiVersion": "v1", "kind": "Secret", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}
    assert "ownerReferences must be empty" in patch(approver, {"metadata": {"ownerReferences": [owner]}})
    assert "finalizers must be empty" in patch(approver, {"metadata": {"finalizers": ["example.com/for-ever"]}})
    assert "immutable" in patch(approver, {"spec": {"timeoutSeconds": 600}})

    approver.kubectl(
        "-n", SANDBOX, "patch", "codeexecution", name, "--type=merge", "-p", '{"spec": {"cancelled": true}}'
    )
    assert admin.wait_for_phase(name, "Cancelled")["status"]["reason"] == "CancelRequested"
    assert "cancelled" in patch(approver, {"spec": {"cancelled": False}})


# --- the operator's rights and its calls ---------------------------------------------

AUDIT_LOG = """
import glob, json
from datetime import datetime
since = datetime.fromisoformat({since!r})
calls = set()
logs = glob.glob("/proc/1/root/var/log/kubernetes/audit*.log")
for log in logs:
    for line in open(log):
        if not line.endswith("\\n"):
            continue  # is being written
        event = json.loads(line)
        if datetime.fromisoformat(event["requestReceivedTimestamp"]) < since:
            continue
        decision = event.get("annotations", {{}}).get("authorization.k8s.io/decision")
        target = event.get("objectRef", {{}})
        resource = "/".join(filter(None, (target.get("resource"), target.get("subresource"))))
        if target.get("name") in {names!r}:
            resource += ":" + target["name"]
        if decision:  # none: turned away before, as when there are too many requests
            calls.add((event["user"]["username"], decision, target.get("apiGroup", ""), resource, event["verb"]))
print(json.dumps(sorted(calls) if logs else None))
"""


class Calls(NamedTuple):
    """What an account has asked the API server for, by what authorization said to it."""

    allowed: set[Cell]
    refused: set[Cell]


@pytest.fixture
def calls_of(admin, node_shell) -> Callable[[Account], Calls]:
    """Reads the API server's audit log, from when the operator and its rights became what they are now.

    What authorization refuses counts, and not the status 403: that is the answer to a pod over the quota, too.
    """
    since = _last_change(admin)
    names = sorted(name for _, _, name in OPERATOR_BY_NAME | OPERATOR_AT_HOME_BY_NAME)

    def read(account: Account) -> Calls:
        calls = json.loads(node_shell(AUDIT_LOG.format(since=since.isoformat(), names=names)))
        assert calls is not None, (
            "the API server keeps no audit log: `make cluster` makes the test cluster anew, with one; "
            "a cluster of your own needs tests/cluster/audit-policy.yaml and --audit-log-path as in kind-config.yaml"
        )
        ours = [(decision, tuple(cell)) for user, decision, *cell in calls if user == account.user]
        made = {decision: {cell for verdict, cell in ours if verdict == decision} for decision in ("allow", "forbid")}
        discovery = {cell for cell in made["allow"] if not cell[1]}  # `/api`, `/apis`: open to every account
        return Calls(made["allow"] - discovery, made["forbid"])

    return read


def _last_change(admin: Admin) -> datetime:
    """When the operator was deployed, or a right of it was changed, whichever is later."""
    kinds = "roles,rolebindings,clusterroles,clusterrolebindings,replicasets.apps"
    selector = "app.kubernetes.io/part-of=codeexec"
    listing = admin.kubectl("get", kinds, "-A", "-l", selector, "-o", "json", "--show-managed-fields")
    times = set()
    for thing in json.loads(listing)["items"]:
        times.add(thing["metadata"]["creationTimestamp"])
        if thing["kind"] != "ReplicaSet":  # its status changes with each restart of the operator
            times.update(entry["time"] for entry in thing["metadata"]["managedFields"])
    return max(map(datetime.fromisoformat, times))


def _make_the_operator_do_all_it_does(admin: Admin, pool: Pool, put_policy: Callable[..., None]) -> str:
    """An execution whose pod goes, and one whose pod is still there when the operator starts again: name of the latter.

    Besides, a session that ends, an execution that looks for one in vain, output that expires, a payload that is too
    large to be held when it is seen, an execution that takes a pod of a pool, one with a way out of the network, one
    that waits for a human, and a sealing key that is a day old.
    """
    gone, kept, opened, lost = (a_name(what) for what in ("gone", "kept", "opened", "lost"))
    pool.ready(1)
    pooled = a_name("pooled")
    admin.submit(pooled, "#" * 600_000, limits={"cpu": "100m", "memory": "96Mi"})
    assert admin.wait_for_phase(pooled, "Succeeded")["status"]["poolName"] == pool.name
    admin.kubectl("create", "-f", "-", stdin=json.dumps(a_session(opened, limits={"cpu": "100m"})))
    admin.submit(lost, "print(1)", sessionRef={"name": a_name("nowhere")})
    permitted = {"podSelector": {"matchLabels": {"app": "nobody"}}, "port": 443}
    put_policy(egress=[permitted], maxTimeoutSeconds=60, withApproval={"maxTimeoutSeconds": 90})
    way_out = a_name("way-out")
    admin.submit(way_out, "print(1)", egress=[permitted])
    admin.wait_for_phase(way_out, "Succeeded")
    waiting = asyncio.run(_ask_a_human(admin.kubeconfig))
    assert admin.exists(
        "secret", admin.wait_for_phase(waiting, "AwaitingApproval")["status"]["approval"]["codeSecret"], SANDBOX
    )
    admin.kubectl("-n", SANDBOX, "patch", "cex", waiting, "--type=merge", "-p", '{"spec":{"cancelled":true}}')
    admin.submit(kept, "print(1)", ttlSecondsAfterFinished=300)
    admin.submit(gone, "print('x' * 2_000_000)", ttlSecondsAfterFinished=0)
    admin.wait_for_phase(kept, "Succeeded")
    status = admin.wait_for_phase(gone, "Succeeded")["status"]
    pod, outputs = status["podName"], [one["name"] for one in status["outputRefs"]]
    wait_for("its pod to be deleted", lambda: not admin.exists("pod", pod, SANDBOX))
    assert admin.wait_for_phase(lost, "Denied")["status"]["reason"] == "SessionNotFound"
    _ready(admin, opened)
    admin.kubectl("-n", SANDBOX, "delete", "codesession", opened)
    expired = "codeexec.dev/expires-at=2000-01-01T00:00:00+00:00"
    admin.kubectl("-n", SANDBOX, "annotate", "--overwrite", "configmap", outputs[0], expired)
    operator, pods = (
        "deployment/codeexec-operator",
        ("pods", "-l", "app.kubernetes.io/component=operator", "-o", "name"),
    )
    age_the_sealing_key(admin, timedelta(hours=25))
    admin.kubectl("-n", SYSTEM, "scale", operator, "--replicas=0")
    wait_for("the operator to be gone", lambda: not admin.kubectl("-n", SYSTEM, "get", *pods))
    admin.kubectl("-n", SYSTEM, "scale", operator, "--replicas=1")
    admin.kubectl("-n", SYSTEM, "rollout", "status", operator, "--timeout=60s")
    gone_by_its_time = f"output {outputs[0]}, whose time is over, to be deleted"
    wait_for(gone_by_its_time, lambda: not admin.exists("configmap", outputs[0], SANDBOX), 90)
    return kept


async def _ask_a_human(kubeconfig: str) -> str:
    """Name of an execution whose code has come sealed, and that waits for approval."""
    request = Request(agent="tester", timeout_seconds=90, limits=Limits(cpu="100m"), approval=ApprovalWait("return"))
    async with CodeExecutionClient(ClusterRef(SANDBOX, kubeconfig)) as client:
        return (await client.execute(prepare([SourceBlock("python", "print(1)")]).blocks, request)).name


@pytest.fixture
def stranger(admin) -> Iterator[Account]:
    """A new account beside the operator's, without rights: what the log says of it is said of this test."""
    account = Account(SYSTEM, a_name("stranger"))
    admin.kubectl("-n", SYSTEM, "create", "serviceaccount", account.name)
    yield account
    admin.kubectl("-n", SYSTEM, "delete", "serviceaccount", account.name)


def test_the_operator_uses_each_of_its_rights_and_asks_for_no_other(
    admin, calls_of, rules_of, stranger, kubeconfig_of, make_pool, policy
):
    assert "Forbidden" in Admin(kubeconfig_of(*stranger)).try_kubectl("get", "configmaps", "-n", SANDBOX).stderr
    assert calls_of(stranger).refused == {("", "configmaps", "list")}, "control: the log shows what is refused"

    kept = _make_the_operator_do_all_it_does(admin, make_pool(1), policy)
    taken_up = ("codeexec.dev", "codeexecutions", "get")
    wait_for("the operator to look up whose pod it finds", lambda: taken_up in calls_of(OPERATOR_ACCOUNT).allowed)
    admin.kubectl("-n", SANDBOX, "delete", "codeexecution", kept)

    granted = rules_of(OPERATOR_ACCOUNT, SANDBOX) | rules_of(OPERATOR_ACCOUNT, SYSTEM)
    calls = calls_of(OPERATOR_ACCOUNT)
    assert calls.refused == set()
    assert calls.allowed <= granted, "allowed by a right that is not the chart's"
    assert granted - calls.allowed <= set(UNUSED_HERE), "granted and never used"
