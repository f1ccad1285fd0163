"""SandboxPool: pods that are ready before they are needed."""

from typing import Any

from pydantic import Field

from codeexec_api.names import NODE_RUNTIME, POOL_KIND, POOL_PLURAL
from codeexec_api.v1alpha1.base import Model, Object, Status
from codeexec_api.v1alpha1.bounds import MAX_POOL_REPLICAS
from codeexec_api.v1alpha1.fields import Count, Generation, ImageReference, OptionalName, RuntimeClassName
from codeexec_api.v1alpha1.limits import PodLimits
from codeexec_api.v1alpha1.sandbox import OBSERVED_GENERATION, OPERATOR_VERSION, RUNTIME_CLASS_NAME, Conditions


class SandboxPoolSpec(Model):
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
    stateful: bool = Field(
        False,
        description="stateful starts an IPython kernel in each pod before the pod counts as ready. Only stateful "
        "sessions take pods of such a pool, and only with the same pids. Defaults to false.",
    )
    max_age_seconds: int = Field(
        3600,
        ge=60,
        le=86_400,
        description="maxAgeSeconds is the age in seconds at which an unused pod is replaced, which also limits the age "
        "of its egress proof. Defaults to 3600.",
    )


class SandboxPoolStatus(Status):
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
    runtime_class_name: OptionalName = Field("", description=RUNTIME_CLASS_NAME)
    observed_generation: Generation = Field(0, description=OBSERVED_GENERATION)
    operator_version: str = Field("", max_length=64, pattern=r"^[0-9A-Za-z.+-]*$", description=OPERATOR_VERSION)
    conditions: Conditions = Field((), description="conditions lists the current conditions. The only type is Ready.")

    def dump(self) -> dict[str, Any]:
        """The form that the API server stores. It includes default values, so that a patch can set a count to 0."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class SandboxPool(Object):
    """SandboxPool keeps sandbox pods ready, so that code starts at once.

    Each pod is used by one execution or session, unless the policy sets podReuse. An execution or a session gets a pod
    of the pool if it has the same image, runtimeClassName, cpu, memory and ephemeralStorage, no more pids, and no
    sessionRef, egress or mounts. A session gets a pod only if one is ready. Pods of a stateful pool are for stateful
    sessions only.
    """

    kind = POOL_KIND
    plural = POOL_PLURAL

    spec: SandboxPoolSpec = Field(
        description="spec is the desired state of the pool: the number of pods to keep ready, and their properties."
    )
    status: SandboxPoolStatus = Field(
        default_factory=SandboxPoolStatus,
        description="status is the observed state of the pool. Only the operator writes it.",
    )
