"""R-18: nothing is fetched at run time."""

import os
import sysconfig
import urllib.request

import pytest
from cluster_tools import a_name, a_policy, an_execution, image
from conformance.attacks import FACTS
from conformance.sandbox import BESIDE_OTHERS

pytestmark = pytest.mark.remit("R-18")


def test_a_tag_is_refused(control, admin):
    """An image that is named by a tag is refused, in executions and in policies."""
    block = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
    tagged = f"{image().split('@')[0]}:latest"
    for kind, make in (
        ("an execution", lambda name: an_execution(a_name("tag"), [block], image=name)),
        ("a policy", lambda name: a_policy(images=[name])),
    ):
        accepted = admin.create(make(image()), dry_run=True)
        control.succeeded(f"{kind} that names the same image by digest was accepted", accepted)
        assert "@sha256:" in admin.try_create(make(tagged), dry_run=True).message


async def test_only_images_of_the_policy_run(control, sandbox):
    """An image that the policy does not name is denied; the one that ran is the one that was named, by digest."""
    foreign = f"registry.example/other@sha256:{'1' * 64}"
    denied = await sandbox.run("print('ran')", image=foreign)
    assert (denied.exit_code, denied.stdout) == (1, "")
    assert f'image="{foreign}" is not allowed by the policy' in denied.output
    allowed = await sandbox.run("print('ran')", image=image(), limits=BESIDE_OTHERS)
    control.succeeded("the same call with an image of the policy ran", allowed.output == "ran\n")
    status = sandbox.record(allowed)["status"]
    assert status["image"] == image()
    assert status["imageID"].split("@")[1] == image().split("@")[1]


def fetch_a_module():
    """fetch a module from an index and import it"""
    with urllib.request.urlopen(FACTS["url"], timeout=FACTS["seconds"]) as answer, open("fetched.py", "wb") as file:
        return file.write(answer.read())


def add_to_the_packages():
    """put a module where Python finds packages"""
    path = sysconfig.get_path("purelib")
    os.makedirs(path, exist_ok=True)
    with open(f"{path}/codeexec_added.py", "w") as file:
        return file.write("x = 1\n")


async def test_nothing_can_be_installed(attack, unprotected_pod):
    """Code can neither fetch a module nor put one where Python finds packages."""
    unprotected_pod("open('/opt/module.py', 'w').write('x = 1')")
    url = f"http://{unprotected_pod.ip}:8000/module.py"
    await attack(fetch_a_module, add_to_the_packages, facts={"url": url})
