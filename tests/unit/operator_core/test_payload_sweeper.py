"""Payload Secrets that nobody needs go within two minutes, also those that their execution did not have deleted."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from factories import UID, a_secret, an_execution, seconds

from codeexec_api import CodeExecution, Phase
from codeexec_api.names import EXECUTION_LABEL
from codeexec_operator.adapters.sweeper import sweep

RUNNING, OVER = an_execution(phase=Phase.RUNNING), an_execution(phase=Phase.DENIED)
WAITS, STARTS = an_execution(), an_execution(phase=Phase.STARTING)


class Cluster:
    """Has one execution, and two Secrets for it."""

    def __init__(self, execution: CodeExecution | None, age: float) -> None:
        self.execution = execution
        self.created = (datetime.now(UTC) - seconds(age)).isoformat()
        self.names = ["run-1", "run-1-1"]
        self.reads = 0

    async def list_payloads(self, namespace: str) -> list[Any]:
        meta = {"creationTimestamp": self.created, "labels": {EXECUTION_LABEL: "run-1"}}
        return [a_secret(metadata={"name": name, "uid": name, **meta}) for name in self.names]

    async def read_back(self, kind: type, namespace: str, name: str) -> CodeExecution | None:
        assert (kind, name) == (CodeExecution, "run-1")
        self.reads += 1
        return self.execution

    async def delete_payload(self, namespace: str, name: str, uid: str) -> None:
        assert name == uid
        self.names.remove(name)

    async def list_outputs(self, namespace: str) -> list[Any]:
        return []

    async def list_network_policies(self, namespace: str) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("execution", "age", "known", "awaited", "left"),
    [
        (OVER, 59, True, False, True),
        (OVER, 61, True, False, False),
        (OVER, 61, False, False, False),
        (RUNNING, 61, True, False, False),
        (RUNNING, 3600, True, True, True),
        (RUNNING, 3600, False, False, True),
        (WAITS, 3600, False, False, True),
        (STARTS, 3600, True, True, True),
        (None, 61, False, False, True),
        (None, 599, False, False, True),
        (None, 601, False, False, False),
    ],
    ids=[
        "over, new",
        "over",
        "over before this operator came",
        "its code has arrived",
        "its code may have to be handed over again",
        "it runs, and was not heard of here yet",
        "it waits, and was not heard of here yet",
        "it waits",
        "no execution, new",
        "no execution for ten minutes",
        "no execution for longer",
    ],
)
async def test_which_secrets_go(
    execution: CodeExecution | None, age: float, known: bool, awaited: bool, left: bool
) -> None:
    cluster = Cluster(execution, age)
    controller: Any = SimpleNamespace(
        awaited_payloads=lambda _: {"run-1"} if awaited else set(),
        known=lambda _: SimpleNamespace(objects={UID} if known else set()),
    )
    await sweep(cluster, "codeexec-sandbox", controller)  # type: ignore[arg-type]
    assert cluster.names == (["run-1", "run-1-1"] if left else [])
    assert cluster.reads <= 1, "of all parts together"
