"""Whether the client that a session belongs to is still there, by the Lease that the client renews.

The clocks of clients are not trusted: a Lease counts as renewed when its renewTime differs from the one before, by the
operator's own clock (client-go judges its leader election in the same way).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from codeexec_api import Event, Reason
from codeexec_api.names import LEASE_SECONDS
from codeexec_operator.core.actions import ReadLease
from codeexec_operator.core.outcome import Ending

_READS: Final = 4
"""How often a Lease is read within its duration."""
_SHORTEST_SECONDS: Final = 10
"""What a shorter duration counts as: agents choose it, and each read is a request."""


@dataclass(frozen=True)
class LeaseView:
    """A Lease as it was read last."""

    renewed: str
    """Its renewTime; empty if there is no such Lease, or it could not be read."""
    duration: timedelta
    unchanged_since: datetime
    """When this process first read this renewTime."""
    read_at: datetime


def observe(before: LeaseView | None, spec: Mapping[str, Any] | None, now: datetime) -> LeaseView:
    """What a read of the Lease says, after what the read before said. `spec` is None if there is no such Lease."""
    found = spec or {}
    renewed, seconds = str(found.get("renewTime") or ""), found.get("leaseDurationSeconds") or LEASE_SECONDS
    since = before.unchanged_since if before and before.renewed == renewed else now
    return LeaseView(renewed, timedelta(seconds=max(seconds, _SHORTEST_SECONDS)), since, read_at=now)


def unread(now: datetime) -> LeaseView:
    """What is known before the first read, and after a failed one: the client may not have reached the API server."""
    return LeaseView("", timedelta(seconds=LEASE_SECONDS), now, now)


def look_after_client(
    name: str, lease: LeaseView | None, used_at: datetime, now: datetime
) -> Ending | ReadLease | datetime:
    """End the session, read its Lease, or when to look again.

    When an execution of the session last ended, `used_at`, its client was there.
    """
    lease = lease or unread(used_at)
    gone_at = max(lease.unchanged_since, used_at) + lease.duration
    if lease.read_at >= gone_at:
        found = f"Lease {name} was not renewed" if lease.renewed else f"there was no Lease {name}"
        message = f"the client is gone: {found} for {lease.duration.total_seconds():g} s (spec.clientLease)"
        return Ending(Event.ENDED, Reason.CLIENT_GONE, message)
    next_read = min(max(lease.read_at, used_at) + lease.duration / _READS, gone_at)
    return next_read if now < next_read else ReadLease(name)
