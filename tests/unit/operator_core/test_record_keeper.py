"""What looks at old records cost, however many namespaces there are, and which clock says what is old."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from factories import NOW, a_policy, seconds
from hurried_loop import HurriedLoop

from codeexec_api.names import EXECUTION_PLURAL
from codeexec_operator.adapters import record_retention
from codeexec_operator.adapters.record_retention import RecordKeeper
from codeexec_operator.adapters.worker import now

PAGE_SECONDS, SECONDS = 0.01, 15.0


class Pages:
    """An API server that takes so long for a page, of which it has two for each kind."""

    def __init__(self) -> None:
        self.busy, self.looks = 0.0, Counter[str]()

    async def list_columns(self, plural: str, namespace: str) -> AsyncGenerator[Any, None]:
        self.looks[namespace] += 1
        for _ in range(2):
            await asyncio.sleep(PAGE_SECONDS)
            self.busy += PAGE_SECONDS
            yield SimpleNamespace(date=NOW, rows=())


async def looked_at(namespaces: int) -> Pages:
    """What so many seconds of looks at so many namespaces cost."""
    pages, policy = Pages(), a_policy(records={"maxCount": 1})

    async def of(_: str) -> Any:
        return policy

    policies: Any = SimpleNamespace(of=of, known=lambda _: policy)
    cluster: Any = pages
    keeper = RecordKeeper(cluster, policies, SimpleNamespace())  # type: ignore[arg-type]

    async def keep(namespace: str) -> None:
        while True:
            await keeper.run(namespace)

    tasks = [asyncio.create_task(keep(f"box-{number}")) for number in range(namespaces)]
    await asyncio.sleep(SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return pages


@pytest.mark.parametrize("namespaces", [1, 20])
def test_all_namespaces_share_one_rest(monkeypatch: pytest.MonkeyPatch, namespaces: int) -> None:
    monkeypatch.setattr(record_retention, "_STEP_SECONDS", 0)
    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        monkeypatch.setattr(record_retention, "time", SimpleNamespace(monotonic=runner.get_loop().time))
        pages = runner.run(looked_at(namespaces))
    look = 4 * PAGE_SECONDS
    assert pages.busy == pytest.approx(SECONDS / (1 + record_retention._REST_SHARE), abs=look)
    assert max(pages.looks.values()) - min(pages.looks.values()) <= 2, "and take turns"


@pytest.mark.parametrize("ahead", [-300, 0, 300], ids="{:+d}s".format)
@pytest.mark.parametrize(("age", "goes"), [(100, False), (1000, True)])
async def test_no_record_goes_too_early_whatever_the_clock_of_the_api_server_is(
    monkeypatch: pytest.MonkeyPatch, ahead: int, age: int, goes: bool
) -> None:
    """One of the last five minutes stays in any case. When it was written is said by the clock of the operator."""
    monkeypatch.setattr(record_retention, "_STEP_SECONDS", 0)
    rows = [{"Audited": (now() - seconds(age)).isoformat(), "Name": f"run-{number}"} for number in range(2)]
    read: list[str] = []

    async def list_columns(plural: str, _: str) -> AsyncGenerator[Any, None]:
        yield SimpleNamespace(date=now() + seconds(ahead), rows=rows if plural == EXECUTION_PLURAL else ())

    async def get_execution(_: str, name: str) -> None:
        read.append(name)

    async def of(_: str) -> Any:
        return policy

    policy = a_policy(records={"maxCount": 1})
    cluster: Any = SimpleNamespace(list_columns=list_columns, get_execution=get_execution)
    policies: Any = SimpleNamespace(of=of, known=lambda _: policy)
    await RecordKeeper(cluster, policies, SimpleNamespace()).run("box")  # type: ignore[arg-type]
    assert read == ["run-0"] * goes
