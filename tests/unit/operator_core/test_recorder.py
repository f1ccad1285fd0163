"""Every status goes one way: its line in the audit log, the status, and then those who are told."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from factories import a_session, an_execution
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecutionStatus, Phase, SandboxPool, SandboxPoolStatus, SessionPhase, StreamStatus
from codeexec_operator.adapters.audit import AuditLog
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.adapters.recorder import Recorder

TOO_LARGE = ApiException(status=500)
TOO_LARGE.body = "etcdserver: request is too large"


class Stage:
    """An API server that answers with these errors first, and all who hear of what was written."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.lines: list[str] = []
        self.sent: list[Any] = []
        self.told: list[str] = []
        cluster: Any = SimpleNamespace(write_status=self.write)
        event_recorder: Any = SimpleNamespace(
            written=lambda before, _: self.told.append(f"event after {before.status.phase.value}")
        )
        audit = AuditLog("1", Metrics("1"), self.lines.append)
        self.recorder = Recorder(cluster, audit, event_recorder, "1.2")

    async def write(self, before: Any, status: Any) -> Any:
        self.sent.append(status)
        if self.errors:
            raise self.errors.pop(0)
        return before.model_copy(update={"status": status})

    @property
    def events(self) -> list[str]:
        return [json.loads(line)["audit"]["event"] for line in self.lines]


def with_output() -> CodeExecutionStatus:
    stream = StreamStatus(text="x", sha256="0" * 64, kept_bytes=1, total_bytes=1, truncated=False)
    return an_execution(phase=Phase.SUCCEEDED).status.model_copy(update={"stdout": stream})


async def test_output_that_does_not_fit_is_left_out_and_the_first_try_is_on_record() -> None:
    stage = Stage(TOO_LARGE)
    written = await stage.recorder.write_execution(an_execution(phase=Phase.RUNNING), with_output())
    assert written.status.stdout
    assert (written.status.stdout.text, written.status.stdout.truncated) == ("", True)
    assert written.status.operator_version == "1.2"
    assert stage.events == ["StatusWrite", "NotWritten", "StatusWrite"]
    assert stage.told == ["event after Running"]


@pytest.mark.parametrize("error", [ApiException(status=409), ApiException(status=500), TimeoutError()])
async def test_another_failure_is_the_workers(error: Exception) -> None:
    stage = Stage(error)
    with pytest.raises(type(error)):
        await stage.recorder.write_execution(an_execution(phase=Phase.RUNNING), with_output())
    assert (stage.events, stage.told) == (["StatusWrite", "NotWritten"], [])


async def test_a_session_has_a_line_and_an_event() -> None:
    stage = Stage()
    ended = a_session(phase=SessionPhase.ENDED).status
    written = await stage.recorder.write_session(a_session(phase=SessionPhase.STARTING), ended)
    assert (written.status.phase, written.status.operator_version) == (SessionPhase.ENDED, "1.2")
    assert (stage.events, stage.told) == (["StatusWrite"], ["event after Starting"])


async def test_a_pool_has_no_line() -> None:
    stage = Stage()
    pool = SandboxPool.model_validate({"metadata": {"name": "default", "namespace": "box"}, "spec": {}})
    written = await stage.recorder.write_pool(pool, SandboxPoolStatus())
    assert (written.status.operator_version, stage.lines, stage.told) == ("1.2", [], [])
