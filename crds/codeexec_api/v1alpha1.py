"""The contract: CodeExecution and ExecutionPolicy as frozen pydantic models.

`schema.py` turns these models into the CRDs' structural schemas, so a constraint is written once: as a pydantic
constraint where JSON schema has one, else as a CEL rule in `json_schema_extra`. Input is strict (unknown fields are
errors); status is lenient, so that an older client can read what a newer operator wrote.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from codeexec_api.digests import code_digest
from codeexec_api.names import (
    API_VERSION,
    EXECUTION_KIND,
    MAX_EXECUTION_NAME,
    PAYLOAD_SECRET_TYPE,
    POLICY_KIND,
)
from codeexec_api.paths import MAX_PATH_BYTES, REFUSED_CHARACTERS, check_workspace_path
from codeexec_api.phases import Phase
from codeexec_api.quantities import QUANTITY_PATTERN, parse_quantity

MAX_BLOCKS: Final = 64
MAX_FILES: Final = 16
MAX_PAYLOAD_BYTES: Final = 1_000_000
"""Code and files of one execution together; a Secret holds at most 1 MiB."""
MAX_TIMEOUT_SECONDS: Final = 86_400
MAX_PIDS: Final = 32_768
MAX_EGRESS_TARGETS: Final = 16
MAX_OUTPUT_BYTES: Final = 256 * 1024
"""Of each stream: both have to fit, escaped, into one object of etcd (1.5 MiB)."""

IMAGE_PATTERN: Final = r"^[a-z0-9][a-zA-Z0-9./:_-]{0,199}@sha256:[0-9a-f]{64}$"
TRACEPARENT_PATTERN: Final = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"


def rule(cel: str, message: str, *, field: str | None = None) -> dict[str, str]:
    """One entry of `x-kubernetes-validations`; `field` is where the API server reports it."""
    entry = {"rule": cel, "message": message}
    return entry | {"fieldPath": field} if field else entry


def _rules(*rules: dict[str, str]) -> dict[str, Any]:
    return {"x-kubernetes-validations": list(rules)}


def _immutable(field: str) -> dict[str, Any]:
    return _rules(rule("self == oldSelf", f"spec.{field} is immutable: create a new CodeExecution instead"))


def _quantity(value: object) -> object:
    """Accept what YAML makes of an unquoted quantity (`cpu: 1`), as Kubernetes does."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and parse_quantity(text) <= 0:
        raise ValueError(f"{text!r} must be greater than 0")
    return text


Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    Field(
        pattern=QUANTITY_PATTERN,
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN,  # pydantic leaves it out behind a validator
            "x-kubernetes-validations": [
                rule(
                    f"string(self).matches(r'{QUANTITY_PATTERN}') "
                    "&& quantity(string(self)).isGreaterThan(quantity('0'))",
                    "must be a quantity greater than 0, such as 500m, 0.5 or 256Mi",
                )
            ],
        },
    ),
]

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256, 64 lower-case hexadecimal digits.")]

_WORKSPACE_PATH_RULES: Final = (  # what check_workspace_path says
    rule(
        "!self.split('/').exists(part, part == '' || part == '.' || part == '..')",
        "must be a relative path inside the workspace: not absolute, without '.', '..' or empty parts",
    ),
    rule(
        "!self.split('/').exists(part, part.startsWith(' ') || part.endsWith(' '))",
        "must not have parts that begin or end with a blank",
    ),
    rule(
        f"!self.matches(r'{REFUSED_CHARACTERS}')",
        "must not hold backslashes, controls, private or invisible characters, or spaces other than U+0020",
    ),
    rule(f"bytes(self).size() <= {MAX_PATH_BYTES}", f"must not have more than {MAX_PATH_BYTES} bytes in UTF-8"),
)
WorkspacePath = Annotated[
    str,
    # The maximum bounds what the rules cost: the API server wants to know before it takes them.
    Field(min_length=1, max_length=MAX_PATH_BYTES, json_schema_extra=_rules(*_WORKSPACE_PATH_RULES)),
    AfterValidator(check_workspace_path),
]

ImageReference = Annotated[
    str,
    Field(
        max_length=280,
        pattern=IMAGE_PATTERN,
        description="Image by digest, name@sha256:… A tag is refused, because it can move.",
    ),
]

LanguageName = Literal["python", "bash", "sh"]

RuntimeClassName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="A RuntimeClass of the cluster, such as gvisor.",
    ),
]


class EgressMode(StrEnum):
    """What happens when it can't be shown that the network of a sandbox is closed."""

    ENFORCE = "Enforce"
    """No code runs."""
    WARN = "Warn"
    """Code runs, and the record says that the network may be open."""


class EgressVerdict(StrEnum):
    """What the egress proof has shown."""

    CLOSED = "Closed"
    OPEN = "Open"
    UNPROVEN = "Unproven"


class _Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, frozen=True, extra="forbid"
    )

    def dump(self) -> dict[str, Any]:
        """As the API server stores it: camelCase, JSON types, without nulls."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class _Status(_Model):
    model_config = ConfigDict(extra="ignore")

    def dump(self) -> dict[str, Any]:
        """As the API server stores it, without what is not known yet."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


class Block(_Model):
    """One block of code. Its text travels in the payload Secret, never in the record."""

    language: LanguageName = Field(description="Language of the block.")
    filename: WorkspacePath | None = Field(
        None,
        description="File in the workspace that the code is written to; by default a name made of the digest.",
    )
    sha256: Sha256
    size_bytes: int = Field(ge=0, le=MAX_PAYLOAD_BYTES, description="Length of the code in bytes (UTF-8).")


class File(_Model):
    """A file that is put into the workspace before the first block runs."""

    path: WorkspacePath = Field(description="Where the file goes, relative to the workspace.")
    sha256: Sha256
    size_bytes: int = Field(ge=0, le=MAX_PAYLOAD_BYTES, description="Length of the file in bytes.")


class PayloadRef(_Model):
    """The Secret that carries the code."""

    name: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description=f"Name of a Secret of type {PAYLOAD_SECRET_TYPE} in the same namespace, labelled with the name of "
        "this CodeExecution. The operator deletes it before the code starts.",
    )


class Source(_Model):
    """Who asks, as claimed by the client."""

    agent: str = Field(min_length=1, max_length=128, description="Name of the agent whose code this is.")
    executor: str = Field("unknown", min_length=1, max_length=128, description="Program that created this object.")
    conversation: str | None = Field(None, max_length=128, description="Conversation, thread or run, if known.")


class Limits(_Model):
    """Ceilings of the sandbox pod. Requests equal limits, so the pod gets what it asked for."""

    cpu: Quantity = Field("500m", description="CPU, in cores.")
    memory: Quantity = Field("256Mi", description="Memory, including files in /workspace and /tmp.")
    ephemeral_storage: Quantity = Field("128Mi", description="Disk for logs and the container's writable layer.")
    pids: int = Field(256, ge=1, le=MAX_PIDS, description="Processes and threads of the code at the same time.")
    output_bytes: int = Field(
        MAX_OUTPUT_BYTES,
        ge=1024,
        le=MAX_OUTPUT_BYTES,
        description="How much of stdout and of stderr is kept, each; what is beyond is counted and marked.",
    )


_OPTIONAL_SPEC_FIELDS: Final = ("files", "image", "runtimeClassName", "traceparent", "ttlSecondsAfterFinished")


class CodeExecutionSpec(_Model):
    """One request to run an ordered list of blocks. Immutable, except that it can be cancelled."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            *(
                rule(
                    f"has(self.{name}) == has(oldSelf.{name})",
                    f"spec.{name} is immutable: create a new CodeExecution instead",
                    field=f".{name}",
                )
                for name in _OPTIONAL_SPEC_FIELDS
            ),
            rule(
                "self.blocks.map(b, b.sizeBytes).sum() "
                f"+ (has(self.files) ? self.files.map(f, f.sizeBytes).sum() : 0) <= {MAX_PAYLOAD_BYTES}",
                f"blocks and files together must not exceed {MAX_PAYLOAD_BYTES} bytes",
                field=".blocks",
            ),
        )
    )

    blocks: tuple[Block, ...] = Field(
        min_length=1,
        max_length=MAX_BLOCKS,
        description="Run in order, in one pod; the first that fails ends the execution.",
        json_schema_extra=_immutable("blocks"),
    )
    files: tuple[File, ...] | None = Field(
        None,
        min_length=1,
        max_length=MAX_FILES,
        description="Files for the workspace.",
        json_schema_extra=_immutable("files"),
    )
    payload_ref: PayloadRef = Field(
        description="The Secret with the text of blocks and files.",
        json_schema_extra=_immutable("payloadRef"),
    )
    source: Source = Field(description="Who asks, as claimed by the client.", json_schema_extra=_immutable("source"))
    timeout_seconds: int = Field(
        60,
        ge=1,
        le=MAX_TIMEOUT_SECONDS,
        description="Wall-clock limit of each block, in seconds.",
        json_schema_extra=_immutable("timeoutSeconds"),
    )
    limits: Limits = Field(
        default_factory=Limits,
        description="Ceilings of the sandbox pod.",
        json_schema_extra=_immutable("limits") | {"default": {}},
    )
    image: ImageReference | None = Field(
        None,
        description="Sandbox image, by digest. Default: the first image of the policy.",
        json_schema_extra=_immutable("image"),
    )
    runtime_class_name: RuntimeClassName | None = Field(
        None,
        description="RuntimeClass of the sandbox pod. Default: that of the policy, else the node's own runtime. "
        "One that does not exist ends the execution before any code runs.",
        json_schema_extra=_immutable("runtimeClassName"),
    )
    traceparent: str | None = Field(
        None,
        pattern=TRACEPARENT_PATTERN,
        max_length=55,
        description="W3C trace context of the caller's span.",
        json_schema_extra=_immutable("traceparent"),
    )
    ttl_seconds_after_finished: int | None = Field(
        None,
        ge=0,
        le=86_400,
        description="How long the finished pod and its log are kept, at most podTTLSeconds of the policy, which is "
        "also the default. This object, the record, is kept regardless.",
        json_schema_extra=_immutable("ttlSecondsAfterFinished"),
    )
    cancelled: bool = Field(
        False,
        description="Set to true to stop the execution. It can't be taken back.",
        json_schema_extra=_rules(rule("!oldSelf || self", "spec.cancelled can't be taken back")),
    )

    @property
    def code_digest(self) -> str:
        """Digest of all blocks and files, as recorded in status and on spans."""
        parts = [(block.language, block.sha256) for block in self.blocks]
        return code_digest(parts + [(file.path, file.sha256) for file in self.files or ()])

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of the blocks, each once, in order of appearance."""
        return tuple(dict.fromkeys(block.language for block in self.blocks))


class Condition(_Status):
    """One observation, in the form of Kubernetes' metav1.Condition."""

    type: str = Field(max_length=64)
    status: Literal["True", "False", "Unknown"]
    reason: str = Field(max_length=64)
    message: str = Field("", max_length=4096)
    last_transition_time: datetime
    observed_generation: int = 0


Count = Annotated[int, Field(ge=0, le=2**53)]


class BlockStatus(_Status):
    """How one block ended. Blocks that never ran are not listed."""

    exit_code: int = Field(ge=0, le=255, description="Exit code of the block's process; 128 + n if signal n ended it.")
    reason: str = Field(
        max_length=64, description="Completed, NonZeroExit, DeadlineExceeded, OutOfMemory or Cancelled."
    )
    started_at: datetime
    duration_ms: Count
    stdout_bytes: Count = Field(description="Bytes that arrived on stdout while the block ran.")
    stderr_bytes: Count = Field(description="Bytes that arrived on stderr while the block ran.")


class StreamStatus(_Status):
    """What was written to one stream."""

    text: str = Field(description="The output as UTF-8; bytes that are not UTF-8 are replaced by U+FFFD.")
    sha256: Sha256 = Field(description="SHA-256 of text.")
    total_bytes: Count = Field(description="Bytes that the code wrote, kept or not.")
    truncated: bool = Field(description="True when text is not all that was written.")


class OutputRun(_Status):
    """A run of output on one stream; the runs in order tell how stdout and stderr were interleaved."""

    stream: Literal["stdout", "stderr"]
    characters: int = Field(ge=1)


class EgressTarget(_Status):
    """Something that would answer if the network of the sandbox were open."""

    name: str = Field(max_length=64, description="What it is: api-server, dns, kubelet or canary.")
    address: str = Field(max_length=64, description="IP address.")
    port: int = Field(ge=1, le=65_535)
    protocol: Literal["TCP", "UDP"]
    refused: bool | None = Field(None, description="True: it did not answer the sandbox. Absent: not tried.")
    reachable: bool = Field(False, description="True: it answered the operator, outside the sandbox, at the same time.")


class EgressProof(_Status):
    """What was tried, before any code ran, to show that nothing leaves the sandbox."""

    verdict: EgressVerdict = Field(
        description="Closed: no target answered the sandbox, while each answered the operator. Open: one answered the "
        "sandbox. Unproven: one did not answer the operator either, or there was none, so nothing can be told."
    )
    checked_at: datetime
    targets: tuple[EgressTarget, ...] = Field((), max_length=MAX_EGRESS_TARGETS)


class Summary(_Status):
    """Short forms for `kubectl get`."""

    languages: str = Field("", max_length=256)
    digest: str = Field("", max_length=12)
    duration: str = Field("", max_length=32)


class CodeExecutionStatus(_Status):
    """What happened. Written by the operator only."""

    phase: Phase = Phase.PENDING
    reason: str = Field("", max_length=64, description="Why the execution is in this phase, for programs.")
    message: str = Field("", max_length=4096, description="The same for people: what happened and what to do.")
    conditions: tuple[Condition, ...] = Field(
        (),
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    observed_generation: int = 0
    code_digest: str = Field("", max_length=71, description="Digest of all blocks and files.")
    pod_name: str = Field("", max_length=253)
    node_name: str = Field("", max_length=253)
    image: str = Field("", max_length=300, description="Image that the pod was asked to run.")
    image_id: str = Field("", alias="imageID", max_length=300, description="Image that the node ran.")
    runtime_class_name: str = Field(
        "", max_length=253, description="RuntimeClass of the pod; empty: the node's default."
    )
    layers: tuple[Annotated[str, Field(max_length=32)], ...] = Field(
        (),
        max_length=8,
        description="What stood between the code and everything else, beyond the settings of the pod: UserNamespace, "
        "NetworkPolicy (shown by egressProof), Seccomp and Landlock (around the code, inside the pod).",
    )
    egress_proof: EgressProof | None = Field(None, description="Shows that the network was closed before code ran.")
    started_at: datetime | None = Field(None, description="When the code was handed to the runner.")
    finished_at: datetime | None = None
    exit_code: int | None = Field(None, description="Exit code of the last block that ran; absent if none did.")
    blocks: tuple[BlockStatus, ...] = Field((), max_length=MAX_BLOCKS)
    stdout: StreamStatus | None = None
    stderr: StreamStatus | None = None
    output_order: tuple[OutputRun, ...] = Field(
        (),
        max_length=1024,
        description="How stdout and stderr were interleaved; beyond 1024 runs stdout comes first.",
    )
    summary: Summary = Field(default_factory=Summary)


class ObjectMeta(_Status):
    """The part of the metadata that the operator and the client read."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None


class CodeExecution(_Status):
    """A request to run code, and the audit record of what became of it."""

    metadata: ObjectMeta
    spec: CodeExecutionSpec
    status: CodeExecutionStatus = Field(default_factory=CodeExecutionStatus)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "CodeExecution":
        """From an object of the API server.

        Raises:
            pydantic.ValidationError: a ValueError that names each wrong field.
        """
        return cls.model_validate(raw)


class PolicyLimits(_Model):
    """Highest limits that an execution may ask for."""

    cpu: Quantity = "1"
    memory: Quantity = "1Gi"
    ephemeral_storage: Quantity = "1Gi"
    pids: int = Field(1024, ge=1, le=MAX_PIDS)
    output_bytes: int = Field(MAX_OUTPUT_BYTES, ge=1024, le=MAX_OUTPUT_BYTES)


class ExecutionPolicySpec(_Model):
    """What executions in a namespace may ask for. What is not allowed is denied, with every reason listed."""

    images: tuple[ImageReference, ...] = Field(
        min_length=1,
        max_length=64,
        description="Images that may be used, by digest. The first is the default.",
    )
    languages: tuple[LanguageName, ...] = Field(
        ("python", "bash", "sh"), min_length=1, max_length=16, description="Languages that may be used."
    )
    runtime_class_name: RuntimeClassName | None = Field(
        None, description="RuntimeClass of executions that name none. Default: the node's own runtime."
    )
    runtime_class_names: tuple[RuntimeClassName, ...] = Field(
        (), max_length=16, description="Runtime classes that may be asked for, besides runtimeClassName."
    )
    egress_proof: EgressMode = Field(
        EgressMode.ENFORCE,
        description="Enforce: no code runs unless it was shown that the network of its sandbox is closed. Warn: "
        "it runs all the same, and each record says so.",
    )
    max_timeout_seconds: int = Field(
        600, ge=1, le=MAX_TIMEOUT_SECONDS, description="Highest timeoutSeconds, for each block."
    )
    max_blocks: int = Field(32, ge=1, le=MAX_BLOCKS, description="Most blocks in one execution.")
    max_limits: PolicyLimits = Field(default_factory=PolicyLimits, description="Highest limits.")
    pod_ttl_seconds: int = Field(
        60,
        ge=0,
        le=86_400,
        alias="podTTLSeconds",
        description="How long finished pods and their logs are kept at most; an execution may ask for less.",
    )


class ExecutionPolicy(_Status):
    """What executions in this namespace may ask for; replaces the cluster's default policy as a whole."""

    metadata: ObjectMeta
    spec: ExecutionPolicySpec


ROOT_RULES: Final = {
    EXECUTION_KIND: [
        rule(
            f"self.metadata.name.size() <= {MAX_EXECUTION_NAME} && !self.metadata.name.contains('.')",
            f"metadata.name must have at most {MAX_EXECUTION_NAME} characters and no dots: the pod is named after it",
        )
    ],
    POLICY_KIND: [
        rule(
            "self.metadata.name == 'default'",
            "metadata.name must be 'default': one ExecutionPolicy governs a namespace",
        )
    ],
}


def execution_manifest(*, name: str, namespace: str, spec: CodeExecutionSpec) -> dict[str, Any]:
    """A CodeExecution as it is sent to the API server."""
    return {
        "apiVersion": API_VERSION,
        "kind": EXECUTION_KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec.dump(),
    }
