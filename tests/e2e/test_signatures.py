"""Images are signed by `make images`, which also attests what is in them, and the release runs no other."""

import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import image
from locked import locked

from codeexec_api.image_signatures import parse_keys, pre_authentication
from executor_client import ExecutionNotStarted

OF_THE_BASE = {"pip", "setuptools", "wheel"}
"""What the official image of Python brings along; Debian's has none of them."""


async def run(executor):
    return await executor.execute_code_blocks([CodeBlock("print('ran')", "python")], CancellationToken())


async def test_an_image_that_nobody_signed_is_refused(make_executor, policy):
    """The repository is allowed, and so is the image by the policy; what lacks is the signature."""
    unsigned = f"{image().split('@')[0]}@sha256:{'0' * 64}"
    policy(images=[image(), unsigned])
    with pytest.raises(
        ExecutionNotStarted, match=f"ImageNotVerified: image {unsigned} is not verified: imageSignatures"
    ):
        await run(make_executor(image=unsigned))
    assert (await run(make_executor())).stdout == "ran\n", "positive control"


def beside(reference: str) -> dict[str, Any]:
    """What stands beside an image in the local registry and is signed by the key in use, by the predicate's type."""
    registry, _, rest = reference.partition("/")
    repository, _, digest = rest.partition("@")

    def get(path: str) -> Any:
        accepted = {"Accept": "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json"}
        request = urllib.request.Request(f"http://{registry}/v2/{repository}/{path}", headers=accepted)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    [key] = parse_keys(Path(image("IMAGE_KEYS")).read_text())
    found = {}
    for listed in get(f"manifests/{digest.replace(':', '-')}")["manifests"]:
        [layer] = get(f"manifests/{listed['digest']}")["layers"]
        envelope = get(f"blobs/{layer['digest']}")["dsseEnvelope"]
        payload = base64.b64decode(envelope["payload"])
        if key.signed(pre_authentication(payload), base64.b64decode(envelope["signatures"][0]["sig"])):
            statement = json.loads(payload)
            assert f"sha256:{statement['subject'][0]['digest']['sha256']}" == digest
            found[statement["predicateType"]] = statement["predicate"]
    return found


@pytest.mark.parametrize("name", ["operator", "sandbox"])
def test_each_image_is_signed_and_says_what_is_in_it_and_what_it_was_made_of(name):
    if not image().startswith("localhost:"):
        pytest.skip("the images are in a registry of the user's")
    found = beside(image(f"{name.upper()}_IMAGE"))
    assert found["https://sigstore.dev/cosign/sign/v1"] == {}
    components = found["https://cyclonedx.org/bom"]["components"]
    pypi = {(one["name"], one["version"]) for one in components if one.get("purl", "").startswith("pkg:pypi/")}
    assert locked(name) <= pypi
    not_locked = {"codeexec", "codeexec-operator", *OF_THE_BASE}
    assert {name for name, _ in pypi} - not_locked == {name for name, _ in locked(name)}
    assert {"bash", "libc6"} <= {one["name"] for one in components if one.get("purl", "").startswith("pkg:deb/")}
    build = found["https://slsa.dev/provenance/v1"]["buildDefinition"]
    assert build["externalParameters"] == {"image": name}
    assert {one["name"] for one in build["resolvedDependencies"]} >= {"base", f"requirements/{name}.txt"}
