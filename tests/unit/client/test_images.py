"""An image that is not named by digest is refused. Nobody is asked for the digest: constructors do no I/O."""

import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_client.model.images import check_image

ONE = "1" * 64


@pytest.mark.parametrize(
    "reference",
    [
        f"registry.example/sandbox@sha256:{ONE}",
        f"localhost:5001/codeexec/sandbox@sha256:{ONE}",
        f"sandbox:1.0@sha256:{ONE}",
    ],
)
def test_a_reference_by_digest_passes(reference: str) -> None:
    check_image(reference)


@pytest.mark.parametrize("reference", ["", "python:3.12", "localhost:5001/box", "box@sha256:1", "--help", "a\0b"])
def test_another_one_is_refused_and_no_program_is_started(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **_: started.append(arguments))
    with pytest.raises(ValueError, match=r"must be named by digest .* `docker image inspect") as caught:
        check_image(reference)
    assert repr(reference) in str(caught.value)
    assert started == []


@given(st.text())
def test_no_text_is_anything_but_a_digest_or_a_refusal(text: str) -> None:
    with pytest.raises(ValueError, match="must be named by digest"):
        check_image(text)
