"""The simulator of the load test says what the operator takes from a real runner, and keeps other pods away."""

import json
import sys
from pathlib import Path

import pytest
from factories import an_execution

sys.path.append(str(Path(__file__).parents[2] / "scale"))
import simulated_kubelets
from simulated_runner import SimulatedRunner, printed_by

from codeexec_api import SandboxPoolSpec
from codeexec_operator.core.cluster_view import parse_node
from codeexec_operator.core.egress import Target
from codeexec_operator.core.payload import Payload, build_messages, build_warm_up
from codeexec_operator.core.readiness import readiness
from codeexec_operator.core.transcript import Transcript

TARGET = {"name": "dns", "address": "10.96.0.10", "port": 53, "protocol": "UDP"}


async def said(runner: SimulatedRunner, *messages: object) -> list[dict]:
    data = b"".join(json.dumps(one).encode() + b"\n" for one in messages)
    half = len(data) // 2
    return [frame for piece in (data[:half], data[half:]) async for frame in runner.answers(piece)]


def a_job(code: str) -> dict:
    [job] = build_messages(an_execution(), Payload((code.encode(),)), stateful=False, fetch_bytes=1024)
    return job


async def test_its_report_is_one_that_the_operator_understands() -> None:
    runner = SimulatedRunner([TARGET], run_seconds=0)
    [ready, pong] = await said(runner, build_warm_up(SandboxPoolSpec()), {"ping": True})
    assert readiness(ready).answered == {Target(**TARGET): False}
    assert pong == {"pong": True}


async def test_its_frames_are_a_transcript_of_what_the_code_prints() -> None:
    runner, transcript, job = SimulatedRunner([], run_seconds=0), Transcript(), a_job('print("<ü>")')
    for frame in await said(runner, job):
        transcript.take(json.loads(json.dumps(frame)), job["id"])
    transcript.finish()
    assert (transcript.done, transcript.problem) == (True, "")
    assert transcript.stream("stdout").text == "<ü>\n"
    assert [one.exit_code for one in transcript.blocks] == [0]


async def test_what_it_can_not_play_fails_and_says_so() -> None:
    runner, transcript, job = SimulatedRunner([], run_seconds=0), Transcript(), a_job("print(1)")
    for frame in await said(runner, job):
        transcript.take(frame, job["id"])
    transcript.finish()
    assert transcript.done
    assert "simulated runner" in transcript.stream("stderr").text
    assert [one.exit_code for one in transcript.blocks] == [1]


async def test_it_ends_when_its_job_is_acknowledged_and_not_before_it_had_one() -> None:
    runner, job = SimulatedRunner([], run_seconds=0), a_job('print("1")')
    await said(runner, {"ack": job["id"]})
    assert not runner.exited
    await said(runner, job, {"ack": job["id"]})
    assert runner.exited
    assert runner.jobs == 1


@pytest.mark.parametrize("code", ["print(1)", "print('a', end='')", "x = 1", "print('a')\nprint('b')", "(", "print(x)"])
def test_nothing_but_one_print_of_a_literal_string_is_played(code: str) -> None:
    assert printed_by(code) is None


def test_a_simulated_node_is_closed_to_pods_that_do_not_ask_for_it() -> None:
    node = simulated_kubelets.node("simulated-000", "172.18.0.1", simulated_kubelets.PORT)
    assert not parse_node(node).open_to_sandboxes
    assert [one["effect"] for one in node["spec"]["taints"]] == ["NoSchedule"]
