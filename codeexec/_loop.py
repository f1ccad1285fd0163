"""An event loop in a thread of its own, for callers that have none, or must not wait in theirs.

anyio's blocking portal cancels again and again until a call has ended, so that a call could not wait for its code to be
stopped.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from executor_client.exceptions import ClusterUnreachable
from executor_client.runtime import forks

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """Runs coroutines in an event loop of its own. May be used from several threads, also from those with a loop.

    The thread is started when it is needed, ends with `stop` or with this object, and is begun anew after a fork.
    """

    def __init__(self) -> None:
        self.begin_anew()
        forks.begins_anew(self)

    def begin_anew(self) -> None:
        """Have no thread; see `executor_client.runtime.forks`."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] | None = None

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a coroutine function returns, or raises.

        Whatever ends the wait, such as KeyboardInterrupt, cancels the call, and waits until it has ended.
        """
        ended: Future[T] = Future()
        begun: list[asyncio.Task[T]] = []
        loop = self._running()

        def begin() -> None:  # in the context of the caller
            begun.append(loop.create_task(function(*args, **kwargs)))
            begun[0].add_done_callback(lambda task: _pass_on(task, ended))

        try:
            loop.call_soon_threadsafe(begin)
            return ended.result()
        except BaseException:
            if not ended.done():
                loop.call_soon_threadsafe(lambda: begun[0].cancel())
                concurrent.futures.wait([ended])  # as long as it takes, or until the next Ctrl-C
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """What an asynchronous generator yields."""

        async def following() -> tuple[T, ...]:
            async for item in items:
                return (item,)
            return ()

        try:
            while found := self.call(following):
                yield found[0]
        finally:
            self.call(items.aclose)

    def stop(self) -> None:
        """End the thread, and all that runs there. A later call starts another one."""
        with self._lock:
            stop, self._stop, self._loop, self._thread = self._stop, None, None, None
        if stop:
            stop()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
                self._thread = threading.Thread(target=_serve, args=(started,), name="codeexec-sync", daemon=True)
                self._thread.start()
                self._loop, over = started.result()
                self._stop = forks.finalize(self, _end, self._loop, over, self._thread)
            if threading.current_thread() is self._thread:
                raise RuntimeError("codeexec.sync was called from a coroutine of its own: use codeexec.Client there")
            return self._loop


def _serve(started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]") -> None:
    async def wait() -> None:
        over = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), over))
        await over.wait()

    with asyncio.Runner() as runner:
        runner.run(wait())


def _end(loop: asyncio.AbstractEventLoop, over: asyncio.Event, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(over.set)
    if thread is not threading.current_thread():  # where the garbage collector may have run
        thread.join()


def _pass_on(task: "asyncio.Task[T]", ended: "Future[T]") -> None:
    if task.cancelled():
        ended.set_exception(ClusterUnreachable("the client was closed while the call ran"))
    elif error := task.exception():
        ended.set_exception(error)
    else:
        ended.set_result(task.result())
