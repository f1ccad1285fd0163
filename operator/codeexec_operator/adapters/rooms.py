"""What has pods in each namespace, and which executions and sessions there find no room for theirs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from codeexec_operator.core.actions import DropMember, Plan
from codeexec_operator.core.observed import Room
from codeexec_operator.core.pacing import rest_after_look
from codeexec_operator.core.timing import Timing

_LONGEST_REST_SECONDS: Final = 1


@dataclass
class _Need:
    since: datetime
    given_at: datetime | None = None
    """When a pool last gave up a pod for it."""


class Rooms:
    """Pools of a namespace give way to pods of executions and sessions that no node has room for.

    Args:
        look: what has pods in a namespace.
        wake: called with a namespace when its pools have to look again.
        clock: gives seconds.
    """

    def __init__(
        self,
        look: Callable[[str], Room],
        wake: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._wake, self._clock = look, wake, clock
        self._rooms: dict[str, tuple[float, Room]] = {}
        self._needs: dict[str, dict[str, _Need]] = {}

    def of(self, namespace: str) -> Room:
        """What has pods there."""
        began = self._clock()
        until, room = self._rooms.get(namespace, (began, Room()))
        if began >= until:
            room, ended = self._look(namespace), self._clock()
            self._rooms[namespace] = ended + rest_after_look(ended - began, _LONGEST_REST_SECONDS), room
        return room

    def know(self, namespace: str, uid: str, now: datetime, *, needs: bool) -> None:
        """Whether no node has room for the pod of this object."""
        if needs == (uid in self._needs.get(namespace, ())):
            return
        if needs:
            self._needs.setdefault(namespace, {})[uid] = _Need(now)
        else:
            del self._needs[namespace][uid]
            if not self._needs[namespace]:
                del self._needs[namespace]
        self._wake(namespace)

    def held_until(self, namespace: str, now: datetime, timing: Timing) -> datetime | None:
        """Until when pools make no pods there; None if nobody needs the room, or not for as long as pools give way."""
        until = [need.since + timedelta(seconds=timing.give_way) for need in self._needs.get(namespace, {}).values()]
        return max((end for end in until if now < end), default=None)

    def unserved(self, namespace: str, now: datetime, timing: Timing) -> int:
        """For how many of those who need room pools have to give up a pod now."""
        return len(self._unserved(namespace, now, timing))

    def given(self, namespace: str, plan: Plan, now: datetime, timing: Timing) -> None:
        """A pool carries out this plan."""
        count = sum(isinstance(action, DropMember) and action.gives_way for action in plan.actions)
        for need in self._unserved(namespace, now, timing)[:count]:
            need.given_at = now

    def _unserved(self, namespace: str, now: datetime, timing: Timing) -> list[_Need]:
        again, end = timedelta(seconds=timing.give_way_again), timedelta(seconds=timing.give_way)
        needs = self._needs.get(namespace, {}).values()
        return [
            need for need in needs if now < need.since + end and (need.given_at is None or now >= need.given_at + again)
        ]
