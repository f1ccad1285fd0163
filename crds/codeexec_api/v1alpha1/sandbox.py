"""What executions and sessions have in common: who asked for them, and what is recorded of their sandbox."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from codeexec_api.v1alpha1.base import Model, Status
from codeexec_api.v1alpha1.bounds import MAX_EGRESS_TARGETS
from codeexec_api.v1alpha1.fields import SET, AgentName, Generation, OptionalName, Sha256, Word


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


class Source(Model):
    """Source describes the origin of a request, as claimed by the client."""

    agent: AgentName = Field(
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


class Condition(Status):
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


OBSERVED_GENERATION: Final = "observedGeneration is the metadata.generation that the operator last acted on."
OPERATOR_VERSION: Final = "operatorVersion is the version of the operator that last wrote the status."
REASON: Final = "reason is the reason for the phase in one word, for programs."
MESSAGE: Final = "message is the reason for the phase in words, for people. It can suggest a remedy."


class EgressTarget(Status):
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


class EgressProof(Status):
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


class AuditAnchor(Status):
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


RUNTIME_CLASS_NAME: Final = (
    "runtimeClassName is the name of the RuntimeClass in the spec of the pod. Empty for the node's default runtime."
)


class SandboxStatus(Status):
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
    runtime_class_name: OptionalName = Field("", description=RUNTIME_CLASS_NAME)
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
        json_schema_extra=SET,
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


SANDBOX_FIELDS: Final = tuple(name for name in SandboxStatus.model_fields if name != "audit")
"""What an execution in a session has from its session."""
