"""The owner's store for output, reached by fsspec. Objects are created, and neither replaced nor deleted.

fsspec blocks, and a store can hang. So each call runs in a thread of its own, which holds no process up at its end.
There are few of these threads, and each call has a time limit. obstore gives a request up after 30 s; what fsspec's
backends and file systems do is theirs. A thread that hangs for longer is given up, and replaced by another one.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Self, TypeVar

from codeexec_api import CodeExecution, Reason
from codeexec_api.digests import sha256_hex
from codeexec_api.names import part_name
from codeexec_api.output_store import MAX_OBJECT_BYTES, below, content_path, dump_part, object_path
from codeexec_api.store_files import StoreFiles, in_thread, open_store
from codeexec_operator.adapters.fair_semaphore import FairSemaphore
from codeexec_operator.adapters.outputs import StoreDamage, StoreFailure
from codeexec_operator.core.observed_pod import Fault
from codeexec_operator.core.output_parts import OutputPart
from codeexec_operator.core.output_place import OutputPlace, stored_at

T = TypeVar("T")

logger = logging.getLogger(__name__)

CALL_SECONDS: Final = 15
"""How long one try may take, with the wait for a thread. As long as the API server has for an answer."""
THREADS: Final = 8
"""Calls at the same time."""
THREADS_OF_ONE: Final = 4
"""Of these, at most so many for one namespace. Namespaces that wait take turns."""
LIMITS_OF_A_HANG: Final = 4
"""A call that lasts this many times CALL_SECONDS hangs: what it had is free for another one, and its thread is left."""
MOST_HUNG: Final = 24
"""Threads that are left at the same time. Beyond that a call that hangs keeps what it has, until one of them ends."""
_WORDS: Final = 300
"""Characters of the store's own words in a record."""


class OutputStore:
    """Writes parts as objects. Their names are made of the namespace and the UID of the execution alone.

    It is a `FileStore`, too, for sessions that sleep.

    Args:
        files: what is in the store.
        root: path of the store there.
        place: what records say of it.
        seconds: see `CALL_SECONDS`.
    """

    def __init__(self, files: StoreFiles, root: str, place: OutputPlace, *, seconds: float = CALL_SECONDS) -> None:
        self.place: Final = place
        self._files, self._root, self._seconds = files, root, seconds
        self._threads = FairSemaphore(THREADS, THREADS_OF_ONE)
        self._hung: set[asyncio.Future[Any]] = set()
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

    @property
    def files(self) -> Self:
        """See `outputs.Outputs`."""
        return self

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
        return await self._call(meta.namespace, "did not accept it", lambda: self._create(path, data))

    async def keep(self, namespace: str, uid: str, sha256: str, data: bytes) -> None:
        """See `outputs.FileStore`."""
        path = below(self._root, content_path(namespace, uid, sha256))
        self._may_send()
        if fault := await self._call(namespace, "did not accept it", lambda: self._create(path, data)):
            raise StoreDamage(fault.message)
        await self.load(namespace, uid, sha256)

    async def load(self, namespace: str, uid: str, sha256: str) -> bytes:
        """See `outputs.FileStore`."""
        path = below(self._root, content_path(namespace, uid, sha256))
        data = await self._call(namespace, "could not be read", lambda: self._read(path))
        if data is None or sha256_hex(data) != sha256:
            what = "no longer holds" if data is None else "holds another object of this name:"
            raise StoreDamage(f"the output store {self.place.url} {what} {path}")
        return data

    def _read(self, path: str) -> bytes | None:
        try:
            return self._files.cat_file(path, start=0, end=MAX_OBJECT_BYTES)
        except FileNotFoundError:
            return None

    async def _call(self, namespace: str, failed: str, call: Callable[[], T]) -> T:
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return await self._in_thread(namespace, call)
        except Exception as error:  # of whatever type the backend likes
            late = f"did not answer within {self._seconds:g} s{self._stuck}"
            why = late if limit.expired() else f"{failed}: {_words(error)}"
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

    async def _in_thread(self, namespace: str, call: Callable[[], T]) -> T:
        await self._threads.take(namespace)
        try:
            running = asyncio.wrap_future(in_thread(call))
        except BaseException:  # there are no more threads
            self._threads.give(namespace)
            raise
        self._give_back_in_time(namespace, running)
        running.add_done_callback(asyncio.Future.exception)  # asyncio would log what nobody waits for
        return await asyncio.shield(running)  # a thread goes on, whoever has given up

    def _give_back_in_time(self, namespace: str, running: asyncio.Future[Any]) -> None:
        """Give the slot back when the call has ended, or when it hangs."""
        later, seconds = asyncio.get_running_loop().call_later, LIMITS_OF_A_HANG * self._seconds
        timer = later(seconds, lambda: hangs())

        def hangs() -> None:
            nonlocal timer
            if self._stuck:
                logger.error("the output store %s%s", self.place.url, self._stuck)
                timer = later(seconds, hangs)
                return
            self._hung.add(running)
            logger.warning("the output store %s: call %d that hangs was given up", self.place.url, len(self._hung))
            self._threads.give(namespace)

        def ended(_: asyncio.Future[Any]) -> None:
            timer.cancel()
            if running in self._hung:
                self._hung.discard(running)
            else:
                self._threads.give(namespace)

        running.add_done_callback(ended)

    @property
    def _stuck(self) -> str:
        """What to say if no further thread may be left behind; empty as long as one may."""
        if len(self._hung) < MOST_HUNG:
            return ""
        what = "calls hang, and no thread is started for another one; repair it or restart the operator"
        return f": {len(self._hung)} {what}"


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_WORDS]
