"""The main job: an AutoGen agent's code runs, and the answer comes back."""

import os
import subprocess
import sys

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import DEFAULT_SANDBOX, ROOT

EXAMPLES = {
    "01-hello": "338350",
    "02-files": "OK: two files went in, two came back",
    "03-session": "OK: files lasted until the restart",
    "04-team": "OK: the team's file was there for the tool",
    "05-stateful": "OK: the variables have survived the time limit",
    "06-approval": "OK: what the policy does not allow by itself ran because a human approved it",
    "langchain": "OK: a LangChain tool ran code in the cluster",
    "plain-python": "OK: and no framework was loaded",
}
"""What each example prints when all is well; it checks the rest itself."""
OWNERS = {"06-approval"}
"""Examples that need more rights than an agent's: they play the platform owner, too."""

WITHOUT_A_CLUSTER = {"07-local-sandbox"}
"""Run by tests/unit/local."""


def _case(example: str) -> object:
    """Owners change the policy of the namespace that clients take by themselves: others use it, too."""
    return pytest.param(example, marks=[pytest.mark.release] if example in OWNERS else [])


NEED_A_CLUSTER = sorted({path.name for path in (ROOT / "examples").iterdir()} - WITHOUT_A_CLUSTER)


@pytest.mark.parametrize("example", [_case(one) for one in NEED_A_CLUSTER])
def test_example_runs(example, admin, kubeconfig, default_agent_kubeconfig):
    try:
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / example / "main.py")],
            env={
                "PATH": os.environ["PATH"],
                "KUBECONFIG": kubeconfig if example in OWNERS else default_agent_kubeconfig,
            },
            capture_output=True,
            text=True,
            timeout=110,
        )
    finally:
        if example in OWNERS:  # one that was killed leaves its policy to the tests after it
            admin.delete("executionpolicy", "default", DEFAULT_SANDBOX)
    assert done.returncode == 0, done.stderr
    assert EXAMPLES[example] in done.stdout
    assert "Warning" not in done.stderr


async def test_python_and_shell_blocks_run_in_order(executor):
    blocks = [
        CodeBlock("open('note', 'w').write('from python')\nprint('one')", "python"),
        CodeBlock("cat note; echo; echo two", "bash"),
        CodeBlock("echo three", "sh"),
    ]
    result = await executor.execute_code_blocks(blocks, CancellationToken())
    assert (result.exit_code, result.output) == (0, "one\nfrom python\ntwo\nthree\n")
