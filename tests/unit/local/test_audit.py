"""The audit log of a local executor: the same lines as the operator's, which the same command checks."""

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from audit_world import named
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from click.testing import CliRunner
from factories import NOW
from polling import until

from codeexec_api import ExecutionPolicySpec, Phase
from executor_client import AuditLogUnavailable, LocalApproval, LocalRunNotApproved
from executor_client.cli import main
from executor_client.local.audit import LocalAuditLog

pytestmark = pytest.mark.usefixtures("landlock")

MARKER = "planted-in-code-and-output"
INTO_ALL = """
import os
for descriptor in range(3, 256):
    try:
        os.write(descriptor, b"mine")
    except OSError:
        pass
"""
NO_PYTHON = ExecutionPolicySpec(images=(f"some/image@sha256:{'1' * 64}",), languages=("sh",))


def told(log: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)["audit"] for line in log.read_text().split("\n")[:-1]
    ]  # another thread may be writing the last


def phases(log: Path) -> list[tuple[str, str, int | None]]:
    """From, to and exit code of each write."""
    writes = [one for one in told(log) if one["event"] == "StatusWrite"]
    return [(one["from"], one["record"]["phase"], one["record"].get("exitCode")) for one in writes]


def verify(log: Path) -> str:
    done = CliRunner().invoke(main, ["audit", "verify", "--no-cluster", str(log)])
    return f"{done.exit_code}: {done.stdout}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


async def test_start_and_end_of_each_call_are_written_down_and_no_code(make: Any, run: Any, log: Path) -> None:
    executor = make(audit_log=log)
    for code in (f"print('{MARKER}')", f"raise SystemExit('{MARKER}')"):
        result = await run(executor, code)
        assert MARKER in result.output
    assert phases(log) == [
        ("Pending", "Running", None),
        ("Running", "Succeeded", 0),
        ("Pending", "Running", None),
        ("Running", "Failed", 1),
    ]
    assert [one["record"]["name"] for one in told(log)[-2:]] == [result.execution] * 2
    assert MARKER not in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert verify(log).startswith("0: ")


async def test_what_was_done_to_the_file_is_found(make: Any, run: Any, log: Path) -> None:
    await run(make(audit_log=log), "print(1)")
    lines = log.read_text().splitlines(keepends=True)
    for wrong in (
        lines[:1] + lines[2:],
        [lines[0], lines[2], lines[1]],
        [*lines[:2], lines[2].replace("Succeeded", "Failed")],
    ):
        log.write_text("".join(wrong))
        assert verify(log).startswith("1: ")


def test_executors_may_share_a_file_for_days(log: Path) -> None:
    times = iter([NOW + timedelta(days=day) for day in range(3)])
    first, _ = [LocalAuditLog(log, lambda: next(times)) for _ in range(2)]
    first.tell(Phase.PENDING, named("run-1", "local"))
    done = CliRunner().invoke(main, ["audit", "verify", "--no-cluster", "--complete", str(log)])
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "ok: 0 findings"), done.output


async def test_executors_share_a_file(make: Any, run: Any, log: Path) -> None:
    first, second = make(audit_log=log), make(audit_log=log)
    for executor in (first, second, first):
        await run(executor, "print(1)")
    assert len({one["chain"] for one in told(log)}) == 2
    assert verify(log).startswith("0: ")


async def test_without_a_line_no_code_runs(make: Any, run: Any, log: Path, tmp_path: Path, monkeypatch: Any) -> None:
    executor = make(audit_log=log, work_dir=tmp_path / "work")
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(log):
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(AuditLogUnavailable, match=r"audit.log' can't be written \(No space left on device\)"):
            await run(executor, "open('made', 'w')")
    assert not (tmp_path / "work/made").exists()
    await run(executor, "open('made', 'w')")
    assert (tmp_path / "work/made").exists(), "control: the same code runs when there is room"
    assert verify(log).startswith("0: ")


@pytest.mark.parametrize("place", ["folder", "link", "nowhere/audit.log"])
def test_a_place_that_can_not_be_written_is_refused_at_once(make: Any, tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AuditLogUnavailable, match=r"audit_log '.*' can't be written .*; give a file, or a new name"):
        make(audit_log=tmp_path / place)
    assert not (tmp_path / "elsewhere").exists()


async def test_a_file_that_another_one_has_replaced_is_not_written_to(make: Any, run: Any, log: Path) -> None:
    executor = make(audit_log=log)
    other = log.with_name("other")
    other.write_text("forged")
    other.replace(log)
    with pytest.raises(AuditLogUnavailable, match="another file has taken its place"):
        await run(executor, "print(1)")
    assert log.read_text() == "forged"
    log.unlink()
    with pytest.raises(AuditLogUnavailable, match="No such file"):
        await run(executor, "print(1)")


async def test_it_stays_where_it_was(make: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    executor = make(audit_log="audit.log")
    monkeypatch.chdir("/")
    await run(executor, "print(1)")
    assert len(phases(tmp_path / "audit.log")) == 2


def test_it_is_not_where_code_puts_files(make: Any, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "work")
    for path in (tmp_path / "work/audit.log", tmp_path / "work/../work/a/audit.log", tmp_path / "link/audit.log"):
        with pytest.raises(ValueError, match="must not be in work_dir"):
            make(audit_log=path, work_dir=tmp_path / "work")


async def test_code_can_not_write_to_it(make: Any, run: Any, log: Path) -> None:
    executor = make(audit_log=log)
    result = await run(executor, f"open({str(log)!r}, 'a').write('mine')")
    assert "PermissionError" in result.output
    result = await run(
        executor, "import os\nfor n in range(3, 256):\n    try: os.write(n, b'mine')\n    except OSError: pass"
    )
    assert result.exit_code == 0
    assert "mine" not in log.read_text()
    assert verify(log).startswith("0: ")


async def test_refusals_and_cancellations_are_written_down(make: Any, run: Any, log: Path) -> None:
    await run(make(audit_log=log, policy=NO_PYTHON), "print(1)")
    assert phases(log) == [("Pending", "Denied", None)]
    token = CancellationToken()
    block = CodeBlock("import time; time.sleep(60)", "python")
    call = asyncio.create_task(make(audit_log=log).execute_code_blocks([block], token))
    await until(lambda: len(phases(log)) >= 2, every=0.01)
    token.cancel()
    await call
    assert phases(log)[1:] == [("Pending", "Running", None), ("Running", "Cancelled", 130)]


async def test_production_is_written_down(make: Any, run: Any, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = make(audit_log=log)
    monkeypatch.setenv("CODEEXEC_ENVIRONMENT", "production")
    with pytest.raises(LocalRunNotApproved):
        await run(executor, "print(1)")
    assert phases(log) == [("Pending", "Denied", None)]
    until = datetime.now(UTC) + timedelta(hours=1)
    await run(make(audit_log=log, approval=LocalApproval("ann@example.org", "incident", until)), "print(1)")
    started = next(one for one in told(log) if one.get("record", {}).get("phase") == "Running")
    assert started["record"]["approval"] == {"decision": "Approve", "approver": "ann@example.org"}


def test_an_executor_with_an_audit_log_has_no_json(make: Any, log: Path) -> None:
    with pytest.raises(ValueError, match="an executor with an audit log can't be dumped"):
        make(audit_log=log).dump_component()
