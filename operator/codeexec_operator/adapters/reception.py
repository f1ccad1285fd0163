"""Lets new requests in, and reads those again that had to wait: `core.intake` says which."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from codeexec_api import CodeExecution, CodeSession
from codeexec_operator.adapters.api_server import REQUEST_ERRORS
from codeexec_operator.adapters.retries import Retries
from codeexec_operator.adapters.supervision import end
from codeexec_operator.adapters.worker import Context
from codeexec_operator.core.intake import Intake, Ticket, is_pending

logger = logging.getLogger(__name__)

Record = CodeExecution | CodeSession


class Reception:
    """All requests come by here before they are parsed.

    Args:
        read: gives the request of this kind, namespace, name and UID; None if it is gone.
        enter: takes a request that has waited, and was read.
        context: counts the tries that failed.
    """

    def __init__(
        self,
        read: Callable[[str, str, str, str], Awaitable[Record | None]],
        enter: Callable[[Record], None],
        context: Context,
    ) -> None:
        self._intake: Final = Intake()
        self._read, self._enter, self._context = read, enter, context
        self._reads: Final[dict[asyncio.Task[None], str]] = {}
        """With their namespaces."""
        self._full: Final[set[str]] = set()
        """Namespaces in which some wait, as the log says."""
        self._stopped = False

    def lets_in(self, plural: str, raw: Mapping[str, Any]) -> bool:
        """True if a request that nobody looks after yet is to be looked after now. Else it waits for its turn."""
        if self._intake.holds(raw["metadata"]["uid"]):
            return True  # the handler has asked already, before it waited for a turn
        ticket = Ticket.of(plural, raw)
        held = self._intake.arrives(ticket, pending=is_pending(raw))
        self._go_on(ticket.namespace)
        return held

    def let_in(self, record: Record) -> None:
        """A request is looked after, whatever the bounds say: it has a pod, or another one needs it."""
        self._intake.arrives(Ticket.least(record.plural, record.metadata), pending=False)

    def changed(self, raw: Mapping[str, Any]) -> None:
        """A request that is looked after was seen anew."""
        if not is_pending(raw):
            self._intake.decided(raw["metadata"]["uid"])
            self._go_on(raw["metadata"]["namespace"])

    async def turn(self, meta: Mapping[str, Any], worker_of: Callable[[str], object]) -> None:
        """Wait until it is the turn of a namespace. A request that was let in is let go of if that is cancelled.

        If the request is still there, another list tells of it.
        """
        try:
            await self._context.turns.turn(meta["namespace"])
        except asyncio.CancelledError:
            if worker_of(meta["uid"]) is None:
                self.leave(meta["namespace"], meta["uid"])
            raise

    def leave(self, namespace: str, uid: str) -> None:
        """A request is over, or gone."""
        if self._intake.leave(uid):
            self._go_on(namespace)

    async def release(self, namespace: str) -> None:
        """Forget those of a namespace that wait."""
        for ticket in self._intake.waiting(namespace):
            self._intake.leave(ticket.uid)
        await end(*(task for task, where in self._reads.items() if where == namespace))
        self._go_on(namespace)

    async def stop(self) -> None:
        """Read nothing any more, whoever leaves."""
        self._stopped = True
        await end(*self._reads)

    def waiting(self, namespace: str) -> list[Ticket]:
        """Those of a namespace that wait, in order."""
        return self._intake.waiting(namespace)

    def all_waiting(self) -> list[Ticket]:
        """Those of all namespaces."""
        return self._intake.all_waiting()

    def _go_on(self, namespace: str) -> None:
        while not self._stopped and (ticket := self._intake.take()):
            task = asyncio.create_task(self._serve(ticket), name=f"read {ticket.namespace}/{ticket.name}")
            self._reads[task] = ticket.namespace
            task.add_done_callback(partial(self._was_read, ticket))
        waits = self._intake.waits(namespace)
        if waits and namespace not in self._full:
            self._full.add(namespace)
            logger.warning("%s: has more new requests than are looked after at a time; the others wait", namespace)
        elif not waits and namespace in self._full:
            self._full.remove(namespace)
            logger.info("%s: no new request waits for its turn any more", namespace)

    def _was_read(self, ticket: Ticket, task: asyncio.Task[None]) -> None:
        """However that ended: a task that is cancelled before its first step does nothing itself."""
        del self._reads[task]
        self._intake.was_read(ticket)
        self._go_on(ticket.namespace)

    async def _serve(self, ticket: Ticket) -> None:
        record = None
        try:
            record = await self._insist(ticket)
        except ValidationError as error:  # as if it had not waited: this operator is older than the request
            name = f"{ticket.plural} {ticket.namespace}/{ticket.name}"
            why = error.errors(include_input=False)
            logger.error("%s: ignored, because this operator can't read it: %s", name, why)
        except Exception:
            self._context.telemetry.metrics.unexpected()
            logger.exception("%s/%s: unexpected; not looked after", ticket.namespace, ticket.name)
        finally:
            if record is None and self._intake.holds(ticket.uid):  # it may have left, and wait for another turn
                self._intake.leave(ticket.uid)
        if record and self._intake.holds(ticket.uid):
            self._enter(record)

    async def _insist(self, ticket: Ticket) -> Record | None:
        retries = Retries(f"{ticket.namespace}/{ticket.name}", self._context.telemetry.metrics)
        while self._intake.holds(ticket.uid):
            try:
                record = await self._read(ticket.plural, ticket.namespace, ticket.name, ticket.uid)
            except REQUEST_ERRORS as error:
                await asyncio.sleep(retries.failed(error, "it could not be read"))
            else:
                retries.succeeded()
                return record
        return None
