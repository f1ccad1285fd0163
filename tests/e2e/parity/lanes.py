"""Runs cases of different groups at the same time, each lane with executors of its own."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable

from parity.case import Case, Group, Seen
from parity.parties import Party

LANES = 3
"""So many pods of a shared executor have room on the node beside what other tests make."""
CASE_SECONDS = 90

Outcome = dict[str, Seen]
"""What each executor gave, by its name."""


class Lanes:
    """The outcomes of the chosen cases, as they come. The cases of a group run one after the other."""

    def __init__(self, groups: Iterable[Group], chosen: Collection[str], make: Callable[[], list[Party]]) -> None:
        self._parties: list[Party] = []
        self._make = make
        self._groups = deque(groups)
        self._outcomes = {id_: asyncio.get_running_loop().create_future() for id_ in chosen}
        self._lanes = [asyncio.create_task(self._lane()) for _ in range(LANES)]

    async def outcome(self, case: Case) -> Outcome:
        """What the executors have given, once the case has run."""
        outcome = self._outcomes[case.id]
        await asyncio.wait([outcome, *self._lanes], return_when=asyncio.FIRST_COMPLETED)
        while not outcome.done() and (left := [lane for lane in self._lanes if not lane.done()]):
            await asyncio.wait([outcome, *left], return_when=asyncio.FIRST_COMPLETED)
        if not outcome.done():
            for lane in self._lanes:
                await lane  # one has failed: this says why
        return await outcome

    async def close(self) -> None:
        """End what still runs, and stop all executors."""
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)
        await asyncio.gather(*(party.close() for party in self._parties))

    async def _lane(self) -> None:
        parties = self._make()
        self._parties += parties
        while self._groups:
            for case in self._groups.popleft().cases:
                if case.id in self._outcomes:
                    await self._observe(case, parties)

    async def _observe(self, case: Case, parties: list[Party]) -> None:
        outcome = self._outcomes[case.id]
        try:
            async with asyncio.timeout(CASE_SECONDS):
                found = await asyncio.gather(*(_seen_by(party, case) for party in parties))
            outcome.set_result({party.name: one for party, one in zip(parties, found, strict=True)})
        except TimeoutError:
            outcome.set_exception(AssertionError(f"waited {CASE_SECONDS} s in vain for the end of case {case.id}"))


async def _seen_by(party: Party, case: Case) -> Seen:
    try:
        return await case.run(party)
    finally:
        await party.tidy()
