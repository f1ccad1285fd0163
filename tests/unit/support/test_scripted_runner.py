"""The scripted runner says what the operator takes from a real one.

All of them share one thread: none may hold up the others.
"""

import asyncio
import json

import pytest
from factories import an_execution
from scripted_runner import Script, ScriptedRunner, calls_of

from codeexec_api import SandboxPoolSpec
from codeexec_operator.core.egress import Target
from codeexec_operator.core.payload import Payload, build_messages, build_warm_up
from codeexec_operator.core.readiness import readiness
from codeexec_operator.core.transcript import Transcript

TARGET = {"name": "dns", "address": "10.96.0.10", "port": 53, "protocol": "UDP"}


def tell(runner: ScriptedRunner, message: dict) -> None:
    data = json.dumps({**message, "epoch": [1, 1]}).encode() + b"\n"
    half = len(data) // 2
    runner.take(data[:half])
    runner.take(data[half:])


async def test_its_report_is_one_that_the_operator_understands() -> None:
    runner = ScriptedRunner([TARGET], Script())
    tell(runner, build_warm_up(SandboxPoolSpec()))
    tell(runner, {"ping": True})
    [ready, pong] = map(json.loads, runner.log.lines)
    assert readiness(ready).answered == {Target(**TARGET): False}
    assert pong == {"pong": True}


async def test_its_frames_are_a_transcript_of_what_the_code_prints_until_its_job_is_acknowledged() -> None:
    runner, transcript = ScriptedRunner([], Script()), Transcript()
    payload = Payload(('print("<ü>")'.encode(),))
    [job] = build_messages(an_execution(), payload, stateful=False, fetch_bytes=1024)
    tell(runner, {"ack": job["id"]})
    assert not runner.exited
    tell(runner, job)
    async for line in runner.log.follow():
        transcript.take(json.loads(line), job["id"])
        if transcript.done:
            tell(runner, {"ack": job["id"]})
    transcript.finish()
    assert (transcript.done, transcript.problem) == (True, "")
    assert transcript.stream("stdout").text == "<ü>\n"
    assert [one.exit_code for one in transcript.blocks] == [0]
    assert runner.exited


def test_a_script_is_understood() -> None:
    assert calls_of('print("words")\nfill(800)\nstuck()') == [("print", "words"), ("fill", 800), ("stuck", None)]
    assert calls_of('import os\nfrom socket import *\nprint("words")') == [("print", "words")], "imports do nothing"


def test_code_that_takes_seconds_to_parse_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="does not understand 400000 lines"):
        calls_of("a\n" * 400_000)


async def test_nobody_waits_for_code_whose_call_has_failed() -> None:
    async def fails() -> None:
        raise ValueError("why")

    with pytest.raises(AssertionError, match=r"the call was over before its code came to wait\('gate'\)") as failed:
        await Script().reached("gate", asyncio.create_task(fails()))
    assert "why" in str(failed.value.__cause__)
