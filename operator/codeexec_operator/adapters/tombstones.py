"""Objects that were let go of lately: what is heard of them may be older than their end."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from codeexec_api.v1alpha1.base import ObjectMeta

_TRIES: Final = 3
_TRY_AGAIN_SECONDS: Final = 0.2
_REMEMBERED: Final = 10_000


class HasMetadata(Protocol):
    """An object of the API server."""

    @property
    def metadata(self) -> ObjectMeta:
        """With its resource version."""


R = TypeVar("R", bound=HasMetadata)


class Tombstones:
    """Remembers at which resource version each of so many was let go of, by UID."""

    def __init__(self) -> None:
        self._versions: OrderedDict[str, int] = OrderedDict()

    def let_go(self, uid: str, version: int) -> None:
        """Nobody looks after an object any more."""
        self._versions[uid] = version
        while len(self._versions) > _REMEMBERED:
            self._versions.popitem(last=False)

    def outlived(self, uid: str, version: int) -> bool:
        """True if this version is older than the one at which it was let go of."""
        return version < self._versions.get(uid, 0)

    async def ask(self, uid: str, read: Callable[[], Awaitable[R | None]]) -> R | None:
        """What the API server has. Not as it was before a worker has written its end meanwhile, and is gone."""
        for _ in range(_TRIES):
            found = await read()
            if found is None or not self.outlived(uid, int(found.metadata.resource_version)):
                return found
            await asyncio.sleep(_TRY_AGAIN_SECONDS)
        self._versions.pop(uid, None)  # the API server has gone back to what it was
        return found
