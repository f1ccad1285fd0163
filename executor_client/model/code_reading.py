"""Has Python code read for rules of a policy: by the fake, the local executor and the command line.

By a child process, as in the operator: the caller's process should not end or hang by code of an agent.
"""

import subprocess
from collections.abc import Sequence

from codeexec_api import CodeExecutionSpec, ExecutionPolicySpec
from codeexec_api.code_rules import WALL_SECONDS, Inquiry, Reading, unread
from codeexec_api.policy import policy_for


def read_code(
    spec: CodeExecutionSpec, policy: ExecutionPolicySpec, blocks: Sequence[bytes], files: Sequence[bytes] = ()
) -> Reading | None:
    """What there is to say of this code; None if no rule of the policy asks. Blocks for some tens of milliseconds.

    Args:
        spec: what is announced.
        policy: what it is held against.
        blocks: content of each block, as announced.
        files: content of each file, as announced.

    Raises:
        OSError: no child process could be started.
    """
    rules = policy_for(spec, policy).code_rules
    if not unread(spec, rules, None):
        return None
    inquiry = Inquiry(spec, blocks, files, rules)
    message = b"".join(inquiry.message())
    try:
        done = subprocess.run(  # noqa: S603 - this Python, and a file of ours
            inquiry.command(), input=message, capture_output=True, env={}, timeout=WALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as late:
        return inquiry.reading(late.output or b"")
    return inquiry.reading(done.stdout)
