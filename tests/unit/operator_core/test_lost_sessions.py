"""Code for a session that isn't there is not held while it waits: many requests may name such a session."""

from dataclasses import dataclass
from typing import Any

import pytest
from factories import PAYLOAD, SESSION_REF, a_secret, a_session, an_execution
from played_cluster import PlayedCluster
from played_context import a_context, a_register
from polling import until

from codeexec_api import CodeExecution, CodeSession, SessionPhase
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.core.payload import HeldPayload, Payload
from codeexec_operator.core.timing import Timing

GRACE = Timing(payload_grace=3600, payload_retry=0.001)
"""It ends in no test that it waits for."""


@dataclass
class Played(PlayedCluster):
    """An API server with an execution, its payload, and perhaps its session."""

    session: CodeSession | None = None
    reads: int = 0

    async def get_payload(self, namespace: str, name: str, parts: int) -> list[Any]:
        self.reads += 1
        return [a_secret()]

    async def get_session(self, namespace: str, name: str) -> CodeSession | None:
        return self.session


def a_worker(cluster: Played) -> ExecutionWorker:
    payloads: Any = type("Payloads", (), {"seen": lambda *_: True, "take": lambda *_: None})()
    context = a_context(cluster, timing=GRACE, payloads=payloads)
    return ExecutionWorker(context, cluster.execution, a_register(), lambda _: None)


def asking(*, sealed: bool = False) -> CodeExecution:
    return an_execution(**SESSION_REF, **({"payloadRef": None, "sealedPayload": SEALED} if sealed else {}))


SEALED = {"keyName": "key-1", "data": "AAAA"}


async def test_code_is_let_go_of_while_its_session_is_waited_for() -> None:
    cluster = Played(asking())
    worker = a_worker(cluster)
    for reads in (1, 3):
        await until(lambda reads=reads: cluster.reads >= reads)
        await until(lambda: worker._seen.payload is not None)
        assert isinstance(worker._seen.payload, HeldPayload)
        assert worker._seen.payload.secrets == PAYLOAD.secrets
    worker.task.cancel()


async def test_code_whose_session_comes_is_read_again() -> None:
    cluster = Played(asking())
    worker = a_worker(cluster)
    worker.task.cancel()
    await worker._read_request()
    assert isinstance(worker._seen.payload, HeldPayload), "control"
    cluster.session = a_session(phase=SessionPhase.READY)
    await worker._read_request()
    assert worker._seen.payload == PAYLOAD


@pytest.mark.parametrize("there", [True, False])
async def test_sealed_code_stays_because_it_has_to_be_published_before_it_is_approved(
    monkeypatch: pytest.MonkeyPatch, *, there: bool
) -> None:
    cluster = Played(asking(sealed=True), session=a_session(phase=SessionPhase.READY) if there else None)
    worker = a_worker(cluster)
    worker.task.cancel()

    async def opened(_: Any) -> Payload:
        return PAYLOAD

    monkeypatch.setattr(worker._request, "_open", opened)
    await worker._read_request()
    assert worker._seen.payload == PAYLOAD
