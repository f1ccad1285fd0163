"""What the API server keeps: every version of each object, for readers in event loops and threads of their own."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from codeexec_api import CodeExecution, CodeSession, ExecutionApproval
from codeexec_api.names import GROUP
from executor_client.exceptions import CodeExecError, NotFound

T = TypeVar("T")
Record = TypeVar("Record", CodeExecution, CodeSession, ExecutionApproval)


class Growing(Generic[T]):
    """Items in the order in which they came: the versions of an object, or the lines of a log."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._ended = False
        self._readers: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def add(self, item: T) -> None:
        """Append, and let the readers know."""
        self.items.append(item)
        self.wake()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self.wake()

    def wake(self) -> None:
        """Have every reader look again."""
        for loop, event in tuple(self._readers):
            with suppress(RuntimeError):  # the loop is closed, and its reader gone
                loop.call_soon_threadsafe(event.set)

    async def read(self, check: Callable[[], None]) -> AsyncGenerator[T, None]:
        """All items as they come, until the end. `check` is called before each look, and may raise."""
        start = 0
        event = asyncio.Event()
        reader = (asyncio.get_running_loop(), event)
        self._readers.append(reader)
        try:
            while True:
                event.clear()
                check()
                while start < len(self.items):
                    yield self.items[start]
                    start += 1
                if self._ended:
                    return
                await event.wait()
        finally:
            self._readers.remove(reader)


class Records(Generic[Record]):
    """The objects of one kind, each with all its versions."""

    def __init__(self, plural: str) -> None:
        self._plural = plural
        self._versions: dict[str, Growing[Record]] = {}
        self._numbers = itertools.count(1)

    def create(self, new: Record) -> Record:
        """Store a new object.

        Raises:
            CodeExecError: there is one of its name.
        """
        name = new.metadata.name
        if name in self._versions:
            raise CodeExecError(f'409 {self._plural}.{GROUP} "{name}" already exists in the fake cluster')
        self._versions[name] = Growing()
        return self.put(new)

    def put(self, new: Record) -> Record:
        """Store the next version of an object, and return it as it is stored."""
        metadata = new.metadata.model_copy(update={"resource_version": str(next(self._numbers))})
        stored = new.model_copy(update={"metadata": metadata})
        self._versions[new.metadata.name].add(stored)
        return stored

    def patch(self, name: str, **spec: bool | str) -> Record:
        """Change fields of the spec.

        Raises:
            NotFound: there is no object of this name.
        """
        old = self[name]
        metadata = old.metadata.model_copy(update={"generation": old.metadata.generation + 1})
        return self.put(old.model_copy(update={"metadata": metadata, "spec": old.spec.model_copy(update=spec)}))

    def versions(self, name: str) -> Growing[Record]:
        """All versions of an object.

        Raises:
            NotFound: the namespace has no object with this name.
        """
        if name not in self._versions:
            raise NotFound(f'404 {self._plural}.{GROUP} "{name}" not found in the fake cluster')
        return self._versions[name]

    def __getitem__(self, name: str) -> Record:
        return self.versions(name).items[-1]

    def __contains__(self, name: str) -> bool:
        return name in self._versions

    def all(self) -> list[Record]:
        """The newest version of each object, in order of their creation."""
        return [versions.items[-1] for versions in tuple(self._versions.values())]

    def wake(self) -> None:
        """Have every reader look again."""
        for versions in tuple(self._versions.values()):
            versions.wake()
