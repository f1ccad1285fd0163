"""A kopf operator for one namespace, within a process that has many: it lasts until something of it ends."""

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Final

import aiohttp
import kopf

from codeexec_operator.adapters import narrow_json
from codeexec_operator.adapters.api_server import CONNECT_SECONDS, keepalive_socket
from codeexec_operator.adapters.records import AT_A_TIME
from codeexec_operator.adapters.supervision import JobFailure, end

_WATCHER: Final = "watcher for "
"""What the names of kopf's watches begin with. The resource follows, and behind an @ the namespace."""
_LOOK_SECONDS: Final = 1.0
_TOGETHER_SECONDS: Final = 0.05
"""For so long watches that are about to end are gathered, before all tasks are looked through for them."""
_SESSION: Final = "session"
_CONNECTION: Final = "connection"
"""What is kept in the memo of a kopf operator: its session, and what that was made of."""


class _Answer(aiohttp.ClientResponse):
    """Of the API server to kopf: a page of a list may be large."""

    async def json(self, **_: Any) -> Any:
        return narrow_json.parse(await self.read())


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
    settings.watching.chunk_size = AT_A_TIME
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.error_backoffs = (0.5, 1, 2)  # what lasts longer is the supervisor's
    settings.process.ultimate_exiting_timeout = None  # it is not the process that ends
    return settings


async def login(memo: kopf.Memo, **about: Any) -> kopf.AiohttpSession | None:
    """A session for the watches of one kopf operator, whose connections notice when their peer is gone.

    kopf's own sessions don't: their watches would be deaf for a minute. None if there are no credentials but those that
    the API server has refused: then the kopf operator ends, and is begun again later.
    """
    about = {name: about[name] for name in ("logger", "settings")}
    connection = await asyncio.to_thread(kopf.login_via_client, **about)
    if connection is None or connection == memo.get(_CONNECTION):
        return None
    memo[_CONNECTION] = connection
    memo[_SESSION] = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=connection.as_ssl_context(), socket_factory=keepalive_socket),
        headers=connection.as_http_headers(),
        trust_env=connection.trust_env,
        response_class=_Answer,
    )
    return kopf.AiohttpSession(
        server=connection.server,
        default_namespace=connection.default_namespace,
        priority=connection.priority,
        aiohttp_session=memo[_SESSION],
    )


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
    memo_of_it = kopf.Memo(**memo)

    async def spawn() -> Collection[asyncio.Task[None]]:
        tasks = await kopf.spawn_tasks(
            registry=registry, settings=settings, namespaces=[namespace], standalone=True, memo=memo_of_it
        )
        keep_signals(stop)
        return tasks

    spawning = asyncio.create_task(spawn())
    watches: set[asyncio.Task[None]] = set()
    try:
        ended = await _first_to_end(await asyncio.shield(spawning), watches, namespace, resources)
        errors = [task.exception() for task in ended if not task.cancelled()]
        raise JobFailure(_what(next(filter(None, errors), None)))
    finally:
        await end(*await spawning)
        if len(watches) < len(resources):
            watches |= await _watches.now(namespace, resources)
        await end(*watches)  # kopf leaves its others behind when one fails
        if session := memo_of_it.get(_SESSION):
            await session.close()  # it is kopf's own to close, unless kopf has made no request yet


async def _first_to_end(
    tasks: Collection[asyncio.Task[None]],
    watches: set[asyncio.Task[None]],
    namespace: str,
    resources: Collection[str],
) -> Collection[asyncio.Task[None]]:
    """Wait for the end of one of the tasks or of the watches that they begin. Adds these to `watches`.

    kopf doesn't notice when a watch was cancelled. It cancels one itself, by mistake, when an object appears in the
    moment in which the time runs out that a watch may be silent: the timeout is set within an async generator, so it
    may meet whoever reads from that.
    """
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

    All tasks of the process are looked through for them. With 1,000 namespaces that takes 30 ms of the one thread, so
    it is never done for one namespace alone: while watches begin it is done once a second, and those that end share it.
    """

    def __init__(self) -> None:
        self._found: Mapping[str, list[asyncio.Task[None]]] = {}
        """By namespace."""
        self._looked_at = float("-inf")
        self._walk: asyncio.Task[None] | None = None

    def known(self, namespace: str, resources: Collection[str]) -> set[asyncio.Task[None]]:
        """Those of these resources in this namespace, as they were up to a second ago."""
        if time.monotonic() >= self._looked_at + _LOOK_SECONDS:
            self._look()
        return self._of(namespace, resources)

    async def now(self, namespace: str, resources: Collection[str]) -> set[asyncio.Task[None]]:
        """The same, as they are now, a moment later."""
        if self._walk is None or self._walk.done():
            self._walk = asyncio.create_task(self._look_soon())
        await asyncio.shield(self._walk)
        return self._of(namespace, resources)

    async def _look_soon(self) -> None:
        await asyncio.sleep(_TOGETHER_SECONDS)
        self._walk = None  # whoever comes from now on may mean a watch that begins later
        self._look()

    def _look(self) -> None:
        found = defaultdict(list)
        for task in asyncio.all_tasks():
            if (name := task.get_name()).startswith(_WATCHER):
                found[name.rpartition("@")[2]].append(task)
        self._found, self._looked_at = found, time.monotonic()

    def _of(self, namespace: str, resources: Collection[str]) -> set[asyncio.Task[None]]:
        return {one for one in self._found.get(namespace, ()) if _resource(one) in resources}


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
