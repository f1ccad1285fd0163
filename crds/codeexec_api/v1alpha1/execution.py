"""CodeExecution: the request, and the kind."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from codeexec_api.digests import code_digest
from codeexec_api.names import (
    EXECUTION_KIND,
    EXECUTION_LABEL,
    EXECUTION_PLURAL,
    NODE_RUNTIME,
    PAYLOAD_SECRET_TYPE,
    SEALING_KEY,
)
from codeexec_api.paths import MAX_PATH_BYTES
from codeexec_api.v1alpha1.access import Mounts, Permit
from codeexec_api.v1alpha1.base import Model, Object
from codeexec_api.v1alpha1.bounds import (
    MAX_BLOCKS,
    MAX_CODE_BYTES,
    MAX_FETCH_BYTES,
    MAX_FILES,
    MAX_PART_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_PAYLOAD_PARTS,
    MAX_PERMITS,
    MAX_SEALED_BYTES,
    MAX_STORED_BYTES,
    MAX_TIMEOUT_SECONDS,
    TRACEPARENT_PATTERN,
)
from codeexec_api.v1alpha1.execution_status import CodeExecutionStatus, Summary
from codeexec_api.v1alpha1.fields import (
    ImageReference,
    LanguageName,
    ObjectName,
    RuntimeClassName,
    Sha256,
    UserName,
    WorkspacePath,
    rule,
    rules,
)
from codeexec_api.v1alpha1.limits import Limits
from codeexec_api.v1alpha1.sandbox import Source


class Block(Model):
    """Block is one block of code. The text of the code is in the payload, encrypted or in a Secret."""

    language: LanguageName = Field(
        description="language is the programming language of the block. The image must support it."
    )
    filename: WorkspacePath | None = Field(
        None,
        description="filename is the path of the file that the code is written to, relative to the workspace. Defaults "
        "to a name derived from sha256.",
    )
    sha256: Sha256 = Field(
        description="sha256 is the SHA-256 digest of the code, as 64 lower-case hexadecimal digits. The operator "
        "refuses code with another digest."
    )
    size_bytes: int = Field(
        ge=0, le=MAX_CODE_BYTES, description="sizeBytes is the length of the code in bytes, encoded as UTF-8."
    )


class File(Model):
    """File is a file that is written to the workspace before the first block runs."""

    path: WorkspacePath = Field(description="path is the path of the file, relative to the workspace.")
    sha256: Sha256 = Field(
        description="sha256 is the SHA-256 digest of the file, as 64 lower-case hexadecimal digits. The operator "
        "refuses a file with another digest."
    )
    size_bytes: int = Field(ge=0, le=MAX_PAYLOAD_BYTES, description="sizeBytes is the length of the file in bytes.")


class PayloadRef(Model):
    """PayloadRef refers to the Secrets that hold the code and the files."""

    name: ObjectName = Field(
        max_length=253 - len("-15"),
        description="name is the name of the first Secret, in the same namespace. Each Secret must have the type "
        f"{PAYLOAD_SECRET_TYPE} and the label {EXECUTION_LABEL} with the name of this CodeExecution. The operator "
        "deletes the Secrets when the code starts, or when the execution ends without starting.",
    )
    parts: int = Field(
        1,
        ge=1,
        le=MAX_PAYLOAD_PARTS,
        description="parts is the number of Secrets. The further ones are named after the first one, with the suffix "
        "-1, -2 and so on. Values under the same key are joined in this order. Defaults to 1.",
    )


class SealedPayload(Model):
    """SealedPayload holds the code and the files, encrypted for the operator."""

    key_name: ObjectName = Field(
        description="keyName is the name of the operator's public key that encrypted the data. The ConfigMap "
        f"{SEALING_KEY} in the same namespace holds the current key."
    )
    data: str = Field(
        min_length=1,
        max_length=2 * MAX_SEALED_BYTES,  # base64 twice is 16/9, and there are the keys
        pattern=r"^[A-Za-z0-9+/]+={0,2}$",
        description="data is the HPKE ciphertext in base64 (RFC 9180 with X25519, HKDF-SHA256 and AES-128-GCM).",
    )


class SessionRef(Model):
    """SessionRef refers to the CodeSession in which the execution runs."""

    name: ObjectName = Field(description="name is the name of a CodeSession in the same namespace.")


class ArtifactRequest(Model):
    """ArtifactRequest selects the files in the workspace to list or to return after the last block."""

    list: Literal["None", "Changed", "All"] = Field(
        "Changed",
        description="list selects the files that status.artifacts lists, in addition to those that fetch selects. "
        "Changed: files that the blocks created or changed. All: all files. None: no further files. Defaults to "
        "Changed.",
    )
    fetch: tuple[Annotated[str, Field(min_length=1, max_length=MAX_PATH_BYTES)], ...] = Field(
        (),
        max_length=64,
        description="fetch selects the files whose content status.outputRefs or status.outputStore holds, up to "
        f"{MAX_FETCH_BYTES // 2**20} MiB together, or {MAX_STORED_BYTES // 2**20} MiB if the operator has an output "
        "store. Each entry is a path relative to the workspace, or a pattern with *, ? or [abc]. In a pattern, * and ? "
        "also match slashes. Where not all files fit, those of earlier entries come first. If unset, no files are "
        "fetched.",
    )


_TOTAL_BYTES: Final = (
    "self.blocks.map(b, b.sizeBytes).sum() + (has(self.files) ? self.files.map(f, f.sizeBytes).sum() : 0)"
)


class CodeExecutionSpec(Model):
    """CodeExecutionSpec is a request to run a list of code blocks. It is immutable, except for cancelled."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"self.blocks.map(b, b.sizeBytes).sum() <= {MAX_CODE_BYTES}",
                f"blocks together must not exceed {MAX_CODE_BYTES} bytes",
                field=".blocks",
            ),
            rule(
                f"!has(self.payloadRef) || {_TOTAL_BYTES} <= self.payloadRef.parts * {MAX_PART_BYTES}",
                f"blocks and files together must not exceed {MAX_PART_BYTES} bytes for each of payloadRef.parts",
                field=".payloadRef",
            ),
            rule(
                "(has(self.payloadRef) || has(self.sealedPayload)) == (self.blocks.size() > 0 || has(self.files))",
                "there must be a payloadRef or a sealedPayload if there are blocks or files, and only then",
                field=".payloadRef",
            ),
            rule(
                f"!has(self.sealedPayload) || {_TOTAL_BYTES} <= {MAX_SEALED_BYTES}",
                f"blocks and files together must not exceed {MAX_SEALED_BYTES} bytes in a sealedPayload",
                field=".sealedPayload",
            ),
            rule(
                "!has(self.payloadRef) || !has(self.sealedPayload)",
                "there must not be a payloadRef and a sealedPayload",
                field=".sealedPayload",
            ),
            rule(
                "self.blocks.size() > 0 || has(self.sessionRef)",
                "there must be a block, but in a session, where files alone can be put, listed and fetched",
                field=".blocks",
            ),
            rule(
                "!has(self.sessionRef) || (!has(self.image) && !has(self.runtimeClassName))",
                "with a sessionRef, image and runtimeClassName are those of the session and must be absent",
                field=".sessionRef",
            ),
            rule(
                "!has(self.sessionRef) || (!has(self.egress) && !has(self.mounts))",
                "with a sessionRef, egress and mounts must be absent: they need a pod of the execution's own",
                field=".sessionRef",
            ),
        )
    )

    blocks: tuple[Block, ...] = Field(
        max_length=MAX_BLOCKS,
        description="blocks lists the code blocks. They run in order in one pod, and the first failure ends the "
        "execution. The list can be empty only if sessionRef is set.",
    )
    session_ref: SessionRef | None = Field(
        None,
        description="sessionRef refers to the session in which the execution runs. If unset, the execution shares "
        "its pod with no other execution at the same time.",
    )
    files: tuple[File, ...] | None = Field(
        None,
        min_length=1,
        max_length=MAX_FILES,
        description="files lists the files that are written to the workspace before the first block runs.",
    )
    payload_ref: PayloadRef | None = Field(
        None,
        description="payloadRef refers to the Secrets that hold the code and the files. If there are blocks or files, "
        "set exactly one of payloadRef and sealedPayload.",
    )
    sealed_payload: SealedPayload | None = Field(
        None,
        description="sealedPayload holds the code and the files in encrypted form, instead of Secrets. They can have "
        f"{MAX_SEALED_BYTES} bytes together before encryption.",
    )
    artifacts: ArtifactRequest = Field(
        default_factory=ArtifactRequest,
        description="artifacts selects the files in the workspace to list or to return after the last block. Defaults "
        "to listing changed files.",
        json_schema_extra={"default": {}},
    )
    source: Source = Field(
        description="source describes the origin of the request, as claimed by the client.",
    )
    requested_by: UserName | None = Field(
        None,
        description="requestedBy is the user name of the creator, as `kubectl auth whoami` prints it. The chart's "
        "admission policy requires the field and refuses any other name. Without it, approval isn't possible.",
    )
    timeout_seconds: int = Field(
        60,
        ge=1,
        le=MAX_TIMEOUT_SECONDS,
        description="timeoutSeconds is the wall-clock limit of each block in seconds. Defaults to 60.",
    )
    limits: Limits = Field(
        default_factory=Limits,
        description="limits are the resource limits of the sandbox pod. In a session, cpu, memory and ephemeralStorage "
        "must equal those of the session.",
        json_schema_extra={"default": {}},
    )
    image: ImageReference | None = Field(
        None,
        description="image is the sandbox image, referenced by digest. Defaults to the policy's first image. In a "
        "session it must be unset, and the session's image is used.",
    )
    runtime_class_name: RuntimeClassName | None = Field(
        None,
        description="runtimeClassName is the name of the RuntimeClass of the sandbox pod, or "
        f"{NODE_RUNTIME} for the node's default runtime. Defaults to the policy's runtimeClassName. If the "
        "RuntimeClass doesn't exist, the execution fails before any code runs. In a session it must be unset.",
    )
    traceparent: str | None = Field(
        None,
        pattern=TRACEPARENT_PATTERN,
        max_length=55,
        description="traceparent is the W3C trace context of the caller's span. Optional.",
    )
    ttl_seconds_after_finished: int | None = Field(
        None,
        ge=0,
        le=86_400,
        description="ttlSecondsAfterFinished is the number of seconds for which the finished pod and its log are kept. "
        "The policy's podTTLSeconds is the maximum and the default. The CodeExecution itself is kept.",
    )
    queue_timeout_seconds: int | None = Field(
        None,
        ge=1,
        le=86_400,
        description="queueTimeoutSeconds is the number of seconds that the execution can wait in the queue of a "
        "SandboxPool, counted from its creation or approval. Then it ends as Failed with the reason QueueTimeout. If "
        "unset, there is no limit.",
    )
    egress: tuple[Permit, ...] | None = Field(
        None,
        min_length=1,
        max_length=MAX_PERMITS,
        description="egress lists the network destinations that the code can connect to. The policy or an approver "
        "must allow each of them. If unset, none are opened. In a session it must be unset.",
    )
    mounts: Mounts | None = Field(
        None,
        description="mounts lists the PersistentVolumeClaims and ConfigMaps that the code can read. The policy or an "
        "approver must allow each of them. If unset, nothing is mounted. In a session it must be unset.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        | rules(
            rule(
                "self.all(one, self.exists_one(other, other.mountPath == one.mountPath))",
                "mountPath must differ from mount to mount",
            ),
        ),
    )
    cancelled: bool = Field(
        False,
        description="cancelled stops the execution when set to true. It can't be taken back. Defaults to false.",
        json_schema_extra=rules(rule("!oldSelf || self", "spec.cancelled can't be taken back")),
    )

    @property
    def code_digest(self) -> str:
        """Digest of all blocks and files with their names. The status and spans record it."""
        blocks = [
            (f"{block.language} ./{block.filename}" if block.filename else block.language, block.sha256)
            for block in self.blocks
        ]
        return code_digest(blocks + [(f"./{file.path}", file.sha256) for file in self.files or ()])

    @property
    def earlier_code_digest(self) -> str:
        """Form 1 of `code_digest`, for records of codeexec 0.1: a block and a file could count as the same."""
        parts = [(block.language, block.sha256) for block in self.blocks]
        return code_digest(parts + [(file.path, file.sha256) for file in self.files or ()])

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of the blocks without duplicates, in order of first use."""
        return tuple(dict.fromkeys(block.language for block in self.blocks))

    @property
    def summary(self) -> "Summary":
        """Short forms of the request, for the columns of `kubectl get`."""
        short = self.code_digest.removeprefix("sha256:")[:12] if self.blocks or self.files else ""
        return Summary(languages=",".join(self.languages) or "files", digest=short)


class CodeExecution(Object):
    """CodeExecution is a request to run code, and the audit record of what happened."""

    kind = EXECUTION_KIND
    plural = EXECUTION_PLURAL

    spec: CodeExecutionSpec = Field(description="spec is the request. It is immutable, except for cancelled.")
    status: CodeExecutionStatus = Field(
        default_factory=CodeExecutionStatus,
        description="status is the record of what happened. Only the operator writes it.",
    )
