"""The audit commands hold no output of the records that they read: a namespace may have gigabytes of it."""

import asyncio
import json
import weakref
from typing import Any

import pytest
from click.testing import CliRunner

from codeexec_api import CodeExecution
from codeexec_api.audit_check import read_log, verify
from codeexec_api.audit_records import Evidence
from executor_client import ClusterUnreachable, CodeExecutionClient, NotFound, Request, SourceBlock
from executor_client.cli import main
from executor_client.cli.audit import _records
from executor_client.cli.auditing import RecordFilter
from executor_client.testing import FakeCluster, FakeOutcome

EVERYTHING = RecordFilter(since=None, phase=None, approver=None, requested_by=None, agent=None)
OUTPUT = "some output of code " * 1000


async def played(executions: int = 1) -> tuple[FakeCluster, CodeExecutionClient]:
    fake = FakeCluster(run=lambda _: FakeOutcome(stdout=OUTPUT, stderr=OUTPUT))
    client = fake.client()
    for _ in range(executions):
        await client.execute([SourceBlock("python", "1")], Request(agent="a"))
    return fake, client


def holds_output(record: Any) -> bool:
    return OUTPUT in json.dumps(record)


async def test_a_table_holds_no_output() -> None:
    _, client = await played()
    [record] = await _records(client, EVERYTHING)
    assert record.status.stdout.text == ""
    assert not holds_output(record.dump())


def test_a_list_as_json_has_all_output_and_holds_that_of_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, _ = asyncio.run(played(30))
    read: list[weakref.ref[CodeExecution]] = []
    most = 0
    get = CodeExecutionClient.get

    async def watched(client: CodeExecutionClient, name: str) -> CodeExecution:
        nonlocal most
        found = (await get(client, name)).model_copy(deep=True)  # the fake itself holds all of them
        read.append(weakref.ref(found))
        most = max(most, sum(one() is not None for one in read))
        return found

    monkeypatch.setattr(CodeExecutionClient, "get", watched)
    done = CliRunner().invoke(main, ["audit", "list", "-o", "json"], obj=lambda ref: fake.client())
    items = json.loads(done.stdout)["items"]
    assert [one["status"]["stdout"]["text"] for one in items] == [OUTPUT] * 30
    assert len({one["metadata"]["name"] for one in items}) == 30
    assert most <= 2 * 8, "those that are shown and those that come next"


def test_a_record_that_is_deleted_meanwhile_is_not_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, _ = asyncio.run(played(3))
    gone = fake.executions[1].metadata.name
    get = CodeExecutionClient.get

    async def without_one(client: CodeExecutionClient, name: str) -> CodeExecution:
        if name == gone:
            raise NotFound(name)
        return await get(client, name)

    monkeypatch.setattr(CodeExecutionClient, "get", without_one)
    done = CliRunner().invoke(main, ["audit", "list", "-o", "json"], obj=lambda ref: fake.client())
    assert {one["metadata"]["name"] for one in json.loads(done.stdout)["items"]} == {
        one.metadata.name for one in fake.executions if one.metadata.name != gone
    }


def test_a_list_that_breaks_off_is_no_json_and_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, _ = asyncio.run(played(20))
    get, left = CodeExecutionClient.get, 10

    async def breaks_off(client: CodeExecutionClient, name: str) -> CodeExecution:
        nonlocal left
        left -= 1
        if left < 0:
            raise ClusterUnreachable("gone")
        return await get(client, name)

    monkeypatch.setattr(CodeExecutionClient, "get", breaks_off)
    done = CliRunner().invoke(main, ["audit", "list", "-o", "json"], obj=lambda ref: fake.client())
    assert done.exit_code == 1
    assert "gone" in done.stderr
    with pytest.raises(json.JSONDecodeError):
        json.loads(done.stdout)


async def test_a_check_holds_no_output_and_finds_that_it_was_changed() -> None:
    fake, client = await played()
    [stored], [evidence] = [one async for one in (await client.connect()).list_stored()], await client.list_evidence()
    assert (holds_output(stored), holds_output(evidence.raw)) == (True, False)

    def found(record: Any) -> list[str]:
        checked = verify(
            read_log("log", fake.audit_log), [record], now=fake.now, namespace=stored["metadata"]["namespace"]
        )
        return [one.kind.value for one in checked.findings]

    assert found(stored) == found(evidence) == []
    changed = {**stored, "status": {**stored["status"], "stdout": {**stored["status"]["stdout"], "text": "x"}}}
    assert found(changed) == found(Evidence.of(changed)) == ["RecordChanged"]
    claimed = {**changed, "statusSHA256": evidence.status_sha256}  # in an export, where anybody may have written it
    assert found(Evidence.of(claimed)) == ["RecordChanged"]
