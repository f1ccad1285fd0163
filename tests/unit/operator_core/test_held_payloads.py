"""Payloads that a watch brought: one namespace drives out none of another."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from codeexec_operator.adapters import payloads
from codeexec_operator.adapters.fair_semaphore import FairSemaphore
from codeexec_operator.adapters.payloads import Payloads


class Watched:
    """Each namespace has so many payloads, of 100 bytes each."""

    def __init__(self, **counts: int) -> None:
        self._counts = counts

    async def watch_payloads(self, namespace: str) -> AsyncGenerator[tuple[str, Mapping[str, Any], int], None]:
        for number in range(self._counts[namespace]):
            yield "ADDED", {"metadata": {"name": f"{namespace}-{number}"}, "data": {}}, 100


@pytest.mark.parametrize(("limit", "most"), [("_HELD_BYTES", 1000), ("_REMEMBERED", 10)])
async def test_a_namespace_that_floods_loses_its_own_payloads(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(payloads, limit, most)
    cluster: Any = Watched(quiet=2, flood=50)
    held = Payloads(cluster, FairSemaphore(1))
    arrived: list[str] = []
    for namespace in ("quiet", "flood"):
        await held.watch(namespace, lambda namespace, _: arrived.append(namespace))
    assert (arrived.count("quiet"), arrived.count("flood")) == (2, 50)
    assert [held.seen("flood", f"flood-{one}") for one in (0, 41, 42, 49)] == [False, False, True, True]
    assert all(held.take("quiet", f"quiet-{one}") for one in range(2))
    assert not held.seen("quiet", "quiet-0")
