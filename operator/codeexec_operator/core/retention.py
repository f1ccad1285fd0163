"""What nobody uses any more: payload Secrets, expired output, Leases of clients that are gone, what was opened."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from codeexec_api import CodeExecution
from codeexec_api.names import EXECUTION_LABEL, EXPIRES_ANNOTATION, LEASE_PREFIX, payload_name
from codeexec_api.v1alpha1.bounds import MAX_PAYLOAD_PARTS

_PAYLOAD_AGE: Final = timedelta(minutes=1)
"""A payload that is not older is left to its execution."""
_AGE_WITHOUT_RECORD: Final = timedelta(minutes=10)
"""A payload without an execution that is not older stays: the execution may still be created."""
_FURTHER_PARTS: Final = frozenset(payload_name("", part) for part in range(1, MAX_PAYLOAD_PARTS))
"""What the names of all parts of a payload end with but that of the first, which has any name."""
LEASE_LOOK: Final = timedelta(minutes=30)
"""Between two looks at the Leases of a namespace: far longer than clients take to renew a Lease."""


@dataclass(frozen=True)
class Orphan:
    """A payload Secret that no execution known here will use."""

    name: str
    uid: str
    execution: str
    """Name of its execution."""
    age: timedelta

    def may_go(self, record: CodeExecution | None, known: Container[str]) -> bool:
        """True if nobody will use it: `record` is that of its execution, and `known` are UIDs of executions known here.

        An execution that has started and isn't known here may have to be handed over again. One that waits may need it.
        """
        if record is None:
            return self.age > _AGE_WITHOUT_RECORD
        status = record.status
        return status.phase.terminal or (status.started_at is not None and record.metadata.uid in known)


def orphaned_payloads(secrets: Iterable[Mapping[str, Any]], awaited: Container[str], now: datetime) -> Iterator[Orphan]:
    """Each payload Secret that no execution known here will use, and that is no longer new.

    `awaited` are those of executions whose runner doesn't have the code yet; of a payload in parts, the first.
    """
    for meta in (secret["metadata"] for secret in secrets):
        age = now - datetime.fromisoformat(meta["creationTimestamp"])
        if age > _PAYLOAD_AGE and not _is_awaited(meta["name"], awaited):
            yield Orphan(meta["name"], meta["uid"], (meta.get("labels") or {}).get(EXECUTION_LABEL, ""), age)


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
