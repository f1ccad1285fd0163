"""Input that is not what it says gets an error that names the cause and the fix.

conformance/test_r11_errors.py has the usual failures, fake_cases.py those of policy and payload, test_cli.py a
namespace that no operator serves, component/test_lifecycle.py a quota that is used up and a Secret of somebody else,
tests/api those that need no node.
"""

from cluster_tools import a_name, image, signatures

SMALL = {"cpu": "100m", "memory": "96Mi"}


def test_sandbox_image_without_a_runner(admin, policy):
    operator = image("OPERATOR_IMAGE")
    policy(images=[operator], imageSignatures=signatures(operator))
    name = a_name("norunner")
    admin.submit(name, "print(1)", limits=SMALL)
    status = admin.wait_for_phase(name, "Failed")["status"]
    assert status["reason"] == "RunnerFailed"
    assert "check that the image is a codeexec sandbox image" in status["message"]
