"""Workers that are found by UID, by name or by namespace, without a look at the others."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from codeexec_operator.adapters.worker import Worker

W = TypeVar("W", bound=Worker)


class WorkerIndex(Generic[W]):
    """All workers of one kind."""

    def __init__(self) -> None:
        self._by_uid: dict[str, W] = {}
        self._by_name: dict[tuple[str, str], W] = {}
        self._by_namespace: dict[str, dict[str, W]] = {}

    def __iter__(self) -> Iterator[W]:
        """All of them."""
        return iter(list(self._by_uid.values()))

    def add(self, worker: W) -> None:
        """It works from now on. It is the one of its name, also if another of this name has not ended yet."""
        meta = worker.meta
        self._by_uid[meta.uid] = self._by_name[meta.namespace, meta.name] = worker
        self._by_namespace.setdefault(meta.namespace, {})[meta.uid] = worker

    def remove(self, worker: W) -> None:
        """It has ended."""
        meta = worker.meta
        del self._by_uid[meta.uid]
        if self._by_name.get((meta.namespace, meta.name)) is worker:
            del self._by_name[meta.namespace, meta.name]
        here = self._by_namespace[meta.namespace]
        del here[meta.uid]
        if not here:
            del self._by_namespace[meta.namespace]

    def get(self, uid: str) -> W | None:
        """That of one object."""
        return self._by_uid.get(uid)

    def named(self, namespace: str, name: str) -> W | None:
        """That of the object that has this name now."""
        return self._by_name.get((namespace, name))

    def of(self, namespace: str) -> list[W]:
        """Those of one namespace."""
        return list(self._by_namespace.get(namespace, {}).values())
