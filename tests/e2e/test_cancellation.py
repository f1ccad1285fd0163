"""A cancelled call returns with what there was, and when it has, nothing of its code lives on."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX, Admin, a_name

from codeexec_api import Limits
from executor_client import KubernetesCodeExecutor

AGENT = a_name("cancel")
# The whole tree marks when it lives, in the workspace, and ignores every signal that can be ignored. It marks by the
# time of a file: one that it wrote would be empty if the end came between opening and writing it. When it says so,
# all of it lives. Marks of the test before are taken away: it has the same session.
ALIVE = """
import glob, os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
for mark in glob.glob("alive-*"):
    os.remove(mark)
child = os.fork()
if not child:
    os.setsid()
name = f"alive-{os.getpid()}"
open(name, "w").close()
if child:
    while len(glob.glob("alive-*")) < 2:
        time.sleep(.02)
    print("so far", flush=True)
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


@pytest.fixture(scope="module")
def executor(agent_kubeconfig: str) -> Iterator[KubernetesCodeExecutor]:
    """One session for all tests of this file: it outlives what is cancelled in it."""
    limits = Limits(cpu="300m", memory="128Mi")
    executor = KubernetesCodeExecutor(
        kubeconfig=agent_kubeconfig, namespace=SANDBOX, agent=AGENT, timeout=60, limits=limits
    )
    yield executor
    asyncio.run(executor.stop())


async def run(executor, code, token=None):
    return await executor.execute_code_blocks([CodeBlock(code, "python")], token or CancellationToken())


async def is_alive(admin: Admin) -> str:
    """Name of the execution, once its code says that it runs."""
    name = await asyncio.to_thread(admin.running_execution, AGENT)
    await asyncio.to_thread(admin.wait_for_output, name, "so far")
    return name


@pytest.mark.suspect
@pytest.mark.parametrize("how", ["token", "token of another thread", "record"])
async def test_when_the_call_has_returned_the_code_is_dead(executor, admin, how):
    token = CancellationToken()
    running = asyncio.create_task(run(executor, ALIVE, token))
    name = await is_alive(admin)
    if how == "token":
        token.cancel()
    elif how == "token of another thread":
        threading.Thread(target=token.cancel).start()
    else:
        admin.patch("cex", name, {"spec": {"cancelled": True}})
    result = await running
    assert (result.exit_code, result.output) == (1, "so far\nCode execution was cancelled.")
    signs = await run(executor, LAST_SIGNS)
    assert (signs.exit_code, signs.output.split()[:1]) == (0, ["2"]), signs.output
    assert admin.execution(name)["status"]["phase"] == "Cancelled"


@pytest.mark.suspect
async def test_blocks_before_keep_their_output_and_blocks_after_do_not_run(executor, admin):
    token = CancellationToken()
    blocks = [CodeBlock(code, "python") for code in ("print('one')", ALIVE, "open('ran', 'w')")]
    running = asyncio.create_task(executor.execute_code_blocks(blocks, token))
    await is_alive(admin)
    token.cancel()
    assert (await running).output == "one\nso far\nCode execution was cancelled."
    assert (await run(executor, "import os; print(os.path.exists('ran'))")).output == "False\n"


async def test_files_and_session_survive(executor, admin):
    token = CancellationToken()
    await run(executor, "open('note', 'w').write('kept')")
    running = asyncio.create_task(run(executor, ALIVE, token))
    pod = admin.execution(await is_alive(admin))["status"]["podName"]
    token.cancel()
    await running
    after = await run(executor, "print(open('note').read())")
    assert after.output == "kept\n"
    assert admin.execution(after.execution)["status"]["podName"] == pod
