"""What an execution can carry at a time. Needs no connection to be loaded."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from codeexec_api.digests import sha256_hex
from codeexec_api.v1alpha1.bounds import MAX_FETCH_BYTES
from executor_client.client.session_handle import SessionHandle, demand_success
from executor_client.exceptions import CodeExecError
from executor_client.model.results import Artifact
from executor_client.model.selection import literally

logger = logging.getLogger(__name__)

PATTERNS_AT_ONCE: Final = 64
"""Files that one execution fetches by name."""


async def fetch_after(
    session: SessionHandle, execution: str, left: Sequence[Artifact], cancelled: asyncio.Event | None = None
) -> dict[str, bytes]:
    """Content of files that an execution has left in the workspace, as far as they are still the same.

    Where the record has no digest, because it has those of 64 MiB of other files, a file of the same size counts.
    What can't be fetched is a line in the log: the code has run. So the fetch has no limit for its start.
    """
    found: dict[str, bytes] = {}
    patient = replace(session.request, start_seconds=None)
    asked = {one.path: one for one in left}
    for group in groups({one.path: one.size_bytes for one in left}, MAX_FETCH_BYTES, PATTERNS_AT_ONCE):
        why = "another execution has changed or deleted them"
        try:
            result = await session.execute(
                (), patient, fetch=list(map(literally, group)), list_files="None", cancelled=cancelled
            )
            demand_success(result)
            found |= {path: one for path, one in result.files.items() if path in asked and _is(asked[path], one)}
        except CodeExecError as error:
            why = str(error)
        if missing := [path for path in group if path not in found]:
            logger.warning("files of execution %s were not fetched: %s: %s", execution, ", ".join(missing), why)
    return found


def _is(artifact: Artifact, content: bytes) -> bool:
    return len(content) == artifact.size_bytes and artifact.sha256 in (None, sha256_hex(content))


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
