"""What an execution can carry at a time. Needs no connection to be loaded."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from codeexec_api.v1alpha1.bounds import MAX_FETCH_BYTES
from executor_client.client.session_handle import SessionHandle
from executor_client.exceptions import CodeExecError

logger = logging.getLogger(__name__)

PATTERNS_AT_ONCE: Final = 64
"""Files that one execution fetches by name."""


async def fetch_after(
    session: SessionHandle, execution: str, sizes: Mapping[str, int], cancelled: asyncio.Event | None = None
) -> dict[str, bytes]:
    """Content of files that an execution has left. What can't be fetched is a line in the log: the code has run."""
    found: dict[str, bytes] = {}
    for group in groups(sizes, MAX_FETCH_BYTES, PATTERNS_AT_ONCE):
        try:
            found |= (await session.execute((), fetch=group, list_files="None", cancelled=cancelled)).files
        except CodeExecError as error:
            logger.warning("files of execution %s were not fetched: %s: %s", execution, ", ".join(group), error)
    return found


def groups(sizes: Mapping[str, int], most_bytes: int, most_names: int) -> list[list[str]]:
    """Names in groups, in order; a group holds more than `most_bytes` only if a single one does."""
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not groups or size > room or len(groups[-1]) == most_names:
            groups.append([])
            room = most_bytes
        groups[-1].append(name)
        room -= size
    return groups
