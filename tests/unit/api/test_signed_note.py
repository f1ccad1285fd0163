"""Signed notes: what is signed is opened, by its key only, and whatever was changed is refused."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api.signed_note import SigningKey, VerifyingKey

KEY = SigningKey("prod.example.com/codeexec", bytes(range(32)))
NOTE = KEY.sign("one\n\nthree\n")
PUBLIC = "prod.example.com/codeexec+4304996f+AQOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4"


def test_keys_have_the_text_that_other_software_knows() -> None:
    """The form of C2SP signed-note, as its reference implementation in Go reads and writes it."""
    assert str(KEY.public) == PUBLIC
    assert VerifyingKey.parse(f"{PUBLIC}\n") == KEY.public
    private = base64.b64encode(b"\x01" + KEY.seed).decode()
    assert str(KEY) == f"PRIVATE+KEY+prod.example.com/codeexec+4304996f+{private}"
    assert SigningKey.parse(f"{KEY}\n") == KEY


def test_a_new_key_is_a_new_one_and_does_not_show_itself() -> None:
    one, other = SigningKey.generate("a"), SigningKey.generate("a")
    assert one != other
    assert one.public.open(one.sign("x\n")) == "x\n"
    assert base64.b64encode(one.seed).decode() not in repr(one)


@pytest.mark.parametrize("name", ["", "two words", "a+b", "ä", "a\n", "x" * 201])
def test_a_name_that_cannot_stand_in_a_note_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="allowed: 1 to 200 letters, digits"):
        SigningKey.generate(name)


@pytest.mark.parametrize("text", ["", "x", PUBLIC[:-4], PUBLIC.replace("+AQ", "+Ag"), PUBLIC.replace("prod", "pr od")])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: NAME"):
        VerifyingKey.parse(text)
    with pytest.raises(ValueError, match="allowed: PRIVATE"):
        SigningKey.parse(text and f"PRIVATE+KEY+{text}")


@pytest.mark.parametrize("old", ["prod", "4304996f", "AQOhB"])
def test_a_key_whose_id_does_not_match_is_refused_and_a_private_one_not_quoted(old: str) -> None:
    new = {"prod": "prob", "4304996f": "4304996e", "AQOhB": "AQOhC"}[old]
    with pytest.raises(ValueError, match="is not the ID of this name and key"):
        VerifyingKey.parse(PUBLIC.replace(old, new))
    secret = str(KEY).replace("prod", "prob")
    with pytest.raises(ValueError, match="is not the ID") as caught:
        SigningKey.parse(secret)
    assert secret.rpartition("+")[2] not in str(caught.value)


def test_a_note_is_opened_by_its_key_and_by_no_other() -> None:
    assert KEY.public.open(NOTE) == "one\n\nthree\n"
    for other in (SigningKey(KEY.name, bytes(32)), SigningKey("other", KEY.seed)):
        with pytest.raises(ValueError, match=r"unknown key prod.example.com/codeexec\+4304996f; the known"):
            other.public.open(NOTE)


def test_a_note_may_have_signatures_by_others_too() -> None:
    other = SigningKey("witness", bytes(32))
    both = NOTE + other.sign("one\n\nthree\n").splitlines(keepends=True)[-1]
    assert KEY.public.open(both) == other.public.open(both) == "one\n\nthree\n"


def test_the_first_signature_of_a_key_decides() -> None:
    wrong = KEY.sign("else\n").splitlines(keepends=True)[-1]
    with pytest.raises(ValueError, match="does not match its content"):
        KEY.public.open(NOTE.replace(b"\n\n\xe2", b"\n\n" + wrong + b"\xe2"))


@pytest.mark.parametrize("note", [b"", b"one\n", b"one\n\n", b"\xff\n\n", b"one\n\nx\n", NOTE[:-1], NOTE + b"\nx\n"])
def test_what_is_no_note_is_refused(note: bytes) -> None:
    with pytest.raises(ValueError, match=r"it (lacks|is)|a line below"):
        KEY.public.open(note)


@given(st.integers(0, len(NOTE) - 1), st.integers(1, 255))
def test_no_byte_can_be_changed_so_that_another_text_is_opened(at: int, by: int) -> None:
    changed = NOTE[:at] + bytes([NOTE[at] ^ by]) + NOTE[at + 1 :]
    try:
        assert KEY.public.open(changed) == "one\n\nthree\n"  # in the last letter of base64 not every bit counts
        assert at > len(NOTE) - 5
    except ValueError:
        pass


@given(st.binary())
def test_any_bytes_are_refused_and_nothing_else_happens(note: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        KEY.public.open(note)
