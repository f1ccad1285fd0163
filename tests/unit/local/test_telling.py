"""How output reaches a callback while the code goes on."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from executor_client.local.telling import Telling
from executor_client.model.results import OutputChunk


async def test_pieces_that_wait_for_the_callback_become_one() -> None:
    """Code that writes single bytes does not make as many calls, which would come long after its end."""
    told: list[OutputChunk] = []
    telling, loop = Telling(told.append), asyncio.get_running_loop()

    def write() -> None:
        for stream, text in (("stdout", "a"), ("stdout", "b"), ("stderr", "c"), ("stdout", "d"), ("stdout", "e")):
            telling.add(OutputChunk(stream, text))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(write).result()
        await telling.until(loop.run_in_executor(thread, telling.add, OutputChunk("stderr", "f")))
    assert [(one.stream, one.text) for one in told] == [
        ("stdout", "ab"), ("stderr", "c"), ("stdout", "de"), ("stderr", "f")
    ]  # fmt: skip
