"""The keys that small payloads are sealed with: made, kept for as long as they are needed, and thrown away."""

import base64
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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

        Args:
            now: the time.
            needed: names of keys that executions which have not started were sealed with.
            make: makes a private key.
        """
        keys = self.keys
        if not keys or now - keys[-1].created_at >= _NEW_AFTER:
            keys = (*keys, SealingKey(f"k{now:%Y%m%d%H%M%S}", make(), now))
        followed = [*(later.created_at for later in keys[1:]), None]
        return Keyring(
            tuple(
                key
                for key, since in zip(keys, followed, strict=True)
                if since is None or key.name in needed or now - since < _KEPT
            )
        )

    def dump(self) -> str:
        """As it is stored in the operator's Secret."""
        return json.dumps(
            [
                {
                    "name": one.name,
                    "key": base64.b64encode(one.private).decode(),
                    "createdAt": one.created_at.isoformat(),
                }
                for one in self.keys
            ]
        )

    @classmethod
    def load(cls, text: str) -> "Keyring":
        """What `dump` made; none of an empty text.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(
                tuple(
                    SealingKey(
                        one["name"],
                        base64.b64decode(one["key"], validate=True),
                        datetime.fromisoformat(one["createdAt"]).astimezone(UTC),
                    )
                    for one in json.loads(text or "[]")
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the operator's sealing keys ({type(error).__name__}); delete it") from None
