"""Which replica leads: decisions about one Lease, by the rules of client-go's leader election. Pure.

No clock is compared with another. A replica that stands by measures, by its own monotonic clock, for how long the Lease
has not changed. The leader counts from the moment before it asked for its last renewal. So the leader stops acting
before any other replica may take the Lease, whatever time of day each of them believes it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from codeexec_api.names import GROUP

_NEVER: Final = float("-inf")
_EPOCHS_BEGIN: Final = datetime(2025, 1, 1, tzinfo=UTC)
_SHARDS_ANNOTATION: Final = f"{GROUP}/shards"


@dataclass(frozen=True)
class LeaseTiming:
    """In seconds. The proportions are those of client-go and of Kubernetes' own controllers: 15, 10 and 2."""

    duration: int = 15
    """How long the Lease of a leader that has gone silent is not taken by another."""

    @property
    def renew_deadline(self) -> float:
        """How long a leader acts without a renewal. What is left of the duration is for requests on their way."""
        return self.duration * 10 / 15

    @property
    def renew_every(self) -> float:
        """How often a leader renews."""
        return self.duration * 2 / 15

    @property
    def look_every(self) -> float:
        """How often a replica that stands by looks, and how soon a renewal that failed is tried again."""
        return self.duration / 15

    @property
    def answer(self) -> float:
        """How long one request may take: three of them fit before the deadline."""
        return self.duration * 3 / 15


@dataclass(frozen=True)
class LeaseRecord:
    """The Lease, as the API server has it or is to have it."""

    holder: str
    """Empty: the last holder has given it back."""
    epoch: int
    """`leaseTransitions`. Each leader has a higher one than all before it."""
    duration: int
    acquired: str
    renewed: str
    version: str = ""
    """Resource version that a write is conditional on; empty to create the Lease."""
    shards: str = "1"
    """How many shards the release has, as its holder knows. Versions before 0.2 have one, and don't say so."""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "LeaseRecord":
        """From a Lease of the API server. Somebody may have made it empty."""
        spec = raw.get("spec") or {}
        return cls(
            holder=spec.get("holderIdentity") or "",
            epoch=spec.get("leaseTransitions") or 0,
            duration=spec.get("leaseDurationSeconds") or LeaseTiming.duration,
            acquired=spec.get("acquireTime") or "",
            renewed=spec.get("renewTime") or "",
            version=raw["metadata"]["resourceVersion"],
            shards=(raw["metadata"].get("annotations") or {}).get(_SHARDS_ANNOTATION, "1"),
        )

    def older_than(self, other: "LeaseRecord | None") -> bool:
        """True if the API server had this version before that of the other."""
        return other is not None and int(self.version) < int(other.version)

    def dump(self) -> dict[str, Any]:
        """As the API server takes it. Without a resource version it isn't there yet."""
        spec = {
            "holderIdentity": self.holder,
            "leaseTransitions": self.epoch,
            "leaseDurationSeconds": self.duration,
            "acquireTime": self.acquired,
            "renewTime": self.renewed,
        }
        version = {"resourceVersion": self.version} if self.version else {}
        return {"metadata": version | {"annotations": {_SHARDS_ANNOTATION: self.shards}}, "spec": spec}


@dataclass(frozen=True)
class Candidate:
    """One process that leads or would. Times are of its own monotonic clock, but those that the Lease shows."""

    identity: str
    """Of this process alone: one that is restarted is another candidate."""
    timing: LeaseTiming = LeaseTiming()
    shards: int = 1
    """How many shards the release has, as this process knows."""
    record: LeaseRecord | None = None
    """The Lease as it was seen last; None: there is none."""
    seen_at: float = _NEVER
    """When it was first seen like this."""
    epoch: int = 0
    """0: it does not lead."""
    acts_until: float = _NEVER
    highest: int = 0
    """The highest epoch that the Lease was seen with."""

    def leads(self, now: float) -> bool:
        """True if it may act at this moment."""
        return self.epoch > 0 and now < self.acts_until

    def saw(self, record: LeaseRecord | None, now: float) -> "Candidate":
        """The Lease was read. A leader whose Lease is no longer its own leads no more.

        Neither does a leader whose Lease has become older, as when etcd is restored from a backup: what this process
        knows of all objects is not true any more, and the next process lists them anew.
        """
        if record == self.record:
            return self
        highest = max(self.highest, record.epoch if record else 0)
        seen = replace(self, record=record, seen_at=now, highest=highest)
        ours = record is not None and (record.holder, record.epoch) == (self.identity, self.epoch)
        if ours and record and not record.older_than(self.record):
            return seen
        return replace(seen, epoch=0, acts_until=_NEVER)

    def loss(self) -> str:
        """Why it leads no more."""
        if self.record is None:
            return "the Lease was deleted"
        if self.record.holder == self.identity:
            return "the Lease is older than it was, as when etcd was restored from a backup"
        return f"the Lease is held by {self.record.holder!r}"

    def take_at(self) -> float:
        """From when on it may try to take the Lease."""
        record = self.record
        # One of its own that it doesn't lead by: its write was stored, and the answer was lost.
        if record is None or record.holder in ("", self.identity):
            return _NEVER
        return self.seen_at + record.duration

    def obstructs(self, now: float) -> bool:
        """True if this Lease, of another shard, is held by a replica that counts another number of shards.

        Such a replica may serve namespaces that this process is to serve.
        """
        return self.record is not None and self.record.shards != str(self.shards) and now < self.take_at()

    def taken(self, clock: datetime, *, above: int) -> LeaseRecord:
        """What to write to take the Lease.

        The epoch goes on from the highest that this process has seen, also if the Lease was deleted since, or comes
        from a backup of etcd. For a process that has seen none, the number of seconds since 2025 is higher than what
        the epoch had grown to, unless the clock is behind that of an earlier leader.

        Args:
            clock: the time of day.
            above: the highest epoch of another shard, which may have served the same namespaces before.
        """
        epoch = max(self.highest + 1, above + 1, int((clock - _EPOCHS_BEGIN).total_seconds()))
        version = self.record.version if self.record else ""
        time = _micro_time(clock)
        duration, shards = self.timing.duration, str(self.shards)
        return LeaseRecord(self.identity, epoch, duration, time, time, version, shards)

    def renewed(self, clock: datetime) -> LeaseRecord | None:
        """What to write to go on leading; None if it doesn't lead."""
        return replace(self.record, renewed=_micro_time(clock)) if self.record and self.epoch else None

    def given_back(self, clock: datetime) -> LeaseRecord | None:
        """What to write so that another may lead at once; None if the Lease isn't its own."""
        record = self.record
        if record is None or record.holder != self.identity:
            return None
        return replace(record, renewed=_micro_time(clock), holder="", duration=1)

    def wrote(self, record: LeaseRecord, sent_at: float, now: float) -> "Candidate":
        """Its write was stored like this. Others count from when they see it, which is later than `sent_at`."""
        acts_until = sent_at + self.timing.renew_deadline
        mine = record.holder == self.identity
        seen = replace(self, record=record, seen_at=now, highest=max(self.highest, record.epoch))
        return replace(seen, epoch=record.epoch * mine, acts_until=acts_until)


def _micro_time(clock: datetime) -> str:
    return clock.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
