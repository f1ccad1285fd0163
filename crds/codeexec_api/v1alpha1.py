"""The API contract: the kinds of the API group codeexec.dev as frozen pydantic models.

`schema.py` generates the structural schemas of the CRDs from these models. Each constraint is written once: as a
pydantic constraint if JSON schema can express it, else as a CEL rule in `json_schema_extra`. Models of a spec reject
unknown fields. Models of a status ignore them, so an older client can read the status that a newer operator wrote.

Docstrings of models and descriptions of fields go into the CRDs, and `kubectl explain` prints them. They follow the
Kubernetes API conventions: the description of a field begins with its name in the API.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from codeexec_api import leniency
from codeexec_api.digests import code_digest
from codeexec_api.names import (
    API_VERSION,
    APPROVAL_KIND,
    EXECUTION_KIND,
    EXECUTION_LABEL,
    MAX_EXECUTION_NAME,
    MAX_POOL_NAME,
    NODE_RUNTIME,
    PAYLOAD_SECRET_TYPE,
    POLICY_KIND,
    POOL_KIND,
    SEALING_KEY,
    SESSION_KIND,
)
from codeexec_api.paths import MAX_PATH_BYTES, REFUSED_CHARACTERS, check_workspace_path
from codeexec_api.phases import Phase, SessionPhase
from codeexec_api.quantities import QUANTITY_PATTERN, parse_quantity

MAX_BLOCKS: Final = 64
MAX_POD_USES: Final = 100
MAX_FILES: Final = 64
MAX_PART_BYTES: Final = 1_000_000
"""Limit of one payload Secret. A Secret holds at most 1 MiB, including its keys."""
MAX_PAYLOAD_PARTS: Final = 16
MAX_SEALED_BYTES: Final = 16 * 1024
"""Limit of the code and files in a sealed payload."""
MAX_PAYLOAD_BYTES: Final = MAX_PART_BYTES * MAX_PAYLOAD_PARTS
"""Limit of the code and files of one execution."""
MAX_CODE_BYTES: Final = 1_000_000
"""Limit of all blocks of one execution together."""
MAX_ARTIFACTS: Final = 256
MAX_FETCH_BYTES: Final = 16 * 1024 * 1024
"""Limit of all files that one execution returns."""
MAX_OUTPUT_PARTS: Final = 96
MAX_TIMEOUT_SECONDS: Final = 86_400
MAX_SESSION_SECONDS: Final = 7 * 86_400
MIN_RECORD_SECONDS: Final = 300
"""How long each record is kept, whatever the policy says: its client may still read it."""
MAX_PIDS: Final = 32_768
MAX_POOL_REPLICAS: Final = 10_000
MAX_EGRESS_TARGETS: Final = 16
MAX_PERMITS: Final = 16
"""Egress destinations that one execution can request."""
MAX_MOUNTS: Final = 8
MAX_LEFT_OUT: Final = 256
"""Address ranges that are excluded from one egress destination."""
MAX_LABEL: Final = 63
"""Length of a label's value. Here, keys have the same limit."""
MAX_CODE_RULES: Final = 3
"""One rule for each action."""
MAX_IMPORTS: Final = 32
"""Modules in one code rule."""
MAX_CODE_GRANTS: Final = MAX_IMPORTS + 1
"""One for each module that needs approval, and one for unreadable code."""
MAX_CODE_FINDINGS: Final = MAX_CODE_RULES * MAX_IMPORTS + 1
MAX_GRANTS: Final = MAX_BLOCKS + 8 + MAX_PERMITS + MAX_MOUNTS + MAX_CODE_GRANTS
"""One for each block's language, egress destination, mount and code finding, and one for each other field."""
MAX_AGENT_RULES: Final = 64
MAX_UNUSED_APPROVALS: Final = 8
"""Approvals without effect that the status of an execution lists."""
MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
"""Limit of each output stream."""
MAX_INLINE_BYTES: Final = 256 * 1024
"""Limit of each output stream in the status. Both streams, escaped, must fit into one etcd object (1.5 MiB)."""
DEFAULT_REQUESTS: Final = {"cpu": "20m", "memory": "64Mi", "ephemeral_storage": "16Mi"}
"""What a sandbox pod requests if no policy says otherwise: what a sandbox needs that waits for code."""

IMAGE_PATTERN: Final = r"^[a-z0-9][a-zA-Z0-9./:_-]{0,199}@sha256:[0-9a-f]{64}$"
CIDR_PATTERN: Final = r"^[0-9a-fA-F:.]{2,45}/[0-9]{1,3}$"
MODULE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
MOUNT_ROOT: Final = "/mnt"
"""The folder that holds all mounts that an execution requests."""
MOUNT_PATH_PATTERN: Final = rf"^{MOUNT_ROOT}/[a-z0-9]([-a-z0-9._]{{0,61}}[a-z0-9])?$"
TRACEPARENT_PATTERN: Final = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"


def rule(cel: str, message: str, *, field: str | None = None) -> dict[str, str]:
    """One entry of `x-kubernetes-validations`. The API server reports a violation at `field`."""
    entry = {"rule": cel, "message": message}
    return entry | {"fieldPath": field} if field else entry


def _rules(*rules: dict[str, str]) -> dict[str, Any]:
    return {"x-kubernetes-validations": list(rules)}


def _immutable(field: str, kind: str = EXECUTION_KIND) -> dict[str, Any]:
    return _rules(rule("self == oldSelf", f"spec.{field} is immutable: create a new {kind} instead"))


def _immutable_presence(names: Sequence[str], kind: str) -> list[dict[str, str]]:
    """Rules on the spec: an optional field can be neither added nor removed after creation."""
    return [
        rule(
            f"has(self.{name}) == has(oldSelf.{name})",
            f"spec.{name} is immutable: create a new {kind} instead",
            field=f".{name}",
        )
        for name in names
    ]


def _quantity(value: object) -> object:
    """Accept an unquoted number in YAML (`cpu: 1`), as Kubernetes does."""
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
            "pattern": QUANTITY_PATTERN,  # pydantic omits it behind a validator
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
"""A quantity inside a list. The API server needs a bounded length to estimate the cost of its rules, so this is a
string, and a bare number must be quoted in YAML."""

_WORD: Final = r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
"""The form of a condition's reason in Kubernetes."""
Word = Annotated[str, Field(max_length=64, pattern=rf"^{_WORD}$")]
OptionalWord = Annotated[str, Field(max_length=64, pattern=rf"^({_WORD})?$")]
OptionalName = Annotated[str, Field(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]
"""Name of an object; empty if there is none."""
Generation = Annotated[int, Field(ge=0, le=2**53)]
CidrText = Annotated[str, Field(max_length=49, pattern=CIDR_PATTERN)]

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

_WORKSPACE_PATH_RULES: Final = (  # the same rules as check_workspace_path
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
    # The API server estimates the cost of the rules from the maximum length.
    Field(min_length=1, max_length=MAX_PATH_BYTES, json_schema_extra=_rules(*_WORKSPACE_PATH_RULES)),
    AfterValidator(check_workspace_path),
]

ImageReference = Annotated[
    str,
    Field(
        max_length=280,
        pattern=IMAGE_PATTERN,
        description="Image reference by digest (name@sha256:…). Tags are refused, because they can change.",
    ),
]

ImageSignature = Annotated[
    str,
    Field(
        min_length=1,
        max_length=16_384,
        description="Signature of an image by a key: a Sigstore bundle (JSON), as `cosign sign --bundle` writes it.",
    ),
]

_SET: Final[dict[str, Any]] = {"x-kubernetes-list-type": "set"}
"""For lists without order. Several appliers can add entries, and there are no duplicates. Other lists are atomic."""

LanguageName = Literal["python", "bash", "sh", "javascript", "pwsh"]

UserName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=512,
        description="Name of a user or service account, as `kubectl auth whoami` prints it.",
    ),
]

RuntimeClassName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description=f"Name of a RuntimeClass, such as gvisor, or {NODE_RUNTIME} for the node's default runtime.",
    ),
]


class Boundary(StrEnum):
    """What separates code from the kernel of its node."""

    VM = "VM"
    """A virtual machine with a kernel of its own."""
    GVISOR = "gVisor"
    """A kernel of its own, in user space."""
    USER_NAMESPACE = "UserNamespace"
    """A container on the node's kernel, whose users are other users on the node."""
    CONTAINER = "Container"
    """A container on the node's kernel."""


class EgressMode(StrEnum):
    """What the operator does if it can't show that the network of a sandbox is closed."""

    ENFORCE = "Enforce"
    """Run no code."""
    WARN = "Warn"
    """Run the code and record that the network may be open."""


class CodeAction(StrEnum):
    """What the operator does with code that matches a code rule, from mildest to strictest."""

    NOTE = "Note"
    """Run the code and record the finding."""
    NEED_APPROVAL = "NeedApproval"
    """Wait for a human's approval."""
    DENY = "Deny"
    """Refuse the execution."""

    @property
    def severity(self) -> int:
        """A higher number is stricter."""
        return list(CodeAction).index(self)


class EgressVerdict(StrEnum):
    """Result of the egress proof."""

    CLOSED = "Closed"
    RESTRICTED = "Restricted"
    OPEN = "Open"
    UNPROVEN = "Unproven"

    @property
    def holds(self) -> bool:
        """True if the proof found the network closed, except for permitted destinations."""
        return self in (EgressVerdict.CLOSED, EgressVerdict.RESTRICTED)


class _Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, frozen=True, extra="forbid"
    )

    def dump(self) -> dict[str, Any]:
        """The form that the API server stores: camelCase, JSON types, no nulls."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class _Status(_Model):
    model_config = ConfigDict(extra="ignore")

    def dump(self) -> dict[str, Any]:
        """The form that the API server stores, without fields that have their default values."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


class Block(_Model):
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


class File(_Model):
    """File is a file that is written to the workspace before the first block runs."""

    path: WorkspacePath = Field(description="path is the path of the file, relative to the workspace.")
    sha256: Sha256 = Field(
        description="sha256 is the SHA-256 digest of the file, as 64 lower-case hexadecimal digits. The operator "
        "refuses a file with another digest."
    )
    size_bytes: int = Field(ge=0, le=MAX_PAYLOAD_BYTES, description="sizeBytes is the length of the file in bytes.")


ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]


class PayloadRef(_Model):
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


class SealedPayload(_Model):
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


class SessionRef(_Model):
    """SessionRef refers to the CodeSession in which the execution runs."""

    name: ObjectName = Field(description="name is the name of a CodeSession in the same namespace.")


class ArtifactRequest(_Model):
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
        description="fetch selects the files whose content status.outputRefs holds, up to "
        f"{MAX_FETCH_BYTES // 2**20} MiB together. Each entry is a path relative to the workspace, or a pattern with * "
        "or ?. In a pattern, * and ? also match slashes. If unset, no files are fetched.",
    )


class Source(_Model):
    """Source describes the origin of a request, as claimed by the client."""

    agent: str = Field(
        min_length=1,
        max_length=128,
        description="agent is the name of the agent that makes the request. The client claims it, and nothing "
        "verifies it.",
    )
    executor: str = Field(
        "unknown",
        min_length=1,
        max_length=128,
        description="executor is the name of the program that created the object. Defaults to unknown.",
    )
    conversation: str | None = Field(
        None, max_length=128, description="conversation identifies the agent's conversation, thread or run. Optional."
    )


class PodLimits(_Model):
    """PodLimits are the resource limits of a sandbox pod. The policy defines its requests."""

    cpu: Quantity = Field(
        "500m", description="cpu is the CPU limit of the pod in cores, as a quantity. Defaults to 500m."
    )
    memory: Quantity = Field(
        "256Mi",
        description="memory is the memory limit of the pod in bytes, as a quantity. Files in /workspace and /tmp count "
        "as memory. Defaults to 256Mi.",
    )
    ephemeral_storage: Quantity = Field(
        "256Mi",
        description="ephemeralStorage is the disk limit of the pod in bytes, as a quantity. The container log, which "
        "carries the output of the code, uses it. Defaults to 256Mi.",
    )
    pids: int = Field(
        256,
        ge=1,
        le=MAX_PIDS,
        description="pids is the number of processes and threads that the code can have at the same time. Defaults to "
        "256.",
    )


class Limits(PodLimits):
    """Limits are the resource limits of the sandbox pod, and the limit of the output that is kept."""

    output_bytes: int = Field(
        MAX_OUTPUT_BYTES,
        ge=1024,
        le=MAX_OUTPUT_BYTES,
        description="outputBytes is the number of bytes that are kept of stdout, and the same of stderr. Output beyond "
        f"the limit is counted and discarded. Defaults to {MAX_OUTPUT_BYTES} ({MAX_OUTPUT_BYTES // 2**20} MiB).",
    )


def _label_keys(labels: dict[str, str]) -> dict[str, str]:
    for key in labels:
        if not 1 <= len(key) <= MAX_LABEL:
            raise ValueError(f"the key {key!r} has {len(key)} characters; 1 to {MAX_LABEL} are allowed")
    return labels


class Selector(_Model):
    """Selector selects pods or namespaces by their labels."""

    match_labels: Annotated[
        dict[
            str,
            Annotated[str, Field(max_length=MAX_LABEL, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")],
        ],
        AfterValidator(_label_keys),
    ] = Field(
        min_length=1,
        max_length=3,
        description="matchLabels lists 1 to 3 labels. A pod or namespace is selected if it has all of them.",
        json_schema_extra=_rules(
            rule(
                f"self.all(key, key.size() > 0 && key.size() <= {MAX_LABEL})",
                f"keys must have 1 to {MAX_LABEL} characters",
            )
        ),
    )

    def __str__(self) -> str:
        """Text such as `{app=db,tier=one}`, sorted by key."""
        return "{" + ",".join(f"{key}={value}" for key, value in sorted(self.match_labels.items())) + "}"


Port = Annotated[int, Field(ge=1, le=65_535)]
Protocol = Literal["TCP", "UDP"]


def _selected(pods: Selector | None, namespaces: Selector | None) -> str:
    """Text such as `namespaces{…},pods{…}`. Without namespaces it means pods in the sandbox namespace."""
    return ",".join(f"{name}{one}" for name, one in (("namespaces", namespaces), ("pods", pods)) if one)


class Permit(_Model):
    """Permit is one egress destination: an address range or a set of pods, and a port.

    Set exactly one of cidr, host, and the selectors (podSelector, namespaceSelector, or both).
    """

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
        None,
        max_length=49,
        pattern=CIDR_PATTERN,
        description="cidr is an address range, such as 10.1.2.3/32 or 2001:db8::/64. The API server, nodes, DNS "
        "servers and cloud metadata services stay closed even if the range contains them.",
    )
    host: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        pattern=r"^[A-Za-z0-9.*_-]+$",
        description="host is a host name. An execution that sets it is always denied, because a NetworkPolicy can't "
        "name hosts. Set cidr to the addresses of the host instead.",
    )
    pod_selector: Selector | None = Field(
        None,
        description="podSelector selects pods in the selected namespaces. Without namespaceSelector it selects pods in "
        "the sandbox namespace.",
    )
    namespace_selector: Selector | None = Field(
        None,
        description="namespaceSelector selects namespaces. Without podSelector it selects all pods in these "
        "namespaces.",
    )
    port: Port = Field(
        description="port is the destination port. To reach pods behind a Service, set the port of the pods."
    )
    protocol: Protocol = Field("TCP", description="protocol is TCP or UDP. Defaults to TCP.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = (self.cidr, self.host, self.pod_selector or self.namespace_selector)
        if sum(one is not None for one in kinds) != 1:
            raise ValueError("there must be one of cidr, host, and podSelector or namespaceSelector or both")
        return self

    def __str__(self) -> str:
        """The destination as text, such as `10.1.2.3/32:443/TCP`; `permits.parse_permit` parses it."""
        if self.cidr is None:
            peer = self.host or _selected(self.pod_selector, self.namespace_selector)
        else:
            peer = f"[{self.cidr}]" if ":" in self.cidr else self.cidr
        return f"{peer}:{self.port}/{self.protocol}"


class ClaimSource(_Model):
    """ClaimSource refers to a PersistentVolumeClaim."""

    claim_name: ObjectName = Field(
        description="claimName is the name of a PersistentVolumeClaim in the same namespace."
    )


class ConfigMapSource(_Model):
    """ConfigMapSource refers to a ConfigMap."""

    name: ObjectName = Field(description="name is the name of a ConfigMap in the same namespace.")


class MountSource(_Model):
    """MountSource is an object that can be mounted read-only. Set exactly one of its fields."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "has(self.persistentVolumeClaim) != has(self.configMap)",
                "there must be one of persistentVolumeClaim and configMap",
            )
        )
    )

    persistent_volume_claim: ClaimSource | None = Field(
        None, description="persistentVolumeClaim refers to a PersistentVolumeClaim. It is mounted read-only."
    )
    config_map: ConfigMapSource | None = Field(
        None, description="configMap refers to a ConfigMap. It is mounted read-only."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.persistent_volume_claim is None) == (self.config_map is None):
            raise ValueError("there must be one of persistentVolumeClaim and configMap")
        return self

    @property
    def source(self) -> str:
        """The source as text, such as `pvc:data` or `configmap:settings`."""
        if self.persistent_volume_claim:
            return f"pvc:{self.persistent_volume_claim.claim_name}"
        return f"configmap:{self.config_map.name if self.config_map else ''}"


class Mount(MountSource):
    """Mount is a PersistentVolumeClaim or a ConfigMap that the code can read but not change."""

    name: str = Field(
        min_length=1,
        max_length=32,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="name is the name of the mount. It must be unique within the execution.",
    )
    mount_path: str = Field(
        max_length=len(MOUNT_ROOT) + 1 + MAX_LABEL,
        pattern=MOUNT_PATH_PATTERN,
        description=f"mountPath is the path of the mount in the pod, such as {MOUNT_ROOT}/data. It must be unique "
        "within the execution.",
    )

    def __str__(self) -> str:
        """The mount as text, such as `pvc:data:/mnt/data`; `permits.parse_mount` parses it."""
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
    """CodeExecutionSpec is a request to run a list of code blocks. It is immutable, except for cancelled."""

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
        description="blocks lists the code blocks. They run in order in one pod, and the first failure ends the "
        "execution. The list can be empty only if sessionRef is set.",
        json_schema_extra=_immutable("blocks"),
    )
    session_ref: SessionRef | None = Field(
        None,
        description="sessionRef refers to the session in which the execution runs. If unset, the execution gets a pod "
        "that no other execution uses.",
        json_schema_extra=_immutable("sessionRef"),
    )
    files: tuple[File, ...] | None = Field(
        None,
        min_length=1,
        max_length=MAX_FILES,
        description="files lists the files that are written to the workspace before the first block runs.",
        json_schema_extra=_immutable("files"),
    )
    payload_ref: PayloadRef | None = Field(
        None,
        description="payloadRef refers to the Secrets that hold the code and the files. If there are blocks or files, "
        "set exactly one of payloadRef and sealedPayload.",
        json_schema_extra=_immutable("payloadRef"),
    )
    sealed_payload: SealedPayload | None = Field(
        None,
        description="sealedPayload holds the code and the files in encrypted form, instead of Secrets. They can have "
        f"{MAX_SEALED_BYTES} bytes together before encryption.",
        json_schema_extra=_immutable("sealedPayload"),
    )
    artifacts: ArtifactRequest = Field(
        default_factory=ArtifactRequest,
        description="artifacts selects the files in the workspace to list or to return after the last block. Defaults "
        "to listing changed files.",
        json_schema_extra=_immutable("artifacts") | {"default": {}},
    )
    source: Source = Field(
        description="source describes the origin of the request, as claimed by the client.",
        json_schema_extra=_immutable("source"),
    )
    requested_by: UserName | None = Field(
        None,
        description="requestedBy is the user name of the creator, as `kubectl auth whoami` prints it. The chart's "
        "admission policy requires the field and refuses any other name. Without it, approval isn't possible.",
        json_schema_extra=_immutable("requestedBy"),
    )
    timeout_seconds: int = Field(
        60,
        ge=1,
        le=MAX_TIMEOUT_SECONDS,
        description="timeoutSeconds is the wall-clock limit of each block in seconds. Defaults to 60.",
        json_schema_extra=_immutable("timeoutSeconds"),
    )
    limits: Limits = Field(
        default_factory=Limits,
        description="limits are the resource limits of the sandbox pod. In a session, cpu, memory and ephemeralStorage "
        "must equal those of the session.",
        json_schema_extra=_immutable("limits") | {"default": {}},
    )
    image: ImageReference | None = Field(
        None,
        description="image is the sandbox image, referenced by digest. Defaults to the policy's first image. In a "
        "session it must be unset, and the session's image is used.",
        json_schema_extra=_immutable("image"),
    )
    runtime_class_name: RuntimeClassName | None = Field(
        None,
        description="runtimeClassName is the name of the RuntimeClass of the sandbox pod, or "
        f"{NODE_RUNTIME} for the node's default runtime. Defaults to the policy's runtimeClassName. If the "
        "RuntimeClass doesn't exist, the execution fails before any code runs. In a session it must be unset.",
        json_schema_extra=_immutable("runtimeClassName"),
    )
    traceparent: str | None = Field(
        None,
        pattern=TRACEPARENT_PATTERN,
        max_length=55,
        description="traceparent is the W3C trace context of the caller's span. Optional.",
        json_schema_extra=_immutable("traceparent"),
    )
    ttl_seconds_after_finished: int | None = Field(
        None,
        ge=0,
        le=86_400,
        description="ttlSecondsAfterFinished is the number of seconds for which the finished pod and its log are kept. "
        "The policy's podTTLSeconds is the maximum and the default. The CodeExecution itself is kept.",
        json_schema_extra=_immutable("ttlSecondsAfterFinished"),
    )
    queue_timeout_seconds: int | None = Field(
        None,
        ge=1,
        le=86_400,
        description="queueTimeoutSeconds is the number of seconds that the execution can wait in the queue of a "
        "SandboxPool, counted from its creation or approval. Then it ends as Failed with the reason QueueTimeout. If "
        "unset, there is no limit.",
        json_schema_extra=_immutable("queueTimeoutSeconds"),
    )
    egress: tuple[Permit, ...] | None = Field(
        None,
        min_length=1,
        max_length=MAX_PERMITS,
        description="egress lists the network destinations that the code can connect to. The policy or an approver "
        "must allow each of them. If unset, none are opened. In a session it must be unset.",
        json_schema_extra=_immutable("egress"),
    )
    mounts: _Mounts | None = Field(
        None,
        description="mounts lists the PersistentVolumeClaims and ConfigMaps that the code can read. The policy or an "
        "approver must allow each of them. If unset, nothing is mounted. In a session it must be unset.",
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
        description="cancelled stops the execution when set to true. It can't be taken back. Defaults to false.",
        json_schema_extra=_rules(rule("!oldSelf || self", "spec.cancelled can't be taken back")),
    )

    @property
    def code_digest(self) -> str:
        """Digest of all blocks and files. The status and spans record it."""
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


class Condition(_Status):
    """Condition describes one aspect of the current state of the object."""

    type: Word = Field(description="type is the type of the condition, such as Accepted or Ready.")
    status: Literal["True", "False", "Unknown"] = Field(
        description="status is the status of the condition: True, False or Unknown."
    )
    reason: Word = Field(description="reason is the reason for the status in one word, for programs.")
    message: str = Field("", max_length=4096, description="message is the reason for the status in words, for people.")
    last_transition_time: datetime = Field(
        description="lastTransitionTime is the time at which the status of the condition last changed."
    )
    observed_generation: Generation = Field(
        0, description="observedGeneration is the metadata.generation that the condition was observed for."
    )


_OBSERVED_GENERATION: Final = "observedGeneration is the metadata.generation that the operator last acted on."
_OPERATOR_VERSION: Final = "operatorVersion is the version of the operator that last wrote the status."
_REASON: Final = "reason is the reason for the phase in one word, for programs."
_MESSAGE: Final = "message is the reason for the phase in words, for people. It can suggest a remedy."


Count = Annotated[int, Field(ge=0, le=2**53)]


class BlockStatus(_Status):
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
        description="startedAt is the time at which the block started, as the runner in the pod reported it."
    )
    duration_ms: Count = Field(description="durationMs is the time for which the block ran, in milliseconds.")
    stdout_bytes: Count = Field(
        description="stdoutBytes is the number of bytes that arrived on stdout while the block ran."
    )
    stderr_bytes: Count = Field(
        description="stderrBytes is the number of bytes that arrived on stderr while the block ran."
    )


class StreamStatus(_Status):
    """StreamStatus describes the output on one stream."""

    text: str = Field(
        max_length=MAX_INLINE_BYTES,
        description="text is the output that is kept, or its start if referenced is true. U+FFFD replaces bytes that "
        "are not UTF-8.",
    )
    sha256: Sha256 = Field(
        description="sha256 is the SHA-256 digest of the output that is kept, in text or in outputRefs."
    )
    kept_bytes: Count = Field(
        0, description="keptBytes is the length in bytes of the output that is kept, in text or in outputRefs."
    )
    total_bytes: Count = Field(description="totalBytes is the number of bytes that the code wrote, kept or not.")
    truncated: bool = Field(
        description="truncated is true if some of the output was not kept, or if the operator can't rule that out."
    )
    referenced: bool = Field(
        False, description="referenced is true if text is only the start of the output and outputRefs holds all of it."
    )


class OutputRef(_Status):
    """OutputRef refers to a ConfigMap with a part of the output and of the fetched files.

    Its keys are stdout, stderr, artifact-N for entry N of status.artifacts, and order. The key order holds a JSON list
    of streams and byte counts, which tells how stdout and stderr were interleaved.
    """

    name: ObjectName = Field(description="name is the name of a ConfigMap in the same namespace.")


class ArtifactStatus(_Status):
    """ArtifactStatus describes a file in the workspace as it was after the last block."""

    path: str = Field(max_length=MAX_PATH_BYTES, description="path is the path of the file, relative to the workspace.")
    size_bytes: Count = Field(description="sizeBytes is the size of the file in bytes.")
    sha256: Sha256 | None = Field(
        None,
        description="sha256 is the SHA-256 digest of the file. Unset if the file was too large to hash or could not be "
        "read.",
    )
    fetched: bool = Field(False, description="fetched is true if outputRefs holds the content of the file.")


class OutputRun(_Status):
    """OutputRun is a run of characters on one stream."""

    stream: Literal["stdout", "stderr"] = Field(description="stream is the stream of the run: stdout or stderr.")
    characters: int = Field(ge=1, le=2**53, description="characters is the number of Unicode characters in the run.")


class EgressTarget(_Status):
    """EgressTarget is an endpoint that the sandbox must not reach, with the results of two connection attempts.

    If the network is closed, refused and reachable are both true: the endpoint is up, and the sandbox can't reach it.
    """

    name: str = Field(
        max_length=64,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="name is the kind of endpoint: api-server, dns, kubelet or canary. The canary is a Service that "
        "leads to the operator's pods.",
    )
    address: str = Field(max_length=64, description="address is the IP address of the endpoint.")
    port: int = Field(ge=1, le=65_535, description="port is the port of the endpoint.")
    protocol: Literal["TCP", "UDP"] = Field(description="protocol is TCP or UDP.")
    refused: bool | None = Field(
        None,
        description="refused is the result of the attempt from inside the sandbox, before any code ran. true: the "
        "endpoint did not answer, as intended. false: the endpoint answered, so the network is open. Unset: the "
        "sandbox did not try.",
    )
    reachable: bool = Field(
        False,
        description="reachable is the result of the operator's attempt from outside the sandbox, within the last "
        "minute before checkedAt. true: the endpoint answered, so it was up and silence inside the sandbox is "
        "significant. false: the endpoint did not answer, so silence inside the sandbox shows nothing.",
    )


class EgressProof(_Status):
    """EgressProof records how the operator checked, before any code ran, that the sandbox's network is closed."""

    verdict: EgressVerdict = Field(
        description="verdict is the result of the check. Closed: every target answered the operator, and none answered "
        "the sandbox. Restricted: the same, but the destinations in status.egress are open. Open: a target answered "
        "the sandbox. Unproven: no target answered the sandbox, but not every target was tried and answered the "
        "operator."
    )
    checked_at: datetime = Field(
        description="checkedAt is the time of the check. A pod of a pool or a session is checked when it becomes "
        "ready, before the execution gets it."
    )
    targets: tuple[EgressTarget, ...] = Field(
        (),
        max_length=MAX_EGRESS_TARGETS,
        description="targets lists the endpoints that both the sandbox and the operator tried to reach.",
    )


class OpenedEgress(_Status):
    """OpenedEgress is an egress destination that is open for the execution's pod."""

    permit: str = Field(max_length=1024, description="permit is the destination, such as 10.1.2.3/32:443/TCP.")
    left_out: tuple[CidrText, ...] = Field(
        (),
        max_length=MAX_LEFT_OUT,
        description="leftOut lists the address ranges in the destination that stay closed. They belong to the API "
        "server, nodes, DNS servers and the operator, or are never allowed, such as cloud metadata services.",
    )


class Summary(_Status):
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


class AuditAnchor(_Status):
    """AuditAnchor identifies the line of the operator's audit log that belongs to this status."""

    chain: str = Field(
        pattern=r"^[0-9a-f]{32}$",
        description="chain identifies the hash chain that holds the line. Each operator process has one chain for each "
        "namespace.",
    )
    sequence: int = Field(
        ge=1, le=2**53, description="sequence is the number of the line in its chain, starting from 1."
    )
    hash: Sha256 = Field(
        description="hash is the SHA-256 digest of the other fields of the line, as 64 lower-case hexadecimal digits."
    )
    time: datetime = Field(description="time is the time at which the line was written.")


Conditions = Annotated[
    tuple[Condition, ...],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]


_RUNTIME_CLASS_NAME: Final = (
    "runtimeClassName is the name of the RuntimeClass in the spec of the pod. Empty for the node's default runtime."
)


class _SandboxStatus(_Status):
    """Fields that describe a sandbox pod and the isolation of its code."""

    pod_name: OptionalName = Field(
        "", description="podName is the name of the sandbox pod. Empty if there is none yet."
    )
    node_name: OptionalName = Field(
        "",
        description="nodeName is the name of the node that runs the pod. Empty until the pod is ready.",
    )
    image: str = Field("", max_length=300, description="image is the image reference in the spec of the pod.")
    image_id: str = Field(
        "",
        alias="imageID",
        max_length=300,
        description="imageID is the image that the node reports for the pod. Empty until the pod is ready.",
    )
    runtime_class_name: OptionalName = Field("", description=_RUNTIME_CLASS_NAME)
    boundary: Boundary | None = Field(
        None,
        description="boundary is what separates the code from the kernel of its node. VM: a virtual machine, such as "
        "Kata's. gVisor: gVisor's kernel. UserNamespace: a container on the node's kernel, with its own user "
        "namespace. Container: any other container. VM and gVisor require a handler of that name in the RuntimeClass, "
        "and a boot ID of the pod that differs from the node's. UserNamespace requires a mapping of user IDs that the "
        "pod reported. Unset until the pod is ready.",
    )
    layers: tuple[Word, ...] = Field(
        (),
        max_length=8,
        json_schema_extra=_SET,
        description="layers lists the isolation layers around the code, in addition to the settings of the pod. "
        "UserNamespace: the pod has its own user namespace. NetworkPolicy: egressProof shows that the network is "
        "closed or restricted. Seccomp, Landlock: the runner confines the code inside the pod. LandlockPorts: of TCP, "
        "only permitted ports are open.",
    )
    egress_proof: EgressProof | None = Field(
        None,
        description="egressProof records how the operator checked, before any code ran, that the sandbox's network is "
        "closed. Unset until the check.",
    )
    audit: AuditAnchor | None = Field(
        None, description="audit identifies the line of the operator's audit log that belongs to this status."
    )


SANDBOX_FIELDS: Final = tuple(name for name in _SandboxStatus.model_fields if name != "audit")
"""What an execution in a session has from its session."""


class Grant(_Model):
    """Grant is one requested value that the policy allows only with approval."""

    field: str = Field(
        min_length=1, max_length=128, description="field is the path of the field, such as spec.limits.memory."
    )
    value: str = Field(min_length=1, max_length=1024, description="value is the requested value, such as 4Gi.")

    def __str__(self) -> str:
        """Field and value, separated by an equals sign."""
        return f"{self.field}={self.value}"


class UnusedApproval(_Status):
    """UnusedApproval is an ExecutionApproval that names this execution but has no effect."""

    name: ObjectName = Field(description="name is the name of the ExecutionApproval.")
    approver: str = Field("", max_length=512, description="approver is the user who created the ExecutionApproval.")
    reason: Word = Field(
        description="reason is why the ExecutionApproval has no effect: OtherExecution, SelfApproval, OtherGrants, "
        "Revoked or Expired.",
    )
    message: str = Field(
        "", max_length=1024, description="message is why the ExecutionApproval has no effect in words, for people."
    )


class ApprovalStatus(_Status):
    """ApprovalStatus records what needs approval, and the decision."""

    grants: tuple[Grant, ...] = Field(
        (),
        max_length=MAX_GRANTS,
        description="grants lists the requested values that the policy allows only with approval.",
    )
    requested_at: datetime | None = Field(
        None, description="requestedAt is the time at which the execution began to wait for approval."
    )
    wait_until: datetime | None = Field(
        None,
        description="waitUntil is the time until which the execution waits for a decision. Without one it ends as "
        "Expired.",
    )
    code_secret: OptionalName = Field(
        "",
        description="codeSecret is the name of a Secret from which approvers can read the code until the decision. It "
        "is the first Secret of payloadRef, or one that the operator creates from sealedPayload. Empty if there is no "
        "code or the Secret could not be created.",
    )
    name: OptionalName = Field("", description="name is the name of the ExecutionApproval with the decision.")
    uid: str = Field("", max_length=64, description="uid is the metadata.uid of the ExecutionApproval.")
    decision: str = Field(
        "",
        max_length=16,
        pattern=r"^(Approve|Deny)?$",
        description="decision is Approve or Deny. Empty if there is no decision.",
    )
    approver: str = Field(
        "", max_length=512, description="approver is the user who decided, as the API server authenticated them."
    )
    reason: str = Field("", max_length=1024, description="reason is the approver's reason for the decision.")
    decided_at: datetime | None = Field(
        None, description="decidedAt is the time at which the ExecutionApproval was created."
    )
    expires_at: datetime | None = Field(
        None,
        description="expiresAt is the time at which the approval expires. If the code has not started by then, the "
        "execution ends as Expired.",
    )
    unused: tuple[UnusedApproval, ...] = Field(
        (),
        max_length=MAX_UNUSED_APPROVALS,
        description="unused lists ExecutionApprovals that name this execution but have no effect: the newest "
        f"{MAX_UNUSED_APPROVALS}.",
    )


class CodeFinding(_Status):
    """CodeFinding is a match of a code rule. It holds module names from the policy, and no text from the code."""

    found: str = Field(
        max_length=128,
        description="found is what the rule found, such as `import os` or `unreadable Python`.",
    )
    action: CodeAction = Field(
        description="action is the strictest action of the rules that match: Note, NeedApproval or Deny."
    )
    places: tuple[Annotated[str, Field(max_length=32)], ...] = Field(
        max_length=4,
        description="places lists the blocks and files with the finding, such as spec.blocks[0]. At most four are "
        "listed.",
    )
    count: int = Field(
        ge=1, le=MAX_BLOCKS + MAX_FILES, description="count is the number of blocks and files with the finding."
    )

    def __str__(self) -> str:
        """What was found, and the number of further blocks and files with it."""
        return f"{self.found} (and in {self.count - 1} more)" if self.count > 1 else self.found

    @property
    def told(self) -> str:
        """Action and finding, for audit lines and spans."""
        return f"{self.action.value}: {self}"


class PodReset(_Model):
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
        json_schema_extra=_SET,
    )
    milliseconds: Count = Field(0, description="milliseconds is how long cleaning and checking took.")


class CodeExecutionStatus(_SandboxStatus):
    """CodeExecutionStatus is the record of what happened. Only the operator writes it."""

    phase: Phase = Field(
        Phase.PENDING,
        description="phase is the state of the execution. These phases are final: "
        f"{', '.join(one.value for one in Phase if one.terminal)}.",
    )
    reason: OptionalWord = Field("", description=_REASON)
    message: str = Field("", max_length=4096, description=_MESSAGE)
    conditions: Conditions = Field(
        (),
        description="conditions lists the current conditions. Their types are Accepted, Approved, Queued, "
        "Delayed, EgressClosed, Started and Finished.",
    )
    observed_generation: Generation = Field(0, description=_OBSERVED_GENERATION)
    code_digest: str = Field(
        "",
        max_length=71,
        pattern=r"^(sha256:[0-9a-f]{64})?$",
        description="codeDigest is a SHA-256 digest of all blocks and files, with the prefix sha256:. It is computed "
        "from their languages, paths and digests.",
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
    operator_version: str = Field("", max_length=64, pattern=r"^[0-9A-Za-z.+-]*$", description=_OPERATOR_VERSION)
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
        "written. Beyond 1024 runs the order is not recorded. Empty if outputRefs holds the output.",
    )
    summary: Summary = Field(
        default_factory=Summary,
        description="summary holds short forms of other fields, for the columns of kubectl get.",
    )


class CodeSessionSpec(_Model):
    """CodeSessionSpec is a request for a workspace that executions share. It is immutable, except for ended."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            *_immutable_presence(
                ("requestedBy", "image", "runtimeClassName", "clientLease", "traceparent"), SESSION_KIND
            )
        )
    )

    source: Source = Field(
        description="source describes the origin of the request, as claimed by the client.",
        json_schema_extra=_immutable("source", SESSION_KIND),
    )
    requested_by: UserName | None = Field(
        None,
        description="requestedBy is the user name of the creator, as `kubectl auth whoami` prints it. The chart's "
        "admission policy requires the field and refuses any other name.",
        json_schema_extra=_immutable("requestedBy", SESSION_KIND),
    )
    limits: Limits = Field(
        default_factory=Limits,
        description="limits are the resource limits of the session's pod. Executions in the session must request the "
        "same cpu, memory and ephemeralStorage.",
        json_schema_extra=_immutable("limits", SESSION_KIND) | {"default": {}},
    )
    image: ImageReference | None = Field(
        None,
        description="image is the sandbox image, referenced by digest. Defaults to the policy's first image.",
        json_schema_extra=_immutable("image", SESSION_KIND),
    )
    runtime_class_name: RuntimeClassName | None = Field(
        None,
        description="runtimeClassName is the name of the RuntimeClass of the session's pod, or "
        f"{NODE_RUNTIME} for the node's default runtime. Defaults to the policy's runtimeClassName.",
        json_schema_extra=_immutable("runtimeClassName", SESSION_KIND),
    )
    stateful: bool = Field(
        False,
        description="stateful runs the Python blocks of the session in one IPython kernel, so variables persist from "
        "block to block. Defaults to false.",
        json_schema_extra=_immutable("stateful", SESSION_KIND),
    )
    idle_timeout_seconds: int = Field(
        1800,
        ge=1,
        le=MAX_SESSION_SECONDS,
        description="idleTimeoutSeconds is the number of seconds without an execution after which the session ends. "
        "Defaults to 1800.",
        json_schema_extra=_immutable("idleTimeoutSeconds", SESSION_KIND),
    )
    client_lease: ObjectName | None = Field(
        None,
        description="clientLease is the name of a Lease in the same namespace, which the client "
        "renews. When the Lease was not renewed for its leaseDurationSeconds, or was deleted, and no execution of the "
        "session is running or queued, the session ends. If unset, the session outlives its client.",
        json_schema_extra=_immutable("clientLease", SESSION_KIND),
    )
    max_lifetime_seconds: int = Field(
        28_800,
        ge=1,
        le=MAX_SESSION_SECONDS,
        description="maxLifetimeSeconds is the number of seconds after which the session ends, counted from when it "
        "became ready. Code that is still running is stopped. Defaults to 28800.",
        json_schema_extra=_immutable("maxLifetimeSeconds", SESSION_KIND),
    )
    traceparent: str | None = Field(
        None,
        pattern=TRACEPARENT_PATTERN,
        max_length=55,
        description="traceparent is the W3C trace context of the caller's span. Optional.",
        json_schema_extra=_immutable("traceparent", SESSION_KIND),
    )
    ended: bool = Field(
        False,
        description="ended ends the session and deletes its workspace when set to true. It can't be taken back. "
        "Defaults to false.",
        json_schema_extra=_rules(rule("!oldSelf || self", "spec.ended can't be taken back")),
    )


class CodeSessionStatus(_SandboxStatus):
    """CodeSessionStatus is the record of what happened. Only the operator writes it."""

    phase: SessionPhase = Field(
        SessionPhase.PENDING,
        description="phase is the state of the session. These phases are final: "
        f"{', '.join(one.value for one in SessionPhase if one.terminal)}.",
    )
    reason: OptionalWord = Field("", description=_REASON)
    message: str = Field("", max_length=4096, description=_MESSAGE)
    conditions: Conditions = Field(
        (),
        description="conditions lists the current conditions. Their types are Accepted, Delayed, EgressClosed and "
        "Ready.",
    )
    observed_generation: Generation = Field(0, description=_OBSERVED_GENERATION)
    operator_version: str = Field("", max_length=64, pattern=r"^[0-9A-Za-z.+-]*$", description=_OPERATOR_VERSION)
    pool_name: OptionalName = Field(
        "",
        description="poolName is the name of the SandboxPool that supplied the pod. Empty if the pod is from no pool.",
    )
    started_at: datetime | None = Field(
        None, description="startedAt is the time at which the session became ready. Unset before."
    )
    last_used_at: datetime | None = Field(
        None,
        description="lastUsedAt is the time at which an execution in the session last ended. Before the first one it "
        "is the time at which the session became ready. It can be 30 seconds out of date until the session ends.",
    )
    ended_at: datetime | None = Field(None, description="endedAt is the time at which the session ended. Unset before.")
    executions: Count = Field(
        0,
        description="executions is the number of executions that ran in the session. It is updated together with "
        "lastUsedAt.",
    )


class ObjectMeta(_Status):
    """The metadata that the operator and the client read."""

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
        """Parse an object from the API server, to do what it asks for: what is not known is refused.

        Raises:
            pydantic.ValidationError: a ValueError that names each wrong field.
        """
        return cls.model_validate(raw)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """Read back an object from the API server, to tell of it: another version may have written it.

        Raises:
            pydantic.ValidationError: a ValueError that names each field that is missing or of another type.
        """
        return leniency.read(cls, raw)


class CodeExecution(_Object):
    """CodeExecution is a request to run code, and the audit record of what happened."""

    spec: CodeExecutionSpec = Field(description="spec is the request. It is immutable, except for cancelled.")
    status: CodeExecutionStatus = Field(
        default_factory=CodeExecutionStatus,
        description="status is the record of what happened. Only the operator writes it.",
    )


class CodeSession(_Object):
    """CodeSession is a workspace that executions share, one at a time, and the record of its use. It owns one pod."""

    spec: CodeSessionSpec = Field(description="spec is the request. It is immutable, except for ended.")
    status: CodeSessionStatus = Field(
        default_factory=CodeSessionStatus,
        description="status is the record of what happened. Only the operator writes it.",
    )


class SandboxPoolSpec(_Model):
    """SandboxPoolSpec defines how many sandbox pods the pool keeps ready, and their properties."""

    replicas: int = Field(
        1,
        ge=0,
        le=MAX_POOL_REPLICAS,
        description="replicas is the number of pods to keep ready, in addition to those in use. With 0, executions "
        "and sessions don't use the pool. Defaults to 1.",
    )
    limits: PodLimits = Field(
        default_factory=PodLimits,
        description="limits are the resource limits of each pod.",
        json_schema_extra={"default": {}},
    )
    image: ImageReference | None = Field(
        None,
        description="image is the sandbox image, referenced by digest. Defaults to the policy's first image.",
    )
    runtime_class_name: RuntimeClassName | None = Field(
        None,
        description="runtimeClassName is the name of the RuntimeClass of the pods, or "
        f"{NODE_RUNTIME} for the node's default runtime. Defaults to the policy's runtimeClassName.",
    )
    max_age_seconds: int = Field(
        3600,
        ge=60,
        le=86_400,
        description="maxAgeSeconds is the age in seconds at which an unused pod is replaced, which also limits the age "
        "of its egress proof. Defaults to 3600.",
    )


class SandboxPoolStatus(_Status):
    """SandboxPoolStatus is the observed state of the pool. Only the operator writes it, about once a second at most."""

    replicas: Count = Field(0, description="replicas is the number of pods that are not in use, ready or not.")
    ready_replicas: Count = Field(
        0, description="readyReplicas is the number of pods that are ready to run code and not in use."
    )
    claimed_replicas: Count = Field(
        0,
        description="claimedReplicas is the number of pods that executions and sessions have taken from the pool and "
        "still use.",
    )
    queued: Count = Field(0, description="queued is the number of executions that wait for a pod.")
    last_refill_ms: Count | None = Field(
        None,
        description="lastRefillMs is the time from creation to readiness of the pod that became ready last, in "
        "milliseconds. Unset if there was none yet.",
    )
    selector: str = Field(
        "",
        max_length=512,
        description="selector is the label selector of the pods that are not in use, for the scale subresource.",
    )
    image: str = Field("", max_length=300, description="image is the image reference in the spec of the pods.")
    runtime_class_name: OptionalName = Field("", description=_RUNTIME_CLASS_NAME)
    observed_generation: Generation = Field(0, description=_OBSERVED_GENERATION)
    operator_version: str = Field("", max_length=64, pattern=r"^[0-9A-Za-z.+-]*$", description=_OPERATOR_VERSION)
    conditions: Conditions = Field((), description="conditions lists the current conditions. The only type is Ready.")

    def dump(self) -> dict[str, Any]:
        """The form that the API server stores. It includes default values, so that a patch can set a count to 0."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class SandboxPool(_Object):
    """SandboxPool keeps sandbox pods ready, so that code starts at once. Each pod is used by one execution or session.

    An execution or a session gets a pod of the pool if it has the same image, runtimeClassName, cpu, memory and
    ephemeralStorage, no more pids, and no sessionRef, egress or mounts. A session gets a pod only if one is ready.
    """

    spec: SandboxPoolSpec = Field(
        description="spec is the desired state of the pool: the number of pods to keep ready, and their properties."
    )
    status: SandboxPoolStatus = Field(
        default_factory=SandboxPoolStatus,
        description="status is the observed state of the pool. Only the operator writes it.",
    )


_HIGHEST_CPU: Final = "cpu is the highest limits.cpu in cores, as a quantity."
_HIGHEST_MEMORY: Final = "memory is the highest limits.memory in bytes, as a quantity."
_HIGHEST_STORAGE: Final = "ephemeralStorage is the highest limits.ephemeralStorage in bytes, as a quantity."
_HIGHEST_PIDS: Final = "pids is the highest limits.pids."


class PolicyLimits(_Model):
    """PolicyLimits are the highest limits that executions, sessions and pools can request."""

    cpu: Quantity = Field("1", description=f"{_HIGHEST_CPU} Defaults to 1.")
    memory: Quantity = Field("1Gi", description=f"{_HIGHEST_MEMORY} Defaults to 1Gi.")
    ephemeral_storage: Quantity = Field("1Gi", description=f"{_HIGHEST_STORAGE} Defaults to 1Gi.")
    pids: int = Field(1024, ge=1, le=MAX_PIDS, description=f"{_HIGHEST_PIDS} Defaults to 1024.")
    output_bytes: int = Field(
        MAX_OUTPUT_BYTES,
        ge=1024,
        le=MAX_OUTPUT_BYTES,
        description=f"outputBytes is the highest limits.outputBytes, in bytes. Defaults to {MAX_OUTPUT_BYTES}.",
    )


class SomeLimits(_Model):
    """SomeLimits are highest limits, each of which is optional."""

    cpu: QuantityText | None = Field(None, description=_HIGHEST_CPU)
    memory: QuantityText | None = Field(None, description=_HIGHEST_MEMORY)
    ephemeral_storage: QuantityText | None = Field(None, description=_HIGHEST_STORAGE)
    pids: int | None = Field(None, ge=1, le=MAX_PIDS, description=_HIGHEST_PIDS)


class PodRequests(_Model):
    """PodRequests are what each sandbox pod requests of its node. If the pod's limit is lower, it requests its limit.

    If a request is unset, it is that of the operator's default policy.
    """

    cpu: Quantity | None = Field(
        None,
        description="cpu is the requested CPU in cores, as a quantity. It is also the share that a pod gets of a busy "
        f"node. The operator's default is {DEFAULT_REQUESTS['cpu']}.",
    )
    memory: Quantity | None = Field(
        None,
        description="memory is the requested memory in bytes, as a quantity. The operator's default is "
        f"{DEFAULT_REQUESTS['memory']}.",
    )
    ephemeral_storage: Quantity | None = Field(
        None,
        description="ephemeralStorage is the requested disk in bytes, as a quantity. The operator's default is "
        f"{DEFAULT_REQUESTS['ephemeral_storage']}.",
    )


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(f"{error}; write a network such as 10.1.0.0/16, with all bits after its prefix 0") from error


class EgressRule(_Model):
    """EgressRule allows egress destinations: those in an address range or with exactly these selectors, and a port.

    Set either cidr or the selectors (podSelector, namespaceSelector, or both).
    """

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
        None,
        max_length=49,
        pattern=CIDR_PATTERN,
        description="cidr is an address range. The rule allows each destination whose cidr is within it.",
        json_schema_extra={"pattern": CIDR_PATTERN},  # pydantic omits it behind a validator
    )
    pod_selector: Selector | None = Field(
        None, description="podSelector is the podSelector that a destination must have. If unset, it must have none."
    )
    namespace_selector: Selector | None = Field(
        None,
        description="namespaceSelector is the namespaceSelector that a destination must have. If unset, it must have "
        "none.",
    )
    port: Port = Field(description="port is the allowed port, or the first one of a range.")
    end_port: Port | None = Field(
        None, description="endPort is the last port of the range. If unset, only port is allowed."
    )
    protocol: Protocol = Field("TCP", description="protocol is TCP or UDP. Defaults to TCP.")

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if (self.cidr is None) == (self.pod_selector is None and self.namespace_selector is None):
            raise ValueError("there must be one of cidr, and podSelector or namespaceSelector or both")
        if self.end_port is not None and self.end_port < self.port:
            raise ValueError(f"endPort is {self.end_port}, but must not be below port, {self.port}")
        return self

    def __str__(self) -> str:
        """Text such as `10.1.0.0/16:443-8443/TCP`."""
        if self.cidr is None:
            peer = _selected(self.pod_selector, self.namespace_selector)
        else:
            peer = f"[{self.cidr}]" if ":" in self.cidr else self.cidr
        ports = f"{self.port}-{self.end_port}" if self.end_port else str(self.port)
        return f"{peer}:{ports}/{self.protocol}"


class CodeRule(_Model):
    """CodeRule defines what happens to Python code that imports one of the listed modules."""

    imports: tuple[Annotated[str, Field(max_length=64, pattern=MODULE_PATTERN)], ...] = Field(
        min_length=1,
        max_length=MAX_IMPORTS,
        description="imports lists module names. A module includes its submodules: os includes os.path. The operator "
        "reads Python blocks, and blocks and files with the extension .py, .pyc or .so.",
        json_schema_extra=_SET,
    )
    action: CodeAction = Field(
        description="action is what happens to code that matches. Note: the code runs, and the status lists the "
        "finding. NeedApproval: the execution waits for approval. Deny: the execution is denied. If several rules "
        "match, the strictest applies. To unreadable Python, the strictest of all rules applies."
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
    """Approvable lists what an approver can allow in addition to the policy. All other requests are denied."""

    images: tuple[ImageReference, ...] = Field(
        (),
        max_length=64,
        description="images lists further images, referenced by digest.",
        json_schema_extra=_SET,
    )
    languages: tuple[LanguageName, ...] = Field(
        (), max_length=16, description="languages lists further languages.", json_schema_extra=_SET
    )
    runtime_class_names: tuple[RuntimeClassName, ...] = Field(
        (),
        max_length=16,
        description="runtimeClassNames lists the names of further RuntimeClasses.",
        json_schema_extra=_SET,
    )
    max_timeout_seconds: int | None = Field(
        None,
        ge=1,
        le=MAX_TIMEOUT_SECONDS,
        description="maxTimeoutSeconds is the highest timeoutSeconds that an approver can allow, in seconds. If unset, "
        "the policy's maximum can't be exceeded.",
    )
    max_blocks: int | None = Field(
        None,
        ge=1,
        le=MAX_BLOCKS,
        description="maxBlocks is the highest number of blocks that an approver can allow. If unset, the policy's "
        "maximum can't be exceeded.",
    )
    max_limits: SomeLimits = Field(
        default_factory=SomeLimits,
        description="maxLimits are the highest limits that an approver can allow. If a limit is unset, the policy's "
        "maximum can't be exceeded.",
        json_schema_extra={"default": {}},
    )
    egress: _EgressRules = Field((), description="egress lists rules that allow further egress destinations.")
    mounts: _MountRules = Field((), description="mounts lists further objects that executions can mount.")


class AgentRule(_Model):
    """AgentRule replaces parts of the policy for some requests. Fields that are unset keep the policy's values.

    Set agent, requestedBy, or both.
    """

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
        description="agent selects requests with this spec.source.agent. Any client can claim any agent name. To allow "
        "more to some clients, set requestedBy.",
    )
    requested_by: UserName | None = Field(None, description="requestedBy selects requests of this user.")
    images: tuple[ImageReference, ...] | None = Field(
        None, min_length=1, max_length=64, description="images replaces the policy's images."
    )
    languages: tuple[LanguageName, ...] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="languages replaces the policy's languages.",
        json_schema_extra=_SET,
    )
    runtime_class_names: tuple[RuntimeClassName, ...] | None = Field(
        None,
        max_length=16,
        description="runtimeClassNames replaces the policy's runtimeClassNames.",
        json_schema_extra=_SET,
    )
    max_timeout_seconds: int | None = Field(
        None,
        ge=1,
        le=MAX_TIMEOUT_SECONDS,
        description="maxTimeoutSeconds replaces the policy's maxTimeoutSeconds, in seconds.",
    )
    max_blocks: int | None = Field(None, ge=1, le=MAX_BLOCKS, description="maxBlocks replaces the policy's maxBlocks.")
    max_limits: SomeLimits | None = Field(
        None, description="maxLimits replaces single limits of the policy's maxLimits. Others keep their values."
    )
    egress: _EgressRules | None = Field(None, description="egress replaces the policy's egress.")
    mounts: _MountRules | None = Field(None, description="mounts replaces the policy's mounts.")
    code_rules: _CodeRules | None = Field(None, description="codeRules replaces the policy's codeRules.")
    with_approval: Approvable | None = Field(
        None, description="withApproval replaces the policy's withApproval as a whole."
    )


class RecordRetention(_Model):
    """RecordRetention defines when the operator deletes records of finished executions and sessions.

    Executions and sessions count together. The oldest is deleted first, and a session's record after its executions'.
    """

    max_age_seconds: int | None = Field(
        None,
        ge=MIN_RECORD_SECONDS,
        le=100 * 366 * 86_400,
        description="maxAgeSeconds is the number of seconds for which a record is kept after its end. If unset, the "
        "age has no limit.",
    )
    max_count: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="maxCount is the number of finished records that are kept. A record younger than "
        f"{MIN_RECORD_SECONDS} seconds is kept in any case. If unset, the number has no limit.",
    )
    require_export: bool = Field(
        False,
        description="requireExport defines whether a record is kept until the export job has written it. It is also "
        "true if it is true in the operator's default policy. Defaults to false.",
    )

    @property
    def limited(self) -> bool:
        """True if records are deleted at all."""
        return self.max_age_seconds is not None or self.max_count is not None


class PodReuse(_Model):
    """PodReuse defines whether ready pods of pools are used more than once."""

    max_executions: int = Field(
        1,
        ge=1,
        le=MAX_POD_USES,
        description="maxExecutions is the number of executions that a pod of a pool can run, one after the other, all "
        "of one requester and agent with the same image and limits. Between two, the pod is cleaned and checked, and "
        "it is deleted if the check fails. 1: each pod is used once. Defaults to 1.",
    )


class ExecutionPolicySpec(_Model):
    """ExecutionPolicySpec defines what requests in the namespace can ask for, with and without approval."""

    images: tuple[ImageReference, ...] = Field(
        min_length=1,
        max_length=64,
        description="images lists the allowed images, referenced by digest. The first one is the default.",
    )
    image_signatures: tuple[ImageSignature, ...] = Field(
        (),
        max_length=64,
        description="imageSignatures lists signatures of images, as Sigstore bundles. If the operator was given public "
        "keys, it uses no image without a signature by one of them. The signatures in the operator's default policy "
        "count, too.",
    )
    languages: tuple[LanguageName, ...] = Field(
        ("python", "bash", "sh", "javascript", "pwsh"),
        min_length=1,
        max_length=16,
        description="languages lists the allowed languages. The image must support them, too. Defaults to all "
        "languages.",
        json_schema_extra=_SET,
    )
    runtime_class_name: RuntimeClassName | None = Field(
        None,
        description="runtimeClassName is the name of the RuntimeClass for requests that name none, or "
        f"{NODE_RUNTIME} for the node's default runtime. If unset, it is that of the operator's default policy.",
    )
    runtime_class_names: tuple[RuntimeClassName, ...] = Field(
        (),
        max_length=16,
        description="runtimeClassNames lists the RuntimeClasses that requests can name, in addition to "
        f"runtimeClassName. {NODE_RUNTIME} allows the node's default runtime.",
        json_schema_extra=_SET,
    )
    require_user_namespaces: bool = Field(
        False,
        description="requireUserNamespaces defines what happens if a sandbox doesn't have its own user namespace. "
        "true: no code runs. false: the code runs, and status.layers says what held. It is also true if it is true in "
        "the operator's default policy. Defaults to false.",
    )
    egress_proof: EgressMode = Field(
        EgressMode.ENFORCE,
        description="egressProof defines what happens if the operator can't show that the network of a sandbox is "
        "closed. Enforce: no code runs. Warn: the code runs, and the status says so. Defaults to Enforce.",
    )
    max_timeout_seconds: int = Field(
        600,
        ge=1,
        le=MAX_TIMEOUT_SECONDS,
        description="maxTimeoutSeconds is the highest timeoutSeconds, in seconds. Defaults to 600.",
    )
    max_blocks: int = Field(
        32,
        ge=1,
        le=MAX_BLOCKS,
        description="maxBlocks is the highest number of blocks in one execution. Defaults to 32.",
    )
    max_limits: PolicyLimits = Field(
        default_factory=PolicyLimits,
        description="maxLimits are the highest limits that requests can have. If unset, each limit has its default.",
    )
    requests: PodRequests = Field(
        default_factory=PodRequests,
        description="requests are what each pod of an execution, session or pool requests of its node. Its limits are "
        "not affected.",
        json_schema_extra={"default": {}},
    )
    egress: _EgressRules = Field(
        (),
        description="egress lists the rules for the destinations that executions can request. If unset, the network "
        "stays closed.",
    )
    mounts: _MountRules = Field(
        (),
        description="mounts lists the PersistentVolumeClaims and ConfigMaps that executions can mount read-only. If "
        "unset, there are none.",
    )
    code_rules: _CodeRules = Field(
        (),
        description="codeRules define what happens to Python code that imports certain modules. They are advice and no "
        "isolation, because code can bypass them. If unset, there are none.",
    )
    with_approval: Approvable = Field(
        default_factory=Approvable,
        description="withApproval lists what an approver can allow in addition to the policy. If unset, approvers "
        "can't allow anything.",
        json_schema_extra={"default": {}},
    )
    approval_timeout_seconds: int = Field(
        3600,
        ge=1,
        le=86_400,
        description="approvalTimeoutSeconds is the number of seconds for which an execution waits for a decision. "
        "Without one it ends as Expired. Defaults to 3600.",
    )
    agent_rules: tuple[AgentRule, ...] = Field(
        (),
        max_length=MAX_AGENT_RULES,
        description="agentRules lists exceptions for some requests. Only the first rule that matches a request "
        "applies. Rules with requestedBy come before rules without it.",
    )
    pod_ttl_seconds: int = Field(
        60,
        ge=0,
        le=86_400,
        alias="podTTLSeconds",
        description="podTTLSeconds is the number of seconds for which finished pods and their logs are kept. An "
        "execution can request less with ttlSecondsAfterFinished. Defaults to 60.",
    )
    output_ttl_seconds: int = Field(
        86_400,
        ge=60,
        le=30 * 86_400,
        alias="outputTTLSeconds",
        description="outputTTLSeconds is the number of seconds for which large output and fetched files are kept after "
        "their creation. Digests and sizes stay in the status. Defaults to 86400.",
    )
    max_session_idle_seconds: int = Field(
        3600,
        ge=1,
        le=MAX_SESSION_SECONDS,
        description="maxSessionIdleSeconds is the highest idleTimeoutSeconds of a session, in seconds. Defaults to "
        "3600.",
    )
    max_session_lifetime_seconds: int = Field(
        28_800,
        ge=1,
        le=MAX_SESSION_SECONDS,
        description="maxSessionLifetimeSeconds is the highest maxLifetimeSeconds of a session, in seconds. Defaults to "
        "28800.",
    )
    pod_reuse: PodReuse = Field(
        default_factory=PodReuse,
        description="podReuse defines whether ready pods of pools are used more than once. If unset, each pod is used "
        "once.",
        json_schema_extra={"default": {}},
    )
    records: RecordRetention = Field(
        default_factory=RecordRetention,
        description="records defines when records of finished executions and sessions are deleted. If unset, they are "
        "kept.",
        json_schema_extra={"default": {}},
    )


class ExecutionPolicy(_Object):
    """ExecutionPolicy defines what requests in its namespace can ask for. It must have the name default.

    It replaces the operator's default policy as a whole. Changes apply to executions that have not started.
    """

    spec: ExecutionPolicySpec = Field(description="spec is the policy.")


class ExecutionRef(_Model):
    """ExecutionRef identifies the execution that the decision is about."""

    name: ObjectName = Field(description="name is the name of a CodeExecution in the same namespace.")
    uid: str = Field(
        min_length=1,
        max_length=64,
        description="uid is the metadata.uid of the CodeExecution. The decision has no effect on a later CodeExecution "
        "with the same name.",
    )
    requested_by: UserName = Field(description="requestedBy is the spec.requestedBy of the CodeExecution.")


class ExecutionApprovalSpec(_Model):
    """ExecutionApprovalSpec is a decision about one execution. It is immutable, except that it can be revoked."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            *_immutable_presence(("grants", "reason", "expiresAt"), APPROVAL_KIND),
            rule(
                "self.approver != self.executionRef.requestedBy",
                "spec.approver: nobody approves their own request; another user has to approve",
                field=".approver",
            ),
            rule(
                "self.decision != 'Approve' || (has(self.grants) && has(self.expiresAt))",
                "to approve, set grants to those in the execution's status.approval, and set expiresAt",
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
        description="executionRef identifies the execution that the decision is about.",
        json_schema_extra=_immutable("executionRef", APPROVAL_KIND),
    )
    decision: Literal["Approve", "Deny"] = Field(
        description="decision is Approve to let the code run, or Deny to end the execution as Denied.",
        json_schema_extra=_immutable("decision", APPROVAL_KIND),
    )
    grants: tuple[Grant, ...] | None = Field(
        None,
        min_length=1,
        max_length=MAX_GRANTS,
        description="grants lists what is approved. It must equal the grants in the execution's status.approval, else "
        "the approval has no effect. Required to approve.",
        json_schema_extra=_immutable("grants", APPROVAL_KIND),
    )
    approver: UserName = Field(
        description="approver is the user name of the creator, as `kubectl auth whoami` prints it. The chart's "
        "admission policy refuses any other name. The approver must not be the user who requested the execution.",
        json_schema_extra=_immutable("approver", APPROVAL_KIND),
    )
    reason: str = Field(
        "",
        max_length=1024,
        description="reason is the reason for the decision, for the audit record and the agent. Optional.",
        json_schema_extra=_immutable("reason", APPROVAL_KIND),
    )
    expires_at: datetime | None = Field(
        None,
        description="expiresAt is the time at which the approval expires. If the code has not started by then, it does "
        "not run. Required to approve.",
        json_schema_extra=_immutable("expiresAt", APPROVAL_KIND),
    )
    revoked: bool = Field(
        False,
        description="revoked withdraws the decision when set to true. It can't be taken back. It does not stop code "
        "that has started: cancel the execution instead. Defaults to false.",
        json_schema_extra=_rules(rule("!oldSelf || self", "spec.revoked can't be taken back: decide anew instead")),
    )
    revoked_by: UserName | None = Field(
        None,
        description="revokedBy is the name of the user who sets revoked, as `kubectl auth whoami` prints it. The "
        "chart's admission policy refuses any other name. Required if revoked is true.",
    )


class ExecutionApproval(_Object):
    """ExecutionApproval is a decision about one execution that needs approval."""

    spec: ExecutionApprovalSpec = Field(
        description="spec is the decision. It is immutable, except that it can be revoked."
    )


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
    """An object with this spec, in the form that the API server takes."""
    kind = _KINDS[type(spec)]
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec.dump(),
    }
