"""Has code of agents read by child processes that can do nothing else, two at a time.

Nothing is parsed in the operator itself: it holds rights, and hostile code can take memory and time without end, or end
the interpreter. The child limits itself before it reads anything (`codeexec_api.imports`).
"""

import asyncio
import logging
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Final
from weakref import WeakValueDictionary

from codeexec_api.code_rules import WALL_SECONDS, Inquiry, Reading
from codeexec_operator.adapters.byte_budget import ByteBudget
from codeexec_operator.adapters.supervision import end

logger = logging.getLogger(__name__)

_END_SECONDS: Final = 0.2
_CHILDREN: Final = 2
"""A namespace whose code takes long to read leaves one to the others. Each takes `imports.MEMORY_BYTES` at most."""
_HELD_BYTES: Final = 32 * 1024 * 1024
"""Code that is fetched and not read yet, of all namespaces; that of one execution is 16 MB at most."""
_SMALL: Final = 256 * 1024
"""Code up to this size has room of its own: it doesn't wait until much code of others was fetched, which takes time."""
_SMALL_HELD_BYTES: Final = 4 * 1024 * 1024


class CodeReader:
    """Reads code of two executions at a time, so that no more memory is taken than that of two children.

    Whoever wants code read takes a `turn` of its namespace before it fetches the code. In each namespace one execution
    has a turn at a time, and all that have one hold at most so many bytes (`_HELD_BYTES`, `_SMALL_HELD_BYTES`). So each
    namespace stands in a line only once, and who comes first is first: the namespaces take turns. The child is waited
    for in `read`, with the code at hand: code that takes long to fetch keeps no child from other code.
    """

    def __init__(self) -> None:
        self._children = asyncio.Semaphore(_CHILDREN)
        self._room, self._small_room = ByteBudget(_HELD_BYTES), ByteBudget(_SMALL_HELD_BYTES)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, namespace: str, size: int) -> AsyncIterator[None]:
        """The time in which code of this namespace, of so many bytes, can be fetched and read."""
        room = self._room if size > _SMALL else self._small_room
        async with self._turns.setdefault(namespace, asyncio.Lock()), room.holding(size):
            yield

    async def read(self, inquiry: Inquiry) -> Reading:
        """What there is to say of this code, in a turn. What the child doesn't tell in time counts as unreadable.

        Raises:
            OSError: no child could be started.
        """
        async with self._children:
            return await _read(inquiry)


async def _read(inquiry: Inquiry) -> Reading:
    process = await asyncio.create_subprocess_exec(
        *inquiry.command(), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={}, cwd="/"
    )
    try:
        answer = await _ask(process, inquiry)
        with suppress(TimeoutError):  # it has told all, and ends at once; if it is killed then, asyncio complains
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.communicate()  # to the end of its pipes, which asyncio waits for
    return inquiry.reading(answer)


async def _ask(process: Process, inquiry: Inquiry) -> bytes:
    """All that it answers until it ends, or until its time is over."""
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:
        raise OSError("a child process without pipes")
    telling = asyncio.create_task(_tell(stdin, inquiry.message()))
    answer = b""
    try:
        async with asyncio.timeout(WALL_SECONDS):
            while len(answer) < inquiry.most and (piece := await stdout.read(inquiry.most)):
                answer += piece
    except TimeoutError:
        logger.warning("code was not read within %g s; it counts as unreadable", WALL_SECONDS)
    finally:
        await end(telling)
    return answer


async def _tell(stdin: asyncio.StreamWriter, message: Iterable[bytes]) -> None:
    try:
        for piece in message:
            stdin.write(piece)
            await stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        return  # it has ended: what is missing tells
    finally:
        stdin.close()
