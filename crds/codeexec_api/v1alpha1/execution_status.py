"""CodeExecution: the record of what happened."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from codeexec_api.paths import MAX_PATH_BYTES
from codeexec_api.phases import Phase
from codeexec_api.v1alpha1.approval import ApprovalStatus
from codeexec_api.v1alpha1.base import Status
from codeexec_api.v1alpha1.bounds import (
    MAX_ARTIFACTS,
    MAX_BLOCKS,
    MAX_CODE_FINDINGS,
    MAX_INLINE_BYTES,
    MAX_LEFT_OUT,
    MAX_OUTPUT_PARTS,
    MAX_PERMITS,
    MAX_POD_USES,
    MAX_STORE_URL,
    MAX_STORED_PARTS,
    PART_PATTERN,
    STORE_URL_PATTERN,
)
from codeexec_api.v1alpha1.code_rules import CodeFinding
from codeexec_api.v1alpha1.fields import (
    SET,
    CidrText,
    Count,
    Generation,
    ObjectName,
    OptionalName,
    OptionalWord,
    Sha256,
    Word,
)
from codeexec_api.v1alpha1.sandbox import (
    MESSAGE,
    OBSERVED_GENERATION,
    OPERATOR_VERSION,
    REASON,
    Conditions,
    SandboxStatus,
)


class BlockStatus(Status):
    """BlockStatus describes how one block ended."""

    exit_code: int = Field(
        ge=0,
        le=255,
        description="exitCode is the exit code of the block's process. It is 128 + n if signal n ended the process.",
    )
    reason: Word = Field(
        description="reason is how the block ended: Completed, NonZeroExit, DeadlineExceeded, OutOfMemory or "
        "Cancelled.",
    )
    started_at: datetime = Field(
        description="startedAt is the time at which the block started, as the runner in the pod reported it. If that "
        "is before status.startedAt or after status.finishedAt, the node's clock differs from the operator's. The time "
        "is then corrected."
    )
    duration_ms: Count = Field(description="durationMs is the time for which the block ran, in milliseconds.")
    stdout_bytes: Count = Field(
        description="stdoutBytes is the number of bytes that arrived on stdout while the block ran."
    )
    stderr_bytes: Count = Field(
        description="stderrBytes is the number of bytes that arrived on stderr while the block ran."
    )


class StreamStatus(Status):
    """StreamStatus describes the output on one stream."""

    text: str = Field(
        max_length=MAX_INLINE_BYTES,
        description="text is the output that is kept, or its start if referenced is true. U+FFFD replaces bytes that "
        "are not UTF-8.",
    )
    sha256: Sha256 = Field(
        description="sha256 is the SHA-256 digest of the output that is kept, in text, outputRefs or outputStore."
    )
    kept_bytes: Count = Field(
        0,
        description="keptBytes is the length in bytes of the output that is kept, in text, outputRefs or outputStore.",
    )
    total_bytes: Count = Field(description="totalBytes is the number of bytes that the code wrote, kept or not.")
    truncated: bool = Field(
        description="truncated is true if some of the output was not kept, or if the operator can't rule that out."
    )
    referenced: bool = Field(
        False,
        description="referenced is true if text is only the start of the output and outputRefs or outputStore holds "
        "all of it.",
    )


class OutputRef(Status):
    """OutputRef refers to a ConfigMap with a part of the output and of the fetched files.

    Its keys are stdout, stderr, artifact-N for entry N of status.artifacts, and order. The key order holds a JSON list
    of streams and byte counts, which tells how stdout and stderr were interleaved.
    """

    name: ObjectName = Field(description="name is the name of a ConfigMap in the same namespace.")


class OutputStoreRef(Status):
    """OutputStoreRef says where the output store holds the parts of the output and of the fetched files.

    A part is the object NAMESPACE/UID/PART below the URL, with the namespace and the UID of the CodeExecution.
    """

    url: str = Field(
        max_length=MAX_STORE_URL,
        pattern=f"^{STORE_URL_PATTERN}$",
        description="url is the URL of the output store, as the operator is configured. Clients don't open it. They "
        "open the store that their user has named.",
    )
    parts: tuple[Annotated[str, Field(max_length=21, pattern=f"^{PART_PATTERN}$")], ...] = Field(
        min_length=1, max_length=MAX_STORED_PARTS, description="parts lists the names of the parts, in order."
    )


class ArtifactStatus(Status):
    """ArtifactStatus describes a file in the workspace as it was after the last block."""

    path: str = Field(max_length=MAX_PATH_BYTES, description="path is the path of the file, relative to the workspace.")
    size_bytes: Count = Field(description="sizeBytes is the size of the file in bytes.")
    sha256: Sha256 | None = Field(
        None,
        description="sha256 is the SHA-256 digest of the file. Unset if the file was too large to hash or could not be "
        "read.",
    )
    fetched: bool = Field(
        False, description="fetched is true if outputRefs or outputStore holds the content of the file."
    )


class OutputRun(Status):
    """OutputRun is a run of characters on one stream."""

    stream: Literal["stdout", "stderr"] = Field(description="stream is the stream of the run: stdout or stderr.")
    characters: int = Field(ge=1, le=2**53, description="characters is the number of Unicode characters in the run.")


class OpenedEgress(Status):
    """OpenedEgress is an egress destination that is open for the execution's pod."""

    permit: str = Field(max_length=1024, description="permit is the destination, such as 10.1.2.3/32:443/TCP.")
    left_out: tuple[CidrText, ...] = Field(
        (),
        max_length=MAX_LEFT_OUT,
        description="leftOut lists the address ranges in the destination that stay closed. They belong to the API "
        "server, nodes, DNS servers and the operator, or are never allowed, such as cloud metadata services.",
    )


class Summary(Status):
    """Summary holds short forms of other fields, for the columns of `kubectl get`."""

    languages: str = Field(
        "",
        max_length=256,
        description="languages lists the languages of the blocks, separated by commas. It is files if the execution "
        "only transfers files.",
    )
    digest: str = Field(
        "",
        max_length=12,
        pattern=r"^([0-9a-f]{12})?$",
        description="digest is the first 12 hexadecimal digits of codeDigest. Empty if there are no blocks and files.",
    )
    duration: str = Field(
        "",
        max_length=32,
        description="duration is the time from startedAt to finishedAt, such as 2.50s or 3m12s. Empty if the code has "
        "not ended or did not start.",
    )


class PodReset(Status):
    """PodReset describes how the pod was made clean after the execution before this one."""

    use: int = Field(
        ge=2,
        le=MAX_POD_USES,
        description="use is the number of executions that the pod has run, including this one.",
    )
    clean: bool = Field(
        description="clean is true if everything in checked was as before the first execution. If it is false, no code "
        "runs in the pod."
    )
    checked: tuple[Word, ...] = Field(
        (),
        max_length=64,
        description="checked lists what the runner compared, such as processes, volumes, mounts and sockets.",
        json_schema_extra=SET,
    )
    milliseconds: Count = Field(0, description="milliseconds is how long cleaning and checking took.")


class CodeExecutionStatus(SandboxStatus):
    """CodeExecutionStatus is the record of what happened. Only the operator writes it."""

    phase: Phase = Field(
        Phase.PENDING,
        description="phase is the state of the execution. These phases are final: "
        f"{', '.join(one.value for one in Phase if one.terminal)}.",
    )
    reason: OptionalWord = Field("", description=REASON)
    message: str = Field("", max_length=4096, description=MESSAGE)
    conditions: Conditions = Field(
        (),
        description="conditions lists the current conditions. Their types are Accepted, Approved, Queued, "
        "Delayed, EgressClosed, Started, Finished and Succeeded.",
    )
    observed_generation: Generation = Field(0, description=OBSERVED_GENERATION)
    code_digest: str = Field(
        "",
        max_length=71,
        pattern=r"^(sha256:[0-9a-f]{64})?$",
        description="codeDigest is a SHA-256 digest of all blocks and files, with the prefix sha256:. It is computed "
        "from their languages, names and digests.",
    )
    started_at: datetime | None = Field(
        None, description="startedAt is the time at which the operator sent the code to the pod. Unset before."
    )
    finished_at: datetime | None = Field(
        None, description="finishedAt is the time at which the execution ended. Unset before."
    )
    exit_code: int | None = Field(
        None,
        ge=0,
        le=255,
        description="exitCode is the exit code of the last block that ran. It is 124 after a timeout, and "
        "usually 137 after running out of memory and 130 after a cancellation. It is 0 if the execution only "
        "transferred files. Unset if no code ran or the result is unknown.",
    )
    blocks: tuple[BlockStatus, ...] = Field(
        (),
        max_length=MAX_BLOCKS,
        description="blocks describes how each block ended, in order. Blocks that did not run are not listed.",
    )
    artifacts: tuple[ArtifactStatus, ...] = Field(
        (),
        max_length=MAX_ARTIFACTS,
        description="artifacts lists the files that spec.artifacts selects, as they were after the last block.",
    )
    artifacts_omitted: Count = Field(
        0,
        description="artifactsOmitted is the number of files that are missing from artifacts. Either there were more "
        f"than {MAX_ARTIFACTS}, or their names or folders were not usable.",
    )
    output_refs: tuple[OutputRef, ...] = Field(
        (),
        max_length=MAX_OUTPUT_PARTS,
        description="outputRefs lists the ConfigMaps with large output and fetched files. The operator deletes them "
        "when the policy's outputTTLSeconds have passed since their creation. Digests and sizes stay in this status.",
    )
    output_store: OutputStoreRef | None = Field(
        None,
        description="outputStore says where large output and fetched files are if the operator has an output store. "
        "Then outputRefs is empty. Digests and sizes stay in this status.",
    )
    pool_name: OptionalName = Field(
        "",
        description="poolName is the name of the SandboxPool that supplied the pod. Empty if the pod is from no pool, "
        "and in a session.",
    )
    pod_reset: PodReset | None = Field(
        None,
        description="podReset describes how the pod was made clean after the execution before this one. Unset if this "
        "execution is the first in its pod, and in a session.",
    )
    egress: tuple[OpenedEgress, ...] = Field(
        (),
        max_length=MAX_PERMITS,
        description="egress lists the destinations that are open for this execution, from the creation of its pod to "
        "its end.",
    )
    code_findings: tuple[CodeFinding, ...] = Field(
        (),
        max_length=MAX_CODE_FINDINGS,
        description="codeFindings lists what the policy's codeRules found in the code, the strictest action first.",
    )
    approval: ApprovalStatus | None = Field(
        None,
        description="approval records what needs approval, and the decision. Unset if the policy allowed the execution "
        "without approval.",
    )
    operator_version: str = Field("", max_length=64, pattern=r"^[0-9A-Za-z.+-]*$", description=OPERATOR_VERSION)
    stdout: StreamStatus | None = Field(
        None, description="stdout describes the standard output of the code. Unset until the code has ended."
    )
    stderr: StreamStatus | None = Field(
        None, description="stderr describes the standard error of the code. Unset until the code has ended."
    )
    output_order: tuple[OutputRun, ...] = Field(
        (),
        max_length=1024,
        description="outputOrder lists runs of characters on stdout and stderr in the order in which they were "
        "written. Beyond 1024 runs the order is not recorded. Empty if outputRefs or outputStore holds the "
        "output.",
    )
    summary: Summary = Field(
        default_factory=Summary,
        description="summary holds short forms of other fields, for the columns of kubectl get.",
    )
