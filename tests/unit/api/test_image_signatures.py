"""Signatures of images: only a statement that an image is signed counts, by a trusted key, and unchanged."""

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from factories import A_SIGNING_KEY, ANOTHER_SIGNING_KEY, IMAGE
from hypothesis import given
from hypothesis import strategies as st
from image_release.signing import CYCLONEDX, statement

from codeexec_api.image_signatures import Finding, ImageKey, examine, parse_keys

DIGEST = IMAGE.partition("@sha256:")[2]
KEYS = parse_keys(A_SIGNING_KEY.public_pem)
BUNDLE = A_SIGNING_KEY.sign(statement(IMAGE))
NO_BUNDLE = "an entry is not a Sigstore bundle (version 0.3) with a DSSE envelope and a public key"


# What cosign 3.1.3 wrote: `cosign sign --key cosign.key --tlog-upload=false --use-signing-config=false --bundle …`.
COSIGNS_KEY = """-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEkEXZqlJv0iRLmgoZjAJO+t2Q09sb
zXiU5p1nitaQZiV/q3yXZSkVL0avpDMvSupETrBFLH2AU9XwwWFuDlo/Kw==
-----END PUBLIC KEY-----
"""
COSIGNS_PAYLOAD = (
    "eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEiLCAic3ViamVjdCI6W3siZGlnZXN0Ijp7InNoYTI1"
    "NiI6IjM5NjY0NTRlMjNmZWFmZTQyY2Q0ZmU3YTk5OGEyMGU3MDVkNjdhNzZlMDIxNTFkYmVkODg0Yjc4MmJiZGRkZTUifSwg"
    "ImFubm90YXRpb25zIjp7fX1dLCAicHJlZGljYXRlVHlwZSI6Imh0dHBzOi8vc2lnc3RvcmUuZGV2L2Nvc2lnbi9zaWduL3Yx"
    "IiwgInByZWRpY2F0ZSI6e319"
)
COSIGNS_BUNDLE = (
    '{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json", "verificationMaterial":{"publicKey":{"hint":'
    '"xc5/UgLDsJaqtUGJ8I/MiJ45XF4zWvkfUt4rp5XJwUs="}}, "dsseEnvelope":{"payload":"'
    + COSIGNS_PAYLOAD
    + '", "payloadType":"application/vnd.in-toto+json", "signatures":[{"sig":'
    '"MEQCIGUb9zYZFYBXCC50dI1SqUAJMsOMO7KeZ6qxBYn9jU9XAiAai8mmk0MuJUNs87ZU3Qn+3xg9ffKjj5zIkeiVL/hi3Q=="}]}}'
)


def pem(key: Any) -> str:
    return str(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def changed(**envelope: Any) -> str:
    content = json.loads(BUNDLE)
    content["dsseEnvelope"] |= envelope
    return json.dumps(content)


def test_a_signature_by_a_trusted_key_counts() -> None:
    assert examine(BUNDLE, KEYS) == Finding(DIGEST)
    both = parse_keys(ANOTHER_SIGNING_KEY.public_pem + A_SIGNING_KEY.public_pem)
    assert examine(BUNDLE, both) == Finding(DIGEST), "any of several, as while a key is replaced"


def test_what_cosign_writes_is_understood() -> None:
    keys = parse_keys(COSIGNS_KEY)
    found = examine(COSIGNS_BUNDLE, keys)
    assert found == Finding("3966454e23feafe42cd4fe7a998a20e705d67a76e02151dbed884b782bbddde5")
    assert json.loads(COSIGNS_BUNDLE)["verificationMaterial"]["publicKey"]["hint"] == str(keys[0]).removeprefix(
        "SHA256:"
    )
    assert examine(COSIGNS_BUNDLE, KEYS).problem.startswith("its signature is by another key"), "negative control"


def test_a_signature_by_another_key_does_not() -> None:
    bundle = ANOTHER_SIGNING_KEY.sign(statement(IMAGE))
    assert examine(bundle, KEYS) == Finding(
        DIGEST, f"its signature is by another key, SHA256:{ANOTHER_SIGNING_KEY.hint}"
    )
    named = json.loads(bundle)
    named["verificationMaterial"]["publicKey"]["hint"] = A_SIGNING_KEY.hint
    found = examine(json.dumps(named), KEYS)
    assert found == Finding(DIGEST, f"its signature does not match its content, and names the key {KEYS[0]}")


def test_what_was_changed_after_it_was_signed_does_not() -> None:
    other = IMAGE.replace("a" * 64, "c" * 64)
    payload = base64.b64encode(statement(other)).decode()
    assert examine(changed(payload=payload), KEYS).problem.startswith("its signature does not match its content")
    assert examine(A_SIGNING_KEY.sign(statement(other)), KEYS) == Finding("c" * 64), "positive control"


def test_a_signature_under_a_type_that_it_does_not_sign_is_none() -> None:
    assert examine(changed(payloadType="text/plain"), KEYS) == Finding(problem=NO_BUNDLE)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (statement(IMAGE, CYCLONEDX, {"bomFormat": "CycloneDX"}), f"its predicate is {CYCLONEDX}"),
        (b'{"predicateType": "https://sigstore.dev/cosign/sign/v1", "subject": []}', "not enough values"),
        (statement("sandbox@sha256:abc"), "it names no digest"),
    ],
)
def test_other_statements_by_the_same_key_are_no_signatures_of_an_image(content: bytes, said: str) -> None:
    found = examine(A_SIGNING_KEY.sign(content), KEYS)
    assert found.digest == ""
    assert found.problem.startswith("an entry is not a signature of an image: ")
    assert said in found.problem


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "no JSON",
        "[" * 100_000,
        changed(payload="no base64!"),
        changed(payload=3),
        changed(signatures=[]),
        changed(signatures=[{"sig": "YQ=="}, {"sig": "YQ=="}]),
        BUNDLE.replace("v0.3", "v0.9"),
        BUNDLE.replace("publicKey", "certificate"),
        json.dumps(json.loads(BUNDLE) | {"verificationMaterial": {"publicKey": "text"}}),
    ],
)
def test_what_is_no_bundle_is_not_taken_for_one(text: str) -> None:
    assert examine(text, KEYS) == Finding(problem=NO_BUNDLE)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@given(st.sampled_from(["mediaType", "verificationMaterial", "dsseEnvelope"]), _JSON)
def test_nothing_else_that_stands_in_a_bundle_is_taken_for_a_signature(field: str, value: Any) -> None:
    assert examine(json.dumps(json.loads(BUNDLE) | {field: value}), KEYS).problem == NO_BUNDLE


@given(_JSON)
def test_no_other_statement_is_one_about_an_image(value: Any) -> None:
    assert examine(A_SIGNING_KEY.sign(json.dumps(value).encode()), KEYS).problem


@given(st.binary(max_size=80))
def test_no_other_signature_fits(signature: bytes) -> None:
    bundle = changed(signatures=[{"sig": base64.b64encode(signature).decode()}])
    assert examine(bundle, KEYS).problem


def test_a_key_is_named_as_cosign_names_it() -> None:
    """By the SHA-256 of its DER, in base64: the hint of a bundle."""
    assert str(KEYS[0]) == f"SHA256:{json.loads(BUNDLE)['verificationMaterial']['publicKey']['hint']}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "can't be read"),
        ("-----BEGIN", "can't be read"),
        (A_SIGNING_KEY.public_pem + "and more", "can't be read"),
        (
            pem(ed25519.Ed25519PrivateKey.generate().public_key()),
            "public key 1 of images: it is a public key of another",
        ),
        (
            A_SIGNING_KEY.public_pem + pem(ec.generate_private_key(ec.SECP384R1()).public_key()),
            "public key 2 of images",
        ),
        (A_SIGNING_KEY.public_pem.replace("M", "N", 1), "it is not a public key"),
        ("-----BEGIN PRIVATE KEY-----\nYQ==\n-----END PRIVATE KEY-----", "it is not a public key"),
    ],
)
def test_what_is_no_key_is_told(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parse_keys(text)
    assert "allowed: PEM of a public ECDSA key on P-256" in str(caught.value)


def test_a_private_key_is_not_quoted() -> None:
    with pytest.raises(ValueError, match="it is not a public key") as caught:
        ImageKey.parse("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----")
    assert "c2VjcmV0" not in str(caught.value)
