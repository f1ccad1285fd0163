"""Permits and mounts on the real cluster: exactly what was granted is open, from both sides, and gone at the end."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from socket import SHUT_RDWR, create_server
from typing import Any

import pytest
from cluster_fixtures import ControlPod, claimed_folder
from cluster_tools import SANDBOX, TERMINAL, Admin, a_name, a_policy, an_approval, put_policy, wait_for

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
import concurrent.futures, json, socket, time
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
def reach_all(targets):
    with concurrent.futures.ThreadPoolExecutor(len(targets)) as threads:
        outcomes = {name: threads.submit(reach, *target) for name, target in targets.items()}
        return {name: outcome.result() for name, outcome in outcomes.items()}
"""


def probing(targets: dict[str, Any], granted: str = "") -> str:
    """Code that prints, as JSON, what comes of trying each target, once what is granted answers, or too late.

    A network plugin takes a moment until a permit works.
    """
    return f"""{PROBES}
targets, late = {targets!r}, time.monotonic() + 60
while {granted!r} in targets and reach(*targets[{granted!r}]) != "reached" and time.monotonic() < late:
    time.sleep(0.2)
print(json.dumps(reach_all(targets)))"""


def output(record: dict[str, Any]) -> Any:
    """What the code of a finished execution has printed last, as JSON."""
    status = record["status"]
    assert status["phase"] == "Succeeded", (status["reason"], status.get("message"), status.get("stderr"))
    return json.loads(status["stdout"]["text"].splitlines()[-1])


def finished(admin: Admin, code: str, *, name: str | None = None, **spec: Any) -> dict[str, Any]:
    """The record of an execution with this code, once it has ended."""
    name = name or a_name("permitted")
    admin.submit(name, code, **{"limits": SMALL, "timeoutSeconds": 100, **spec})
    return admin.wait_for_phase(name, *TERMINAL, seconds=200)


@pytest.fixture(scope="module", autouse=True)
def never_starts(admin: Admin) -> str:
    """An execution that waits for a mount that is not there: begun with the first test, looked at by the last."""
    mount = {"name": "one", "mountPath": "/mnt/one", "configMap": {"name": "nowhere"}}
    put_policy(admin, a_policy(mounts=[{"configMap": {"name": "nowhere"}}]))
    name = a_name("never-starts")
    admin.submit(name, "print(1)", limits=SMALL, mounts=[mount])
    admin.wait_for_phase(name, "Starting")
    return name


@pytest.fixture(scope="module")
def server(admin: Admin, make_control_pod) -> ControlPod:
    """A pod of another namespace that answers on three ports; it has the label `app` with its name."""
    pod = make_control_pod(a_name("server"), {"command": ["python3", "-I", "-c", SERVER]})
    admin.patch("pod", pod.name, {"metadata": {"labels": {"app": pod.name}}}, pod.namespace)
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
    node = admin.list("node", None)[0]
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
    all_reached, code = 'set(reach_all(targets).values()) == {"reached"}', f"{PROBES}\ntargets = {found!r}"
    unprotected_pod.wait_for("control: everything to answer an unprotected pod", all_reached, code)
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

    def denied() -> dict[str, Any] | None:
        """A network plugin may take longer to open the permit than the proof takes."""
        status = finished(admin, "print(1)", egress=[dns])["status"]
        return status if status["phase"] == "Denied" else None

    status = wait_for("the proof to find the permit open", denied)
    assert status["reason"] == "EgressNotEnforced"
    assert "Either a permit opens it" in status["message"]
    assert "startedAt" not in status


DENY_ALL = "codeexec-deny-all"
WAITS_UNTIL_THE_NETWORK_IS_OPEN = """
deadline = time.monotonic() + 40
while reach(*TARGETS["other pod"]) != "reached" and time.monotonic() < deadline:
    time.sleep(0.5)
"""


@pytest.fixture
def open_network(admin: Admin) -> Iterator[Callable[[str], None]]:
    """Takes the NetworkPolicy of the namespace away, and that of a pod. Both are there again whatever happens.

    A test that is ended by its time limit is ended by an exception, and finalizers run after that.
    """
    kept = admin.get("networkpolicy", DENY_ALL)
    kept["metadata"] = {key: kept["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}

    def open_it(pod: str) -> None:
        for name in (DENY_ALL, pod):
            admin.delete("networkpolicy", name, missing_ok=False)

    try:
        yield open_it
    finally:
        admin.apply(kept)

    def closed() -> bool:
        return finished(admin, "print(1)")["status"].get("egressProof", {}).get("verdict") == "Closed"

    wait_for("the network to be closed again", closed)


@pytest.mark.suspect
def test_the_second_layer_alone_holds_to_the_ports(admin, policy, server, addresses, open_network):
    """With every NetworkPolicy gone code still opens no other port, no datagram and no other kind of socket."""
    permit = permit_for(server)
    policy(egress=[permit])
    name = a_name("alone")
    code = f"{PROBES}\nTARGETS = {addresses!r}\n{WAITS_UNTIL_THE_NETWORK_IS_OPEN}\n"
    code += "print(json.dumps(reach_all(TARGETS)))"
    admin.submit(name, code, limits=SMALL, egress=[permit], timeoutSeconds=60)
    open_network(admin.wait_for_phase(name, "Running")["status"]["podName"])
    found = output(admin.wait_for_phase(name, *TERMINAL, seconds=75))
    control = {name for name in ("permitted port", "other pod") if found.pop(name) == "reached"}
    assert control == {"permitted port", "other pod"}, "control: the network was open; Landlock knows ports only"
    assert set(found.values()) == {"PermissionError"}, "refused by the layer in the pod, at once"


# --- a human decides ------------------------------------------------------------------------------------------------


@pytest.mark.suspect
def test_what_needs_approval_is_opened_by_exactly_that(admin, policy, server, addresses, approver):
    one, other = permit_for(server), permit_for(server, OTHER)
    policy(withApproval={"egress": [one, other]})
    names = {a_name("first"): one, a_name("second"): other}
    for name, permit in names.items():
        admin.submit(name, probing(addresses, "permitted port"), limits=SMALL, egress=[permit], timeoutSeconds=60)
    first, second = (admin.wait_for_phase(name, "AwaitingApproval") for name in names)
    assert "podName" not in first["status"]
    for record in (first, second):
        assert not admin.list("networkpolicy", labels=f"codeexec.dev/execution={record['metadata']['name']}")
    for change in (
        {"egress": [one]},
        {"egress": None},
        {"mounts": [{"name": "one", "configMap": {"name": "one"}, "mountPath": "/mnt/one"}]},
    ):
        refusal = admin.try_patch("cex", second["metadata"]["name"], {"spec": change})
        assert "is immutable: create a new CodeExecution instead" in str(refusal)
    wrong = an_approval(second, approver.me, grants=first["status"]["approval"]["grants"])
    approver.create(wrong)

    def not_counted(record: dict[str, Any]) -> bool:
        return "OtherGrants" in [one["reason"] for one in record["status"]["approval"].get("unused", ())]

    what = "an approval of another permit not to count"
    admin.wait_until(what, "cex", second["metadata"]["name"], not_counted)
    approver.create(an_approval(first, approver.me))
    found = output(admin.wait_for_phase(first["metadata"]["name"], *TERMINAL))
    assert {name for name, outcome in found.items() if outcome == "reached"} == {"permitted port"}
    assert admin.phase(second["metadata"]["name"]) == "AwaitingApproval"
    admin.patch("cex", second["metadata"]["name"], {"spec": {"cancelled": True}})


# --- how it is done -------------------------------------------------------------------------------------------------


def test_a_pod_of_a_pool_is_not_for_code_with_permits(admin, policy, server, addresses, make_pool):
    """Without one it is used, and reaches nothing, though the policy would allow a permit."""
    permit = permit_for(server)
    policy(egress=[permit])
    pool = make_pool(1)
    pool.ready(1)
    assert "poolName" not in finished(admin, "print(1)", egress=[permit])["status"]
    record = finished(admin, probing(addresses))
    assert record["status"]["poolName"] == pool.name, "control: without a permit it is used"
    assert "reached" not in output(record).values()
    assert record["status"]["egressProof"]["verdict"] == "Closed"
    assert "egress" not in record["status"]


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
    """A PersistentVolumeClaim of the sandbox namespace with a file, and a pod that may write to the same folder."""
    name = a_name("data")
    with claimed_folder(admin, name, SANDBOX, f"/var/lib/codeexec-{name}") as folder:
        writer = make_control_pod(
            a_name("writer"),
            {
                "command": ["sleep", "infinity"],
                "securityContext": {"runAsUser": 0},
                "volumeMounts": [{"name": "data", "mountPath": "/mnt/data"}],
            },
            volumes=[{"name": "data", **folder}],
        )
        writer("import os; os.chmod('/mnt/data', 0o777); open('/mnt/data/words.txt', 'w').write('from the claim')")
        yield name, writer


@pytest.fixture
def settings(admin: Admin) -> Iterator[str]:
    name = a_name("settings")
    meta = {"name": name, "namespace": SANDBOX}
    admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"words.txt": "from the map"}})
    yield name
    admin.delete("configmap", name, wait=True)


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
    admin.patch("cex", name, {"spec": {"cancelled": True}})


def test_what_is_not_there_is_named(admin, never_starts):
    """Last: it took the time that a start may take."""
    status = admin.wait_for_phase(never_starts, *TERMINAL)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "StartTimeout")
    assert "configmap:nowhere: check that each exists" in status["message"]
