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

    async def read_back(kind: type, _: str, name: str) -> None:
        read.append(name)

    async def of(_: str) -> Any:
        return policy

    policy = a_policy(records={"maxCount": 1})
    cluster: Any = SimpleNamespace(list_columns=list_columns, read_back=read_back)
    policies: Any = SimpleNamespace(of=of, known=lambda _: policy)
    await RecordKeeper(cluster, policies, SimpleNamespace()).run("box")  # type: ignore[arg-type]
    assert read == ["run-0"] * goes


class Old:
    """An API server with these records: a session `s`, and executions of this session."""

    def __init__(self, stored: dict[str, dict[str, Any]]) -> None:
        self.stored = stored
        self.deleted: list[str] = []

    async def list_columns(self, plural: str, _: str) -> AsyncGenerator[Any, None]:
        names = sorted(
            name for name, raw in self.stored.items() if ("blocks" in raw["spec"]) == (plural == EXECUTION_PLURAL)
        )
        yield SimpleNamespace(
            date=now(), rows=[{"Audited": None, "Name": name, "Session": "s" if name != "s" else ""} for name in names]
        )

    async def read_back(self, kind: Any, _: str, name: str) -> Any:
        return kind.read(self.stored[name])

    async def delete_record(self, record: Any) -> None:
        self.deleted.append(record.metadata.name)


class Untold:
    """An audit log that nobody reads."""

    async def delete(self, record: Any, why: str, delete: Any) -> None:
        await delete()


def an_old_record(name: str, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "box", "uid": name, "resourceVersion": "1"}
    status = {"phase": "Succeeded" if "blocks" in spec else "Ended"}
    return {
        "metadata": meta | {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"source": {"agent": "x"}} | spec,
        "status": status,
    }


def an_old_execution(name: str, filename: str, **spec: Any) -> dict[str, Any]:
    block = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1, "filename": filename}
    return an_old_record(name, blocks=[block], **spec)


@pytest.mark.parametrize(
    ("first", "deleted"),
    [
        ({"filename": "ok.py"}, ["run-0", "run-1", "s"]),
        ({"filename": "my\u00a0file.py"}, ["run-0", "run-1", "s"]),
        ({"filename": "ok.py", "timeoutSeconds": "long"}, ["run-1"]),
    ],
    ids=["a record of this version", "a file name of 0.1", "no record at all"],
)
async def test_a_record_that_can_not_be_read_keeps_no_other_one(
    monkeypatch: pytest.MonkeyPatch, first: dict[str, Any], deleted: list[str]
) -> None:
    """Only the record of its session stays with it."""
    monkeypatch.setattr(record_retention, "_STEP_SECONDS", 0)
    stored = {
        "run-0": an_old_execution("run-0", **first),
        "run-1": an_old_execution("run-1", "ok.py"),
        "s": an_old_record("s"),
    }

    async def of(_: str) -> Any:
        return policy

    policy, old = a_policy(records={"maxAgeSeconds": 3600}), Old(stored)
    policies: Any = SimpleNamespace(of=of, known=lambda _: policy)
    await RecordKeeper(old, policies, Untold()).run("box")  # type: ignore[arg-type]
    assert old.deleted == deleted
