"""What is done for an execution once its code has started: beside code that takes long, and after the result."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from codeexec_operator.adapters.code_run import CodeRun
from codeexec_operator.adapters.connection import Connection
from codeexec_operator.adapters.supervision import end
from codeexec_operator.adapters.worker import Worker, all_of
from codeexec_operator.core.actions import Action, AdoptPod

_CHORES_SECONDS: Final = 0.1
"""How long what has to be done once the code has started may wait for its end, which most code reaches sooner."""
_RESULT_SECONDS: Final = 0.1
"""How long they wait then, until the caller has the result."""


async def _comes(event: asyncio.Event, seconds: float) -> bool:
    """Wait for it for so long; True if it has come."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class Chores:
    """Of one execution, in the background of its `worker`. `act` carries out an action."""

    def __init__(self, worker: Worker, code: CodeRun, act: Callable[[Action], Coroutine[Any, Any, None]]) -> None:
        self._worker, self._code, self._act = worker, code, act
        self._over = asyncio.Event()

    def adopt(self, adoptions: Sequence[AdoptPod], seconds: float) -> None:
        """Make a pod of a pool the execution's own, unless its code ends within so long: the pod goes as the pool's."""
        if adoptions:
            self._worker.run_in_background(self._adopt(adoptions, seconds))

    def tidy_up(self, chores: Sequence[Action], runner: Connection | None) -> None:
        """What is to be done once code has started, but not beside code that takes no time, nor beside its result.

        If the connection ends before the runner has shown that it has the code, nothing is done: the code may have to
        be handed over again. Without chores it is found out all the same: a key may be needed until then.
        """
        self._worker.run_in_background(self._tidy_up(chores, runner))

    def end(self, runner: Connection | None = None) -> None:
        """The execution is over. Its runner may exit, once the caller has the result."""
        self._over.set()
        if runner:
            self._worker.run_in_background(self._acknowledge(runner))

    async def _adopt(self, adoptions: Sequence[Action], seconds: float) -> None:
        if not await _comes(self._over, seconds):
            await all_of([self._act(action) for action in adoptions])

    async def _tidy_up(self, chores: Sequence[Action], runner: Connection | None) -> None:
        if await _comes(self._over, _CHORES_SECONDS):
            await asyncio.sleep(_RESULT_SECONDS)
        elif not await self._arrives(runner):
            return
        await all_of([self._act(action) for action in chores])

    async def _arrives(self, runner: Connection | None) -> bool:
        """Wait until the runner has shown that it has the code, or until the execution is over and needs it no more."""
        arrives, over = (asyncio.ensure_future(one) for one in (self._code.arrives(runner), self._over.wait()))
        try:
            await asyncio.wait((arrives, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(arrives, over)
        return self._over.is_set() or self._code.arrived

    async def _acknowledge(self, runner: Connection) -> None:
        """A pod that ends takes the node's time."""
        await asyncio.sleep(_RESULT_SECONDS)
        await runner.acknowledge(self._code.uid)
