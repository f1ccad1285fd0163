"""An event loop in a thread of its own, for callers that have none, or must not wait in theirs.

anyio's blocking portal cancels again and again until a call has ended, so that a call could not wait for its code to be
stopped.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, Generic, ParamSpec, TypeVar

from executor_client.exceptions import ClusterUnreachable
from executor_client.runtime import forks
from executor_client.runtime.asyncio_tasks import callbacks

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
        self._serving: _Serving | None = None
        self._end: Callable[[], object] = lambda: None
        self._ended = set[_Serving]()
        """Those whose end nobody has waited for yet."""

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a coroutine function returns, or raises.

        Whatever ends the wait, such as KeyboardInterrupt, cancels the call, and waits until it has ended.
        """
        call = _Call(lambda: function(*args, **kwargs))
        try:
            with self._lock:  # whatever ends this loop comes after the call
                self._running().begin(call)
            return call.ended.result()
        except BaseException:
            if call.serving and not call.ended.done():
                call.serving.cancel(call)
                concurrent.futures.wait([call.ended])  # as long as it takes, or until the next Ctrl-C
            raise
        finally:
            if call.serving:
                call.serving.forget(call)

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """What an asynchronous generator yields. If nobody holds it any more, its loop closes it.

        Raises:
            ClusterUnreachable: the loop has ended in between.
        """
        loops: set[asyncio.AbstractEventLoop] = set()

        async def following() -> tuple[T, ...]:
            loops.add(asyncio.get_running_loop())
            if len(loops) > 1:
                raise ClusterUnreachable("the client was closed before all results were read")
            async for item in items:
                return (item,)
            return ()

        while found := self.call(following):
            yield found[0]

    def stop(self) -> None:
        """End the thread, and all that runs there. A later call starts another one.

        This waits for the end of each thread that somebody has stopped before, too. In a callback, this does not wait
        for the end, which waits for the callback.
        """
        with self._lock:
            serving, self._serving, end = self._serving, None, self._end
            if serving:
                self._ended.add(serving)
        if serving:
            serving.end()
            end()  # not alone: it is gone as soon as it is called, also where Ctrl-C comes then
        if callbacks.get() is None:  # no call of such a loop, nor a callback, whose end this would wait for
            for one in tuple(self._ended):
                one.end()  # Ctrl-C may have come before the first time
                one.join()
                self._ended.discard(one)

    def _running(self) -> "_Serving":
        if self._serving is None or self._serving.is_over:
            serving = _Serving()
            self._end = forks.finalize(self, _let_go, serving)
            try:
                serving.start()
                self._serving = serving
            except BaseException:
                self._end()
                raise
        if self._serving.is_here:
            raise RuntimeError("codeexec.sync was called from a coroutine that it runs: use codeexec.Client there")
        return self._serving


class _Call(Generic[T]):
    """A call that a loop runs.

    Args:
        function: what is called there.
    """

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.ended: Final[Future[T]] = Future()
        self.serving: _Serving | None = None
        self._function = function
        self._task: asyncio.Task[T] | None = None

    def begin(self, theirs: set[Future[None]]) -> None:
        """Run it; in the loop, and in the context of the caller. `theirs` gets its callbacks."""
        callbacks.set(theirs)
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._pass_on)

    def cancel(self) -> None:
        """Have it end; in the loop, after `begin` or instead of it."""
        if self._task:
            self._task.cancel()
        else:
            self.close()

    def close(self) -> None:
        """Nothing runs it any more."""
        with suppress(concurrent.futures.InvalidStateError):  # it has ended
            self.ended.set_exception(ClusterUnreachable("the client was closed while the call ran"))

    async def _run(self) -> T:
        return await self._function()

    def _pass_on(self, task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            self.close()
        elif error := task.exception():
            self.ended.set_exception(error)
        else:
            self.ended.set_result(task.result())


class _Serving:
    """A thread with an event loop. It answers every call that it was given, at the latest when it ends."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="codeexec-sync", daemon=True)
        self._callbacks = set[Future[None]]()
        self._over = asyncio.Event()
        self._calls: set[_Call[Any]] = set()
        self._loop = asyncio.new_event_loop()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether this is the thread."""
        return threading.current_thread() is self._thread

    @property
    def is_over(self) -> bool:
        """Whether nothing runs here any more."""
        return self._loop.is_closed()

    def begin(self, call: _Call[Any]) -> None:
        """Run a call."""
        self._calls.add(call)
        call.serving = self
        self._loop.call_soon_threadsafe(call.begin, self._callbacks)

    def forget(self, call: _Call[Any]) -> None:
        """Nobody waits for it any more."""
        self._calls.discard(call)

    def cancel(self, call: _Call[Any]) -> None:
        """Have a call end that was begun, or was about to be."""
        try:
            self._loop.call_soon_threadsafe(call.cancel)
        except RuntimeError:  # the loop is closed
            call.close()

    def end(self) -> None:
        """Cancel the calls, and end the thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._over.set)

    def join(self) -> None:
        """Wait until it has ended, and with it the callbacks."""
        self._thread.join()
        while running := tuple(self._callbacks):  # a callback may begin others, in a loop of its own
            concurrent.futures.wait(running)

    def _serve(self) -> None:
        try:
            over = self._loop.create_task(self._until_over())
            while not over.done():
                with suppress(KeyboardInterrupt, SystemExit):  # of a callback: its caller gets it
                    self._loop.run_until_complete(over)
        finally:
            self._loop.close()  # asyncio.Runner would wait for the callbacks, which may wait for this
            for call in tuple(self._calls):
                call.close()

    async def _until_over(self) -> None:
        await self._over.wait()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await asyncio.get_running_loop().shutdown_asyncgens()


def _let_go(serving: _Serving) -> None:
    serving.end()
    main = threading.main_thread()
    if threading.current_thread() is main and not main.is_alive():  # the process ends
        serving.join()
