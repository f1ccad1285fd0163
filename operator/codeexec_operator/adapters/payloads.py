"""Payload Secrets as they are created: most are there before their execution is looked at, and none is polled for.

What is held here is only ever a short cut. A payload that isn't here is read from the API server.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from codeexec_api.names import EXECUTION_LABEL
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.fair_semaphore import FairSemaphore
from codeexec_operator.adapters.supervision import JobFailure

_HELD_BYTES: Final = 16 * 1024 * 1024
"""All of them together, as they came. The oldest of the namespace that has the most is let go of first."""
_LARGE_BYTES: Final = 512 * 1024
"""One that is larger is not held."""
_REMEMBERED: Final = 2000


class Payloads:
    """Watches the payload Secrets of the sandbox namespaces.

    Args:
        cluster: where they are.
        turns: of the one thread; to read an event takes its time.
    """

    def __init__(self, cluster: Cluster, turns: FairSemaphore) -> None:
        self._cluster, self._turns = cluster, turns
        self._held: dict[str, dict[str, tuple[Mapping[str, Any] | None, int]]] = {}
        """By namespace and name."""
        self._bytes: Counter[str] = Counter()

    async def watch(self, namespace: str, arrived: Callable[[str, str], None]) -> None:
        """Watch one namespace, until the API server ends that, or it fails.

        `arrived` is called with it and the name of the execution whose payload has just been created.
        """
        try:
            async for kind, secret, size in self._cluster.watch_payloads(namespace):
                await self._turns.turn(namespace)
                self._observe(namespace, secret, size, deleted=kind == "DELETED")
                if kind == "ADDED":
                    arrived(namespace, (secret["metadata"].get("labels") or {}).get(EXECUTION_LABEL, ""))
        except ValueError as error:
            raise JobFailure("the API server sent what is no event") from error

    def seen(self, namespace: str, name: str) -> bool:
        """True if this Secret was created, as far as is known here."""
        return name in self._held.get(namespace, ())

    def _observe(self, namespace: str, secret: Mapping[str, Any], size: int, *, deleted: bool) -> None:
        name = secret["metadata"]["name"]
        self.take(namespace, name)
        if deleted:
            return
        held = size <= _LARGE_BYTES
        self._held.setdefault(namespace, {})[name] = (_essence(secret), size) if held else (None, 0)
        self._bytes[namespace] += size if held else 0
        while self._bytes.total() > _HELD_BYTES:
            self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))
        while sum(map(len, self._held.values())) > _REMEMBERED:
            self._drop_oldest(max(self._held, key=lambda namespace: len(self._held[namespace])))

    def _drop_oldest(self, namespace: str) -> None:
        self.take(namespace, next(iter(self._held[namespace])))

    def take(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """This Secret, if it is held; from now on it isn't."""
        held = self._held.get(namespace, {})
        secret, size = held.pop(name, (None, 0))
        self._bytes[namespace] -= size
        if not held:
            self._held.pop(namespace, None)
            del self._bytes[namespace]
        return secret


def _essence(secret: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the check of a payload looks at: whoever creates a Secret can put much else into it."""
    meta = {key: secret["metadata"].get(key) for key in ("name", "uid", "labels")}
    return {"metadata": meta, "type": secret.get("type"), "data": secret.get("data")}
