"""Output on its way from the thread of the sandbox to a callback, which does not hold up the thread."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from executor_client.model.results import OutputChunk, StreamName
from executor_client.runtime.asyncio_tasks import in_worker


class Telling:
    """Tells a callback of output, one piece after the other. Pieces of one stream that wait for it become one.

    Args:
        callback: called in a worker thread.
    """

    def __init__(self, callback: Callable[[OutputChunk], object]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._awake = asyncio.Event()
        self._lock = threading.Lock()
        self._waiting: list[tuple[StreamName, list[str]]] = []

    def add(self, chunk: OutputChunk) -> None:
        """Take the next piece; in any thread."""
        with self._lock:
            first = not self._waiting
            if first or self._waiting[-1][0] != chunk.stream:
                self._waiting.append((chunk.stream, []))
            self._waiting[-1][1].append(chunk.text)
        if first:
            self._loop.call_soon_threadsafe(self._awake.set)

    async def until(self, end: "asyncio.Future[Any]") -> None:
        """Tell all until nothing more comes.

        Raises:
            RuntimeError: the callback has raised StopIteration.
            Exception: what the callback has raised.
        """
        end.add_done_callback(lambda _: self._awake.set())
        while self._waiting or not end.done():
            await self._awake.wait()
            self._awake.clear()
            with self._lock:
                waiting, self._waiting = self._waiting, []
            for stream, texts in waiting:
                await in_worker(self._callback, OutputChunk(stream, "".join(texts)))
