"""Which payload Secrets nobody will come for any more."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from codeexec_api.names import PAYLOAD_SECRET_TYPE

PAYLOAD_MAX_AGE: Final = timedelta(minutes=10)
"""Longer than any execution waits for its code to start."""


def orphaned_payloads(secrets: Iterable[Mapping[str, Any]], now: datetime) -> list[tuple[str, str]]:
    """Name and UID of each payload Secret that is older than any execution that could still use it."""
    return [
        (secret["metadata"]["name"], secret["metadata"]["uid"])
        for secret in secrets
        if secret.get("type") == PAYLOAD_SECRET_TYPE
        and now - datetime.fromisoformat(secret["metadata"]["creationTimestamp"]) > PAYLOAD_MAX_AGE
    ]
