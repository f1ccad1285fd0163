"""Simulated runners share one thread: none of them may hold up the others."""

import asyncio

import pytest
from scripted_runner import Script, calls_of


def test_a_script_is_understood() -> None:
    assert calls_of('print("words")\nfill(800)\nstuck()') == [("print", "words"), ("fill", 800), ("stuck", None)]


def test_code_that_takes_seconds_to_parse_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="does not understand 400000 lines"):
        calls_of("a\n" * 400_000)


async def test_nobody_waits_for_code_whose_call_has_failed() -> None:
    async def fails() -> None:
        raise ValueError("why")

    with pytest.raises(AssertionError, match=r"the call was over before its code came to wait\('gate'\)") as failed:
        await Script().reached("gate", asyncio.create_task(fails()))
    assert "why" in str(failed.value.__cause__)
