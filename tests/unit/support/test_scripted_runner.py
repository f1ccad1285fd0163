"""Simulated runners share one thread: none of them may hold up the others."""

import pytest
from scripted_runner import calls_of


def test_a_script_is_understood() -> None:
    assert calls_of('print("words")\nfill(800)\nstuck()') == [("print", "words"), ("fill", 800), ("stuck", None)]


def test_code_that_takes_seconds_to_parse_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="does not understand 400000 lines"):
        calls_of("a\n" * 400_000)
