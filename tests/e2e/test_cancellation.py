"""A cancelled call returns at once with what there was, and its code is dead within a second."""

import asyncio
import threading

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, a_name, wait_for

from codeexec_api import Limits

pytestmark = pytest.mark.e2e

# The whole tree marks when it lives, in the workspace, and ignores every signal that can be ignored. It marks by the
# time of a file: one that it wrote would be empty if the end came between opening and writing it.
ALIVE = """
import os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
print("so far", flush=True)
if os.fork() == 0:
    os.setsid()
name = f"alive-{os.getpid()}"
open(name, "w").close()
while True:
    os.utime(name)
    time.sleep(.02)
"""
LAST_SIGNS = """
import glob, os, time
before = {name: os.stat(name).st_mtime for name in glob.glob("alive-*")}
time.sleep(.3)
assert before == {name: os.stat(name).st_mtime for name in before}, "something still lives"
print(len(before), max(before.values()))
"""


@pytest.fixture
def make(make_executor):
    return lambda **options: make_executor(
        session="per-executor", timeout=60, limits=Limits(cpu="300m", memory="128Mi"), **options
    )


async def run(executor, code, token=None):
    return await executor.execute_code_blocks([CodeBlock(code, "python")], token or CancellationToken())


async def node_time(executor):
    """The clock that the code writes down."""
    return float((await run(executor, "import time; print(time.time())")).output)


async def is_alive(admin, agent):
    name = await asyncio.to_thread(admin.running_execution, agent)
    pod = admin.execution(name)["status"]["podName"]
    await asyncio.to_thread(
        wait_for, "output of the code", lambda: "so far" in admin.kubectl("-n", SANDBOX, "logs", pod)
    )
    return name


@pytest.mark.parametrize("how", ["token", "token of another thread", "record"])
async def test_code_is_dead_within_a_second(make, admin, how):
    agent = a_name("cancel")
    executor, token = make(agent=agent), CancellationToken()
    await run(executor, "print(1)")
    running = asyncio.create_task(run(executor, ALIVE, token))
    name = await is_alive(admin, agent)
    clock = asyncio.get_running_loop().time()
    if how == "token":
        token.cancel()
    elif how == "token of another thread":
        threading.Thread(target=token.cancel).start()
    else:
        admin.kubectl("-n", SANDBOX, "patch", "cex", name, "--type=merge", "-p", '{"spec": {"cancelled": true}}')
    asked = asyncio.get_running_loop().time()
    result = await asyncio.wait_for(running, 10)
    assert result.exit_code == 1
    assert result.output == "so far\nCode execution was cancelled."
    count, last = (await run(executor, LAST_SIGNS)).output.split()
    now_here, now_there = asyncio.get_running_loop().time(), await node_time(executor)
    # Both clocks run alike: what the code last wrote lies this long before now, and the question that long.
    lived_on = (now_here - asked) - (now_there - float(last))
    assert count == "2"
    assert lived_on < 1, f"the code lived on for {lived_on:.2f} s (asked within {asked - clock:.2f} s)"
    assert admin.execution(name)["status"]["phase"] == "Cancelled"


async def test_code_that_waits_for_its_session_never_runs(make, admin):
    agent = a_name("queue")
    executor, token = make(agent=agent), CancellationToken()
    first = asyncio.create_task(run(executor, "import time; print('so far', flush=True); time.sleep(4)"))
    await is_alive(admin, agent)
    waiting = asyncio.create_task(run(executor, "open('ran', 'w')", token))
    await asyncio.sleep(0)
    token.cancel()
    result = await asyncio.wait_for(waiting, 10)
    assert (result.exit_code, result.output) == (1, "Code execution was cancelled.")
    assert not first.done()
    assert (await first).exit_code == 0
    assert (await run(executor, "import os; print(os.path.exists('ran'))")).output == "False\n"


async def test_blocks_before_keep_their_output_and_blocks_after_do_not_run(make, admin):
    agent = a_name("blocks")
    executor, token = make(agent=agent), CancellationToken()
    blocks = [CodeBlock(code, "python") for code in ("print('one')", ALIVE, "open('ran', 'w')")]
    running = asyncio.create_task(executor.execute_code_blocks(blocks, token))
    await is_alive(admin, agent)
    token.cancel()
    assert (await running).output == "one\nso far\nCode execution was cancelled."
    assert (await run(executor, "import os; print(os.path.exists('ran'))")).output == "False\n"


async def test_files_and_session_survive(make, admin):
    agent = a_name("survive")
    executor, token = make(agent=agent), CancellationToken()
    await run(executor, "open('note', 'w').write('kept')")
    running = asyncio.create_task(run(executor, ALIVE, token))
    pod = admin.execution(await is_alive(admin, agent))["status"]["podName"]
    token.cancel()
    await running
    after = await run(executor, "print(open('note').read())")
    assert after.output == "kept\n"
    assert admin.execution(after.execution)["status"]["podName"] == pod
