"""One watch for all executions that a connection has created: each would otherwise need one of its own."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any, Final

from codeexec_api import CodeExecution
from executor_client.exceptions import ClusterUnreachable, CodeExecError
from executor_client.runtime import asyncio_tasks
from executor_client.transport.protocol import CLOSED

_IDLE_SECONDS: Final = 60
"""How long the watch is kept up while nothing is waited for."""
_MOST: Final = 256
"""Executions of which the newest version is kept though nobody waits for them (any more)."""


class _Entry:
    def __init__(self) -> None:
        self.latest: CodeExecution | None = None
        self.deleted = False
        self.error: CodeExecError | None = None
        self.waiting = 0
        self._changed = asyncio.Event()

    def take(self, kind: str, raw: Mapping[str, Any]) -> None:
        """Note a change, or how it is now."""
        self.deleted = kind in ("DELETED", "GONE")
        if kind != "GONE":
            try:
                self.latest = CodeExecution.read(raw)
            except ValueError as problem:  # what came is no execution that this client understands
                self.error = CodeExecError(f"could not watch the execution: {type(problem).__name__}: {problem}")
        self.publish()

    def publish(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        await self._changed.wait()


class SharedWatch:
    """For one event loop.

    Args:
        begin: returns the resource version from which on nothing will be missed.
        events: yields the kind of each change since a resource version, and the object. Where it may have missed some,
            it looks at the objects that a function names. See `Transport`.
    """

    def __init__(
        self,
        begin: Callable[[], Awaitable[str]],
        events: Callable[[str, Callable[[], Collection[str]]], AsyncGenerator[tuple[str, Any], None]],
    ) -> None:
        self._begin, self._events = begin, events
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._opening = asyncio_tasks.SingleFlight(self._open_watch)
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def expect(self, name: str) -> None:
        """An execution of this name is about to be created.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        if self._task is None or self._task.done():
            await self._opening()
        self._entries[name] = _Entry()
        for old in [one for one, entry in self._entries.items() if not entry.waiting][:-_MOST]:
            del self._entries[old]

    async def _open_watch(self) -> None:
        self._task = asyncio.create_task(self._run(await self._begin()), name="shared watch of executions")

    def knows(self, name: str) -> bool:
        """True if `changes` can tell of this execution."""
        return name in self._entries and self._task is not None and not self._task.done()

    def forget(self, name: str) -> None:
        """Nobody will ask for this execution."""
        self._entries.pop(name, None)
        if not self._entries and self._task:
            if self._idle:
                self._idle.cancel()
            self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._stop_if_idle)

    async def changes(self, start: CodeExecution) -> AsyncGenerator[CodeExecution, None]:
        """The newest version, each time there is one after the given one, until the execution is not listed any more.

        Raises:
            CodeExecError: see `executor_client.exceptions`.
        """
        name, version = start.metadata.name, int(start.metadata.resource_version)
        entry = self._entries[name]
        entry.waiting += 1
        try:
            while True:
                if entry.latest and int(entry.latest.metadata.resource_version) > version:
                    version = int(entry.latest.metadata.resource_version)
                    yield entry.latest
                elif entry.deleted:
                    return
                elif entry.error:
                    raise entry.error
                else:
                    await entry.change()
        finally:
            entry.waiting -= 1
            if not entry.waiting:
                self.forget(name)

    async def close(self) -> None:
        """End the watch."""
        if self._idle:
            self._idle.cancel()
        if self._task:
            await asyncio_tasks.stop(self._task)

    def _stop_if_idle(self) -> None:
        if self._task and not self._entries:
            self._task.cancel()

    def _open(self) -> list[str]:
        """Those whose end has not been seen."""
        return [
            name for name, entry in self._entries.items() if not (entry.latest and entry.latest.status.phase.terminal)
        ]

    async def _run(self, version: str) -> None:
        error: CodeExecError = ClusterUnreachable(CLOSED)
        try:
            async with aclosing(self._events(version, self._open)) as events:
                async for kind, raw in events:
                    if entry := self._entries.get(raw["metadata"]["name"]):
                        entry.take(kind, raw)
        except CodeExecError as problem:
            error = problem
        finally:  # nobody may wait on; who asks later gets a watch of its own
            for entry in self._entries.values():
                entry.error = error
                entry.publish()
            self._entries.clear()
