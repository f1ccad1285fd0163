"""An image that no trusted key signed is named in no pod, and its caller reads why. All tests here run with a key."""

from typing import Any

import pytest
from chart.install import IMAGE
from cluster_tools import SANDBOX, wait_for
from component_stage import in_thread
from factories import A_SIGNING_KEY, ANOTHER_SIGNING_KEY
from image_release.signing import CYCLONEDX, statement

from codeexec_api.image_signatures import parse_keys
from executor_client import ExecutionNotStarted, PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)
UNSIGNED = IMAGE.replace("b" * 64, "c" * 64)
[TRUSTED] = parse_keys(A_SIGNING_KEY.public_pem)


@pytest.fixture
def policy(stage, operator):
    """Puts a policy with the unsigned image into the namespace, and takes it away again."""

    def put(*signatures: str) -> None:
        stage.put_policy(images=[UNSIGNED], imageSignatures=list(signatures))

    yield put
    stage.drop_policy()


@pytest.mark.parametrize(
    ("signatures", "why"),
    [
        ((), "imageSignatures has no signature of this digest"),
        (
            (ANOTHER_SIGNING_KEY.sign(statement(UNSIGNED)),),
            f"its signature is by another key, SHA256:{ANOTHER_SIGNING_KEY.hint}",
        ),
        ((A_SIGNING_KEY.sign(statement(UNSIGNED, CYCLONEDX, {})),), "an entry is not a signature of an image"),
    ],
    ids=["none", "another key", "bill of materials"],
)
async def test_an_image_without_a_trusted_signature_gets_no_pod(policy, stage, client, asking, agent, signatures, why):
    policy(*signatures)
    with pytest.raises(ExecutionNotStarted) as caught:
        await client.execute(HELLO, asking(image=UNSIGNED))
    message = str(caught.value)
    assert f"ImageNotVerified: image {UNSIGNED} is not verified: " in message
    assert why in message
    assert f"Trusted keys: {TRUSTED}" in message
    assert "imageSignatures of the ExecutionPolicy 'default' in namespace" in message
    record = stage.record(agent)
    stage.never_ran(record)
    assert not record["status"].get("podName")


async def test_with_a_signature_in_the_policy_it_runs(policy, stage, client, asking, agent):
    policy(A_SIGNING_KEY.sign(statement(UNSIGNED)))
    assert (await client.execute(HELLO, asking(image=UNSIGNED))).output == "hello\n"
    record = stage.record(agent)
    stage.ran_once(record)
    assert record["status"]["image"] == UNSIGNED


async def test_a_session_that_asks_for_it_is_denied(policy, stage, client, asking):
    policy()
    with pytest.raises(ExecutionNotStarted, match=r"ImageNotVerified: image .* is not verified"):
        await client.open_session(asking(image=UNSIGNED), wait=True)


async def test_a_pool_says_why_it_stays_empty(policy, stage, admin):
    policy()
    pool = {
        "apiVersion": "codeexec.dev/v1alpha1",
        "kind": "SandboxPool",
        "metadata": {"name": "unsigned", "namespace": SANDBOX},
        "spec": {"replicas": 1},
    }
    admin.apply(pool)

    def ready() -> dict[str, str] | None:
        conditions = admin.get("sandboxpool", "unsigned", SANDBOX).get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == "Ready" and one["reason"] == "ImageNotVerified"), None)

    try:
        found = await in_thread(wait_for, "the pool to say why", ready)
        assert found["status"] == "False"
        assert UNSIGNED in found["message"]
    finally:
        admin.delete("sandboxpool", "unsigned", wait=True)


async def test_another_key_counts_without_a_restart(operator, stage, admin, client, asking, stack):
    asked = stage.configuration
    other = {**asked, "data": {**asked["data"], "image-keys.pem": ANOTHER_SIGNING_KEY.public_pem}}

    def trust(configuration: dict[str, Any]) -> None:
        begin = operator.log.stat().st_size
        admin.apply(configuration)
        said = b"the configuration has changed, and is in force from now on: image_keys"
        wait_for("the operator to take the key", lambda: said in operator.log.read_bytes()[begin:])

    stack.callback(trust, asked)
    await in_thread(trust, other)
    with pytest.raises(ExecutionNotStarted, match="ImageNotVerified"):
        await client.execute(HELLO, asking())
