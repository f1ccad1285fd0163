"""Permits and mounts on the real cluster: exactly what was granted is open, from both sides, and gone at the end."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from socket import SHUT_RDWR, create_server
from typing import Any

import pytest
from cluster_fixtures import ControlPod
from cluster_tools import SANDBOX, SYSTEM, TERMINAL, Admin, a_name, an_approval, an_execution, wait_for

pytestmark = pytest.mark.e2e

OPERATOR = f"system:serviceaccount:{SYSTEM}:codeexec-operator"
SMALL = {"cpu": "100m", "memory": "96Mi"}
PERMITTED, OTHER, DATAGRAMS = 8000, 8001, 8053
METADATA = ("169.254.169.254", 80)
SERVER = f"""
import socket, threading
def greet(port):
    listening = socket.create_server(("0.0.0.0", port))
    while True:
        peer, _ = listening.accept()
        with peer:
            peer.sendall(b"hello")
for port in ({PERMITTED}, {OTHER}):
    threading.Thread(target=greet, args=[port], daemon=True).start()
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
echo.bind(("0.0.0.0", {DATAGRAMS}))
while True:
    data, peer = echo.recvfrom(64)
    echo.sendto(data, peer)
"""
PROBES = """
import json, socket, sys, time
QUESTION = b"\\0\\7\\1\\0\\0\\1" + bytes(6) + b"\\x0akubernetes\\7default\\3svc\\7cluster\\5local\\0\\0\\1\\0\\1"
def reach(address, port, protocol="TCP"):
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM) as one:
            one.settimeout(3)
            one.connect((address, port))
            if protocol == "UDP":
                one.send(QUESTION)
                one.recv(512)
        return "reached"
    except OSError as error:
        return type(error).__name__
"""


def probing(targets: dict[str, Any], granted: str = "") -> str:
    """Code that prints, as JSON, what comes of trying each target, once what is granted answers, or too late.

    A network plugin takes a moment until a permit works.
    """
    return f"""{PROBES}
targets, late = {targets!r}, time.monotonic() + 20
while {granted!r} in targets and reach(*targets[{granted!r}]) != "reached" and time.monotonic() < late:
    time.sleep(0.2)
print(json.dumps({{name: reach(*target) for name, target in targets.items()}}))"""


def output(record: dict[str, Any]) -> Any:
    """What the code of a finished execution has printed last, as JSON."""
    status = record["status"]
    assert status["phase"] == "Succeeded", (status["reason"], status.get("message"), status.get("stderr"))
    return json.loads(status["stdout"]["text"].splitlines()[-1])


def finished(admin: Admin, code: str, *, name: str | None = None, **spec: Any) -> dict[str, Any]:
    """The record of an execution with this code, once it has ended."""
    name = name or a_name("permitted")
    admin.submit(name, code, **{"limits": SMALL, "timeoutSeconds": 60, **spec})
    return admin.wait_for_phase(name, *TERMINAL, seconds=120)


@pytest.fixture(scope="module")
def server(admin: Admin, make_control_pod) -> ControlPod:
    """A pod of another namespace that answers on three ports; it has the label `app` with its name."""
    pod = make_control_pod(a_name("server"), {"command": ["python3", "-I", "-c", SERVER]})
    admin.kubectl("-n", pod.namespace, "label", "pod", pod.name, f"app={pod.name}")
    return pod


def permit_for(pod: ControlPod, port: int = PERMITTED, **changes: Any) -> dict[str, Any]:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": pod.namespace}},
        "podSelector": {"matchLabels": {"app": pod.name}},
        "port": port,
        **changes,
    }


@pytest.fixture(scope="module")
def addresses(admin: Admin, server: ControlPod, unprotected_pod: ControlPod) -> dict[str, Any]:
    """What answers whoever may reach it, by name."""
    node = json.loads(admin.kubectl("get", "nodes", "-o", "json"))["items"][0]
    [internal] = [one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP"]
    dns = admin.get("service", "kube-dns", "kube-system")["spec"]["clusterIP"]
    found = {
        "permitted port": (server.ip, PERMITTED),
        "other port": (server.ip, OTHER),
        "datagrams": (server.ip, DATAGRAMS, "UDP"),
        "other pod": (unprotected_pod.ip, PERMITTED),
        "API server": (admin.get("service", "kubernetes", "default")["spec"]["clusterIP"], 443),
        "DNS": (dns, 53, "UDP"),
        "DNS over TCP": (dns, 53),
        "kubelet": (internal, 10250),
    }

    def all_reached() -> bool:
        return set(json.loads(unprotected_pod(probing(found))).values()) == {"reached"}

    wait_for("control: everything to answer an unprotected pod", all_reached, 30)
    return found | {"metadata": METADATA}


# --- what is open ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["runc", "gvisor"])
def test_exactly_what_is_permitted_is_reached(runtime, admin, policy, server, addresses):
    permit = permit_for(server)
    classes = {"runtimeClassName": runtime} if runtime != "runc" else {}
    if classes and not admin.exists("runtimeclass", runtime, "default"):
        pytest.skip(f"the cluster has no RuntimeClass {runtime}")
    policy(egress=[permit], **classes)
    record = finished(admin, probing(addresses, "permitted port"), egress=[permit])
    found = output(record)
    assert found.pop("permitted port") == "reached"
    assert "reached" not in found.values(), found
    status = record["status"]
    assert status["egressProof"]["verdict"] == "Restricted"
    assert {one["name"] for one in status["egressProof"]["targets"] if not one["refused"]} == set()
    text = f"namespaces{{kubernetes.io/metadata.name={server.namespace}}},pods{{app={server.name}}}:{PERMITTED}/TCP"
    assert status["egress"] == [{"permit": text}]
    assert {"NetworkPolicy", "Seccomp"} <= set(status["layers"])
    if runtime == "runc":
        assert {"Landlock", "LandlockPorts"} <= set(status["layers"])


def test_datagrams_are_permitted_apart(admin, policy, server, addresses):
    permit = permit_for(server, DATAGRAMS, protocol="UDP")
    policy(egress=[permit, permit_for(server)])
    found = output(finished(admin, probing(addresses, "datagrams"), egress=[permit]))
    assert {name for name, outcome in found.items() if outcome == "reached"} == {"datagrams"}


def test_without_a_permit_nothing_is_reached_though_the_policy_allows_one(admin, policy, server, addresses):
    policy(egress=[permit_for(server)])
    record = finished(admin, probing(addresses))
    assert "reached" not in output(record).values()
    assert record["status"]["egressProof"]["verdict"] == "Closed"
    assert "egress" not in record["status"]


@pytest.fixture
def outside(node_shell: ControlPod) -> Iterator[tuple[str, int, int]]:
    """An address outside of the cluster, on this machine, and two ports of it that answer: what a CIDR is for.

    Some network plugins, Cilium among them, select no pod by its address.
    """
    gateway = node_shell(
        "import socket, struct\n"
        "rows = [line.split() for line in open('/proc/1/net/route').read().splitlines()[1:]]\n"
        "print(*(socket.inet_ntoa(struct.pack('<L', int(row[2], 16))) for row in rows if row[1] == '00000000'))"
    ).split()
    if not gateway:
        pytest.skip("the node has no default route, so this machine can't be reached from there")

    def greet(listening: Any) -> None:
        with suppress(OSError):
            while True:
                peer, _ = listening.accept()
                peer.sendall(b"hello")
                peer.close()

    with closing(create_server(("0.0.0.0", 0))) as one, closing(create_server(("0.0.0.0", 0))) as two:
        for listening in (one, two):
            threading.Thread(target=greet, args=[listening], daemon=True).start()
        yield gateway[0], one.getsockname()[1], two.getsockname()[1]
        for listening in (one, two):
            listening.shutdown(SHUT_RDWR)


def test_an_address_is_reached_by_its_port_only(admin, policy, outside, unprotected_pod):
    address, permitted, other = outside
    targets = {"permitted": (address, permitted), "other": (address, other)}
    if set(json.loads(unprotected_pod(probing(targets))).values()) != {"reached"}:
        pytest.skip("this machine can't be reached from a pod that nothing protects, so there is no control")
    policy(egress=[{"cidr": f"{address}/32", "port": 1, "endPort": 65535}])
    found = output(
        finished(admin, probing(targets, "permitted"), egress=[{"cidr": f"{address}/32", "port": permitted}])
    )
    assert (found["permitted"], found["other"] == "reached") == ("reached", False)


# --- what is never open ---------------------------------------------------------------------------------------------


EVERYTHING = [{"cidr": "0.0.0.0/0", "port": 1, "endPort": 65535}]


@pytest.mark.parametrize("target", ["API server", "kubelet", "DNS over TCP", "metadata"])
def test_some_addresses_are_refused_whatever_the_policy_says(target, admin, policy, addresses):
    policy(egress=EVERYTHING)
    address, port = addresses[target]
    status = finished(admin, "print(1)", egress=[{"cidr": f"{address}/32", "port": port}])["status"]
    assert (status["phase"], status["reason"]) == ("Denied", "PolicyViolation")
    assert f"spec.egress[0]: {address}/32:{port}/TCP" in status["message"]
    assert "never" in status["message"]


def test_a_wide_permit_leaves_them_out(admin, policy, addresses):
    policy(egress=EVERYTHING)
    record = finished(admin, probing(addresses), egress=[{"cidr": "0.0.0.0/0", "port": 443}])
    found = output(record)
    assert {name for name in ("API server", "kubelet", "DNS", "metadata") if found[name] == "reached"} == set()
    [opened] = record["status"]["egress"]
    assert opened["permit"] == "0.0.0.0/0:443/TCP"
    left_out = {addresses["API server"][0], addresses["kubelet"][0], addresses["DNS"][0]}
    assert {f"{one}/32" for one in left_out} | {"169.254.0.0/16"} <= set(opened["leftOut"])


def test_a_selector_that_opens_what_the_proof_tries_ends_without_code(admin, policy):
    """Which pods a selector means is not looked at beforehand: the proof finds DNS open, as with any other gap."""
    dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        "port": 53,
        "protocol": "UDP",
    }
    policy(egress=[dns])
    status = finished(admin, "print(1)", egress=[dns])["status"]
    assert (status["phase"], status["reason"]) == ("Denied", "EgressNotEnforced")
    assert "Either a permit opens it" in status["message"]
    assert "startedAt" not in status


def test_a_host_is_denied_with_what_to_do(admin, policy):
    policy(egress=EVERYTHING)
    status = finished(admin, "print(1)", egress=[{"host": "pypi.org", "port": 443}])["status"]
    assert (status["phase"], status["reason"]) == ("Denied", "PolicyViolation")
    assert "a NetworkPolicy can't name hosts; ask for the addresses" in status["message"]


DENY_ALL = "codeexec-deny-all"
WAITS_UNTIL_THE_NETWORK_IS_OPEN = """
deadline = time.monotonic() + 90
while reach(*TARGETS["other pod"]) != "reached" and time.monotonic() < deadline:
    time.sleep(0.5)
"""


def test_the_second_layer_alone_holds_to_the_ports(admin, policy, server, addresses):
    """With every NetworkPolicy gone code still opens no other port, no datagram and no other kind of socket."""
    permit = permit_for(server)
    policy(egress=[permit])
    name = a_name("alone")
    code = f"{PROBES}\nTARGETS = {addresses!r}\n{WAITS_UNTIL_THE_NETWORK_IS_OPEN}\n"
    code += "print(json.dumps({name: reach(*target) for name, target in TARGETS.items()}))"
    admin.submit(name, code, limits=SMALL, egress=[permit], timeoutSeconds=120)
    status = admin.wait_for_phase(name, "Running")["status"]
    kept = admin.get("networkpolicy", DENY_ALL)
    kept["metadata"] = {key: kept["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
    try:
        admin.kubectl("-n", SANDBOX, "delete", "networkpolicy", DENY_ALL, status["podName"])
        found = output(admin.wait_for_phase(name, *TERMINAL, seconds=150))
    finally:
        admin.apply(kept)
    control = {name for name in ("permitted port", "other pod") if found.pop(name) == "reached"}
    assert control == {"permitted port", "other pod"}, "control: the network was open; Landlock knows ports only"
    assert set(found.values()) == {"PermissionError"}, "refused by the layer in the pod, at once"

    def closed() -> bool:
        return finished(admin, "print(1)")["status"].get("egressProof", {}).get("verdict") == "Closed"

    wait_for("the network to be closed again", closed)


# --- a human decides ------------------------------------------------------------------------------------------------


def test_what_needs_approval_is_opened_by_exactly_that(admin, policy, server, addresses, approver):
    one, other = permit_for(server), permit_for(server, OTHER)
    policy(withApproval={"egress": [one, other]})
    names = {a_name("first"): one, a_name("second"): other}
    for name, permit in names.items():
        admin.submit(name, probing(addresses, "permitted port"), limits=SMALL, egress=[permit], timeoutSeconds=60)
    first, second = (admin.wait_for_phase(name, "AwaitingApproval") for name in names)
    assert "podName" not in first["status"]
    assert not json.loads(
        admin.kubectl("-n", SANDBOX, "get", "networkpolicies", "-l", "codeexec.dev/execution", "-o", "json")
    )["items"]
    wrong = an_approval(second, approver.me, grants=first["status"]["approval"]["grants"])
    approver.kubectl("create", "-f", "-", stdin=json.dumps(wrong))

    def not_counted() -> bool:
        approval = admin.execution(second["metadata"]["name"])["status"]["approval"]
        return "OtherGrants" in [one["reason"] for one in approval.get("unused", ())]

    wait_for("an approval of another permit not to count", not_counted)
    approver.kubectl("create", "-f", "-", stdin=json.dumps(an_approval(first, approver.me)))
    found = output(admin.wait_for_phase(first["metadata"]["name"], *TERMINAL, seconds=120))
    assert {name for name, outcome in found.items() if outcome == "reached"} == {"permitted port"}
    assert admin.phase(second["metadata"]["name"]) == "AwaitingApproval"
    admin.kubectl(
        "-n", SANDBOX, "patch", "cex", second["metadata"]["name"], "--type=merge", "-p", '{"spec":{"cancelled":true}}'
    )


# --- how it is done -------------------------------------------------------------------------------------------------


def test_the_policy_is_of_one_pod_and_goes_with_its_code(admin, policy, server):
    permit = permit_for(server)
    policy(egress=[permit])
    name = a_name("waits")
    admin.submit(name, "import time; time.sleep(8)", limits=SMALL, egress=[permit])
    record = admin.wait_for_phase(name, "Running")
    pod = record["status"]["podName"]
    made = admin.get("networkpolicy", pod)
    uid = record["metadata"]["uid"]
    assert made["spec"]["podSelector"] == {"matchLabels": {"egress.codeexec.dev/execution": uid}}
    assert admin.pod(SANDBOX, pod)["metadata"]["labels"]["egress.codeexec.dev/execution"] == uid
    assert [one["uid"] for one in made["metadata"]["ownerReferences"]] == [uid]
    assert made["metadata"]["creationTimestamp"] <= admin.pod(SANDBOX, pod)["metadata"]["creationTimestamp"]
    admin.wait_for_phase(name, "Succeeded")
    wait_for("the policy to be deleted", lambda: not admin.exists("networkpolicy", pod, SANDBOX), 20)
    assert admin.exists("networkpolicy", DENY_ALL, SANDBOX)


def test_a_pod_of_a_pool_is_not_for_code_with_permits(admin, policy, server, make_pool):
    permit = permit_for(server)
    policy(egress=[permit])
    pool = make_pool(1)
    pool.ready(1)
    assert "poolName" not in finished(admin, "print(1)", egress=[permit])["status"]
    assert finished(admin, "print(1)")["status"]["poolName"] == pool.name, "control: without a permit it is used"


def is_refused(said: str) -> bool:
    """True if that is what Pod Security or the chart's policy for pods says; Pod Security is asked first."""
    return "violates PodSecurity" in said or "spec." in said


def as_operator(admin: Admin, verb: str, *arguments: str, **stdin: str) -> str:
    """What the API server objects to if the operator does this; empty if it would be done."""
    done = admin.try_kubectl("-n", SANDBOX, verb, "--dry-run=server", "--as", OPERATOR, *arguments, **stdin)
    return done.stderr if done.returncode else ""


def test_a_compromised_operator_opens_and_closes_nothing_else(admin):
    """Admission holds the operator to policies for one execution's pod, outwards, with peers and ports."""
    good = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": a_name("opening"),
            "namespace": SANDBOX,
            "ownerReferences": [
                {
                    "apiVersion": "codeexec.dev/v1alpha1",
                    "kind": "CodeExecution",
                    "name": "one",
                    "uid": "1-2",
                    "controller": True,
                }
            ],
        },
        "spec": {
            "podSelector": {"matchLabels": {"egress.codeexec.dev/execution": "1-2"}},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [{"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"port": 443, "protocol": "TCP"}]}],
        },
    }
    assert as_operator(admin, "create", "-f", "-", stdin=json.dumps(good)) == "", "control: such a policy may be made"
    worse = {
        "every pod": {"podSelector": {}},
        "another label": {"podSelector": {"matchLabels": {"app": "one"}}},
        "a label more": {"podSelector": {"matchLabels": {"egress.codeexec.dev/execution": "1-2", "app": "one"}}},
        "another execution's pod": {"podSelector": {"matchLabels": {"egress.codeexec.dev/execution": "3-4"}}},
        "what comes in": {"ingress": [{}]},
        "only outwards": {"policyTypes": ["Egress"]},
        "everything": {"egress": [{}]},
        "every address": {"egress": [{"ports": [{"port": 443}]}]},
        "every port": {"egress": [{"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}]}]},
        "many ports": {"egress": [{"to": good["spec"]["egress"][0]["to"], "ports": [{"port": 1, "endPort": 65535}]}]},
        "every pod of all namespaces": {"egress": [{"to": [{"namespaceSelector": {}}], "ports": [{"port": 443}]}]},
    }
    accepted = [
        name
        for name, change in worse.items()
        if "codeexec-egress"
        not in as_operator(admin, "create", "-f", "-", stdin=json.dumps(good | {"spec": good["spec"] | change}))
    ]
    assert accepted == []
    assert "codeexec-egress" in as_operator(admin, "delete", "networkpolicy", DENY_ALL)


BAD_SPECS = {
    "nothing named": ({"egress": [{"port": 443}]}, "there must be one of cidr, host, and podSelector"),
    "two named": ({"egress": [{"cidr": "10.1.2.3/32", "host": "a.b", "port": 443}]}, "there must be one of cidr, host"),
    "no port": ({"egress": [{"cidr": "10.1.2.3/32"}]}, "spec.egress[0].port: Required value"),
    "a protocol that is none": (
        {"egress": [{"cidr": "10.1.2.3/32", "port": 443, "protocol": "SCTP"}]},
        "spec.egress[0].protocol: Unsupported value",
    ),
    "no labels": (
        {"egress": [{"podSelector": {"matchLabels": {}}, "port": 443}]},
        "spec.egress[0].podSelector.matchLabels",
    ),
    "a long key": (
        {"egress": [{"podSelector": {"matchLabels": {"k" * 64: "v"}}, "port": 443}]},
        "keys must have 1 to 63",
    ),
    "too many": ({"egress": [{"cidr": "10.1.2.3/32", "port": 443}] * 17}, "spec.egress: Too many: 17"),
    "in a session": (
        {"sessionRef": {"name": "work"}, "egress": [{"cidr": "10.1.2.3/32", "port": 443}]},
        "with a sessionRef, egress and mounts must be absent",
    ),
    "a mount of nothing": (
        {"mounts": [{"name": "one", "mountPath": "/mnt/one"}]},
        "there must be one of persistentVolumeClaim",
    ),
    "a folder of the host": (
        {"mounts": [{"name": "one", "hostPath": {"path": "/etc"}, "mountPath": "/mnt/one"}]},
        'unknown field "spec.mounts[0].hostPath"',
    ),
    "elsewhere": (
        {"mounts": [{"name": "one", "configMap": {"name": "one"}, "mountPath": "/etc/one"}]},
        "spec.mounts[0].mountPath",
    ),
    "two in one place": (
        {"mounts": [{"name": name, "configMap": {"name": "one"}, "mountPath": "/mnt/one"} for name in ("one", "two")]},
        "mountPath must differ from mount to mount",
    ),
    "two of one name": (
        {
            "mounts": [
                {"name": "one", "configMap": {"name": "one"}, "mountPath": f"/mnt/{name}"} for name in ("one", "two")
            ]
        },
        "Duplicate value",
    ),
}


@pytest.mark.parametrize(("spec", "said"), BAD_SPECS.values(), ids=BAD_SPECS)
def test_the_api_server_refuses_what_means_nothing(spec, said, admin):
    block = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
    thing = json.dumps(an_execution(a_name("bad"), [block], **spec))
    assert said in admin.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=thing).stderr


def test_permits_and_mounts_can_not_be_changed(admin, policy, server):
    permit = permit_for(server)
    policy(egress=[permit])
    name = finished(admin, "print(1)", egress=[permit])["metadata"]["name"]
    for change in (
        {"egress": [permit_for(server, OTHER)]},
        {"egress": None},
        {"mounts": [{"name": "one", "configMap": {"name": "one"}, "mountPath": "/mnt/one"}]},
    ):
        body = json.dumps({"spec": change})
        done = admin.try_kubectl("-n", SANDBOX, "patch", "cex", name, "--type=merge", "-p", body)
        assert "is immutable: create a new CodeExecution instead" in done.stderr


# --- mounts ---------------------------------------------------------------------------------------------------------

WRITES = """
import json, os
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return error.strerror
def write(path):
    with open(path, "w") as file:
        file.write("x")
print(json.dumps([attempt(lambda: write(f"{ROOT}/new.txt")), attempt(lambda: write(f"{ROOT}/words.txt")),
    attempt(lambda: os.remove(f"{ROOT}/words.txt")), attempt(lambda: os.chmod(f"{ROOT}/words.txt", 0o777))]))
"""


@pytest.fixture(scope="module")
def claim(admin: Admin, make_control_pod) -> Iterator[tuple[str, ControlPod]]:
    """A PersistentVolumeClaim of the sandbox namespace with a file in it, and a pod that may write to the same folder.

    The volume is a folder of the node: the test cluster has no other kind.
    """
    name = a_name("data")
    folder = {"path": f"/var/lib/codeexec-{name}", "type": "DirectoryOrCreate"}
    size = {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteMany"], "storageClassName": ""}
    admin.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": size | {"hostPath": folder, "claimRef": {"name": name, "namespace": SANDBOX}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": SANDBOX},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": name,
                "resources": {"requests": {"storage": "1Mi"}},
            },
        },
    )
    writer = make_control_pod(
        a_name("writer"),
        {
            "command": ["sleep", "infinity"],
            "securityContext": {"runAsUser": 0},
            "volumeMounts": [{"name": "data", "mountPath": "/mnt/data"}],
        },
        volumes=[{"name": "data", "hostPath": folder}],
    )
    writer("import os; os.chmod('/mnt/data', 0o777); open('/mnt/data/words.txt', 'w').write('from the claim')")
    yield name, writer
    admin.kubectl("-n", SANDBOX, "delete", "pvc", name, "--wait=false")
    admin.kubectl("delete", "pv", name, "--wait=false")


@pytest.fixture
def settings(admin: Admin) -> Iterator[str]:
    name = a_name("settings")
    admin.kubectl("-n", SANDBOX, "create", "configmap", name, "--from-literal=words.txt=from the map")
    yield name
    admin.kubectl("-n", SANDBOX, "delete", "configmap", name)


def test_mounts_can_be_read_and_not_written(admin, policy, claim, settings):
    name, writer = claim
    sources = [{"persistentVolumeClaim": {"claimName": name}}, {"configMap": {"name": settings}}]
    policy(mounts=sources)
    paths = ["/mnt/data", "/mnt/conf"]
    mounts = [
        {"name": f"one-{index}", "mountPath": path, **source}
        for index, (path, source) in enumerate(zip(paths, sources, strict=True))
    ]
    code = f"print([open(f'{{path}}/words.txt').read() for path in {paths!r}])\n"
    code += "".join(f"ROOT = {path!r}\n{WRITES}" for path in paths)
    record = finished(admin, code, mounts=mounts)
    status = record["status"]
    assert status["phase"] == "Succeeded", (status["reason"], status["message"], status.get("stderr"))
    words, *outcomes = status["stdout"]["text"].splitlines()
    assert words == "['from the claim', 'from the map']"
    assert [one for line in outcomes for one in json.loads(line) if one == "done"] == []
    assert status["egressProof"]["verdict"] == "Closed"
    assert "poolName" not in status
    control = json.loads(writer(f"ROOT = '/mnt/data'\n{WRITES}"))
    assert control[:3] == ["done"] * 3, "control: nothing but the mount keeps from writing there"
    writer("open('/mnt/data/words.txt', 'w').write('from the claim')")


def test_what_the_policy_does_not_name_is_not_mounted(admin, policy, claim, settings):
    policy(
        mounts=[{"configMap": {"name": settings}}],
        withApproval={"mounts": [{"persistentVolumeClaim": {"claimName": claim[0]}}]},
    )
    mount = {"name": "one", "mountPath": "/mnt/one"}
    status = finished(admin, "print(1)", mounts=[mount | {"configMap": {"name": "codeexec-sealing-key"}}])["status"]
    assert (status["phase"], status["reason"]) == ("Denied", "PolicyViolation")
    name = a_name("asks")
    admin.submit(name, "print(1)", limits=SMALL, mounts=[mount | {"persistentVolumeClaim": {"claimName": claim[0]}}])
    asked = admin.wait_for_phase(name, "AwaitingApproval")["status"]["approval"]["grants"]
    assert asked == [{"field": "spec.mounts[0]", "value": f"pvc:{claim[0]}:/mnt/one"}]
    admin.kubectl("-n", SANDBOX, "patch", "cex", name, "--type=merge", "-p", '{"spec":{"cancelled":true}}')


def test_what_is_not_there_is_named(admin, policy):
    policy(mounts=[{"configMap": {"name": "nowhere"}}])
    mount = {"name": "one", "mountPath": "/mnt/one", "configMap": {"name": "nowhere"}}
    status = finished(admin, "print(1)", mounts=[mount])["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "StartTimeout")
    assert "configmap:nowhere: see to it that they are there" in status["message"]


@pytest.fixture
def a_pod_with(admin: Admin, policy, settings) -> Callable[..., dict[str, Any]]:
    """The pod that the operator has made for an execution with a mount, to be made again with a change."""
    policy(mounts=[{"configMap": {"name": settings}}])
    name = a_name("pattern")
    mount = {"name": "one", "mountPath": "/mnt/one", "configMap": {"name": settings}}
    admin.submit(name, "import time; time.sleep(20)", limits=SMALL, mounts=[mount])
    pod = admin.pod(SANDBOX, admin.wait_for_phase(name, "Running")["status"]["podName"])
    admin.kubectl("-n", SANDBOX, "patch", "cex", name, "--type=merge", "-p", '{"spec":{"cancelled":true}}')
    kept = {key: pod["spec"][key] for key in pod["spec"] if key not in ("nodeName", "tolerations", "serviceAccount")}

    def make(change: Callable[[dict[str, Any]], object] = lambda _: None) -> dict[str, Any]:
        again = json.loads(json.dumps(kept))
        change(again)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": a_name("again"), "namespace": SANDBOX},
            "spec": again,
        }

    return make


WEAKER = {
    "a claim that is not read-only": lambda spec: spec["volumes"][-1].update(
        configMap=None, persistentVolumeClaim={"claimName": "data"}
    ),
    "a Secret": lambda spec: spec["volumes"][-1].update(configMap=None, secret={"secretName": "one"}),
    "a folder of the node": lambda spec: spec["volumes"][-1].update(configMap=None, hostPath={"path": "/etc"}),
    "keys of the map": lambda spec: spec["volumes"][-1]["configMap"].update(items=[{"key": "words.txt", "path": "x"}]),
    "a mount that is not read-only": lambda spec: spec["containers"][0]["volumeMounts"][-1].update(readOnly=False),
    "a mount elsewhere": lambda spec: spec["containers"][0]["volumeMounts"][-1].update(mountPath="/opt/codeexec"),
    "a mount over the workspace": lambda spec: spec["containers"][0]["volumeMounts"][-1].update(
        mountPath="/workspace/x"
    ),
    "a part of it": lambda spec: spec["containers"][0]["volumeMounts"][-1].update(subPath="words.txt"),
}


def test_admission_takes_mounts_from_the_operator_only_and_only_to_be_read(admin, a_pod_with):
    assert as_operator(admin, "create", "-f", "-", stdin=json.dumps(a_pod_with())) == "", (
        "control: it may make this pod"
    )
    by_the_administrator = admin.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(a_pod_with()))
    assert "spec.volumes must be emptyDirs" in by_the_administrator.stderr
    accepted = [
        name
        for name, change in WEAKER.items()
        if not is_refused(as_operator(admin, "create", "-f", "-", stdin=json.dumps(a_pod_with(change))))
    ]
    assert accepted == []
