"""No traffic leaves the sandbox, DNS included. The same probes succeed in an unprotected pod."""

import asyncio
import json

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX

pytestmark = pytest.mark.e2e

PROBE = """
import json, socket, ssl, struct
def dns_answers(address):
    query = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0)
    query += b"".join(bytes([len(part)]) + part for part in b"kubernetes.default.svc.cluster.local".split(b"."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(3)
        probe.sendto(query + struct.pack(">BHH", 0, 1, 1), (address, 53))
        return len(probe.recv(512)) > len(query)
def tcp_connects(address, port):
    with socket.create_connection((address, port), 3):
        return True
def attempt(probe, *arguments):
    try:
        return probe(*arguments)
    except OSError:
        return False
targets = {targets!r}
print(json.dumps({{
    name: attempt(dns_answers, address) if port == 53 else attempt(tcp_connects, address, port)
    for name, (address, port) in targets.items()
}}))
"""


@pytest.fixture(scope="session")
def targets(admin, unprotected_pod):
    def service(namespace, name):
        return admin.get("service", name, namespace)["spec"]["clusterIP"]

    [node] = json.loads(admin.kubectl("get", "nodes", "-o", "json"))["items"]
    [address] = [one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP"]
    return {
        "canary pod": (unprotected_pod.ip, 8000),
        "API server": (service("default", "kubernetes"), 443),
        "kubelet": (address, 10250),
        "DNS": (service("kube-system", "kube-dns"), 53),
    }


async def test_sandbox_reaches_nothing(executor, unprotected_pod, targets):
    probe = PROBE.format(targets=targets)
    assert json.loads(unprotected_pod(probe)) == dict.fromkeys(targets, True), "positive control"
    result = await executor.execute_code_blocks([CodeBlock(probe, "python")], CancellationToken())
    assert json.loads(result.output) == dict.fromkeys(targets, False)


REACH = """
import socket
try:
    socket.create_connection(({address!r}, 8000), 3)
    print("open")
except OSError:
    print("closed")
"""


async def test_nothing_reaches_the_sandbox(make_executor, admin, unprotected_pod):
    executor = make_executor(timeout=30, agent="e2e-ingress")
    token = CancellationToken()
    server = CodeBlock("python3 -m http.server 8000 --bind 0.0.0.0", "sh")
    running = asyncio.create_task(executor.execute_code_blocks([server], token))

    execution = await asyncio.to_thread(admin.running_execution, "e2e-ingress")
    pod = admin.execution(execution)["status"]["podName"]
    address = admin.pod(SANDBOX, pod)["status"]["podIP"]
    assert unprotected_pod(REACH.format(address=unprotected_pod.ip)) == "open\n", "positive control"
    assert unprotected_pod(REACH.format(address=address)) == "closed\n"
    token.cancel()
    assert "cancelled" in (await running).output
