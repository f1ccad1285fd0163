"""Statements about an image, signed by a key."""

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from codeexec_api.image_signatures import BUNDLE_TYPES, PAYLOAD_TYPE, SIGN_PREDICATE, ImageKey, pre_authentication

ROOT: Final = Path(__file__).parents[3]
FOLDER: Final = Path(os.environ.get("CODEEXEC_SIGNATURES", ROOT / ".codeexec" / "signatures"))
"""The key that was made, the public key in use, and for each image its signature and what is attested of it."""
CYCLONEDX: Final = "https://cyclonedx.org/bom"
PROVENANCE: Final = "https://slsa.dev/provenance/v1"
_STATEMENT: Final = "https://in-toto.io/Statement/v1"
_RULE: Final = "PEM (PKCS#8) of an ECDSA key on P-256"


@dataclass(frozen=True, repr=False)
class SigningKey:
    """A private key."""

    key: ec.EllipticCurvePrivateKey

    @classmethod
    def load(cls, path: Path, password: str | None = None) -> Self:
        """From a file, which errors name and don't quote."""
        try:
            key = load_pem_private_key(path.read_bytes(), password.encode() if password else None)
        except (ValueError, TypeError) as error:
            raise SystemExit(f"error: {path} can't be read as a signing key: {error} (allowed: {_RULE})") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise SystemExit(f"error: {path} is a key of another kind (allowed: {_RULE})")
        return cls(key)

    @classmethod
    def at(cls, path: Path) -> Self:
        """The key of this file, which is made if it isn't there, readable for its owner only."""
        if not path.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(pem)
        return cls.load(path)

    @property
    def public_pem(self) -> str:
        """The public key."""
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    @property
    def hint(self) -> str:
        """What bundles name the key by."""
        return str(ImageKey.parse(self.public_pem)).removeprefix("SHA256:")

    def sign(self, statement: bytes) -> str:
        """A bundle. The same statement gives the same bundle each time."""
        algorithm = ec.ECDSA(SHA256(), deterministic_signing=True)
        signature = self.key.sign(pre_authentication(statement), algorithm)
        content = {
            "mediaType": BUNDLE_TYPES[0],
            "verificationMaterial": {"publicKey": {"hint": self.hint}},
            "dsseEnvelope": {
                "payload": base64.b64encode(statement).decode(),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": base64.b64encode(signature).decode()}],
            },
        }
        return json.dumps(content, separators=(",", ":"))


def signing_key() -> SigningKey:
    """That of CODEEXEC_SIGNING_KEY, or one of our own; its public key is written beside the signatures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    given, password = os.environ.get("CODEEXEC_SIGNING_KEY"), os.environ.get("CODEEXEC_SIGNING_KEY_PASSWORD")
    key = SigningKey.load(Path(given), password) if given else SigningKey.at(FOLDER / "signing.key")
    (FOLDER / "signing.pub").write_text(key.public_pem)
    return key


def statement(reference: str, predicate_type: str = SIGN_PREDICATE, predicate: Any = None) -> bytes:
    """An in-toto statement about an image; without a predicate it says that the image is signed."""
    name, _, digest = reference.partition("@sha256:")
    subject: dict[str, Any] = {"digest": {"sha256": digest}}
    if predicate is not None:
        subject = {"name": name, **subject}
    content = {"_type": _STATEMENT, "subject": [subject], "predicateType": predicate_type, "predicate": predicate or {}}
    return json.dumps(content, separators=(",", ":")).encode()
