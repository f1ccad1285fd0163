"""What is left of a result when it can't be recorded as a whole."""

from typing import Any

from codeexec_api import CodeExecutionStatus, StreamStatus
from codeexec_api.digests import sha256_hex
from codeexec_operator.core.startup import MESSAGE_LENGTH


def without_output(status: CodeExecutionStatus) -> CodeExecutionStatus:
    """The status of an execution whose output doesn't fit into the object beside what others have put there."""

    def empty(stream: StreamStatus | None) -> StreamStatus | None:
        if stream is None:
            return None
        update: dict[str, Any] = {"text": ""}
        if not stream.referenced:
            update |= {"sha256": sha256_hex(b""), "kept_bytes": 0, "truncated": True}
        return stream.model_copy(update=update)

    note = f"{status.message}; the output was left out, because it did not fit into the object beside its metadata"
    update = {
        "stdout": empty(status.stdout),
        "stderr": empty(status.stderr),
        "output_order": (),
        "message": note[:MESSAGE_LENGTH],
    }
    return status.model_copy(update=update)
