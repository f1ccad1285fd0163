"""Has code of agents read by a child process that can do nothing else, one at a time.

Nothing is parsed in the operator itself: it holds rights, and hostile code can take memory and time without end, or end
the interpreter. The child limits itself before it reads anything (`codeexec_api.imports`).
"""

import asyncio
import logging
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Final

from codeexec_api.code_rules import WALL_SECONDS, Inquiry, Reading

logger = logging.getLogger(__name__)

_END_SECONDS: Final = 0.2


class CodeReader:
    """Reads code of one execution after the other, so that no more memory is taken than that of one child.

    Whoever wants code read takes a `turn` before it has the code, so that no more of it waits in memory, either.
    Namespaces take turns.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """The time in which code of this namespace can be read."""
        async with self._turns[namespace], self._turn:  # so each namespace has one in the line that all stand in
            yield

    async def read(self, inquiry: Inquiry) -> Reading:
        """What there is to say of this code, in a turn. What the child doesn't tell in time counts as unreadable.

        Raises:
            OSError: no child could be started.
        """
        process = await asyncio.create_subprocess_exec(
            *inquiry.command(), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={}, cwd="/"
        )
        try:
            answer = await _ask(process, inquiry)
            await _end_by_itself(process)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
            await process.communicate()  # to the end of its pipes, which asyncio waits for
        return inquiry.reading(answer)


async def _end_by_itself(process: Process) -> None:
    """A child that has told all ends at once; to kill it then would make asyncio complain."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()


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
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
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
