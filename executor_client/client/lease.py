"""Says that this process is there, so that its sessions don't outlive it for long: by a Lease that a thread renews.

A thread, because sessions are used from several event loops, one after the other, and a loop may be blocked for long.
"""

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from codeexec_api.names import LEASE_PREFIX, LEASE_SECONDS
from executor_client.exceptions import CodeExecError
from executor_client.runtime import forks
from executor_client.transport.cluster import Transport
from executor_client.transport.outage import spread

logger = logging.getLogger(__name__)

_FIRST_SECONDS: Final = 2
"""Before the Lease is created, so that the first call has the machine for itself. Operators miss it after 35 s."""
_RENEW_SECONDS: Final = 10
_AGAIN_SECONDS: Final = 1
"""After a renewal that has failed; twice as long after each further one. Each may take 15 s, of 35 s in all."""
_FAREWELL_SECONDS: Final = 5


class ClientLease:
    """The Lease of one client, for all its sessions. Holds on to nothing that holds the client.

    Args:
        connect: makes the connection of the thread.
        seconds: how long the Lease counts after it was renewed.
        every: seconds from one renewal to the next.
    """

    def __init__(
        self,
        connect: Callable[[], Coroutine[Any, Any, Transport]],
        *,
        seconds: int = LEASE_SECONDS,
        every: float = _RENEW_SECONDS,
    ) -> None:
        self._connect = connect
        self._seconds = seconds
        self._every = every
        self.begin_anew()
        forks.begins_anew(self)

    def begin_anew(self) -> None:
        """Hold no Lease; see `executor_client.runtime.forks`."""
        self._lock = threading.Lock()
        self._name = ""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self) -> str:
        """The name of the Lease, which is renewed from now on until `release`. Does no I/O."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._name, self._over = f"{LEASE_PREFIX}{secrets.token_hex(8)}", threading.Event()
                arguments = (self._connect, self._name, self._seconds, self._every, self._over)
                self._thread = threading.Thread(target=_keep, args=arguments, name="codeexec-lease", daemon=True)
                self._thread.start()
            return self._name

    def release(self) -> threading.Thread | None:
        """Let go of the Lease; the thread deletes it. Returns the thread if there is one."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._over.set()
            return thread

    async def close(self) -> None:
        """Let go of the Lease, and wait a moment for the thread to delete it."""
        if thread := self.release():
            await asyncio.to_thread(thread.join, _FAREWELL_SECONDS)


def _keep(
    connect: Callable[[], Coroutine[Any, Any, Transport]], name: str, seconds: int, every: float, over: threading.Event
) -> None:
    with asyncio.Runner() as runner:
        transport: Transport | None = None
        try:
            failures = 0
            pause = min(every, _FIRST_SECONDS)
            while not over.wait(pause):
                try:
                    transport = transport or runner.run(connect())
                    runner.run(transport.renew_lease(name, seconds, datetime.now(UTC)))  # noqa: TID251 - operators compare it only
                    failures, pause = 0, every
                except Exception as error:  # whatever it is, such as a kubeconfig that is being written: it may pass
                    if not failures:
                        logger.warning(
                            "could not renew Lease %s; idle sessions of this client end after %s s: %s",
                            name,
                            seconds,
                            error,
                        )
                    pause = spread(min(every, _AGAIN_SECONDS * 2 ** min(failures, 9)))
                    failures += 1
            if transport:
                with suppress(CodeExecError):
                    runner.run(transport.delete_lease(name))
        finally:
            if transport:
                runner.run(transport.close())
