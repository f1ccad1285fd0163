"""R-10: no code is fetched from elsewhere to be run."""

import urllib.request

import pytest
from cluster_tools import a_name, an_execution
from conformance.attacks import FACTS

pytestmark = pytest.mark.remit("R-10")


def run_a_program_from_the_network():
    """download a program from another pod and run it"""
    with urllib.request.urlopen(FACTS["url"], timeout=FACTS["seconds"]) as answer:
        return eval(answer.read())


async def test_nothing_can_be_downloaded(attack, unprotected_pod):
    """A block that downloads a program to run it fails."""
    unprotected_pod("open('/opt/program.py', 'w').write('6 * 7')")
    await attack(run_a_program_from_the_network, facts={"url": f"http://{unprotected_pod.ip}:8000/program.py"})


def test_there_is_no_field_for_an_address(control, admin):
    """A request can't name an address to take code from: the API server refuses the field."""
    block = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
    good = an_execution(a_name("remote"), [block])
    control.succeeded("the same request without the field was accepted", admin.create(good, dry_run=True))
    for field in ("url", "codeFrom", "git"):
        bad = an_execution(a_name("remote"), [block | {field: "http://192.0.2.1/code.py"}])
        assert f'unknown field "spec.blocks[0].{field}"' in admin.try_create(bad, dry_run=True).message


def test_code_is_what_was_announced(control, admin):
    """Code whose SHA-256 is not the one that was announced does not run."""
    name, twin = a_name("swapped"), a_name("announced")
    admin.submit(twin, "print('announced')", limits={"cpu": "100m", "memory": "64Mi"})
    control.succeeded(
        "the same request with the announced code ran",
        admin.wait_for_phase(twin, "Succeeded")["status"]["stdout"]["text"] == "announced\n",
    )
    admin.submit(name, "print('announced')", payload={"block-0": b"print('another1')"})
    status = admin.wait_for_phase(name, "Denied")["status"]
    assert status["reason"] == "PayloadMismatch"
    assert "podName" not in status
