"""ExecutionPolicy: what requests in a namespace can ask for."""

from enum import StrEnum

from pydantic import ConfigDict, Field

from codeexec_api.names import NODE_RUNTIME, POLICY_KIND, POLICY_PLURAL
from codeexec_api.v1alpha1.access import EgressRules, MountRules
from codeexec_api.v1alpha1.base import Model, Object, Status
from codeexec_api.v1alpha1.bounds import (
    MAX_AGENT_RULES,
    MAX_BLOCKS,
    MAX_POD_USES,
    MAX_SESSION_SECONDS,
    MAX_TIMEOUT_SECONDS,
    MIN_RECORD_SECONDS,
)
from codeexec_api.v1alpha1.code_rules import CodeRules
from codeexec_api.v1alpha1.fields import (
    SET,
    Generation,
    ImageReference,
    ImageSignature,
    LanguageName,
    RuntimeClassName,
    UserName,
    rule,
    rules,
)
from codeexec_api.v1alpha1.limits import PodRequests, PolicyLimits, SomeLimits
from codeexec_api.v1alpha1.sandbox import Conditions


class EgressMode(StrEnum):
    """What the operator does if it can't show that the network of a sandbox is closed."""

    ENFORCE = "Enforce"
    """Run no code."""
    WARN = "Warn"
    """Run the code and record that the network may be open."""


class Approvable(Model):
    """Approvable lists what an approver can allow in addition to the policy. All other requests are denied."""

    images: tuple[ImageReference, ...] = Field(
        (),
        max_length=64,
        description="images lists further images, referenced by digest.",
        json_schema_extra=SET,
    )
    languages: tuple[LanguageName, ...] = Field(
        (), max_length=16, description="languages lists further languages.", json_schema_extra=SET
    )
    runtime_class_names: tuple[RuntimeClassName, ...] = Field(
        (),
        max_length=16,
        description="runtimeClassNames lists the names of further RuntimeClasses.",
        json_schema_extra=SET,
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
    egress: EgressRules = Field((), description="egress lists rules that allow further egress destinations.")
    mounts: MountRules = Field((), description="mounts lists further objects that executions can mount.")


class AgentRule(Model):
    """AgentRule replaces parts of the policy for some requests. Fields that are unset keep the policy's values.

    Set agent, requestedBy, or both.
    """

    model_config = ConfigDict(
        json_schema_extra=rules(
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
        json_schema_extra=SET,
    )
    runtime_class_names: tuple[RuntimeClassName, ...] | None = Field(
        None,
        max_length=16,
        description="runtimeClassNames replaces the policy's runtimeClassNames.",
        json_schema_extra=SET,
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
    egress: EgressRules | None = Field(None, description="egress replaces the policy's egress.")
    mounts: MountRules | None = Field(None, description="mounts replaces the policy's mounts.")
    code_rules: CodeRules | None = Field(None, description="codeRules replaces the policy's codeRules.")
    with_approval: Approvable | None = Field(
        None, description="withApproval replaces the policy's withApproval as a whole."
    )


class RecordRetention(Model):
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


class PodReuse(Model):
    """PodReuse defines whether ready pods of pools are used more than once."""

    max_executions: int = Field(
        1,
        ge=1,
        le=MAX_POD_USES,
        description="maxExecutions is the number of executions that a pod of a pool can run, one after the other, all "
        "of one requester and agent with the same image and limits. Between two executions, the pod is cleaned "
        "and checked. If the check fails, the pod is deleted. 1: each pod is used once. Defaults to 1.",
    )


class SessionSleep(Model):
    """SessionSleep defines whether sessions can sleep: their files are stored, and their pods are deleted."""

    min_after_seconds: int | None = Field(
        None,
        ge=1,
        le=MAX_SESSION_SECONDS,
        description="minAfterSeconds is the lowest sleepAfterSeconds of a session, in seconds. Sessions sleep only if "
        "the operator has an output store, which keeps their files. If unset, sessions can't sleep.",
    )


class ExecutionPolicySpec(Model):
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
        json_schema_extra=SET,
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
        json_schema_extra=SET,
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
    egress: EgressRules = Field(
        (),
        description="egress lists the rules for the destinations that executions can request. If unset, the network "
        "stays closed.",
    )
    mounts: MountRules = Field(
        (),
        description="mounts lists the PersistentVolumeClaims and ConfigMaps that executions can mount read-only. If "
        "unset, there are none.",
    )
    code_rules: CodeRules = Field(
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
    session_sleep: SessionSleep = Field(
        default_factory=SessionSleep,
        description="sessionSleep defines whether sessions can sleep. If unset, they can't.",
        json_schema_extra={"default": {}},
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


class ExecutionPolicyStatus(Status):
    """ExecutionPolicyStatus is the observed state of the policy. Only the operator writes it."""

    observed_generation: Generation = Field(
        0, description="observedGeneration is the metadata.generation that the operator last read."
    )
    conditions: Conditions = Field(
        (),
        description="conditions lists the current conditions. The only type is Ready. True: the policy is in force. "
        "False: the operator can't read the policy, and nothing new runs in the namespace.",
    )


class ExecutionPolicy(Object):
    """ExecutionPolicy defines what requests in its namespace can ask for. It must have the name default.

    It replaces the operator's default policy as a whole. Changes apply to executions that have not started.
    """

    kind = POLICY_KIND
    plural = POLICY_PLURAL

    spec: ExecutionPolicySpec = Field(description="spec is the policy.")
    status: ExecutionPolicyStatus = Field(
        default_factory=ExecutionPolicyStatus,
        description="status is the observed state of the policy. Only the operator writes it.",
    )
