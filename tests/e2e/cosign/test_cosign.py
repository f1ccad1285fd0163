"""What `make images` signs, cosign verifies, and what cosign signs, the operator does (`make cosign`)."""

import base64
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_tools import ROOT, image
from image_release.registry import Repository
from image_release.signing import CYCLONEDX, PROVENANCE, SigningKey, statement

from codeexec_api.image_signatures import SIGN_PREDICATE, examine, parse_keys

Cosign = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def cosign(tmp_path_factory) -> Cosign:
    """Runs it; it has no state and no password."""
    folder = tmp_path_factory.mktemp("cosign")
    tools = subprocess.run([str(ROOT / "tests/cluster/tools.sh"), "--bin"], capture_output=True, text=True, check=True)
    program = Path(tools.stdout.strip()) / "cosign"
    environment = {**os.environ, "COSIGN_PASSWORD": "", "HOME": str(folder)}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(program), *map(str, arguments)]
        return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60)

    return call


def verify(cosign: Cosign, reference: str, key: Path, *kind: str) -> subprocess.CompletedProcess[str]:
    command = "verify-attestation" if kind else "verify"
    return cosign(command, "--key", str(key), "--insecure-ignore-tlog", *without_tls(reference), *kind, reference)


def without_tls(reference: str) -> tuple[str, ...]:
    """The test cluster's registry has none."""
    return ("--allow-http-registry",) if reference.startswith("localhost:") else ()


@pytest.mark.parametrize("name", ["operator", "sandbox"])
@pytest.mark.parametrize(
    ("kind", "predicate"),
    [((), None), (("--type", "cyclonedx"), CYCLONEDX), (("--type", "slsaprovenance1"), PROVENANCE)],
    ids=["signature", "bill of materials", "provenance"],
)
def test_cosign_verifies_what_make_images_wrote(cosign, tmp_path, name, kind, predicate):
    reference = image(f"{name.upper()}_IMAGE")
    verified = verify(cosign, reference, Path(image("IMAGE_KEYS")), *kind)
    assert verified.returncode == 0, verified.stderr
    if predicate:
        found = [json.loads(base64.b64decode(json.loads(line)["payload"])) for line in verified.stdout.splitlines()]
        assert {one["predicateType"] for one in found} == {predicate}
        assert {one["subject"][0]["digest"]["sha256"] for one in found} == {reference.partition("@sha256:")[2]}
    other = tmp_path / "other.pub"
    other.write_text(SigningKey.at(tmp_path / "other.key").public_pem)
    refused = verify(cosign, reference, other, *kind)
    assert refused.returncode != 0
    assert "accepted signatures do not match threshold" in refused.stderr


def test_cosign_refuses_what_was_changed(cosign, tmp_path):
    """A key of its own, whose only signature says more than was signed."""
    sandbox = image()
    key, public = SigningKey.at(tmp_path / "mine.key"), tmp_path / "mine.pub"
    public.write_text(key.public_pem)
    good = json.loads(key.sign(statement(sandbox)))
    changed = statement(sandbox).replace(b'"predicate":{}', b'"predicate":{"more":1}')
    good["dsseEnvelope"]["payload"] = base64.b64encode(changed).decode()
    Repository(sandbox).attach(json.dumps(good), SIGN_PREDICATE)
    assert verify(cosign, sandbox, public).returncode != 0
    Repository(sandbox).attach(key.sign(statement(sandbox)), SIGN_PREDICATE)
    assert verify(cosign, sandbox, public).returncode == 0, "positive control"


def test_the_operator_understands_what_cosign_signs(cosign, tmp_path):
    sandbox = image()
    key, bundle = tmp_path / "theirs", tmp_path / "bundle.json"
    assert cosign("generate-key-pair", "--output-key-prefix", str(key)).returncode == 0
    offline = ("--tlog-upload=false", "--use-signing-config=false", "--upload=false", "--yes")
    signed = cosign("sign", "--key", f"{key}.key", *offline, *without_tls(sandbox), "--bundle", str(bundle), sandbox)
    assert signed.returncode == 0, signed.stderr
    found = examine(bundle.read_text(), parse_keys(Path(f"{key}.pub").read_text()))
    assert (found.digest, found.problem) == (sandbox.partition("@sha256:")[2], "")
