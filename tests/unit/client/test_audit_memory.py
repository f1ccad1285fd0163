"""The audit commands hold no output of the records that they read: a namespace may have gigabytes of it."""

import json
from typing import Any

import pytest

from codeexec_api.audit_check import read_log, verify
from codeexec_api.audit_records import Evidence
from executor_client import CodeExecutionClient, Request, SourceBlock
from executor_client.cli.audit import _records
from executor_client.cli.auditing import Asked
from executor_client.testing import FakeCluster, FakeOutcome

EVERYTHING = Asked(since=None, phase=None, approver=None, requested_by=None, agent=None)
OUTPUT = "some output of code " * 1000


async def played() -> tuple[FakeCluster, CodeExecutionClient]:
    fake = FakeCluster(run=lambda _: FakeOutcome(stdout=OUTPUT, stderr=OUTPUT))
    client = fake.client()
    await client.execute([SourceBlock("python", "1")], Request(agent="a"))
    return fake, client


def holds_output(record: Any) -> bool:
    return OUTPUT in json.dumps(record)


@pytest.mark.parametrize("with_output", [False, True])
async def test_a_table_holds_no_output(with_output: bool) -> None:
    _, client = await played()
    [record] = await _records(client, EVERYTHING, with_output=with_output)
    assert record.status.stdout.text == (OUTPUT if with_output else "")
    assert holds_output(record.dump()) == with_output, "and JSON has it all"


async def test_a_check_holds_no_output_and_finds_that_it_was_changed() -> None:
    fake, client = await played()
    [stored], [evidence] = await client.list_stored(), await client.list_evidence()
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
