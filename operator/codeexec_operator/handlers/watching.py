"""A kopf operator for one namespace, within a process that has many: it lasts until something of it ends."""

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Final

import kopf

from codeexec_operator.adapters.supervision import JobFailure, end

_WATCHER: Final = "watcher for "
"""What the names of kopf's watches begin with. The resource follows, and behind an @ the namespace."""
_LOOK_SECONDS: Final = 1.0


class _NoDifferences(kopf.DiffBaseStorage):
    """For handlers that are told what has changed. There are none here, and kopf copies each object for them."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


def settings() -> kopf.OperatorSettings:
    """Of each of these kopf operators."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDifferences()
    settings.queueing.idle_timeout = 1  # until then the last event of each object is held
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.chunk_size = 20  # a list comes in pages
    settings.networking.error_backoffs = (0.5, 1, 2)  # what lasts longer is the supervisor's
    settings.process.ultimate_exiting_timeout = None  # it is not the process that ends
    return settings


async def watch(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    namespace: str,
    stop: asyncio.Event,
    resources: Collection[str],
    **memo: Any,
) -> None:
    """Run a kopf operator until it fails, one of its watches ends, or this is cancelled.

    Not `kopf.operator`: when that ends it cancels every task that was begun since, whoever has begun it.

    Args:
        registry: its handlers.
        settings: of `settings()`.
        namespace: where it watches.
        stop: what signals set, which end the process.
        resources: plurals of what its handlers are for.
        memo: what its handlers get.

    Raises:
        JobFailure: what it has failed with.
    """

    async def spawn() -> Collection[asyncio.Task[None]]:
        tasks = await kopf.spawn_tasks(
            registry=registry, settings=settings, namespaces=[namespace], standalone=True, memo=kopf.Memo(**memo)
        )
        keep_signals(stop)
        return tasks

    spawning = asyncio.create_task(spawn())
    try:
        ended = await _first_to_end(await asyncio.shield(spawning), namespace, resources)
        errors = [task.exception() for task in ended if not task.cancelled()]
        raise JobFailure(_what(next(filter(None, errors), None)))
    finally:
        await end(*await spawning)
        await end(*_watches.to_end(namespace, resources))  # it leaves its others behind when one fails


async def _first_to_end(
    tasks: Collection[asyncio.Task[None]], namespace: str, resources: Collection[str]
) -> Collection[asyncio.Task[None]]:
    """Wait for the end of one of the tasks or of the watches that they begin.

    kopf doesn't notice when a watch was cancelled. It cancels one itself, by mistake, when an object appears in the
    moment in which the time runs out that a watch may be silent: the timeout is set within an async generator, so it
    may meet whoever reads from that.
    """
    watches: set[asyncio.Task[None]] = set()
    done: Collection[asyncio.Task[None]] = ()
    while not done:
        complete = len(watches) == len(resources)
        done, _ = await asyncio.wait(
            {*tasks, *watches}, timeout=None if complete else _LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if not complete:
            watches |= _watches.known(namespace, resources)
    return done


class _Watches:
    """The tasks that are kopf's watches. They are known by their names only: kopf hands them out to nobody.

    All tasks of the process are looked through for them. That is done once a second, however many namespaces begin.
    """

    def __init__(self) -> None:
        self._found: Mapping[str, list[asyncio.Task[None]]] = {}
        """By namespace."""
        self._looked_at = float("-inf")

    def known(self, namespace: str, resources: Collection[str]) -> set[asyncio.Task[None]]:
        """Those of these resources in this namespace, as they were up to a second ago."""
        if time.monotonic() >= self._looked_at + _LOOK_SECONDS:
            found = defaultdict(list)
            for task in asyncio.all_tasks():
                if (name := task.get_name()).startswith(_WATCHER):
                    found[name.rpartition("@")[2]].append(task)
            self._found, self._looked_at = found, time.monotonic()
        return {one for one in self._found.get(namespace, ()) if _resource(one) in resources}

    def to_end(self, namespace: str, resources: Collection[str]) -> set[asyncio.Task[None]]:
        """The same, as they are now. They are about to end, so what was seen counts no more."""
        self._looked_at = float("-inf")
        found = self.known(namespace, resources)
        self._looked_at = float("-inf")
        return found


def _resource(watch: asyncio.Task[None]) -> str:
    """Its plural."""
    return watch.get_name().removeprefix(_WATCHER).partition(".")[0]


_watches: Final = _Watches()


def _what(error: BaseException | None) -> str:
    """What a kopf operator has ended with; the errors of its API client have a status."""
    status = getattr(error, "status", None)
    return f"the API server answered {status}" if status else f"the watch has ended ({error or 'no reason given'})"


def keep_signals(stop: asyncio.Event) -> None:
    """They end the process; each kopf operator would have them end itself alone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
