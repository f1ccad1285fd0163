"""Puts records into etcd: thousands of them, and what admission refuses today, are there in seconds."""

import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import aiohttp
from control_plane import ControlPlane

from codeexec_api.names import EXECUTION_PLURAL, GROUP

BATCH_BYTES = 1_000_000
"""etcd takes requests of 1.5 MiB at most; what is larger than this goes alone."""
AT_A_TIME = 100


async def copy_record(plane: ControlPlane, namespace: str, name: str, copies: Mapping[str, Mapping[str, Any]]) -> int:
    """Put copies of a CodeExecution beside it, each with a uid of its own.

    Args:
        plane: whose etcd is written to.
        namespace: of the record and its copies.
        name: of the record.
        copies: metadata to be added or replaced, by name of the copy; with another namespace, the copy is there.

    Returns:
        How large the record is, in bytes.
    """
    prefix = f"/registry/{GROUP}/{EXECUTION_PLURAL}/"
    async with aiohttp.ClientSession(f"http://{plane.address}:{plane.ports['etcd']}") as session:

        async def post(what: str, body: dict[str, Any]) -> dict[str, Any]:
            async with session.post(f"/v3/kv/{what}", json=body) as answer:
                found: dict[str, Any] = await answer.json()
                assert answer.status == 200, found
                return found

        found = await post("range", {"key": _encoded(f"{prefix}{namespace}/{name}")})
        stored = base64.b64decode(found["kvs"][0]["value"])
        for batch in _batches(_copies(prefix, json.loads(stored), copies)):
            await post("txn", {"success": [{"requestPut": {"key": key, "value": value}} for key, value in batch]})
    return len(stored)


def _copies(prefix: str, record: dict[str, Any], copies: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for name, metadata in copies.items():
        one = record | {"metadata": record["metadata"] | {"uid": str(uuid.uuid4())} | metadata}
        one["metadata"]["name"] = name
        yield _encoded(f"{prefix}{one['metadata']['namespace']}/{name}"), _encoded(json.dumps(one, ensure_ascii=False))


def _batches(pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    batch: list[tuple[str, str]] = []
    size = 0
    for pair in pairs:
        if batch and (len(batch) == AT_A_TIME or size + len(pair[1]) * 3 // 4 > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(pair)
        size += len(pair[1]) * 3 // 4
    if batch:
        yield batch


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
