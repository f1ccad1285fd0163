"""CodeSession: a workspace that executions share."""

from datetime import datetime

from pydantic import ConfigDict, Field

from codeexec_api.names import NODE_RUNTIME, SESSION_KIND, SESSION_PLURAL
from codeexec_api.phases import SessionPhase
from codeexec_api.v1alpha1.base import Model, Object, Status
from codeexec_api.v1alpha1.bounds import (
    DEFAULT_IDLE_SECONDS,
    DEFAULT_LIFETIME_SECONDS,
    MAX_KEPT_FILES,
    MAX_SESSION_SECONDS,
    MAX_STORE_URL,
    MAX_STORED_BYTES,
    STORE_URL_PATTERN,
    TRACEPARENT_PATTERN,
)
from codeexec_api.v1alpha1.fields import (
    Count,
    Generation,
    ImageReference,
    ObjectName,
    OptionalName,
    OptionalWord,
    RuntimeClassName,
    Sha256,
    UserName,
    rule,
    rules,
)
from codeexec_api.v1alpha1.limits import Limits
from codeexec_api.v1alpha1.sandbox import (
    MESSAGE,
    OBSERVED_GENERATION,
    OPERATOR_VERSION,
    REASON,
    Conditions,
    SandboxStatus,
    Source,
)


class CodeSessionSpec(Model):
    """CodeSessionSpec is a request for a workspace that executions share. It is immutable, except for ended."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.sleepAfterSeconds) || !self.stateful",
                "spec.sleepAfterSeconds: a stateful session can't sleep, because its variables would be lost",
            ),
            rule(
                "!has(self.sleepAfterSeconds) || self.sleepAfterSeconds < self.idleTimeoutSeconds",
                "spec.sleepAfterSeconds must be lower than spec.idleTimeoutSeconds, which ends the session",
            ),
        )
    )

    source: Source = Field(
        description="source describes the origin of the request, as claimed by the client.",
    )
    requested_by: UserName | None = Field(
        None,
        description="requestedBy is the user name of the creator, as `kubectl auth whoami` prints it. The chart's "
        "admission policy requires the field and refuses any other name.",
    )
    limits: Limits = Field(
        default_factory=Limits,
        description="limits are the resource limits of the session's pod. Executions in the session must request the "
        "same cpu, memory and ephemeralStorage.",
        json_schema_extra={"default": {}},
    )
    image: ImageReference | None = Field(
        None,
        description="image is the sandbox image, referenced by digest. Defaults to the policy's first image.",
    )
    runtime_class_name: RuntimeClassName | None = Field(
        None,
        description="runtimeClassName is the name of the RuntimeClass of the session's pod, or "
        f"{NODE_RUNTIME} for the node's default runtime. Defaults to the policy's runtimeClassName.",
    )
    stateful: bool = Field(
        False,
        description="stateful runs the Python blocks of the session in one IPython kernel, so variables persist from "
        "block to block. Defaults to false.",
    )
    idle_timeout_seconds: int = Field(
        DEFAULT_IDLE_SECONDS,
        ge=1,
        le=MAX_SESSION_SECONDS,
        description="idleTimeoutSeconds is the number of seconds without an execution after which the session ends. "
        "Defaults to 1800.",
    )
    sleep_after_seconds: int | None = Field(
        None,
        ge=1,
        le=MAX_SESSION_SECONDS,
        description="sleepAfterSeconds is the number of seconds without an execution after which the session sleeps: "
        "its files are stored, its pod is deleted, and the next execution wakes it with its files. The policy has to "
        "allow it. It can't be set for stateful sessions. If unset, the session never sleeps.",
    )
    client_lease: ObjectName | None = Field(
        None,
        description="clientLease is the name of a Lease in the same namespace, which the client "
        "renews. When the Lease was not renewed for its leaseDurationSeconds, or was deleted, and no execution of the "
        "session is running or queued, the session ends. If unset, the session outlives its client.",
    )
    max_lifetime_seconds: int = Field(
        DEFAULT_LIFETIME_SECONDS,
        ge=1,
        le=MAX_SESSION_SECONDS,
        description="maxLifetimeSeconds is the number of seconds after which the session ends, counted from when it "
        "became ready. Code that is still running is stopped. Defaults to 28800.",
    )
    traceparent: str | None = Field(
        None,
        pattern=TRACEPARENT_PATTERN,
        max_length=55,
        description="traceparent is the W3C trace context of the caller's span. Optional.",
    )
    ended: bool = Field(
        False,
        description="ended ends the session and deletes its workspace when set to true. It can't be taken back. "
        "Defaults to false.",
        json_schema_extra=rules(rule("!oldSelf || self", "spec.ended can't be taken back")),
    )


class StoredFiles(Status):
    """StoredFiles describes the workspace of a session as it was when the session last fell asleep."""

    url: str = Field(
        pattern=f"^{STORE_URL_PATTERN}$",
        max_length=MAX_STORE_URL,
        description="url is the URL of the operator's output store. The objects are in NAMESPACE/UID of the session.",
    )
    sha256: Sha256 = Field(
        description="sha256 is the SHA-256 digest of the list of files, as 64 lower-case hexadecimal digits. The list "
        "has the path, mode, size and digest of each file. The digest is also the name of its object.",
    )
    entries: int = Field(ge=0, le=MAX_KEPT_FILES, description="entries is the number of files and folders.")
    size_bytes: int = Field(ge=0, le=MAX_STORED_BYTES, description="sizeBytes is the size of all files, in bytes.")
    stored_at: datetime = Field(description="storedAt is the time at which the last object was stored.")


class CodeSessionStatus(SandboxStatus):
    """CodeSessionStatus is the record of what happened. Only the operator writes it."""

    phase: SessionPhase = Field(
        SessionPhase.PENDING,
        description="phase is the state of the session. These phases are final: "
        f"{', '.join(one.value for one in SessionPhase if one.terminal)}.",
    )
    reason: OptionalWord = Field("", description=REASON)
    message: str = Field("", max_length=4096, description=MESSAGE)
    conditions: Conditions = Field(
        (),
        description="conditions lists the current conditions. Their types are Accepted, Asleep, Delayed, EgressClosed "
        "and Ready.",
    )
    observed_generation: Generation = Field(0, description=OBSERVED_GENERATION)
    operator_version: str = Field("", max_length=64, pattern=r"^[0-9A-Za-z.+-]*$", description=OPERATOR_VERSION)
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
    sleeps: Count = Field(0, description="sleeps is the number of times that the session has fallen asleep.")
    stored_files: StoredFiles | None = Field(
        None,
        description="storedFiles describes the workspace as it was when the session last fell asleep. Unset if it "
        "never has.",
    )


class CodeSession(Object):
    """CodeSession is a workspace that executions share, one at a time, and the record of its use. It owns one pod."""

    kind = SESSION_KIND
    plural = SESSION_PLURAL

    spec: CodeSessionSpec = Field(description="spec is the request. It is immutable, except for ended.")
    status: CodeSessionStatus = Field(
        default_factory=CodeSessionStatus,
        description="status is the record of what happened. Only the operator writes it.",
    )
