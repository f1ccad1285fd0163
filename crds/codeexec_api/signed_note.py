"""Text with an Ed25519 signature, in the form that transparency logs use: C2SP signed-note. Pure.

A note is the text, an empty line, and a line for each signature: an em dash, the key's name, and base64 of the key's id
and the signature. Notes and keys can be read and written by other software that knows this form.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_ED25519: Final = b"\x01"
"""Kind of the key and of the signature."""
_ID_BYTES: Final = 4
_KEY_BYTES: Final = 32
_SIGNATURE: Final = "\u2014 "
_PRIVATE: Final = "PRIVATE+KEY+"
_NAME: Final = re.compile(r"[A-Za-z0-9._:/@-]{1,200}")
_NAME_RULE: Final = "1 to 200 letters, digits and . _ : / @ -"
_PUBLIC_RULE: Final = "NAME+ID+KEY on one line, as `codeexec audit keygen` prints it"
_PRIVATE_RULE: Final = f"{_PRIVATE}NAME+ID+KEY on one line, as `codeexec audit keygen` writes it"


@dataclass(frozen=True)
class VerifyingKey:
    """The public key, and the name of the origin whose notes it verifies."""

    name: str
    raw: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """From its text.

        Raises:
            ValueError: it is none.
        """
        name, told, raw = _parse(text.strip(), "a public key", _PUBLIC_RULE)
        key = cls(name, raw)
        if key.id != told:
            raise ValueError(f"it was changed: {told.hex()} is not the ID of this name and key")
        return key

    @property
    def id(self) -> bytes:
        """What a signature names the key by, besides its name."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.raw).digest()[:_ID_BYTES]

    def __str__(self) -> str:
        return _text(self.name, self.id, self.raw)

    def open(self, note: bytes) -> str:
        """The text of a note.

        Raises:
            ValueError: it is no note, or has no valid signature by this key.
        """
        try:
            text, separator, signatures = note.decode().rpartition("\n\n")
            if not separator or not signatures.endswith("\n"):
                raise ValueError("it lacks an empty line and a signature below its text")
            signers = dict(map(_signature, reversed(signatures.splitlines())))
        except UnicodeDecodeError as error:
            raise ValueError("it is not UTF-8 text") from error
        signature = signers.get((self.name, self.id))
        if signature is None:
            found = ", ".join(f"{name}+{of.hex()}" for name, of in signers)
            raise ValueError(f"it is signed by the unknown key {found}; the known key is {self.name}+{self.id.hex()}")
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, f"{text}\n".encode())
        except InvalidSignature:
            raise ValueError(f"its signature by {self.name}+{self.id.hex()} does not match its content") from None
        return f"{text}\n"


@dataclass(frozen=True, repr=False)
class SigningKey:
    """The private key, and the name of the origin that signs with it."""

    name: str
    seed: bytes

    @classmethod
    def generate(cls, name: str) -> Self:
        """A new one.

        Raises:
            ValueError: the name can't stand in a note.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} can't be the name of a key (allowed: {_NAME_RULE})")
        return cls(name, Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def parse(cls, text: str) -> Self:
        """From its text, which is not quoted in errors.

        Raises:
            ValueError: it is none.
        """
        text = text.strip()
        if not text.startswith(_PRIVATE):
            raise ValueError(f"it is not a signing key (allowed: {_PRIVATE_RULE})")
        name, told, seed = _parse(text.removeprefix(_PRIVATE), "a signing key", _PRIVATE_RULE)
        key = cls(name, seed)
        if key.public.id != told:
            raise ValueError(f"it was changed: {told.hex()} is not the ID of this name and key")
        return key

    @property
    def public(self) -> VerifyingKey:
        """What notes of this key are verified by."""
        return VerifyingKey(self.name, Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw())

    def __str__(self) -> str:
        return _PRIVATE + _text(self.name, self.public.id, self.seed)

    def sign(self, text: str) -> bytes:
        """A note of this text, which ends with a newline."""
        signature = Ed25519PrivateKey.from_private_bytes(self.seed).sign(text.encode())
        encoded = base64.b64encode(self.public.id + signature).decode()
        return f"{text}\n{_SIGNATURE}{self.name} {encoded}\n".encode()


def _text(name: str, key_id: bytes, raw: bytes) -> str:
    return f"{name}+{key_id.hex()}+{base64.b64encode(_ED25519 + raw).decode()}"


def _parse(text: str, what: str, rule: str) -> tuple[str, bytes, bytes]:
    """Name, id and key. The text is not quoted in errors: it may be private."""
    try:
        name, key_id, encoded = text.split("+", 2)  # base64 may have the same sign
        told, key = bytes.fromhex(key_id), base64.b64decode(encoded, validate=True)
    except ValueError:
        name, told, key = "", b"", b""
    if not _NAME.fullmatch(name) or key[:1] != _ED25519 or len(key) != 1 + _KEY_BYTES:
        raise ValueError(f"it is not {what} (allowed: {rule})")
    return name, told, key[1:]


def _signature(line: str) -> tuple[tuple[str, bytes], bytes]:
    """Name and id of the key, and the signature."""
    name, _, encoded = line.removeprefix(_SIGNATURE).partition(" ")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except ValueError:
        raw = b""
    if not line.startswith(_SIGNATURE) or not name or len(raw) <= _ID_BYTES:
        raise ValueError("a line below its empty line is not a signature")
    return (name, raw[:_ID_BYTES]), raw[_ID_BYTES:]
