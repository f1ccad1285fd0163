"""The keys that small payloads are sealed with: made, kept for as long as they are needed, and thrown away."""

import base64
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

_NEW_AFTER: Final = timedelta(hours=24)
_KEPT: Final = timedelta(hours=24)
"""After a newer one has taken its place: much longer than a client goes without asking which one counts."""


@dataclass(frozen=True, repr=False)
class SealingKey:
    """One key. Has no repr, so that it can't slip into a log line."""

    name: str
    private: bytes
    created_at: datetime

    def dump(self) -> dict[str, str]:
        """As it is stored."""
        key = base64.b64encode(self.private).decode()
        return {"name": self.name, "key": key, "createdAt": self.created_at.isoformat()}

    @classmethod
    def load(cls, raw: Mapping[str, str]) -> "SealingKey":
        """What `dump` made."""
        created_at = datetime.fromisoformat(raw["createdAt"]).astimezone(UTC)
        return cls(raw["name"], base64.b64decode(raw["key"], validate=True), created_at)


@dataclass(frozen=True, repr=False)
class Keyring:
    """All keys there are, the newest last."""

    keys: tuple[SealingKey, ...] = ()

    def find(self, name: str) -> SealingKey | None:
        """The key of this name."""
        return next((key for key in self.keys if key.name == name), None)

    @property
    def newest(self) -> SealingKey | None:
        """The one to seal with."""
        return self.keys[-1] if self.keys else None

    def renewed(self, now: datetime, needed: Collection[str], make: Callable[[], bytes]) -> "Keyring":
        """With a new key if the newest is a day old, and without those that nobody needs any more.

        `needed` are the keys that executions which have not started were sealed with.
        """
        keys = self.keys
        if not keys or now - keys[-1].created_at >= _NEW_AFTER:
            keys = (*keys, SealingKey(f"k{now:%Y%m%d%H%M%S}", make(), now))
        older = [key for key, later in pairwise(keys) if key.name in needed or now - later.created_at < _KEPT]
        return Keyring((*older, keys[-1]))

    def dump(self) -> str:
        """As it is stored in the operator's Secret."""
        return json.dumps([key.dump() for key in self.keys])

    @classmethod
    def load(cls, text: str) -> "Keyring":
        """What `dump` made; none of an empty text.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(tuple(map(SealingKey.load, json.loads(text or "[]"))))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the operator's sealing keys ({type(error).__name__}); delete it") from None
