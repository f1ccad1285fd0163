"""R-17: operator and client speak to the cluster and to nobody else."""

import json
import os
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
import yaml
from cluster_fixtures import REACH_PROBE
from cluster_tools import SYSTEM

pytestmark = pytest.mark.remit("R-17")

WATCHED_CLIENT = """
import asyncio, json, socket, sys
spoken_to = []
def watch(event, arguments):
    if event == "socket.connect":
        spoken_to.append(arguments[1])
    elif event == "socket.getaddrinfo":
        spoken_to.append(arguments[:2])
sys.addaudithook(watch)

with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
seen, spoken_to = list(spoken_to), []

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from executor_client import KubernetesCodeExecutor

async def main():
    async with KubernetesCodeExecutor(agent="watched") as executor:
        return await executor.execute_code_blocks([CodeBlock("print(1)", "python")], CancellationToken())

result = asyncio.run(main())
print(json.dumps([bool(seen), result.output, sorted({json.dumps(one) for one in spoken_to})]))
"""


def test_the_client_speaks_to_the_api_server_only(control, default_agent_kubeconfig):
    """In a whole run, from the import to the end, the client resolves and connects to nothing but the API server."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED_CLIENT],
        env={"PATH": os.environ["PATH"], "KUBECONFIG": default_agent_kubeconfig},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    seen, output, spoken_to = json.loads(done.stdout.splitlines()[-1])
    control.succeeded("the same watch saw a connection that the test made to a port of its own", seen)
    assert output == "1\n"
    with open(default_agent_kubeconfig) as file:
        server = urlsplit(yaml.safe_load(file)["clusters"][0]["cluster"]["server"])
    assert spoken_to
    assert {tuple(json.loads(one)) for one in spoken_to} == {(server.hostname, server.port)}


PEERS = """
import socket, struct
with open("/proc/net/tcp") as file:
    rows = [line.split()[1:4] for line in file.read().splitlines()[1:]]
served = {local.split(":")[1] for local, _, state in rows if state == "0A"}
peers = {remote.split(":")[0] for local, remote, _ in rows if local.split(":")[1] not in served}
print(*[socket.inet_ntoa(struct.pack("<I", int(peer, 16))) for peer in peers])
"""


async def test_the_operator_speaks_to_the_cluster_only(control, sandbox, admin, unprotected_pod):
    """The operator can't reach port 8000 of a pod. Its TCP connections lead to the API server, DNS and its probes."""
    status = sandbox.record(await sandbox.call("print('ran')"))["status"]
    assert status["phase"] == "Succeeded"
    run = ["-n", SYSTEM, "exec", "-i", "deployment/codeexec-operator", "--", "python3", "-"]
    attempt = f"{REACH_PROBE}print(reaches({unprotected_pod.ip!r}, 8000))"
    control.succeeded("the unprotected pod reached the same port", unprotected_pod(attempt) == "True\n")
    assert admin.kubectl(*run, stdin=attempt) == "False\n"
    api = admin.get("service", "kubernetes", "default")["spec"]["clusterIP"]
    behind = endpoints(admin, "default", "kubernetes")
    probed = {target["address"] for target in status["egressProof"]["targets"]}
    peers = set(admin.kubectl(*run, stdin=PEERS).split()) - {"127.0.0.1"}
    assert peers & {api, *behind}
    assert peers <= {api, *behind} | probed | endpoints(admin, "kube-system", "kube-dns")


def endpoints(admin, namespace, service):
    """Addresses behind a service: a network plugin may show these instead of the service's own."""
    slices = admin.list("endpointslice", namespace, labels=f"kubernetes.io/service-name={service}")
    return {address for one in slices for end in one["endpoints"] for address in end["addresses"]}
