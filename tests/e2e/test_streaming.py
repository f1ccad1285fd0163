"""Output comes while the code runs, each piece once and in order, and it is complete however much of it came early."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, a_name

from executor_client import (
    ClusterRef,
    CodeExecutionClient,
    Execution,
    Limits,
    OutputChunk,
    PreparedBlock,
    Request,
)

SMALL = Limits(cpu="100m", memory="96Mi")
WITHOUT_END = "import time\nprint('first', flush=True)\ntime.sleep(300)"
TWO_STREAMS = """
import sys
for number in range(300):
    print("out", number, flush=True)
    print("err", number, file=sys.stderr, flush=True)
"""


@pytest.fixture
async def client(agent_kubeconfig) -> AsyncIterator[CodeExecutionClient]:
    client = CodeExecutionClient(ClusterRef(SANDBOX, agent_kubeconfig))
    yield client
    await client.close()


def a_request(**changes) -> Request:
    return Request(**{"agent": "e2e", "timeout_seconds": 60, "limits": SMALL, **changes})


def python(code: str) -> tuple[PreparedBlock]:
    return (PreparedBlock("python", code.encode()),)


def text_of(chunks: list[OutputChunk], stream: str) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.stream == stream)


async def first_of(execution: Execution) -> OutputChunk:
    async for chunk in execution.output():
        return chunk
    raise AssertionError("there was no output")


async def test_callback_gets_output_while_the_code_runs(client, admin):
    agent, cancelled, seen = a_name("callback"), asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def on_output(chunk: OutputChunk) -> None:
        if not seen:
            admin.running_execution(agent)
            loop.call_soon_threadsafe(cancelled.set)
        seen.append(chunk)

    result = await client.execute(python(WITHOUT_END), a_request(agent=agent), on_output=on_output, cancelled=cancelled)
    assert result.phase.value == "Cancelled"
    assert text_of(seen, "stdout") == result.stdout == "first\n"


async def test_who_comes_later_gets_it_from_the_start(client, admin):
    execution = await client.submit(python(WITHOUT_END), a_request())
    await first_of(execution)
    late = client.attach(execution.name)
    chunks = []
    async for chunk in late.output():
        if not chunks:
            assert await asyncio.to_thread(admin.phase, execution.name) == "Running"
            await late.cancel()
        chunks.append(chunk)
    assert text_of(chunks, "stdout") == "first\n"
    again = [chunk async for chunk in client.attach(execution.name).output()]  # after the end, too
    assert text_of(again, "stdout") == "first\n"


async def test_both_streams_come_in_order_and_whole(client):
    seen: list[OutputChunk] = []
    result = await client.execute(python(TWO_STREAMS), a_request(), on_output=seen.append)
    expected = {
        "stdout": "".join(f"out {number}\n" for number in range(300)),
        "stderr": "".join(f"err {number}\n" for number in range(300)),
    }
    assert {"stdout": result.stdout, "stderr": result.stderr} == expected
    assert {stream: text_of(seen, stream) for stream in expected} == expected
    again = [chunk async for chunk in client.attach(result.name).output()]
    assert {stream: text_of(again, stream) for stream in expected} == expected
    assert "".join(chunk.text for chunk in again) == result.output


async def test_text_that_is_cut_between_pieces_stays_text(client):
    code = (
        "import sys, time\nfor byte in 'ä€🎉'.encode() + b'\\xff|':\n"
        "    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush(); time.sleep(.1)"
    )
    seen: list[OutputChunk] = []
    result = await client.execute(python(code), a_request(), on_output=seen.append)
    assert result.stdout == "ä€🎉\ufffd|"
    assert text_of(seen, "stdout") == result.stdout


async def test_executor_hands_it_to_its_callback(make_executor):
    seen: list[OutputChunk] = []
    executor = make_executor(session="per-executor", limits=SMALL, on_output=seen.append)
    for word in ("one", "two"):
        seen.clear()
        block = CodeBlock(f"import sys; print('{word}'); print('{word}!', file=sys.stderr)", "python")
        result = await executor.execute_code_blocks([block], CancellationToken())
        assert (text_of(seen, "stdout"), text_of(seen, "stderr")) == (result.stdout, result.stderr)
        assert (result.stdout, result.stderr) == (f"{word}\n", f"{word}!\n")


async def test_three_megabytes_come_whole(client):
    code = "import sys\nfor n in range(30000):\n    print(f'{n:099}')\nprint('e' * 2000000, file=sys.stderr)"
    seen: list[OutputChunk] = []
    result = await client.execute(python(code), a_request(), on_output=seen.append)
    expected = "".join(f"{n:099}\n" for n in range(30000))
    assert len(expected) == 3_000_000
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in (expected, result.stdout, text_of(seen, "stdout"))]
    assert len(set(digests)) == 1
    assert text_of(seen, "stderr") == result.stderr == "e" * 2_000_000 + "\n"
    assert not result.truncated


async def test_streams_at_the_same_time_do_not_mix(client):
    """Three in one session, whose pod has one log for all, and one beside it."""

    async def follow(word: str, session: str | None) -> None:
        code = f"import sys\nfor n in range(200):\n    print('{word}', n)\n    print('{word}!', n, file=sys.stderr)"
        execution = await client.submit(python(code), a_request(), session=session)
        chunks = [chunk async for chunk in execution.output()]
        assert text_of(chunks, "stdout") == "".join(f"{word} {n}\n" for n in range(200))
        assert text_of(chunks, "stderr") == "".join(f"{word}! {n}\n" for n in range(200))

    async with await client.open_session(a_request()) as session:
        await asyncio.gather(
            *(follow(word, session.name) for word in ("one", "two", "three")), follow("alone", session=None)
        )
