"""What nobody uses any more: payload Secrets, expired output, Leases of clients that are gone, what was opened."""

from collections.abc import Container, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from codeexec_api.names import EXECUTION_LABEL, EXPIRES_ANNOTATION, LEASE_PREFIX, payload_name
from codeexec_api.v1alpha1.bounds import MAX_PAYLOAD_PARTS

PAYLOAD_MAX_AGE: Final = timedelta(minutes=10)
"""Longer than any execution waits for a pod of its own to start."""
_FURTHER_PARTS: Final = frozenset(payload_name("", part) for part in range(1, MAX_PAYLOAD_PARTS))
"""What the names of all parts of a payload end with but that of the first, which has any name."""
LEASE_LOOK: Final = timedelta(minutes=30)
"""Between two looks at the Leases of a namespace: far longer than clients take to renew a Lease."""


def orphaned_payloads(
    secrets: Iterable[Mapping[str, Any]], awaited: Container[str], now: datetime
) -> list[tuple[str, str, str]]:
    """Name and UID of each payload Secret that no execution known here will use, and name of its execution.

    `awaited` are those of executions that have not started; of a payload in parts, the first.
    """
    return [
        (meta["name"], meta["uid"], (meta.get("labels") or {}).get(EXECUTION_LABEL, ""))
        for meta in (secret["metadata"] for secret in secrets)
        if now - datetime.fromisoformat(meta["creationTimestamp"]) > PAYLOAD_MAX_AGE
        and not _is_awaited(meta["name"], awaited)
    ]


def _is_awaited(name: str, awaited: Container[str]) -> bool:
    first, hyphen, part = name.rpartition("-")
    return name in awaited or (f"{hyphen}{part}" in _FURTHER_PARTS and first in awaited)


def expired_outputs(config_maps: Iterable[Mapping[str, Any]], now: datetime) -> list[tuple[str, str]]:
    """Name and UID of each output ConfigMap whose time is over."""
    return [
        (meta["name"], meta["uid"])
        for meta in (config_map["metadata"] for config_map in config_maps)
        if _over(meta.get("annotations", {}).get(EXPIRES_ANNOTATION), now)
    ]


def abandoned_leases(leases: Iterable[Mapping[str, Any]], seen: int) -> list[tuple[str, str]]:
    """Name and UID of each Lease of a client that nobody has written since an earlier look.

    No time in a Lease counts: it is by the clock of a client, who may put any time there.

    Args:
        leases: with their metadata.
        seen: resource version of the list at that look; 0 if there was none.
    """
    return [
        (meta["name"], meta["uid"])
        for meta in (lease["metadata"] for lease in leases)
        if meta["name"].startswith(LEASE_PREFIX) and int(meta["resourceVersion"]) <= seen
    ]


def owners(policies: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Name and UID of each NetworkPolicy of an execution, and name and UID of that execution."""
    return [
        (meta["name"], meta["uid"], meta["labels"][EXECUTION_LABEL], owner["uid"])
        for meta in (policy["metadata"] for policy in policies)
        for owner in meta.get("ownerReferences") or ()
        if owner.get("controller")
    ]


def _over(expires_at: str | None, now: datetime) -> bool:
    """False for what isn't a time: only the operator writes it, so it is not ours to delete then."""
    try:
        return expires_at is not None and datetime.fromisoformat(expires_at) <= now
    except (ValueError, TypeError):  # TypeError: a time without a zone
        return False
