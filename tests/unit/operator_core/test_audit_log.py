"""The audit log as the operator writes it: ahead of each status, or there is no status, and no code that starts."""

import asyncio
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from factories import NOW, a_session, an_execution, seconds
from kubernetes.aio.client.exceptions import ApiException
from played_context import a_context, a_register

from codeexec_api import AuditAnchor, CodeExecution, CodeExecutionStatus, Phase, SessionPhase
from codeexec_api.audit import AuditEvent
from codeexec_api.audit_check import Verification, read_log, verify
from codeexec_api.audit_file import LogFile
from codeexec_operator.adapters.audit import AuditFailure, AuditLog
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.core.actions import Plan, StartCode

BOX = "codeexec-sandbox"


class Log:
    """A log that can be full."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.full = False

    def __call__(self, line: str) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.lines.append(line)

    @property
    def events(self) -> list[str]:
        return [json.loads(line)["audit"]["event"] for line in self.lines]

    def verify(self, *records: CodeExecution) -> Verification:
        stored = [{"kind": "CodeExecution", **one.model_dump(mode="json", by_alias=True)} for one in records]
        return verify(read_log("log", self.lines), stored, now=datetime.now(UTC), namespace=BOX, complete=True)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def audit(log: Log) -> AuditLog:
    audit = AuditLog("1.2.3", Metrics("1.2.3"), log)
    audit.begin(BOX)
    return audit


def moved(execution: CodeExecution, phase: Phase) -> CodeExecution:
    return execution.model_copy(update={"status": execution.status.model_copy(update={"phase": phase})})


async def takes(before: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
    return before.model_copy(update={"status": status})


# --- lines ---


async def test_the_line_comes_first_and_the_status_names_it(audit: AuditLog, log: Log) -> None:
    before = an_execution()
    lines_then: list[int] = []

    async def write(before: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        lines_then.append(len(log.lines))
        return await takes(before, status)

    written = await audit.record(before, moved(before, Phase.RUNNING), write)
    assert (lines_then, log.events) == ([2], ["OperatorStarted", "StatusWrite"])
    entry = json.loads(log.lines[-1])
    assert entry["message"] == "codeexec-sandbox/run-1: Running ()"
    anchor = written.status.audit
    assert anchor is not None
    assert (anchor.chain, anchor.sequence, anchor.hash) == tuple(
        entry["audit"][name] for name in ("chain", "sequence", "hash")
    )
    assert (log.verify(written).findings, log.verify(written).records) == ((), 1)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (ApiException(status=409), "409"),
        (TimeoutError(), "none"),
        (ConnectionResetError(), "none"),
        (asyncio.CancelledError(), "none"),
        (ValueError("the answer is no record"), "none"),
    ],
)
async def test_a_status_that_is_refused_or_lost_leaves_its_line_and_one_that_says_so(
    audit: AuditLog, log: Log, error: Exception, answer: str
) -> None:
    async def refuses(before: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        raise error

    before = an_execution()
    with pytest.raises(type(error)):
        await audit.record(before, moved(before, Phase.RUNNING), refuses)
    written = await audit.record(before, moved(before, Phase.DENIED), takes)
    assert log.events[1:] == ["StatusWrite", "NotWritten", "StatusWrite"]
    assert json.loads(log.lines[2])["audit"]["answer"] == answer
    assert log.verify(written).findings == ()


async def test_without_a_line_nothing_is_written(audit: AuditLog, log: Log) -> None:
    async def never(before: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        raise AssertionError("it was written")

    before = an_execution()
    log.full = True
    with pytest.raises(AuditFailure, match="the audit log can't be written \\(No space left on device\\)"):
        await audit.record(before, moved(before, Phase.RUNNING), never)
    with pytest.raises(AuditFailure):
        audit.check()
    log.full = False
    written = await audit.record(before, moved(before, Phase.RUNNING), takes)
    audit.check()
    assert log.verify(written).findings == (), "and there is no gap"


async def test_what_an_earlier_process_wrote_last_is_told_once(audit: AuditLog, log: Log) -> None:
    def an_anchor(number: int, digit: str, time: float) -> AuditAnchor:
        return AuditAnchor(chain=digit * 32, sequence=number, hash="0" * 64, time=NOW + seconds(time))

    own = await audit.record(an_execution(), moved(an_execution(), Phase.RUNNING), takes)
    for anchor in (an_anchor(9, "a", 1), an_anchor(7, "b", 2), an_anchor(8, "a", 0), own.status.audit, None):
        audit.heard(BOX, anchor)
    audit.close()
    audit.close()
    assert log.events[2:] == [AuditEvent.CONTINUES]
    assert json.loads(log.lines[-1])["audit"]["after"] == {"chain": "b" * 32, "sequence": 7, "hash": "0" * 64}


async def test_sessions_have_lines_too(audit: AuditLog, log: Log) -> None:
    async def write(before: Any, status: Any) -> Any:
        return before.model_copy(update={"status": status})

    before = a_session()
    after = a_session(phase=SessionPhase.READY)
    written = await audit.record(before, after, write)
    assert json.loads(log.lines[-1])["audit"]["record"]["kind"] == "CodeSession"
    assert written.status.audit is not None


# --- the file ---


def test_a_line_is_there_as_soon_as_it_is_written() -> None:
    there, here = os.pipe()
    LogFile(here)("one")
    assert os.read(there, 100) == b"one\n"
    os.close(there)
    with pytest.raises(BrokenPipeError):
        LogFile(here)("two")
    os.close(here)


def test_a_line_that_was_torn_is_none_and_the_next_one_is_whole(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    """The disk is full after some bytes; the line is written again when there is room."""
    there, here = os.pipe()
    audit = AuditLog("1", Metrics("1"), LogFile(here))
    real, room = os.write, [60]

    def write(descriptor: int, data: bytes) -> int:
        if descriptor != here:
            return real(descriptor, data)
        if not room[0]:
            raise OSError(28, "No space left on device")
        count = real(descriptor, data[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(AuditFailure):
        audit.begin(BOX)
    room[0] = 10**6
    audit.begin(BOX)
    audit.begin(BOX)  # served again: the chain goes on
    os.close(here)
    text = os.read(there, 10**6).decode()
    os.close(there)
    assert text.count("(cut off)") == 1
    found = verify(read_log("log", text.splitlines()), now=datetime.now(UTC), complete=True)
    assert (found.findings, found.lines) == ((), 1)


# --- code ---


def a_worker(audit: AuditLog, write: Callable[..., Any], started: list[str]) -> ExecutionWorker:
    """Of an execution whose sandbox is ready; what is handed to the runner is noted."""
    context = a_context(SimpleNamespace(write_status=write), audit=audit)
    worker = ExecutionWorker(context, an_execution(phase=Phase.STARTING), a_register(), lambda _: None)
    worker.task.cancel()  # it is told what to do, and decides nothing

    async def start(job: Any, messages: Any) -> None:
        started.append("code")

    runner: Any = SimpleNamespace(start=start)
    worker.connection = runner
    return worker


def start_code() -> Plan:
    return Plan(status=an_execution(phase=Phase.RUNNING).status, actions=(StartCode(messages=()),))


async def test_code_starts_when_its_start_is_on_record(audit: AuditLog, log: Log) -> None:
    steps: list[str] = []

    async def write(before: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        steps.append(f"status {len(log.lines)}")
        return await takes(before, status)

    await a_worker(audit, write, steps)._apply(start_code())
    assert steps == ["status 2", "code"]


@pytest.mark.parametrize("error", [ApiException(status=409), ApiException(status=500), TimeoutError()])
async def test_code_does_not_start_when_its_start_could_not_be_recorded(audit: AuditLog, error: Exception) -> None:
    steps: list[str] = []

    async def refuses(before: CodeExecution, status: CodeExecutionStatus) -> CodeExecution:
        raise error

    with pytest.raises(type(error)):
        await a_worker(audit, refuses, steps)._apply(start_code())
    assert steps == []


async def test_code_does_not_start_when_the_audit_log_is_full(audit: AuditLog, log: Log) -> None:
    steps: list[str] = []
    log.full = True
    worker = a_worker(audit, takes, steps)
    with pytest.raises(AuditFailure):
        await worker._apply(start_code())
    assert steps == []
    await asyncio.sleep(0)
