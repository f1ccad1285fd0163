"""Sessions: one workspace for several calls, in one pod. How they end is in component/test_executor_sessions.py."""

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from codeexec_api import Limits

SMALL = Limits(cpu="100m", memory="96Mi")


@pytest.fixture
def make(make_executor):
    """Executors with a session each, which is what an executor has by default."""
    return lambda **options: make_executor(**{"session": "per-executor", "limits": SMALL, "timeout": 20, **options})


async def run(executor, code, language="python"):
    return await executor.execute_code_blocks([CodeBlock(code, language)], CancellationToken())


def the_session(admin, execution):
    """That an execution has run in."""
    return admin.get("codesession", admin.execution(execution)["spec"]["sessionRef"]["name"])


async def test_files_last_and_processes_do_not(make, admin):
    executor = make()
    first = await run(executor, "open('note', 'w').write('kept')\nimport os; os.environ['X'] = '1'; x = 1")
    await run(executor, "sleep 1000 & echo started", "sh")
    again = await run(
        executor,
        "import os\nprint(open('note').read(), os.environ.get('X'), 'x' in globals())\n"
        "print([p for p in os.listdir('/proc') if p.isdigit() and 'sleep' in open(f'/proc/{p}/comm').read()])",
    )
    assert (first.exit_code, again.output) == (0, "kept None False\n[]\n")
    records = [admin.execution(one.execution) for one in (first, again)]
    session = the_session(admin, first.execution)
    assert {one["spec"]["sessionRef"]["name"] for one in records} == {session["metadata"]["name"]}
    assert {one["status"]["podName"] for one in records} == {session["status"]["podName"]}
    assert {one["status"]["egressProof"]["verdict"] for one in records} == {"Closed"}
    assert "Seccomp" in records[1]["status"]["layers"]
