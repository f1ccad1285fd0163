"""How the local executor behaves: results, limits, files, and what stays behind. Real sandboxes."""

import asyncio
import gc
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse, CodeExecutorAgent
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from autogen_ext.tools.code_execution import PythonCodeExecutionTool
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from polling import until

from codeexec_api import ExecutionPolicySpec, PolicyLimits
from executor_client import (
    ExecutionLost,
    ExecutionNotStarted,
    FileTransferError,
    Limits,
    LocalSandboxUnavailable,
    SessionEnded,
)
from executor_client.local import supervised
from executor_client.runtime import telemetry

pytestmark = pytest.mark.usefixtures("landlock")

IMAGE = f"some/image@sha256:{'1' * 64}"
DETACHED = """\
import os, pathlib, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        pathlib.Path("new").write_text(str(os.getpid()))
        os.rename("new", "pid")
        time.sleep(600)
    os._exit(0)
while not os.path.exists("pid"):
    time.sleep(0.01)
print("ready", flush=True)
"""
"""Leaves a process behind that has left its group and its session."""


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_of(result: Any) -> int:
    return int(Path(result.code_file).with_name("pid").read_text())


async def test_streams_order_and_exit_code(executor: Any, run: Any) -> None:
    code = """\
    import sys
    print("one", flush=True)
    print("two", file=sys.stderr)
    sys.exit(3)
    """
    result = await run(executor, code)
    assert (result.exit_code, result.reason) == (3, "NonZeroExit")
    assert (result.stdout, result.stderr) == ("one\n", "two\n")
    assert sorted(result.output.splitlines()) == ["one", "two"]
    [block] = result.blocks
    assert (block.exit_code, block.reason, block.stdout_bytes, block.stderr_bytes) == (3, "NonZeroExit", 4, 4)


async def test_blocks_run_in_order_until_one_fails(executor: Any) -> None:
    blocks = [
        CodeBlock("open('note', 'w').write('from python')\nprint('one')", "Python"),
        CodeBlock("cat note; echo; exit 4", "shell"),
        CodeBlock("print('never')", "python"),
    ]
    result = await executor.execute_code_blocks(blocks, CancellationToken())
    assert (result.exit_code, result.output, len(result.blocks)) == (4, "one\nfrom python\n", 2)
    assert [one.path for one in result.artifacts] == ["note"]


async def test_a_block_that_can_not_be_run_is_a_result(executor: Any, run: Any) -> None:
    unknown = await run(executor, "1", "cobol")
    assert unknown.exit_code == 1
    assert unknown.output.startswith("unknown language cobol; supported languages: python, bash, sh")
    assert "image" not in unknown.output
    outside = await run(executor, "# filename: ../x.py\nprint(1)")
    assert outside.exit_code == 1
    assert outside.output.startswith("Filename is not in the workspace")
    both = [CodeBlock("print(1)", "python"), CodeBlock("1", "cobol")]
    mixed = await executor.execute_code_blocks(both, CancellationToken())
    assert (mixed.exit_code, mixed.stdout) == (1, "1\n")
    assert "unknown language cobol" in mixed.output


async def test_output_beyond_its_limit_is_marked(make: Any, run: Any) -> None:
    result = await run(make(limits=Limits(output_bytes=1024)), "print('x' * 5000)")
    assert result.exit_code == 0
    assert result.stdout == "x" * 1024
    assert result.output == "x" * 1024 + "\n[codeexec: stdout truncated: 1024 of 5001 bytes kept]"


def killed_plainly(code: str, folder: Path) -> bool:
    """Kill a plain process that runs this, and say whether what it had left behind was there then."""
    with subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE) as control:
        assert control.stdout
        assert control.stdout.readline() == b"ready\n"
        control.kill()
        control.wait()
        detached = int((folder / "pid").read_text())
        try:
            return is_there(detached)
        finally:
            os.kill(detached, signal.SIGKILL)


@pytest.fixture
def late_once_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit of a block passes when its first output was read, and not before."""
    ready: list[supervised._Run] = []
    take = supervised._Run._take

    def take_and_note(self: supervised._Run, *arguments: Any) -> None:
        take(self, *arguments)
        ready.append(self)

    def clock() -> float:
        return time.monotonic() + (1000 if ready and ready[0]._started is not None else 0)

    monkeypatch.setattr(supervised._Run, "_take", take_and_note)
    monkeypatch.setattr(supervised, "time", SimpleNamespace(monotonic=clock))


@pytest.mark.usefixtures("late_once_ready")
async def test_a_time_limit_ends_all_that_was_started(make: Any, run: Any, caller: Any) -> None:
    code = DETACHED + "signal = __import__('signal')\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass\n"
    result = await run(make(timeout=60), code)
    assert (result.exit_code, result.reason) == (124, "DeadlineExceeded")
    assert result.output == "ready\nTimeout: the block ran longer than timeout=60 and was killed"
    assert not is_there(pid_of(result))

    assert killed_plainly(code, caller.home)


async def test_nothing_outlives_its_block(executor: Any, run: Any) -> None:
    result = await run(executor, DETACHED)
    assert (result.exit_code, result.output) == (0, "ready\n")
    assert not is_there(pid_of(result))


async def test_cancellation_keeps_what_was_printed(executor: Any, run: Any) -> None:
    path, token = await started(executor), CancellationToken()
    call = asyncio.create_task(executor.execute_code_blocks([CodeBlock(wait_for_ever(path), "python")], token))
    await heard(path)
    token.cancel()
    result = await call
    assert (result.exit_code, result.reason) == (1, "CancelRequested")
    assert result.output == "before\nCode execution was cancelled."
    assert (await run(executor, "print(1)")).output == "1\n"


async def test_a_call_that_waits_is_cancelled_at_once(executor: Any) -> None:
    path, first, second = await started(executor), CancellationToken(), CancellationToken()
    running = asyncio.create_task(executor.execute_code_blocks([CodeBlock(wait_for_ever(path), "python")], first))
    await heard(path)
    waiting = asyncio.create_task(executor.execute_code_blocks([CodeBlock("print(1)", "python")], second))
    await asyncio.sleep(0)
    second.cancel()
    result = await waiting
    assert (result.exit_code, result.output, result.blocks) == (1, "Code execution was cancelled.", ())
    assert not running.done()
    first.cancel()
    await running


async def test_a_task_that_waits_for_its_turn_is_cancelled_at_once(executor: Any) -> None:
    path, first = await started(executor), CancellationToken()
    running = asyncio.create_task(executor.execute_code_blocks([CodeBlock(wait_for_ever(path), "python")], first))
    await heard(path)
    waiting = asyncio.create_task(executor.execute_code_blocks([CodeBlock("print(1)", "python")], CancellationToken()))
    await until(lambda: not executor._sandbox._thread._work_queue.empty())
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not running.done()
    first.cancel()
    await running


async def test_a_task_that_is_cancelled_takes_the_code_with_it(executor: Any) -> None:
    path = await started(executor)
    call = asyncio.create_task(
        executor.execute_code_blocks([CodeBlock(wait_for_ever(path), "python")], CancellationToken())
    )
    pid = await heard(path)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not is_there(pid)


async def test_a_token_that_is_cancelled_before_runs_nothing(executor: Any) -> None:
    token = CancellationToken()
    token.cancel()
    result = await executor.execute_code_blocks([CodeBlock("print(1)", "python")], token)
    assert (result.exit_code, result.output, result.execution) == (1, "Code execution was cancelled.", None)


async def test_stop_ends_what_runs(executor: Any) -> None:
    path = await started(executor)
    call = asyncio.create_task(
        executor.execute_code_blocks([CodeBlock(wait_for_ever(path), "python")], CancellationToken())
    )
    pid = await heard(path)
    await executor.stop()
    assert (await call).exit_code == 1
    assert not is_there(pid)
    assert not path.exists()


async def test_a_call_that_waits_when_stop_is_called_raises_as_in_a_cluster(executor: Any) -> None:
    """Nothing of it was run. The call that runs is cancelled, which is a result."""
    path = await started(executor)
    calls = []
    for code in (wait_for_ever(path), "print(1)"):
        block = CodeBlock(code, "python")
        calls.append(asyncio.create_task(executor.execute_code_blocks([block], CancellationToken())))
    await heard(path)
    await until(lambda: not executor._sandbox._thread._work_queue.empty())
    await executor.stop()
    running, waiting = await asyncio.gather(*calls, return_exceptions=True)
    assert running.reason == "CancelRequested"
    assert isinstance(waiting, SessionEnded)
    assert str(waiting).endswith("stop() or restart() was called before this call ran; nothing was run")


async def test_a_supervisor_that_dies_is_no_success(executor: Any) -> None:
    path = await started(executor)
    call = asyncio.create_task(
        executor.execute_code_blocks([CodeBlock(wait_for_ever(path), "python")], CancellationToken())
    )
    code = await heard(path)
    handle = os.pidfd_open(code)
    os.kill(supervisor_of(code), signal.SIGKILL)
    with pytest.raises(ExecutionLost, match="the supervisor of the block died"):
        await call
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    os.close(handle)


def supervisor_of(pid: int) -> int:
    """The child of this process that another one descends from."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid if parent == os.getpid() else supervisor_of(parent)


async def started(executor: Any) -> Path:
    """A FIFO in the workspace of an executor, by which its code can say that it runs."""
    block = CodeBlock("import os; os.mkfifo('fifo')", "python")
    result = await executor.execute_code_blocks([block], CancellationToken())
    assert result.exit_code == 0, result.output
    return Path(result.code_file).with_name("fifo")


def wait_for_ever(path: Path) -> str:
    return textwrap.dedent(
        f"""\
        import os, signal
        print("before", flush=True)
        with open({str(path)!r}, "w") as fifo:
            fifo.write(str(os.getpid()))
        while True: signal.pause()
        """
    )


async def heard(path: Path) -> int:
    return int(await asyncio.to_thread(path.read_text))


def test_code_does_not_outlive_the_caller(tmp_path: Path) -> None:
    """A program that is killed can't clean up; the supervisor of the block sees its end."""
    program = """\
    import asyncio, sys
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock
    from executor_client import LocalSandboxExecutor

    async def main():
        executor = LocalSandboxExecutor(timeout=600, work_dir=sys.argv[1])
        blocks = [CodeBlock("import os; print(os.getpid())\\nwhile True: pass", "python")]
        task = asyncio.create_task(executor.execute_code_blocks(blocks, CancellationToken()))
        await task

    asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    with subprocess.Popen(command, env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}) as caller:
        code = child_in(tmp_path)
        handle = os.pidfd_open(code)
        caller.kill()
    try:
        ended, _, _ = select.select([handle], [], [], 60)
        assert ended == [handle]
    finally:
        os.close(handle)


def child_in(folder: Path) -> int:
    """The first process that has a folder below this one for its own."""
    for _ in range(1_000_000):
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cwd").readlink().is_relative_to(folder) and process.name != str(os.getpid()):
                    return int(process.name)
            except OSError:
                continue
    raise AssertionError("no code has started")


async def test_files_last_until_the_restart(executor: Any, run: Any) -> None:
    first = await run(executor, "open('note', 'w').write('1')")
    assert (await run(executor, "print(open('note').read())")).output == "1\n"
    await executor.restart()
    assert "FileNotFoundError" in (await run(executor, "open('note')")).stderr
    assert not Path(first.code_file).parent.exists()


async def test_the_workspace_is_deleted_by_stop(executor: Any, run: Any) -> None:
    code = """\
    import os
    for _ in range(1200):
        os.mkdir("d"); os.chdir("d")
    """
    deep = await run(executor, code)
    assert deep.exit_code == 0, deep.output
    await run(executor, "import os; os.mkdir('closed'); open('closed/x', 'w'); os.chmod('closed', 0)")
    root = Path(deep.code_file).parent.parent
    assert root.exists()
    await executor.stop()
    assert not root.exists()


async def test_the_workspace_is_deleted_with_the_executor(run: Any) -> None:
    from executor_client import LocalSandboxExecutor

    executor = LocalSandboxExecutor()
    root = Path((await run(executor, "print(1)")).code_file).parent.parent
    assert root.exists()
    thread = executor._sandbox._thread
    del executor
    gc.collect()
    with suppress(RuntimeError):  # it has ended with the executor
        thread.submit(int).result()  # else it has let go of the call before
    assert not root.exists()


async def test_files_of_work_dir_go_in_and_come_out(make: Any, run: Any, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2")
    (tmp_path / ".env").write_text("PLANTED")
    executor = make(work_dir=tmp_path)
    code = "# filename: job.py\nimport os, shutil; print(sorted(os.listdir())); shutil.copy('data.csv', 'out.txt')"
    result = await run(executor, code)
    assert result.output == "['data.csv', 'job.py']\n"
    assert (tmp_path / "out.txt").read_text() == "1,2"
    assert (tmp_path / "job.py").read_text() == code
    assert result.code_file == str(tmp_path / "job.py")
    assert [(one.path, one.fetched) for one in result.artifacts] == [("out.txt", True)]
    (tmp_path / "data.csv").write_text("3")
    assert (await run(executor, "print(open('data.csv').read())")).output == "3\n"


async def test_nothing_is_written_outside_of_work_dir(make: Any, run: Any, tmp_path: Path, caplog: Any) -> None:
    """Code makes a link where the caller's files would be written, or a hidden file that programs read unasked."""
    outside, work = tmp_path / "outside", tmp_path / "work"
    outside.mkdir()
    work.mkdir()
    code = f"""\
    import os
    os.symlink({str(outside)!r}, "way")
    os.symlink({str(outside / "x")!r}, "file")
    os.mkdir(".git"); open(".git/config", "w").write("x")
    """
    result = await run(make(work_dir=work), code)
    assert result.exit_code == 0, result.output
    assert [path.name for path in work.iterdir() if not path.name.startswith("tmp_code_")] == []
    assert [(one.path, one.fetched) for one in result.artifacts] == [(".git/config", False)]
    assert ".git/config" in caplog.text


async def test_what_code_has_left_in_the_way_of_a_file_is_an_error(make: Any, run: Any, tmp_path: Path) -> None:
    (tmp_path / "data.csv").mkdir()
    (tmp_path / "data.csv" / "x").write_text("1,2")
    executor = make(work_dir=tmp_path)
    await run(executor, f"import os, shutil; shutil.rmtree('data.csv'); os.symlink({str(Path.home())!r}, 'data.csv')")
    (tmp_path / "data.csv" / "x").write_text("3")
    with pytest.raises(FileTransferError, match=r"'data.csv/x' can't be put .*: Not a directory. .*call restart\(\)"):
        await run(executor, "print(1)")


async def test_the_source_of_a_block_does_not_follow_a_link(executor: Any, run: Any, tmp_path: Path) -> None:
    """Nor does it get the mode of the file that stands under its name, which may not be readable."""
    theirs = tmp_path / "job.py"
    theirs.write_text("PLANTED")
    await run(executor, f"import os; os.symlink({str(tmp_path)!r}, 'way'); os.symlink({str(theirs)!r}, 'job.py')")
    through = await run(executor, "# filename: way/job.py\nprint(1)")
    assert (through.exit_code, through.stderr) == (126, "python3: Not a directory: way/job.py\n")
    instead = "# filename: job.py\nimport os; print(oct(os.stat('job.py').st_mode)); os.chmod('job.py', 0)"
    for _ in range(2):
        assert int((await run(executor, instead)).stdout, 8) & 0o400
    assert theirs.read_text() == "PLANTED"


def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


async def test_functions_can_be_imported(make: Any, run: Any) -> None:
    executor = make(functions=[double])
    assert (await run(executor, "from functions import double; print(double(21))")).output == "42\n"
    assert executor.functions == ["double"]
    assert "def double" in executor.format_functions_for_prompt()


@pytest.mark.parametrize(
    ("action", "code", "said"),
    [
        ("Deny", "import ctypes", "spec.blocks[0]: import ctypes is not allowed by the policy"),
        ("Deny", "%ls", "spec.blocks[0]: unreadable Python is not allowed by the policy"),
        (
            "NeedApproval",
            "import ctypes",
            "this needs approval, and the local sandbox has nobody to ask: spec.blocks[0]",
        ),
    ],
)
@pytest.mark.usefixtures("reading_takes_its_time")
async def test_rules_for_code_count_here_too(make: Any, run: Any, action: str, code: str, said: str) -> None:
    rules = [{"action": action, "imports": ["ctypes"]}]
    executor = make(policy=ExecutionPolicySpec.model_validate({"images": [IMAGE], "codeRules": rules}))
    assert (await run(executor, "print('ran')", "python")).output == "ran\n", "control"
    result = await run(executor, code, "python")
    assert (result.exit_code, result.reason) == (1, "PolicyViolation")
    assert said in result.output


@pytest.mark.usefixtures("reading_takes_its_time")
async def test_what_a_rule_only_notes_runs_and_is_on_the_span(
    make: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_TRACER", provider.get_tracer("test"))
    rules = [{"action": "Note", "imports": ["os"]}]
    executor = make(policy=ExecutionPolicySpec.model_validate({"images": [IMAGE], "codeRules": rules}))
    assert (await run(executor, "import os; print(os.sep)", "python")).output == "/\n"
    [span] = exporter.get_finished_spans()
    assert span.attributes
    assert span.attributes["codeexec.code.findings"] == ("Note: import os",)


async def test_the_policy_counts_here_too(make: Any, run: Any) -> None:
    policy = ExecutionPolicySpec(
        images=(IMAGE,), languages=("python",), max_timeout_seconds=10, max_limits=PolicyLimits(memory="64Mi")
    )
    result = await run(make(policy=policy, timeout=20), "echo ran > marker", "bash")
    assert (result.exit_code, result.reason, result.blocks) == (1, "PolicyViolation", ())
    assert result.output.startswith("Denied: ")
    for wanted in ("spec.blocks[0].language: bash", "timeout=20", 'Limits(memory="256Mi")'):
        assert wanted in result.output
    assert "image" not in result.output
    default = await run(make(timeout=601), "print(1)")
    assert "timeout=601 is not allowed" in default.output


async def test_the_span_has_what_the_cluster_s_has(make: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_TRACER", provider.get_tracer("test"))
    result = await run(make(agent="analyst", timeout=60), "import sys; print('PLANTED'); sys.exit(3)")
    [span] = exporter.get_finished_spans()
    assert span.name == "execute_code"
    assert "PLANTED" not in span.to_json()
    expected = {
        "codeexec.execution.name": result.execution,
        "gen_ai.agent.name": "analyst",
        "codeexec.source.agent": "analyst",
        "codeexec.source.executor": "LocalSandboxExecutor",
        "codeexec.block.languages": ("python",),
        "codeexec.timeout_seconds": 60,
        "codeexec.limits.memory": "256Mi",
        "codeexec.layers": ("Seccomp", "Landlock"),
        "codeexec.phase": "Failed",
        "codeexec.reason": "NonZeroExit",
        "codeexec.stdout.size_bytes": 8,
        "process.exit.code": 3,
        "error.type": "NonZeroExit",
    }
    assert {key: span.attributes.get(key) for key in expected} == expected
    assert str(span.attributes["codeexec.code.digest"]).startswith("sha256:")
    assert "k8s.namespace.name" not in span.attributes


def approve(request: ApprovalRequest) -> ApprovalResponse:
    return ApprovalResponse(approved=True, reason="a test")


async def test_autogen_s_agent_tool_and_json_work_on_it(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = CodeExecutorAgent("runner", executor, supported_languages=["python"], approval_func=approve)
    message = TextMessage(content="Look:\n```python\nprint(6 * 7)\n```", source="user")
    response = await agent.on_messages([message], CancellationToken())
    assert response.chat_message.to_text() == "42\n"
    tool = PythonCodeExecutionTool(executor)
    assert (await tool.run_json({"code": "print(1)"}, CancellationToken())).output == "1\n"
    monkeypatch.setenv("AUTOGEN_ALLOWED_PROVIDER_NAMESPACES", "executor_client")
    dumped = json.loads(executor.dump_component().model_dump_json())
    async with CodeExecutor.load_component(dumped) as loaded:
        result = await loaded.execute_code_blocks([CodeBlock("print(2)", "python")], CancellationToken())
    assert result.output == "2\n"


async def test_an_endpoint_that_is_nowhere_is_an_error(make: Any, run: Any) -> None:
    with pytest.raises(ExecutionNotStarted, match=r"endpoints has 'no-such-host.invalid:1', which can't be looked up"):
        await run(make(endpoints=["no-such-host.invalid:1"]), "print(1)")


NO_LANDLOCK = """\
import asyncio, errno, importlib.util, platform, sys
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from executor_client import LocalSandboxExecutor, LocalSandboxUnavailable
from executor_client.local import system_calls, worker

system_calls.NUMBERS["landlock_create_ruleset"] = (444, 444)
refused = {"landlock_create_ruleset": (errno.ENOSYS, [])} if sys.argv[1] == "without" else {}
worker.install(system_calls.seccomp_program(platform.machine(), refused))

async def main():
    async with LocalSandboxExecutor() as executor:
        try:
            result = await executor.execute_code_blocks([CodeBlock("print(1)", "python")], CancellationToken())
            print("ran", result.output)
        except LocalSandboxUnavailable as error:
            print(error)

asyncio.run(main())
"""


@pytest.mark.parametrize(("kernel", "said"), [("without", "the kernel has Landlock ABI 0"), ("with", "ran 1")])
def test_a_kernel_without_landlock_runs_nothing(kernel: str, said: str) -> None:
    """A filter takes Landlock from the whole program, as a kernel without it would."""
    command = [sys.executable, "-c", NO_LANDLOCK, kernel]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=100)
    assert said in done.stdout, done.stderr


def test_without_sandlock_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from executor_client import LocalSandboxExecutor

    monkeypatch.setitem(sys.modules, "sandlock", None)
    with pytest.raises(LocalSandboxUnavailable, match=r"its extra 'local', in a checkout with"):
        LocalSandboxExecutor()


@pytest.mark.parametrize(("name", "value"), [("platform", "darwin"), ("executable", "")])
def test_another_machine_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from executor_client import LocalSandboxExecutor

    monkeypatch.setattr(sys, name, value)
    with pytest.raises(LocalSandboxUnavailable, match="this machine can't confine code"):
        LocalSandboxExecutor()
