"""Signatures of images: what they say, and whose they are. Pure.

A signature is a Sigstore bundle as `cosign sign --key` writes it: a DSSE envelope around an in-toto statement that
names the digest of the image. Bundles of other predicates, such as bills of materials, are no signatures of an image,
even if the same key signed them.
"""

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
)

from codeexec_api.digests import SHA256_HEX

BUNDLE_TYPES: Final = (
    "application/vnd.dev.sigstore.bundle.v0.3+json",
    "application/vnd.dev.sigstore.bundle+json;version=0.3",
)
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
SIGN_PREDICATE: Final = "https://sigstore.dev/cosign/sign/v1"
"""What a statement is about if it says no more than that an image is signed."""
_PEM: Final = re.compile(r"-----BEGIN [A-Z ]+-----.+?-----END [A-Z ]+-----", re.DOTALL)
_KEY_RULE: Final = "PEM of a public ECDSA key on P-256, as `cosign generate-key-pair` makes it"


@dataclass(frozen=True)
class ImageKey:
    """A public key that signs images."""

    der: bytes

    @classmethod
    def parse(cls, pem: str) -> Self:
        """From PEM.

        Raises:
            ValueError: it is no key of the kind that is used here.
        """
        try:
            key = load_pem_public_key(pem.encode())
        except (ValueError, UnsupportedAlgorithm):
            raise ValueError(f"it is not a public key (allowed: {_KEY_RULE})") from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ValueError(f"it is a public key of another kind (allowed: {_KEY_RULE})")
        return cls(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))

    def __str__(self) -> str:
        """What a bundle names the key by."""
        return f"SHA256:{base64.b64encode(hashlib.sha256(self.der).digest()).decode()}"

    def signed(self, message: bytes, signature: bytes) -> bool:
        """True if the signature of the message is by this key."""
        key = load_der_public_key(self.der)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        try:
            key.verify(signature, message, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


def parse_keys(text: str) -> tuple[ImageKey, ...]:
    """All keys of a file.

    Raises:
        ValueError: one of them is none, or there is none.
    """
    blocks = _PEM.findall(text)
    if not blocks or _PEM.sub("", text).strip():
        raise ValueError(f"the public keys of images can't be read (allowed: {_KEY_RULE}, one or more)")
    keys = []
    for number, block in enumerate(blocks, 1):
        try:
            keys.append(ImageKey.parse(block))
        except ValueError as error:
            raise ValueError(f"public key {number} of images: {error}") from None
    return tuple(keys)


@dataclass(frozen=True)
class Finding:
    """What a bundle turned out to be."""

    digest: str = ""
    """SHA-256 of the image that it is about, in hexadecimal; empty if it is about none."""
    problem: str = ""
    """Why it doesn't count; empty if it does."""


def pre_authentication(payload: bytes) -> bytes:
    """What a DSSE signature signs."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


@lru_cache(maxsize=1024)
def examine(bundle: str, keys: tuple[ImageKey, ...]) -> Finding:
    """What a bundle says, and whether one of the keys signed it."""
    try:
        payload, signature, hint = _opened(bundle)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Finding(problem="an entry is not a Sigstore bundle (version 0.3) with a DSSE envelope and a public key")
    try:
        digest = _signed_image(payload)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return Finding(problem=f"an entry is not a signature of an image: {error}")
    if any(key.signed(pre_authentication(payload), signature) for key in keys):
        return Finding(digest)
    known = next((key for key in keys if str(key) == f"SHA256:{hint}"), None)
    return Finding(
        digest,
        f"its signature does not match its content, and names the key {known}"
        if known
        else f"its signature is by another key, SHA256:{hint}",
    )


def _opened(bundle: str) -> tuple[bytes, bytes, str]:
    """Payload, signature, and what the key is named by."""
    content = json.loads(bundle)
    if content["mediaType"] not in BUNDLE_TYPES:
        raise ValueError("another version")
    envelope = content["dsseEnvelope"]
    (signature,) = envelope["signatures"]
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise ValueError("another payload")
    hint = str(content["verificationMaterial"]["publicKey"].get("hint", ""))[:64]
    return _decoded(envelope["payload"]), _decoded(signature["sig"]), hint


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _signed_image(payload: bytes) -> str:
    """The digest of the image that a statement is about."""
    statement: dict[str, Any] = json.loads(payload)
    if statement["predicateType"] != SIGN_PREDICATE:
        raise ValueError(f"its predicate is {str(statement['predicateType'])[:200]} (allowed: {SIGN_PREDICATE})")
    (subject,) = statement["subject"]
    digest = str(subject["digest"]["sha256"])
    if not SHA256_HEX.fullmatch(digest):
        raise ValueError("it names no digest")
    return digest
