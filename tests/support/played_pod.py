"""The far end of a connection to a pod, where a test plays the pod."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from codeexec_operator.adapters.connection import Connection


class PlayedPod:
    """Takes whatever the operator sends. What the pod says is for the subclass: `received`."""

    def connect(self, name: str) -> Connection:
        """A connection of the operator that leads here."""
        cluster: Any = SimpleNamespace(attach=self._attach)
        return Connection(cluster, "a", name, epoch=1, greeting={}, reusable=True, changed=lambda: None)

    @staticmethod
    async def begin_job(connection: Connection, job: Any) -> None:
        """Open the connection, and start this job on it."""
        connection.open()
        await asyncio.sleep(0)
        await connection.start(job, [])

    @asynccontextmanager
    async def _attach(self, namespace: str, pod: str) -> AsyncIterator[Any]:
        yield self

    async def end_line(self) -> None:
        """Begins anew after half a line."""

    async def send(self, message: Mapping[str, Any]) -> None:
        """Takes a message, and does nothing."""
