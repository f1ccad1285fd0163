"""The contract: the kinds of the API group codeexec.dev as frozen pydantic models.

`schema.py` turns these models into the CRDs' structural schemas, so a constraint is written once: as a pydantic
constraint where JSON schema has one, else as a CEL rule in `json_schema_extra`. Input is strict (unknown fields are
errors); status is lenient, so that an older client can read what a newer operator wrote.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from codeexec_api.digests import code_digest
from codeexec_api.names import (
    API_VERSION,
    APPROVAL_KIND,
    EXECUTION_KIND,
    MAX_EXECUTION_NAME,
    MAX_POOL_NAME,
    PAYLOAD_SECRET_TYPE,
    POLICY_KIND,
    POOL_KIND,
    SESSION_KIND,
)
from codeexec_api.paths import MAX_PATH_BYTES, REFUSED_CHARACTERS, check_workspace_path
from codeexec_api.phases import Phase, SessionPhase
from codeexec_api.quantities import QUANTITY_PATTERN, parse_quantity

MAX_BLOCKS: Final = 64
MAX_FILES: Final = 64
MAX_PART_BYTES: Final = 1_000_000
"""Of one Secret of a payload, which may hold at most 1 MiB with its keys."""
MAX_PAYLOAD_PARTS: Final = 16
MAX_SEALED_BYTES: Final = 16 * 1024
"""Of code and files in a sealed payload."""
MAX_PAYLOAD_BYTES: Final = MAX_PART_BYTES * MAX_PAYLOAD_PARTS
"""Code and files of one execution together."""
MAX_CODE_BYTES: Final = 1_000_000
"""All blocks of one execution together."""
MAX_ARTIFACTS: Final = 256
MAX_FETCH_BYTES: Final = 16 * 1024 * 1024
"""Files that one execution gives out, together."""
MAX_OUTPUT_PARTS: Final = 96
MAX_TIMEOUT_SECONDS: Final = 86_400
MAX_SESSION_SECONDS: Final = 7 * 86_400
MAX_PIDS: Final = 32_768
MAX_POOL_REPLICAS: Final = 10_000
MAX_EGRESS_TARGETS: Final = 16
MAX_PERMITS: Final = 16
"""Ways out of the network that one execution can ask for."""
MAX_MOUNTS: Final = 8
MAX_LEFT_OUT: Final = 256
"""Ranges that are left out of what one permit opens."""
MAX_LABEL: Final = 63
"""Of a label's value, and here of its key, too."""
MAX_CODE_RULES: Final = 3
"""One for each action."""
MAX_IMPORTS: Final = 32
"""Modules of one rule for code."""
MAX_CODE_GRANTS: Final = MAX_IMPORTS + 1
"""Each module that takes approval, and code that can't be read."""
MAX_CODE_FINDINGS: Final = MAX_CODE_RULES * MAX_IMPORTS + 1
MAX_GRANTS: Final = MAX_BLOCKS + 8 + MAX_PERMITS + MAX_MOUNTS + MAX_CODE_GRANTS
"""A language for each block, each permit and each mount, every other field that can be approved, once, and code."""
MAX_AGENT_RULES: Final = 64
MAX_UNUSED_APPROVALS: Final = 8
"""Approvals that an execution's record names although they don't count."""
MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
"""Of each stream."""
MAX_INLINE_BYTES: Final = 256 * 1024
"""Of each stream in the record itself: both have to fit, escaped, into one object of etcd (1.5 MiB)."""

IMAGE_PATTERN: Final = r"^[a-z0-9][a-zA-Z0-9./:_-]{0,199}@sha256:[0-9a-f]{64}$"
CIDR_PATTERN: Final = r"^[0-9a-fA-F:.]{2,45}/[0-9]{1,3}$"
MODULE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
MOUNT_ROOT: Final = "/mnt"
"""The folder below which everything is mounted that an execution asks for."""
MOUNT_PATH_PATTERN: Final = rf"^{MOUNT_ROOT}/[a-z0-9]([-a-z0-9._]{{0,61}}[a-z0-9])?$"
TRACEPARENT_PATTERN: Final = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"


def rule(cel: str, message: str, *, field: str | None = None) -> dict[str, str]:
    """One entry of `x-kubernetes-validations`; `field` is where the API server reports it."""
    entry = {"rule": cel, "message": message}
    return entry | {"fieldPath": field} if field else entry


def _rules(*rules: dict[str, str]) -> dict[str, Any]:
    return {"x-kubernetes-validations": list(rules)}


def _immutable(field: str, kind: str = EXECUTION_KIND) -> dict[str, Any]:
    return _rules(rule("self == oldSelf", f"spec.{field} is immutable: create a new {kind} instead"))


def _immutable_presence(names: Sequence[str], kind: str) -> list[dict[str, str]]:
    """Rules on the spec: an optional field that is set stays, and one that is not can't be added."""
    return [
        rule(
            f"has(self.{name}) == has(oldSelf.{name})",
            f"spec.{name} is immutable: create a new {kind} instead",
            field=f".{name}",
        )
        for name in names
    ]


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

QuantityText = Annotated[
    str,
    BeforeValidator(_quantity),
    Field(
        pattern=QUANTITY_PATTERN,
        max_length=32,
        json_schema_extra={
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
            "x-kubernetes-validations": [
                rule(
                    "!isQuantity(self) || quantity(self).isGreaterThan(quantity('0'))",
                    "must be greater than 0",
                )
            ],
        },
    ),
]
"""A quantity that has to be quoted in YAML if it is a bare number: what may stand in a list must have a bounded length,
so that the API server knows what its rules cost."""

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

LanguageName = Literal["python", "bash", "sh", "javascript", "pwsh"]

UserName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=512,
        description="Name of a user or service account, as the API server authenticates it (`kubectl auth whoami`).",
    ),
]

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


class CodeAction(StrEnum):
    """What is done about code that a rule fits, from the mildest to the strictest."""

    NOTE = "Note"
    """It runs, and the record says so."""
    NEED_APPROVAL = "NeedApproval"
    """A human decides."""
    DENY = "Deny"
    """It doesn't run."""

    @property
    def severity(self) -> int:
        """More is stricter."""
        return list(CodeAction).index(self)


class EgressVerdict(StrEnum):
    """What the egress proof has shown."""

    CLOSED = "Closed"
    RESTRICTED = "Restricted"
    OPEN = "Open"
    UNPROVEN = "Unproven"

    @property
    def holds(self) -> bool:
        """True if it was shown that nothing leaves the sandbox but what was permitted."""
        return self in (EgressVerdict.CLOSED, EgressVerdict.RESTRICTED)


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
    """One block of code. Its text travels in the payload, sealed or in a Secret, and is never in the record."""

    language: LanguageName = Field(description="Language of the block.")
    filename: WorkspacePath | None = Field(
        None,
        description="File in the workspace that the code is written to; by default a name made of the digest.",
    )
    sha256: Sha256
    size_bytes: int = Field(ge=0, le=MAX_CODE_BYTES, description="Length of the code in bytes (UTF-8).")


class File(_Model):
    """A file that is put into the workspace before the first block runs."""

    path: WorkspacePath = Field(description="Where the file goes, relative to the workspace.")
    sha256: Sha256
    size_bytes: int = Field(ge=0, le=MAX_PAYLOAD_BYTES, description="Length of the file in bytes.")


ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]


class PayloadRef(_Model):
    """The Secrets that carry code and files."""

    name: ObjectName = Field(
        max_length=253 - len("-15"),
        description=f"Name of a Secret of type {PAYLOAD_SECRET_TYPE} in the same namespace, labelled with the name of "
        "this CodeExecution. The operator deletes it when the code starts.",
    )
    parts: int = Field(
        1,
        ge=1,
        le=MAX_PAYLOAD_PARTS,
        description="Number of Secrets. The others have a dash and their number, from 1 on, behind this name. What "
        "they hold under one key is joined in this order.",
    )


class SealedPayload(_Model):
    """Code and files that only the operator can read."""

    key_name: ObjectName = Field(description="Name of the operator's key that this was sealed with.")
    data: str = Field(
        min_length=1,
        max_length=2 * MAX_SEALED_BYTES,  # base64 twice is 16/9, and there are the keys
        pattern=r"^[A-Za-z0-9+/]+={0,2}$",
        description="HPKE ciphertext (RFC 9180; X25519, HKDF-SHA256, AES-128-GCM), as base64.",
    )


class SessionRef(_Model):
    """The CodeSession whose workspace is used."""

    name: ObjectName = Field(description="Name of a CodeSession in the same namespace.")


class ArtifactRequest(_Model):
    """What is wanted of the files in the workspace, once the last block has ended."""

    list: Literal["None", "Changed", "All"] = Field(
        "Changed", description="Which files status.artifacts names: those that the blocks have made or changed, or all."
    )
    fetch: tuple[Annotated[str, Field(min_length=1, max_length=MAX_PATH_BYTES)], ...] = Field(
        (),
        max_length=64,
        description="Files whose content is kept in outputRefs: paths in the workspace, or patterns with * and ?, "
        "which stand for slashes, too.",
    )


class Source(_Model):
    """Who asks, as claimed by the client."""

    agent: str = Field(min_length=1, max_length=128, description="Name of the agent whose code this is.")
    executor: str = Field("unknown", min_length=1, max_length=128, description="Program that created this object.")
    conversation: str | None = Field(None, max_length=128, description="Conversation, thread or run, if known.")


class PodLimits(_Model):
    """Ceilings of a sandbox pod. Requests equal limits, so the pod gets what it asked for."""

    cpu: Quantity = Field("500m", description="CPU, in cores.")
    memory: Quantity = Field("256Mi", description="Memory, including files in /workspace and /tmp.")
    ephemeral_storage: Quantity = Field("256Mi", description="Disk for logs, which hold all that the code gives out.")
    pids: int = Field(256, ge=1, le=MAX_PIDS, description="Processes and threads of the code at the same time.")


class Limits(PodLimits):
    """Ceilings of an execution or a session: those of its pod, and how much output is kept."""

    output_bytes: int = Field(
        MAX_OUTPUT_BYTES,
        ge=1024,
        le=MAX_OUTPUT_BYTES,
        description="How much of stdout and of stderr is kept, each; what is beyond is counted and marked.",
    )


def _label_keys(labels: dict[str, str]) -> dict[str, str]:
    for key in labels:
        if not 1 <= len(key) <= MAX_LABEL:
            raise ValueError(f"the key {key!r} has {len(key)} characters; 1 to {MAX_LABEL} are allowed")
    return labels


class Selector(_Model):
    """Selects pods or namespaces by their labels: those that have all of them."""

    match_labels: Annotated[
        dict[
            str,
            Annotated[str, Field(max_length=MAX_LABEL, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")],
        ],
        AfterValidator(_label_keys),
    ] = Field(
        min_length=1,
        max_length=3,
        description="Labels, each of them needed.",
        json_schema_extra=_rules(
            rule(
                f"self.all(key, key.size() > 0 && key.size() <= {MAX_LABEL})",
                f"keys must have 1 to {MAX_LABEL} characters",
            )
        ),
    )

    def __str__(self) -> str:
        """Such as `{app=db,tier=one}`, in the order of the keys."""
        return "{" + ",".join(f"{key}={value}" for key, value in sorted(self.match_labels.items())) + "}"


Port = Annotated[int, Field(ge=1, le=65_535)]
Protocol = Literal["TCP", "UDP"]


def _selected(pods: Selector | None, namespaces: Selector | None) -> str:
    """Such as `namespaces{…},pods{…}`; without namespaces, pods of the sandbox namespace itself are meant."""
    return ",".join(f"{name}{one}" for name, one in (("namespaces", namespaces), ("pods", pods)) if one)


class Permit(_Model):
    """One way out of the sandbox: to these addresses, or to these pods, by this port."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "(has(self.cidr) ? 1 : 0) + (has(self.host) ? 1 : 0) "
                "+ (has(self.podSelector) || has(self.namespaceSelector) ? 1 : 0) == 1",
                "there must be one of cidr, host, and podSelector or namespaceSelector or both",
            )
        )
    )

    cidr: str | None = Field(
        None, max_length=49, pattern=CIDR_PATTERN, description="Addresses, such as 10.1.2.3/32 or 2001:db8::/64."
    )
    host: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        pattern=r"^[A-Za-z0-9.*_-]+$",
        description="Name of a host. Always denied: a NetworkPolicy can't name hosts. Ask for its addresses.",
    )
    pod_selector: Selector | None = Field(
        None, description="Pods: of the selected namespaces, or of the sandbox namespace itself."
    )
    namespace_selector: Selector | None = Field(None, description="Namespaces: all their pods, or the selected ones.")
    port: Port = Field(description="Port. Behind a Service, that of its pods.")
    protocol: Protocol = Field("TCP", description="TCP or UDP.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = (self.cidr, self.host, self.pod_selector or self.namespace_selector)
        if sum(one is not None for one in kinds) != 1:
            raise ValueError("there must be one of cidr, host, and podSelector or namespaceSelector or both")
        return self

    def __str__(self) -> str:
        """Exactly what is asked for, such as `10.1.2.3/32:443/TCP`; `permits.parse_permit` reads it."""
        if self.cidr is None:
            peer = self.host or _selected(self.pod_selector, self.namespace_selector)
        else:
            peer = f"[{self.cidr}]" if ":" in self.cidr else self.cidr
        return f"{peer}:{self.port}/{self.protocol}"


class ClaimSource(_Model):
    """A PersistentVolumeClaim of the sandbox namespace."""

    claim_name: ObjectName = Field(description="Name of the claim.")


class ConfigMapSource(_Model):
    """A ConfigMap of the sandbox namespace."""

    name: ObjectName = Field(description="Name of the ConfigMap.")


class MountSource(_Model):
    """What can be mounted: one of these."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "has(self.persistentVolumeClaim) != has(self.configMap)",
                "there must be one of persistentVolumeClaim and configMap",
            )
        )
    )

    persistent_volume_claim: ClaimSource | None = Field(
        None, description="A PersistentVolumeClaim of the sandbox namespace."
    )
    config_map: ConfigMapSource | None = Field(None, description="A ConfigMap of the sandbox namespace.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.persistent_volume_claim is None) == (self.config_map is None):
            raise ValueError("there must be one of persistentVolumeClaim and configMap")
        return self

    @property
    def source(self) -> str:
        """What is mounted, such as `pvc:data` or `configmap:settings`."""
        if self.persistent_volume_claim:
            return f"pvc:{self.persistent_volume_claim.claim_name}"
        return f"configmap:{self.config_map.name if self.config_map else ''}"


class Mount(MountSource):
    """Something of the platform's that code can read, and can't write to."""

    name: str = Field(
        min_length=1,
        max_length=32,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="Tells the mounts of an execution apart.",
    )
    mount_path: str = Field(
        max_length=len(MOUNT_ROOT) + 1 + MAX_LABEL,
        pattern=MOUNT_PATH_PATTERN,
        description=f"Where it is mounted: a folder in {MOUNT_ROOT}.",
    )

    def __str__(self) -> str:
        """Exactly what is asked for, such as `pvc:data:/mnt/data`; `permits.parse_mount` reads it."""
        return f"{self.source}:{self.mount_path}"


def _each_once(mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
    for name in ("name", "mount_path"):
        values = [getattr(one, name) for one in mounts]
        if len(set(values)) < len(values):
            raise ValueError(f"{to_camel(name)} must differ from mount to mount, but they are {', '.join(values)}")
    return mounts


_Mounts = Annotated[tuple[Mount, ...], Field(min_length=1, max_length=MAX_MOUNTS), AfterValidator(_each_once)]
_OPTIONAL_SPEC_FIELDS: Final = (
    "requestedBy",
    "files",
    "payloadRef",
    "sealedPayload",
    "sessionRef",
    "image",
    "runtimeClassName",
    "traceparent",
    "ttlSecondsAfterFinished",
    "queueTimeoutSeconds",
    "egress",
    "mounts",
)


_TOTAL_BYTES: Final = (
    "self.blocks.map(b, b.sizeBytes).sum() + (has(self.files) ? self.files.map(f, f.sizeBytes).sum() : 0)"
)


class CodeExecutionSpec(_Model):
    """One request to run an ordered list of blocks. Immutable, except that it can be cancelled."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            *_immutable_presence(_OPTIONAL_SPEC_FIELDS, EXECUTION_KIND),
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
        description="Run in order, in one pod; the first that fails ends the execution. May be empty in a session.",
        json_schema_extra=_immutable("blocks"),
    )
    session_ref: SessionRef | None = Field(
        None,
        description="The session in whose workspace this runs. Default: a new pod for this execution alone.",
        json_schema_extra=_immutable("sessionRef"),
    )
    files: tuple[File, ...] | None = Field(
        None,
        min_length=1,
        max_length=MAX_FILES,
        description="Files for the workspace.",
        json_schema_extra=_immutable("files"),
    )
    payload_ref: PayloadRef | None = Field(
        None,
        description="The Secrets with the text of blocks and the content of files. Absent if there are neither.",
        json_schema_extra=_immutable("payloadRef"),
    )
    sealed_payload: SealedPayload | None = Field(
        None,
        description=f"The same, encrypted, instead of Secrets: for up to {MAX_SEALED_BYTES} bytes.",
        json_schema_extra=_immutable("sealedPayload"),
    )
    artifacts: ArtifactRequest = Field(
        default_factory=ArtifactRequest,
        description="What is wanted of the files in the workspace, once the last block has ended.",
        json_schema_extra=_immutable("artifacts") | {"default": {}},
    )
    source: Source = Field(description="Who asks, as claimed by the client.", json_schema_extra=_immutable("source"))
    requested_by: UserName | None = Field(
        None,
        description="Who creates this: must be the name that the API server knows the creator by, else admission "
        "refuses it. Nothing can be approved without it.",
        json_schema_extra=_immutable("requestedBy"),
    )
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
    queue_timeout_seconds: int | None = Field(
        None,
        ge=1,
        le=86_400,
        description="How long the execution may wait in the queue of a SandboxPool. Default: as long as it takes.",
        json_schema_extra=_immutable("queueTimeoutSeconds"),
    )
    egress: tuple[Permit, ...] | None = Field(
        None,
        min_length=1,
        max_length=MAX_PERMITS,
        description="Ways out of the sandbox, which otherwise has none. The policy has to allow each, or a human.",
        json_schema_extra=_immutable("egress"),
    )
    mounts: _Mounts | None = Field(
        None,
        description="What code can read besides its workspace, and can't write to. The policy has to allow each, or a "
        "human.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        | _rules(
            *_immutable("mounts")["x-kubernetes-validations"],
            rule(
                "self.all(one, self.exists_one(other, other.mountPath == one.mountPath))",
                "mountPath must differ from mount to mount",
            ),
        ),
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
    sha256: Sha256 = Field(description="SHA-256 of all that is kept: of text, or of the whole in outputRefs.")
    kept_bytes: Count = Field(0, description="Length of what sha256 is of.")
    total_bytes: Count = Field(description="Bytes that the code wrote, kept or not.")
    truncated: bool = Field(description="True when not all that was written is kept.")
    referenced: bool = Field(False, description="True when text is only the start, and the whole is in outputRefs.")


class OutputRef(_Status):
    """A ConfigMap with a part of what the execution gave out; see `codeexec_api.names.ORDER_KEY`."""

    name: str = Field(max_length=253)


class ArtifactStatus(_Status):
    """A file in the workspace, as it was when the last block had ended."""

    path: str = Field(max_length=MAX_PATH_BYTES, description="Relative to the workspace.")
    size_bytes: Count
    sha256: Sha256 | None = Field(None, description="Absent if the file is too large to be fetched.")
    fetched: bool = Field(False, description="True when the content is in outputRefs.")


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
        description="Closed: no target answered the sandbox, while each answered the operator. Restricted: the same, "
        "but what status.egress names was opened. Open: a target answered the sandbox. Unproven: one did not answer "
        "the operator either, or there was none, so nothing can be told."
    )
    checked_at: datetime
    targets: tuple[EgressTarget, ...] = Field((), max_length=MAX_EGRESS_TARGETS)


class OpenedEgress(_Status):
    """A way out of the sandbox that was opened for its code."""

    permit: str = Field(max_length=1024, description="Such as 10.1.2.3/32:443/TCP.")
    left_out: tuple[Annotated[str, Field(max_length=49)], ...] = Field(
        (),
        max_length=MAX_LEFT_OUT,
        description="Ranges in it that stay closed: the API server, nodes, name servers, and what is never permitted.",
    )


class Summary(_Status):
    """Short forms for `kubectl get`."""

    languages: str = Field("", max_length=256)
    digest: str = Field("", max_length=12)
    duration: str = Field("", max_length=32)


class AuditAnchor(_Status):
    """Which line of the operator's audit log was written with this status; see `codeexec_api.audit`."""

    chain: str = Field(pattern=r"^[0-9a-f]{32}$", description="Chain of one operator process and namespace.")
    sequence: int = Field(ge=1, le=2**53, description="Number of the line in its chain, from 1 on.")
    hash: Sha256
    time: datetime = Field(description="When the line was written.")


Conditions = Annotated[
    tuple[Condition, ...],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]


class _SandboxStatus(_Status):
    """What is recorded of a pod and of what holds its code."""

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
        "NetworkPolicy (shown by egressProof), Seccomp and Landlock (around the code, inside the pod), and "
        "LandlockPorts (where something is permitted: TCP to these ports only).",
    )
    egress_proof: EgressProof | None = Field(None, description="Shows that the network was closed before code ran.")
    audit: AuditAnchor | None = Field(
        None, description="The line of the operator's audit log that tells of this status."
    )


class Grant(_Model):
    """One thing that is asked for beyond what the policy allows by itself: exactly this value of this field."""

    field: str = Field(min_length=1, max_length=128, description="Such as spec.limits.memory.")
    value: str = Field(min_length=1, max_length=1024, description="What is asked for, such as 4Gi.")

    def __str__(self) -> str:
        """Field and value, with an equals sign between them."""
        return f"{self.field}={self.value}"


class UnusedApproval(_Status):
    """An ExecutionApproval that names this execution and does not count."""

    name: str = Field(max_length=253)
    approver: str = Field("", max_length=512)
    reason: str = Field(max_length=64, description="Why it does not count, for programs.")
    message: str = Field("", max_length=1024, description="The same for people.")


class ApprovalStatus(_Status):
    """What a human is asked to approve, and what was decided."""

    grants: tuple[Grant, ...] = Field(
        (), max_length=MAX_GRANTS, description="What is asked for beyond what the policy allows by itself."
    )
    requested_at: datetime | None = Field(None, description="When approval was asked for.")
    wait_until: datetime | None = Field(None, description="If nobody has decided by then, the execution ends.")
    code_secret: str = Field(
        "",
        max_length=253,
        description="Secret with the code, for those who may read it, until it is decided: the first of payloadRef, or "
        "one that the operator makes of sealedPayload; empty if there is none, or it could not be made.",
    )
    name: str = Field("", max_length=253, description="ExecutionApproval that counts.")
    uid: str = Field("", max_length=64, description="Its metadata.uid.")
    decision: str = Field("", max_length=16, description="Approve or Deny; empty: nobody has decided.")
    approver: str = Field("", max_length=512, description="Who decided, as the API server knows them.")
    reason: str = Field("", max_length=1024, description="Why, in the words of the approver.")
    decided_at: datetime | None = None
    expires_at: datetime | None = Field(None, description="If the code has not started by then, it does not.")
    unused: tuple[UnusedApproval, ...] = Field(
        (), max_length=MAX_UNUSED_APPROVALS, description="Approvals that name this execution and do not count."
    )


class CodeFinding(_Status):
    """Something in the code that a rule of the policy is about. Names what the rule names, and nothing of the code."""

    found: str = Field(
        max_length=128, description="Such as import os, by the name in the rule; or that Python can't be read."
    )
    action: CodeAction
    places: tuple[Annotated[str, Field(max_length=32)], ...] = Field(
        max_length=4, description="Blocks and files that it is in, such as spec.blocks[0]; the first four."
    )
    count: int = Field(ge=1, le=MAX_BLOCKS + MAX_FILES, description="In how many it is.")

    def __str__(self) -> str:
        """What was found, and in how many blocks and files besides the first."""
        return f"{self.found} (and in {self.count - 1} more)" if self.count > 1 else self.found

    @property
    def told(self) -> str:
        """The same behind the rule's action, as audit lines and spans have it."""
        return f"{self.action.value}: {self}"


class CodeExecutionStatus(_SandboxStatus):
    """What happened. Written by the operator only."""

    phase: Phase = Phase.PENDING
    reason: str = Field("", max_length=64, description="Why the execution is in this phase, for programs.")
    message: str = Field("", max_length=4096, description="The same for people: what happened and what to do.")
    conditions: Conditions = ()
    observed_generation: int = 0
    code_digest: str = Field("", max_length=71, description="Digest of all blocks and files.")
    started_at: datetime | None = Field(None, description="When the code was handed to the runner.")
    finished_at: datetime | None = None
    exit_code: int | None = Field(
        None,
        description="Exit code of the last block that ran, or 124 (deadline), 137 (memory), 130 (cancelled) for what "
        "ended it; 0 if only files were asked for, and that worked; absent if nothing ran.",
    )
    blocks: tuple[BlockStatus, ...] = Field((), max_length=MAX_BLOCKS)
    artifacts: tuple[ArtifactStatus, ...] = Field((), max_length=MAX_ARTIFACTS)
    artifacts_omitted: Count = Field(
        0, description="Files that artifacts does not name: too many, or an unusable name."
    )
    output_refs: tuple[OutputRef, ...] = Field(
        (),
        max_length=MAX_OUTPUT_PARTS,
        description="ConfigMaps with what does not fit here: large output, and the files that were fetched. They are "
        "deleted outputTTLSeconds of the policy after they were made; digests and sizes stay.",
    )
    pool_name: str = Field("", max_length=253, description="SandboxPool that the pod was taken from; empty: none.")
    egress: tuple[OpenedEgress, ...] = Field(
        (),
        max_length=MAX_PERMITS,
        description="What is opened for this execution, from its pod's creation to its end.",
    )
    code_findings: tuple[CodeFinding, ...] = Field(
        (),
        max_length=MAX_CODE_FINDINGS,
        description="What codeRules of the policy have found in the code, the strictest first.",
    )
    approval: ApprovalStatus | None = Field(None, description="Absent if the policy allowed it by itself.")
    operator_version: str = Field("", max_length=64)
    stdout: StreamStatus | None = None
    stderr: StreamStatus | None = None
    output_order: tuple[OutputRun, ...] = Field(
        (),
        max_length=1024,
        description="How stdout and stderr were interleaved; beyond 1024 runs stdout comes first.",
    )
    summary: Summary = Field(default_factory=Summary)


class CodeSessionSpec(_Model):
    """A workspace that several executions share, one after the other. Immutable, except that it can be ended."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            *_immutable_presence(("requestedBy", "image", "runtimeClassName", "traceparent"), SESSION_KIND)
        )
    )

    source: Source = Field(
        description="Who asks, as claimed by the client.", json_schema_extra=_immutable("source", SESSION_KIND)
    )
    requested_by: UserName | None = Field(
        None,
        description="Who creates this: must be the name that the API server knows the creator by, else admission "
        "refuses it.",
        json_schema_extra=_immutable("requestedBy", SESSION_KIND),
    )
    limits: Limits = Field(
        default_factory=Limits,
        description="Ceilings of the session's pod.",
        json_schema_extra=_immutable("limits", SESSION_KIND) | {"default": {}},
    )
    image: ImageReference | None = Field(
        None,
        description="Sandbox image, by digest. Default: the first image of the policy.",
        json_schema_extra=_immutable("image", SESSION_KIND),
    )
    runtime_class_name: RuntimeClassName | None = Field(
        None,
        description="RuntimeClass of the session's pod. Default: that of the policy, else the node's own runtime.",
        json_schema_extra=_immutable("runtimeClassName", SESSION_KIND),
    )
    stateful: bool = Field(
        False,
        description="Python blocks run in one IPython kernel, so that variables live as long as the session.",
        json_schema_extra=_immutable("stateful", SESSION_KIND),
    )
    idle_timeout_seconds: int = Field(
        1800,
        ge=1,
        le=MAX_SESSION_SECONDS,
        description="The session ends when nothing has run in it for this long.",
        json_schema_extra=_immutable("idleTimeoutSeconds", SESSION_KIND),
    )
    max_lifetime_seconds: int = Field(
        28_800,
        ge=1,
        le=MAX_SESSION_SECONDS,
        description="The session ends this long after it became ready, whatever runs in it.",
        json_schema_extra=_immutable("maxLifetimeSeconds", SESSION_KIND),
    )
    traceparent: str | None = Field(
        None,
        pattern=TRACEPARENT_PATTERN,
        max_length=55,
        description="W3C trace context of the caller's span.",
        json_schema_extra=_immutable("traceparent", SESSION_KIND),
    )
    ended: bool = Field(
        False,
        description="Set to true to end the session and delete its workspace. It can't be taken back.",
        json_schema_extra=_rules(rule("!oldSelf || self", "spec.ended can't be taken back")),
    )


class CodeSessionStatus(_SandboxStatus):
    """What happened. Written by the operator only."""

    phase: SessionPhase = SessionPhase.PENDING
    reason: str = Field("", max_length=64, description="Why the session is in this phase, for programs.")
    message: str = Field("", max_length=4096, description="The same for people: what happened and what to do.")
    conditions: Conditions = ()
    observed_generation: int = 0
    operator_version: str = Field("", max_length=64)
    started_at: datetime | None = Field(None, description="When the session became ready.")
    last_used_at: datetime | None = Field(
        None, description="When something last ran in it; written now and then, and when the session ends."
    )
    ended_at: datetime | None = None
    executions: Count = Field(0, description="Executions that ran in it; written together with lastUsedAt.")


class ObjectMeta(_Status):
    """The part of the metadata that the operator and the client read."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None


class _Object(_Status):
    metadata: ObjectMeta

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """From an object of the API server.

        Raises:
            pydantic.ValidationError: a ValueError that names each wrong field.
        """
        return cls.model_validate(raw)


class CodeExecution(_Object):
    """A request to run code, and the audit record of what became of it."""

    spec: CodeExecutionSpec
    status: CodeExecutionStatus = Field(default_factory=CodeExecutionStatus)


class CodeSession(_Object):
    """A workspace that several executions share, and the record of it. It owns one pod."""

    spec: CodeSessionSpec
    status: CodeSessionStatus = Field(default_factory=CodeSessionStatus)


class SandboxPoolSpec(_Model):
    """How many sandbox pods stand ready, and what they are like.

    An execution gets one of them if it asks for the same image, runtime class, CPU, memory and disk, and for no more
    processes. No pod is handed out twice.
    """

    replicas: int = Field(
        1,
        ge=0,
        le=MAX_POOL_REPLICAS,
        description="Pods that stand ready, besides those that are in use. With 0 the pool is not used.",
    )
    limits: PodLimits = Field(
        default_factory=PodLimits,
        description="Ceilings of each pod.",
        json_schema_extra={"default": {}},
    )
    image: ImageReference | None = Field(
        None, description="Sandbox image, by digest. Default: the first image of the policy."
    )
    runtime_class_name: RuntimeClassName | None = Field(
        None, description="RuntimeClass of the pods. Default: that of the policy, else the node's own runtime."
    )
    max_age_seconds: int = Field(
        3600,
        ge=60,
        le=86_400,
        description="A pod that has waited for so long is replaced. Its egress proof is not older than that.",
    )


class SandboxPoolStatus(_Status):
    """How the pool is. Written by the operator only, about once a second while something changes."""

    replicas: Count = Field(0, description="Pods that are not in use, ready or not.")
    ready_replicas: Count = Field(0, description="Pods whose egress proof was made and which wait for code.")
    claimed_replicas: Count = Field(0, description="Pods that were taken from the pool and are in use.")
    queued: Count = Field(0, description="Executions that wait for a pod.")
    last_refill_ms: Count | None = Field(
        None, description="From the creation of the pod that became ready last until then, in milliseconds."
    )
    selector: str = Field("", max_length=512, description="Selects the pods that are not in use.")
    image: str = Field("", max_length=300, description="Image of the pods.")
    runtime_class_name: str = Field("", max_length=253)
    observed_generation: int = 0
    operator_version: str = Field("", max_length=64)
    conditions: Conditions = ()

    def dump(self) -> dict[str, Any]:
        """As the API server stores it. Nothing is left out: counts go back to 0, and a patch has to say so."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class SandboxPool(_Object):
    """Sandbox pods that stand ready, so that code starts at once. Each is used for one execution."""

    spec: SandboxPoolSpec
    status: SandboxPoolStatus = Field(default_factory=SandboxPoolStatus)


class PolicyLimits(_Model):
    """Highest limits that an execution may ask for."""

    cpu: Quantity = "1"
    memory: Quantity = "1Gi"
    ephemeral_storage: Quantity = "1Gi"
    pids: int = Field(1024, ge=1, le=MAX_PIDS)
    output_bytes: int = Field(MAX_OUTPUT_BYTES, ge=1024, le=MAX_OUTPUT_BYTES)


class SomeLimits(_Model):
    """Highest limits, as far as there is something to say of them."""

    cpu: QuantityText | None = None
    memory: QuantityText | None = None
    ephemeral_storage: QuantityText | None = None
    pids: int | None = Field(None, ge=1, le=MAX_PIDS)


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(f"{error}; write a network such as 10.1.0.0/16, without bits behind its prefix") from error


class EgressRule(_Model):
    """Permits that may be asked for: to addresses in this range, or exactly these selectors, by these ports."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "has(self.cidr) != (has(self.podSelector) || has(self.namespaceSelector))",
                "there must be one of cidr, and podSelector or namespaceSelector or both",
            ),
            rule(
                "!has(self.endPort) || self.endPort >= self.port",
                "must not be below port",
                field=".endPort",
            ),
        )
    )

    cidr: Annotated[str, AfterValidator(_network)] | None = Field(
        None, max_length=49, pattern=CIDR_PATTERN, description="Permits to this range, and to any part of it."
    )
    pod_selector: Selector | None = Field(None, description="Permits with exactly this podSelector.")
    namespace_selector: Selector | None = Field(None, description="Permits with exactly this namespaceSelector.")
    port: Port = Field(description="The port, or the first of several.")
    end_port: Port | None = Field(None, description="The last of several ports.")
    protocol: Protocol = Field("TCP", description="TCP or UDP.")

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if (self.cidr is None) == (self.pod_selector is None and self.namespace_selector is None):
            raise ValueError("there must be one of cidr, and podSelector or namespaceSelector or both")
        if self.end_port is not None and self.end_port < self.port:
            raise ValueError(f"endPort is {self.end_port}, but must not be below port, {self.port}")
        return self

    def __str__(self) -> str:
        """Such as `10.1.0.0/16:443-8443/TCP`."""
        if self.cidr is None:
            peer = _selected(self.pod_selector, self.namespace_selector)
        else:
            peer = f"[{self.cidr}]" if ":" in self.cidr else self.cidr
        ports = f"{self.port}-{self.end_port}" if self.end_port else str(self.port)
        return f"{peer}:{ports}/{self.protocol}"


class CodeRule(_Model):
    """What is done about Python code that imports one of some modules."""

    imports: tuple[Annotated[str, Field(max_length=64, pattern=MODULE_PATTERN)], ...] = Field(
        min_length=1,
        max_length=MAX_IMPORTS,
        description="Modules, such as os, which os.path belongs to, too. Python files and blocks are looked at.",
    )
    action: CodeAction = Field(
        description="Note: it runs, and the record says so. NeedApproval: a human decides. Deny: it doesn't run. The "
        "strictest one counts, also for Python that can't be read."
    )


def _each_action_once(rules: tuple[CodeRule, ...]) -> tuple[CodeRule, ...]:
    actions = [one.action.value for one in rules]
    if len(set(actions)) < len(actions):
        raise ValueError(f"action must differ from rule to rule, but they are {', '.join(actions)}: join their imports")
    return rules


_CodeRules = Annotated[
    tuple[CodeRule, ...],
    Field(
        max_length=MAX_CODE_RULES,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["action"]},
    ),
    AfterValidator(_each_action_once),
]
_EgressRules = Annotated[tuple[EgressRule, ...], Field(max_length=MAX_PERMITS)]
_MountRules = Annotated[tuple[MountSource, ...], Field(max_length=MAX_PERMITS)]


class Approvable(_Model):
    """What a human may approve beyond what is allowed. What is neither allowed nor named here is never granted."""

    images: tuple[ImageReference, ...] = Field((), max_length=64, description="Further images, by digest.")
    languages: tuple[LanguageName, ...] = Field((), max_length=16, description="Further languages.")
    runtime_class_names: tuple[RuntimeClassName, ...] = Field((), max_length=16, description="Further runtime classes.")
    max_timeout_seconds: int | None = Field(None, ge=1, le=MAX_TIMEOUT_SECONDS)
    max_blocks: int | None = Field(None, ge=1, le=MAX_BLOCKS)
    max_limits: SomeLimits = Field(
        default_factory=SomeLimits,
        description="Highest limits. What is absent can't be raised.",
        json_schema_extra={"default": {}},
    )
    egress: _EgressRules = Field((), description="Further ways out of the sandbox.")
    mounts: _MountRules = Field((), description="Further mounts.")


class AgentRule(_Model):
    """What is different for some requests. What is absent is as in the policy."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "has(self.agent) || has(self.requestedBy)",
                "there must be an agent or a requestedBy: a rule for all requests is what the policy itself is",
            )
        )
    )

    agent: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Counts for requests with this spec.source.agent, which is a claim: whoever may create executions "
        "can make it. To allow more to some, name requestedBy.",
    )
    requested_by: UserName | None = Field(None, description="Counts for requests of this user.")
    images: tuple[ImageReference, ...] | None = Field(None, min_length=1, max_length=64)
    languages: tuple[LanguageName, ...] | None = Field(None, min_length=1, max_length=16)
    runtime_class_names: tuple[RuntimeClassName, ...] | None = Field(None, max_length=16)
    max_timeout_seconds: int | None = Field(None, ge=1, le=MAX_TIMEOUT_SECONDS)
    max_blocks: int | None = Field(None, ge=1, le=MAX_BLOCKS)
    max_limits: SomeLimits | None = None
    egress: _EgressRules | None = None
    mounts: _MountRules | None = None
    code_rules: _CodeRules | None = None
    with_approval: Approvable | None = None


class ExecutionPolicySpec(_Model):
    """What executions in a namespace may ask for: by themselves, with a human's approval, and never."""

    images: tuple[ImageReference, ...] = Field(
        min_length=1,
        max_length=64,
        description="Images that may be used, by digest. The first is the default.",
    )
    languages: tuple[LanguageName, ...] = Field(
        ("python", "bash", "sh", "javascript", "pwsh"),
        min_length=1,
        max_length=16,
        description="Languages that may be used, where the image has them.",
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
    egress: _EgressRules = Field(
        (), description="Ways out of the sandbox that executions may ask for. Default: none; the network is closed."
    )
    mounts: _MountRules = Field(
        (),
        description="PersistentVolumeClaims and ConfigMaps that executions may have mounted, to read. None by default.",
    )
    code_rules: _CodeRules = Field(
        (),
        description="What is done about Python code by what it imports: advice, which code can get round, and no "
        "isolation. None by default.",
    )
    with_approval: Approvable = Field(
        default_factory=Approvable,
        description="What a human may approve beyond that. Default: nothing, so all else is denied.",
        json_schema_extra={"default": {}},
    )
    approval_timeout_seconds: int = Field(
        3600, ge=1, le=86_400, description="How long an execution waits for a human's decision before it ends."
    )
    agent_rules: tuple[AgentRule, ...] = Field(
        (),
        max_length=MAX_AGENT_RULES,
        description="Exceptions. The first one that fits a request counts, alone; those with a requestedBy come before "
        "those without.",
    )
    pod_ttl_seconds: int = Field(
        60,
        ge=0,
        le=86_400,
        alias="podTTLSeconds",
        description="How long finished pods and their logs are kept at most; an execution may ask for less.",
    )
    output_ttl_seconds: int = Field(
        86_400,
        ge=60,
        le=30 * 86_400,
        alias="outputTTLSeconds",
        description="How long large output and fetched files are kept, from when they were made. Digests and sizes "
        "stay in the record.",
    )
    max_session_idle_seconds: int = Field(
        3600, ge=1, le=MAX_SESSION_SECONDS, description="Highest idleTimeoutSeconds of a session."
    )
    max_session_lifetime_seconds: int = Field(
        28_800, ge=1, le=MAX_SESSION_SECONDS, description="Highest maxLifetimeSeconds of a session."
    )


class ExecutionPolicy(_Object):
    """What executions in this namespace may ask for; replaces the cluster's default policy as a whole."""

    spec: ExecutionPolicySpec


class ExecutionRef(_Model):
    """The one execution that a decision is about."""

    name: ObjectName = Field(description="Name of a CodeExecution in the same namespace.")
    uid: str = Field(
        min_length=1, max_length=64, description="Its metadata.uid: one of the same name that came later is another."
    )
    requested_by: UserName = Field(description="Its spec.requestedBy.")


class ExecutionApprovalSpec(_Model):
    """A human's decision about one execution. Immutable, except that it can be revoked."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            *_immutable_presence(("grants", "reason", "expiresAt"), APPROVAL_KIND),
            rule(
                "self.approver != self.executionRef.requestedBy",
                "spec.approver must not be who requested the execution: nobody approves their own request",
                field=".approver",
            ),
            rule(
                "self.decision != 'Approve' || (has(self.grants) && has(self.expiresAt))",
                "to approve takes the grants of the execution's status.approval, and expiresAt",
                field=".grants",
            ),
            rule(
                "has(self.revokedBy) == self.revoked",
                "spec.revokedBy must be there if spec.revoked is true, and only then",
                field=".revokedBy",
            ),
            rule(
                "!has(oldSelf.revokedBy) || self.revokedBy == oldSelf.revokedBy",
                "spec.revokedBy is immutable: it can be set once, together with spec.revoked",
                field=".revokedBy",
            ),
        )
    )

    execution_ref: ExecutionRef = Field(
        description="Which execution this is about.", json_schema_extra=_immutable("executionRef", APPROVAL_KIND)
    )
    decision: Literal["Approve", "Deny"] = Field(
        description="Whether the code may run.", json_schema_extra=_immutable("decision", APPROVAL_KIND)
    )
    grants: tuple[Grant, ...] | None = Field(
        None,
        min_length=1,
        max_length=MAX_GRANTS,
        description="What is approved: exactly the grants of the execution's status.approval. With more or less than "
        "these the approval does not count.",
        json_schema_extra=_immutable("grants", APPROVAL_KIND),
    )
    approver: UserName = Field(
        description="Who decides: must be the name that the API server knows the creator by, else admission refuses "
        "it.",
        json_schema_extra=_immutable("approver", APPROVAL_KIND),
    )
    reason: str = Field(
        "",
        max_length=1024,
        description="Why, for the record and for the agent.",
        json_schema_extra=_immutable("reason", APPROVAL_KIND),
    )
    expires_at: datetime | None = Field(
        None,
        description="The code must have started by then.",
        json_schema_extra=_immutable("expiresAt", APPROVAL_KIND),
    )
    revoked: bool = Field(
        False,
        description="Set to true to take the decision back. It can't be given again, and has no effect on code that "
        "has started: cancel the execution for that.",
        json_schema_extra=_rules(rule("!oldSelf || self", "spec.revoked can't be taken back: decide anew instead")),
    )
    revoked_by: UserName | None = Field(
        None, description="Who revokes it: must be the name that the API server knows them by."
    )


class ExecutionApproval(_Object):
    """A human's decision about one execution."""

    spec: ExecutionApprovalSpec


_NAMES_A_POD: Final = rule(
    f"self.metadata.name.size() <= {MAX_EXECUTION_NAME} && !self.metadata.name.contains('.')",
    f"metadata.name must have at most {MAX_EXECUTION_NAME} characters and no dots: the pod is named after it",
)
_NAMES_PODS: Final = rule(
    f"self.metadata.name.size() <= {MAX_POOL_NAME} && !self.metadata.name.contains('.')",
    f"metadata.name must have at most {MAX_POOL_NAME} characters and no dots: the pods are named after it",
)
ROOT_RULES: Final = {
    EXECUTION_KIND: [_NAMES_A_POD],
    SESSION_KIND: [_NAMES_A_POD],
    POOL_KIND: [_NAMES_PODS],
    APPROVAL_KIND: [],
    POLICY_KIND: [
        rule(
            "self.metadata.name == 'default'",
            "metadata.name must be 'default': one ExecutionPolicy governs a namespace",
        )
    ],
}


AnySpec = CodeExecutionSpec | CodeSessionSpec | SandboxPoolSpec | ExecutionApprovalSpec

_KINDS: Final = {
    CodeExecutionSpec: EXECUTION_KIND,
    CodeSessionSpec: SESSION_KIND,
    SandboxPoolSpec: POOL_KIND,
    ExecutionApprovalSpec: APPROVAL_KIND,
}


def manifest(*, name: str, namespace: str, spec: AnySpec) -> dict[str, Any]:
    """An object with this spec as it is sent to the API server."""
    kind = _KINDS[type(spec)]
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec.dump(),
    }
