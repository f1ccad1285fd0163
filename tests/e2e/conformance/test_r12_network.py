"""R-12: nothing goes out, DNS included, from the first instruction on; two layers, and a proof before any code."""

import json
import socket

import pytest
from cluster_fixtures import REACH_PROBE
from conformance.network_attacks import REACHES, SOCKETS

pytestmark = pytest.mark.remit("R-12")


@pytest.mark.runtimes("runc", "gvisor")
async def test_nothing_is_reached(attack, addresses):
    """Code reaches no pod, no API server, no kubelet and no DNS, and resolves no name."""
    await attack(*REACHES, facts=addresses)


async def test_no_socket_can_be_opened(attack):
    """Code can open no socket that leaves its pod, of whatever family, and no io_uring."""
    await attack(*SOCKETS)


FAMILIES = """
import json, socket
def opens(family):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind).close()
            return True
        except OSError:
            continue
    return False
print(json.dumps([family for family in range(1, 64) if opens(family)]))
"""


@pytest.mark.runtimes("runc", "gvisor")
async def test_only_sockets_of_the_pod_itself_are_left(control, everywhere, unprotected_pod):
    """Of all families of sockets only AF_UNIX can be opened, whose peers are in the same pod."""
    there = set(json.loads(unprotected_pod(FAMILIES)))
    control.succeeded(
        "in the unprotected pod sockets of AF_INET, AF_INET6, AF_NETLINK and AF_PACKET could be opened",
        there >= {socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET},
    )

    async def probe(sandbox):
        assert json.loads((await sandbox.call(FAMILIES)).stdout) == [socket.AF_UNIX]

    await everywhere(probe)


@pytest.mark.runtimes("runc", "gvisor")
async def test_the_network_is_shown_to_be_closed_before_code_runs(control, everywhere, unprotected_pod):
    """The record shows that before the code started the sandbox reached none of its targets, and the operator all."""

    async def probe(sandbox):
        status = sandbox.record(await sandbox.run("print('ran')"))["status"]
        proof = status["egressProof"]
        targets = {f"{one['name']} {one['protocol']}": one for one in proof["targets"]}
        assert proof["verdict"] == "Closed"
        assert proof["checkedAt"] <= status["startedAt"]
        assert {"api-server", "dns", "kubelet", "canary"} <= {name.split()[0] for name in targets}
        assert {name for name, one in targets.items() if not one["refused"]} == set()
        assert {name for name, one in targets.items() if not one["reachable"]} == set()
        assert {"NetworkPolicy", "Seccomp"} <= set(status["layers"])
        return [(one["address"], one["port"]) for one in targets.values() if one["protocol"] == "TCP"]

    places = sorted({tuple(place) for found in await everywhere(probe) for place in found})
    attempt = f"import json\n{REACH_PROBE}print(json.dumps([reaches(*place) for place in {places!r}]))"
    there = json.loads(unprotected_pod(attempt))
    control.succeeded("the unprotected pod reached the same targets", places and all(there))
