"""Stateful Python: variables live as long as the session, in one IPython kernel that is confined like all code."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, a_name

from codeexec_api import Limits
from executor_client import KubernetesCodeExecutor

AGENT = a_name("cell")
KERNEL = {"stateful": True, "limits": Limits(cpu="1", memory="512Mi")}
KILLED = "did not stop in time and was killed; its variables are gone"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def shared(agent_kubeconfig: str, folder: Path) -> Iterator[KubernetesCodeExecutor]:
    """One session for most tests of this file; each takes variables of its own, or sets them."""
    own = {"namespace": SANDBOX, "agent": AGENT, "timeout": 60, "work_dir": folder}
    executor = KubernetesCodeExecutor(kubeconfig=agent_kubeconfig, **own, **KERNEL)
    yield executor
    asyncio.run(executor.stop())


@pytest.fixture
def make(make_executor):
    return lambda **options: make_executor(session="per-executor", **{"timeout": 100, **KERNEL, **options})


async def run(executor, *codes, language="python", token=None):
    blocks = [CodeBlock(code, language) for code in codes]
    return await executor.execute_code_blocks(blocks, token or CancellationToken())


async def test_variables_survive_between_blocks_and_calls(shared):
    executor = shared
    assert (await run(executor, "x = 20", "import math\ndef double(n): return 2 * n")).exit_code == 0
    assert (await run(executor, "print(double(x) + int(math.sqrt(4)))")).output == "42\n"
    assert (await run(executor, "x")).output == "20\n"
    shell = await run(executor, "echo $X; ls", language="sh")
    assert shell.exit_code == 0


async def test_errors_are_told_and_the_kernel_lives(shared):
    executor = shared
    await run(executor, "x = 1")
    failed = await run(executor, "print('before')\n1 / 0", "print('never')")
    assert failed.exit_code == 1
    assert failed.stdout == "before\n"
    assert "ZeroDivisionError" in failed.stderr
    assert "\x1b" not in failed.stderr
    assert (await run(executor, "print(x)")).output == "1\n"


async def test_images_and_html_come_back_as_artifacts(shared, folder):
    code = (
        "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()\n"
        "import pandas as pd\npd.DataFrame({'a': [1]})"
    )
    result = await run(shared, code)
    assert result.exit_code == 0, result.output
    kinds = {path.rsplit(".", 1)[-1]: path for path in (one.path for one in result.artifacts)}
    assert {"png", "html"} <= set(kinds)
    assert (folder / kinds["png"]).read_bytes().startswith(b"\x89PNG")
    assert "<table" in (folder / kinds["html"]).read_text()


async def test_cell_over_its_limit_is_interrupted_and_one_that_resists_costs_the_kernel(make):
    executor = make(timeout=10)
    await run(executor, "x = 7; counter = 0")
    late = await run(executor, "print('so far')\nwhile True: counter += 1")
    assert (late.exit_code, late.reason) == (124, "DeadlineExceeded")
    assert late.stdout == "so far\n"
    assert "Timeout" in late.output
    # It does not go on in the background, which is what Jupyter's executors do.
    if KILLED in late.stderr:  # the node gave it no CPU for two seconds
        assert (await run(executor, "print('x' in globals())")).output == "False\n"
    else:
        code = "import time; before = counter; time.sleep(.3); print(x, before > 0, counter == before)"
        assert (await run(executor, code)).output == "7 True True\n"

    late = await run(executor, "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass")
    assert (late.exit_code, late.reason) == (124, "DeadlineExceeded")
    assert KILLED in late.stderr


async def test_cancelled_cell_stops(shared, admin):
    executor, token = shared, CancellationToken()
    await run(executor, "x = 7")
    running = asyncio.create_task(run(executor, "print('so far', flush=True)\nwhile True: pass", token=token))
    name = await asyncio.to_thread(admin.running_execution, AGENT)
    await asyncio.to_thread(admin.wait_for_output, name, "so far")
    token.cancel()
    result = await running
    assert (result.exit_code, result.stdout) == (1, "so far\n")
    assert "KeyboardInterrupt" in result.stderr
    assert result.output.endswith("\nCode execution was cancelled.")
    assert (await run(executor, "print(x)")).output == "7\n"


async def test_kernel_is_confined_like_all_code(shared, unprotected_pod):
    probe = (
        "import socket\n"
        "try: socket.socket(socket.AF_INET, socket.SOCK_STREAM); print('socket')\n"
        "except OSError as error: print(type(error).__name__)\n"
        "try: open('/usr/probe', 'w'); print('written')\n"
        "except OSError as error: print(type(error).__name__)\n"
    )
    control = unprotected_pod(probe)
    assert control.split() == ["socket", "written"]
    confined = (await run(shared, probe)).output.split()
    assert confined[0] == "PermissionError"
    assert confined[1] in ("OSError", "PermissionError")


async def test_two_sessions_share_no_variable(make):
    one = make()
    await run(one, "secret = 'x'")
    assert (await run(one, "print('secret' in globals())")).output == "True\n"  # the control
    await one.stop()  # the node starts a few pods at a time only
    other = make()
    assert (await run(other, "print('secret' in globals())")).output == "False\n"
    await run(other, "secret = 'y'")
    await other.restart()
    assert (await run(other, "print('secret' in globals())")).output == "False\n"
