"""What is sealed opens again for the same execution with the same key, and for nobody else."""

import base64
import json
import random
import traceback
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import SealedPayload, sealing
from codeexec_api.names import block_key, file_key
from codeexec_api.schema import structural
from codeexec_api.sealing import is_sealable, make_private_key, publish, seal, unseal
from codeexec_api.v1alpha1.bounds import MAX_BLOCKS, MAX_FILES, MAX_SEALED_BYTES
from codeexec_api.v1alpha1.execution import CodeExecution

PRIVATE = bytes(range(1, 33))
PUBLISHED = publish("k1", PRIVATE)
WHERE = ("codeexec-sandbox", "run-1")
CODE = b"print('PLANTED')"


def sealed(**payload: bytes) -> SealedPayload:
    return seal(payload or {"block-0": CODE}, PUBLISHED, *WHERE)


def with_data(data: bytes | str) -> SealedPayload:
    return SealedPayload(key_name="k1", data=data if isinstance(data, str) else base64.b64encode(data).decode())


def sealed_text(plain: str) -> SealedPayload:
    """What nobody's `seal` makes, but everybody can."""
    public = X25519PrivateKey.from_private_bytes(PRIVATE).public_key()
    return with_data(sealing._SUITE.encrypt(plain.encode(), public, info=sealing._bound_to(*WHERE)))


@given(payload=st.dictionaries(st.sampled_from(["block-0", "block-1", "file-0"]), st.binary(max_size=300)))
def test_what_is_sealed_opens_again(payload: dict[str, bytes]) -> None:
    made = seal(payload, PUBLISHED, *WHERE)
    opened = unseal(SealedPayload.model_validate(json.loads(json.dumps(made.dump()))), PRIVATE, *WHERE)
    assert made.key_name == "k1"
    assert {key: base64.b64decode(content) for key, content in opened.items()} == payload


def test_the_same_is_never_sealed_to_the_same() -> None:
    assert sealed().data != sealed().data


def test_each_key_is_another() -> None:
    assert len({make_private_key() for _ in range(3)}) == 3


@pytest.mark.parametrize(
    "where",
    [("codeexec-sandbox", "run-2"), ("other", "run-1"), ("codeexec", "sandbox/run-1"), ("codeexec-sandbox/run-1", "")],
)
def test_it_opens_for_no_other_execution(where: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="InvalidTag"):
        unseal(sealed(), PRIVATE, *where)


def test_it_opens_with_no_other_key() -> None:
    with pytest.raises(ValueError, match="InvalidTag"):
        unseal(sealed(), make_private_key(), *WHERE)


@pytest.mark.parametrize("position", [0, 32, -17, -16, -1])
def test_one_bit_is_changed(position: int) -> None:
    data = bytearray(base64.b64decode(sealed().data))
    data[position] ^= 1
    with pytest.raises(ValueError, match="InvalidTag"):
        unseal(with_data(bytes(data)), PRIVATE, *WHERE)


@pytest.mark.parametrize(
    "data",
    [b"x", b"x" * 32, b"x" * 48, bytes(32) + b"x" * 16, "A", "AAAAA"],
    ids=["one byte", "no content", "noise", "no key in it", "no base64", "no base64 either"],
)
def test_what_was_never_sealed(data: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"^\w+$"):
        unseal(with_data(data), PRIVATE, *WHERE)


@pytest.mark.parametrize(
    "plain",
    ["", "PLANTED", "[]", "1", '{"block-0": 1}', '{"block-0": {"PLANTED": ""}}', "[" * 20_000, "9" * 10_000],
    ids=lambda plain: plain[:20],
)
def test_what_was_sealed_is_no_payload(plain: str) -> None:
    """Agents can seal what they like: no text may get out of here as another error, or be told in one."""
    with pytest.raises(ValueError, match=r"^[\w ]+$") as caught:
        unseal(sealed_text(plain), PRIVATE, *WHERE)
    assert "PLANTED" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "published",
    [
        {},
        {"keyName": "k1"},
        {"publicKey": PUBLISHED["publicKey"]},
        PUBLISHED | {"publicKey": ""},
        PUBLISHED | {"publicKey": "é"},
        PUBLISHED | {"publicKey": "no base64!"},
        PUBLISHED | {"publicKey": PUBLISHED["publicKey"][:-4]},
        PUBLISHED | {"publicKey": base64.b64encode(bytes(32)).decode()},
    ],
    ids=["nothing", "no key", "no name", "empty", "no ASCII", "no base64", "too short", "of no use"],
)
def test_what_is_published_is_no_key(published: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"^no public key: ") as caught:
        seal({"block-0": CODE}, published, *WHERE)
    assert "PLANTED" not in "".join(traceback.format_exception(caught.value))


def test_what_is_published_is_not_the_private_key() -> None:
    assert set(PUBLISHED) == {"keyName", "publicKey"}
    assert base64.b64decode(PUBLISHED["publicKey"]) != PRIVATE


def test_small_is_up_to_16_kib_of_blocks_and_files_together() -> None:
    assert MAX_SEALED_BYTES == 16 * 1024
    assert is_sealable({})
    assert is_sealable({"block-0": b"x" * 10_000, "file-0": b"x" * 6384})
    assert not is_sealable({"block-0": b"x" * 10_000, "file-0": b"x" * 6385})


def test_the_largest_that_is_small_enough_fits_into_the_record() -> None:
    """With as many keys as there can be, and lengths that base64 makes the most of."""
    keys = [*map(block_key, range(MAX_BLOCKS)), *map(file_key, range(MAX_FILES))]
    noise = random.Random(1).randbytes
    payload = {key: noise(127) for key in keys}
    payload[keys[0]] = noise(MAX_SEALED_BYTES - 127 * (len(keys) - 1))
    assert sum(map(len, payload.values())) == MAX_SEALED_BYTES
    assert is_sealable(payload)
    made = seal(payload, PUBLISHED, *WHERE)
    data: Any = structural(CodeExecution)["properties"]["spec"]["properties"]["sealedPayload"]["properties"]["data"]
    assert len(made.data) <= data["maxLength"]
    assert unseal(made, PRIVATE, *WHERE).keys() == payload.keys()


def test_the_code_can_not_be_seen() -> None:
    made = sealed()
    shown = f"{made!r} {made} {made.dump()} {made.model_dump_json()}"
    assert "PLANTED" not in shown
    assert base64.b64encode(CODE).decode() not in shown
    assert CODE not in base64.b64decode(made.data)
