"""Holds the Lease that one replica leads by, and ends the process as soon as it may no longer lead."""

import asyncio
import logging
import os
import platform
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, NoReturn

from kubernetes.aio.client.exceptions import ApiException

from codeexec_operator.adapters.api_server import REQUEST_ERRORS
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.supervision import end
from codeexec_operator.core.leadership import Candidate, LeaseRecord, LeaseTiming
from codeexec_operator.core.shard import Shard

logger = logging.getLogger(__name__)

_REFUSED: Final = (404, 409)
"""The Lease has changed since it was read, or is gone."""
_RELEASES: Final = 3
"""How often the Lease is given back at most. Each attempt is as long as the API server may take for an answer."""


def exit_at_once(why: str) -> NoReturn:
    """End the process without another step: whatever it would still do may contradict the next leader."""
    logger.critical("this replica leads no more: %s. It ends, and will be restarted to stand by", why)
    os._exit(1)


class Leader:
    """This process as a candidate.

    Args:
        cluster: where the Lease is.
        namespace: of the Lease.
        name: of the Lease of a release without shards.
        timing: of the Lease.
        shard: what this process is to serve.
        lost: ends the process; called when it may no longer act.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        *,
        timing: LeaseTiming,
        shard: Shard,
        lost: Callable[[str], NoReturn] = exit_at_once,
    ) -> None:
        self._cluster, self._namespace, self._name, self._lost = cluster, namespace, shard.lease(name), lost
        # A container that is restarted has the name of the one before it, and must not go on as that one.
        self._candidate = Candidate(f"{platform.node()}_{uuid.uuid4()}", timing, shard.count)
        self._others = {lease: self._candidate for lease in shard.others(name)}
        self._timing = timing
        self._renewing: asyncio.Task[None] | None = None
        self._problem = ""
        self._unsure = False
        """True if the Lease may be another than the one that was seen last: a write has no answer."""

    @property
    def epoch(self) -> int:
        """Of this leader: higher than that of each before it. 0 while it doesn't lead."""
        return self._candidate.epoch

    def check(self) -> None:
        """End the process if it has led for too long without a renewal, as after it stood still."""
        if self._renewing and not self._candidate.leads(_now()):
            self._lost(f"its Lease was not renewed within {self._timing.renew_deadline:g} s")

    async def lead(self) -> int:
        """Wait until this process leads, for as long as it takes. From then on the Lease is renewed.

        While the number of shards changes, replicas of both numbers are there. Each leader holds its own Lease before
        it looks at those of the others, and waits for each that is held with another number. So no two of them serve
        the same namespace.

        Returns:
            The epoch.
        """
        await self._try(self._take)
        while not self._candidate.leads(_now()):
            left = self._candidate.take_at() - _now()
            await asyncio.sleep(min(self._timing.look_every, left) if left > 0 else self._timing.look_every)
            await self._try(self._take)
        self._renewing = asyncio.create_task(self._renew())
        await self._wait_for_others()
        logger.info("this replica leads, with epoch %s", self.epoch)
        return self.epoch

    async def release(self) -> None:
        """Give the Lease back, so that another replica leads at once. Nothing may be done after that."""
        renewing, self._renewing = self._renewing, None
        if renewing:
            await end(renewing)
        for _ in range(_RELEASES):
            if await self._try(self._give_back):
                return

    async def _give_back(self) -> None:
        if self._unsure:  # the last write may have been stored, and its answer was not waited for
            await self._look()
        await self._change(self._candidate.given_back)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._timing.renew_every)
            while not await self._try(lambda: self._change(self._candidate.renewed)):
                if not self.epoch:
                    self._lost(self._candidate.loss())
                self.check()
                await asyncio.sleep(min(self._timing.look_every, max(0.0, self._candidate.acts_until - _now())))
                self.check()

    async def _take(self) -> None:
        await self._look()
        if _now() >= self._candidate.take_at():
            await self._look_around()
            above = max(other.highest for other in self._others.values())
            await self._write(self._candidate.taken(datetime.now(UTC), above=above))

    async def _change(self, change: Callable[[datetime], LeaseRecord | None]) -> None:
        """Write the Lease as its leader. A Lease that has changed since it was read is read again."""
        record = change(datetime.now(UTC))
        try:
            if record:
                await self._write(record)
        except ApiException as error:
            if error.status in _REFUSED:
                await self._look()
            raise

    async def _look(self) -> None:
        record = await self._cluster.get_leadership(self._namespace, self._name)
        self._candidate, self._unsure = self._candidate.saw(record, _now()), False

    async def _wait_for_others(self) -> None:
        told: list[str] = []
        while not await self._try(self._look_around) or self._held_otherwise():
            if told != (told := self._held_otherwise()):
                logger.warning("replicas that count another number of shards hold %s; waiting", ", ".join(told))
            await asyncio.sleep(self._timing.look_every)

    async def _look_around(self) -> None:
        records = await asyncio.gather(*(self._cluster.get_leadership(self._namespace, name) for name in self._others))
        for (name, seen), record in zip(self._others.items(), records, strict=True):
            self._others[name] = seen.saw(record, _now())

    def _held_otherwise(self) -> list[str]:
        return [name for name, other in self._others.items() if other.obstructs(_now())]

    async def _write(self, record: LeaseRecord) -> None:
        sent_at = _now()
        self._unsure = True
        stored = await self._cluster.write_leadership(self._namespace, self._name, record)
        self._unsure = False
        self._candidate = self._candidate.wrote(stored, sent_at, _now())

    async def _try(self, step: Callable[[], Awaitable[None]]) -> bool:
        """True if it went well. Why it didn't is logged when it changes, not with each attempt."""
        left = self._candidate.acts_until - _now() if self._renewing else self._timing.answer
        try:
            async with asyncio.timeout(min(self._timing.answer, left)):
                await step()
        except REQUEST_ERRORS as error:
            problem = str(error.status) if isinstance(error, ApiException) else type(error).__name__
        except Exception:  # a leader whose renewals end without a word would be ended by that
            logger.exception("unexpected; trying again")
            problem = "unexpected"
        else:
            problem = ""
        if problem and problem != self._problem:
            where = f"{self._namespace}/{self._name}"
            logger.warning("Lease %s: could not be read or written (%s); trying again", where, problem)
        self._problem = problem
        return not problem


def _now() -> float:
    """Goes on while the machine sleeps, and is never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
