"""Small code that travels inside the CodeExecution, so encrypted that only the operator can read it.

HPKE (RFC 9180) with X25519, HKDF-SHA256 and AES-128-GCM, bound to the execution that it is for. The operator makes the
keys and throws them away after a day or two; what they opened stays closed from then on, in every copy of the record.
"""

import base64
import json
from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from codeexec_api.names import API_VERSION, KEY_NAME, PUBLIC_KEY
from codeexec_api.v1alpha1.bounds import MAX_SEALED_BYTES
from codeexec_api.v1alpha1.execution import SealedPayload

_SUITE: Final = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_128_GCM)


def make_private_key() -> bytes:
    """A new private key, 32 bytes."""
    return X25519PrivateKey.generate().private_bytes_raw()


def publish(key_name: str, private_key: bytes) -> dict[str, str]:
    """The data of the ConfigMap that clients find the key in."""
    public = X25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()
    return {KEY_NAME: key_name, PUBLIC_KEY: base64.b64encode(public).decode()}


def is_sealable(payload: Mapping[str, bytes]) -> bool:
    """True if a payload is small enough to travel in the CodeExecution."""
    return sum(map(len, payload.values())) <= MAX_SEALED_BYTES


def seal(payload: Mapping[str, bytes], published: Mapping[str, str], namespace: str, name: str) -> SealedPayload:
    """Encrypt a payload for one execution.

    Args:
        payload: content of each block and file by its key.
        published: the data of the ConfigMap with the key.
        namespace: of the execution.
        name: of the execution; under another name it can't be opened.

    Raises:
        ValueError: what was published is no key.
    """
    try:
        key_name, key = published[KEY_NAME], base64.b64decode(published[PUBLIC_KEY], validate=True)
        public = X25519PublicKey.from_public_bytes(key)
        plain = json.dumps({key: base64.b64encode(content).decode() for key, content in payload.items()}).encode()
        data = _SUITE.encrypt(plain, public, info=_bound_to(namespace, name))
    except (KeyError, ValueError) as error:  # not each 32 bytes are a key, which shows only when it is used
        raise ValueError(f"no public key: {error!r}") from error
    return SealedPayload(key_name=key_name, data=base64.b64encode(data).decode())


def unseal(sealed: SealedPayload, private_key: bytes, namespace: str, name: str) -> dict[str, str]:
    """What was sealed, as base64 by key: the form that the data of a Secret has.

    Raises:
        ValueError: it was sealed for another key or another execution, or is damaged.
    """
    private = X25519PrivateKey.from_private_bytes(private_key)
    try:
        data = base64.b64decode(sealed.data, validate=True)
        plain = json.loads(_SUITE.decrypt(data, private, info=_bound_to(namespace, name)))
    except (InvalidTag, ValueError, RecursionError) as error:  # its text may hold what was sealed
        raise ValueError(type(error).__name__) from None
    if not isinstance(plain, dict) or not all(isinstance(one, str) for one in plain.values()):
        raise ValueError("no object of strings")
    return plain


def _bound_to(namespace: str, name: str) -> bytes:
    return f"{API_VERSION} payload of {namespace}/{name}".encode()
