"""Payload Secrets as they are created: most are there before their execution is looked at, and none is polled for.

What is held here is only ever a short cut. A payload that isn't here is read from the API server.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from codeexec_api.names import EXECUTION_LABEL
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.supervision import JobFailure

_HELD_BYTES: Final = 16 * 1024 * 1024
"""All of them together, as they came; the oldest is let go of first."""
_LARGE_BYTES: Final = 512 * 1024
"""One that is larger is not held."""
_REMEMBERED: Final = 2000


class Payloads:
    """Watches the payload Secrets of the sandbox namespaces."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._held: OrderedDict[tuple[str, str], tuple[Mapping[str, Any] | None, int]] = OrderedDict()
        self._bytes = 0

    async def watch(self, namespace: str, arrived: Callable[[str, str], None]) -> None:
        """Watch one namespace, until the API server ends that, or it fails.

        Args:
            namespace: a sandbox namespace.
            arrived: called with it and the name of the execution whose payload has just been created.
        """
        try:
            async for kind, secret, size in self._cluster.watch_payloads(namespace):
                self._observe(namespace, secret, size, deleted=kind == "DELETED")
                if kind == "ADDED":
                    arrived(namespace, (secret["metadata"].get("labels") or {}).get(EXECUTION_LABEL, ""))
        except ValueError as error:
            raise JobFailure("the API server sent what is no event") from error

    def seen(self, namespace: str, name: str) -> bool:
        """True if this Secret was created, as far as is known here."""
        return (namespace, name) in self._held

    def take(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """This Secret, if it is held; from now on it isn't."""
        return self._drop((namespace, name))

    def _observe(self, namespace: str, secret: Mapping[str, Any], size: int, *, deleted: bool) -> None:
        meta = secret["metadata"]
        key = (namespace, meta["name"])
        self._drop(key)
        if deleted:
            return
        held = size <= _LARGE_BYTES
        self._held[key] = (_essence(secret), size) if held else (None, 0)
        self._bytes += size if held else 0
        while self._bytes > _HELD_BYTES or len(self._held) > _REMEMBERED:
            self._drop(next(iter(self._held)))

    def _drop(self, key: tuple[str, str]) -> Mapping[str, Any] | None:
        secret, size = self._held.pop(key, (None, 0))
        self._bytes -= size
        return secret


def _essence(secret: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the check of a payload looks at: whoever creates a Secret can put much else into it."""
    meta = {key: secret["metadata"].get(key) for key in ("name", "uid", "labels")}
    return {"metadata": meta, "type": secret.get("type"), "data": secret.get("data")}
