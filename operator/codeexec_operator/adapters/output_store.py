"""The owner's store for output, reached by fsspec. Objects are created, and neither replaced nor deleted.

fsspec blocks, and a store can hang. So each call runs in a thread of its own, which holds no process up at its end.
There are few of these threads, and each call has a time limit.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final, Self

from codeexec_api import CodeExecution, Reason
from codeexec_api.names import part_name
from codeexec_api.output_store import MAX_OBJECT_BYTES, below, dump_part, object_path
from codeexec_api.store_files import StoreFiles, in_thread, open_store
from codeexec_operator.adapters.outputs import StoreFailure
from codeexec_operator.core.observed import Fault
from codeexec_operator.core.output_parts import OutputPart
from codeexec_operator.core.output_place import OutputPlace, stored_at

CALL_SECONDS: Final = 15
"""How long one try may take, with the wait for a thread. As long as the API server has for an answer."""
THREADS: Final = 8
"""Calls at the same time. A call that hangs keeps its thread."""
_WORDS: Final = 300
"""Characters of the store's own words in a record."""


class OutputStore:
    """Writes parts as objects. Their names are made of the namespace and the UID of the execution alone.

    Args:
        files: what is in the store.
        root: path of the store there.
        place: what records say of it.
        seconds: see `CALL_SECONDS`.
    """

    def __init__(self, files: StoreFiles, root: str, place: OutputPlace, *, seconds: float = CALL_SECONDS) -> None:
        self.place: Final = place
        self._files, self._root, self._seconds = files, root, seconds
        self._free = asyncio.Semaphore(THREADS)
        self._may_send: Callable[[], object] = lambda: None

    @classmethod
    def open(cls, url: str) -> Self:
        """The store with this URL; see `open_store`.

        Raises:
            StoreFailure: no backend for it is installed, or its configuration is wrong.
        """
        try:
            files, root = open_store(url)
        except Exception as error:
            raise StoreFailure(f"the output store {url} can't be used: {_words(error)}") from error
        return cls(files, root, stored_at(url))

    def ask_first(self, may_send: Callable[[], object]) -> None:
        """See `outputs.Outputs`."""
        self._may_send = may_send

    async def create_output(
        self,
        execution: CodeExecution,
        part: OutputPart,
        expires_at: datetime,  # noqa: ARG002 - the lifecycle rules of the store decide
    ) -> Fault | None:
        """See `outputs.Outputs`."""
        meta = execution.metadata
        path = below(self._root, object_path(meta.namespace, meta.uid, part_name(part.frames)))
        data = dump_part(part.contents)
        self._may_send()
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return await self._in_thread(lambda: self._create(path, data))
        except Exception as error:  # of whatever type the backend likes
            late = f"did not answer within {self._seconds:g} s"
            why = late if limit.expired() else f"did not accept it: {_words(error)}"
            raise StoreFailure(f"the output store {self.place.url} {why}") from error

    def _create(self, path: str, data: bytes) -> Fault | None:
        try:
            self._files.pipe_file(path, data, mode="create")
        except FileExistsError:
            there = self._files.cat_file(path, start=0, end=MAX_OBJECT_BYTES)
            if not data.startswith(there):
                message = f"the output store {self.place.url} holds another object of this name: {path}"
                return Fault(Reason.QUOTA_EXCEEDED, message)
            if len(there) < len(data):  # a write of this part was interrupted
                self._files.pipe_file(path, data)
        return None

    async def _in_thread(self, call: Callable[[], Fault | None]) -> Fault | None:
        await self._free.acquire()
        running = asyncio.wrap_future(in_thread(call))
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)  # a thread goes on, whoever has given up

    def _ended(self, running: "asyncio.Future[Fault | None]") -> None:
        self._free.release()
        running.exception()  # asyncio would log what nobody waits for


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_WORDS]
