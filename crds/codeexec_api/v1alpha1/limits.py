"""Resources of a sandbox pod: limits, highest limits and requests."""

from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from codeexec_api.quantities import QUANTITY_PATTERN, parse_quantity
from codeexec_api.v1alpha1.base import Model
from codeexec_api.v1alpha1.bounds import DEFAULT_REQUESTS, MAX_OUTPUT_BYTES, MAX_PIDS, MAX_STORED_BYTES
from codeexec_api.v1alpha1.fields import rule


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
"""A quantity inside a list. The API server needs a bounded length to estimate the cost of its rules. Kubernetes 1.32
knows none for an integer or string, so this is a string, and a bare number must be quoted in YAML (ADR 0047)."""


class PodLimits(Model):
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


_WITHOUT_STORE: Final = f"Without an output store of the operator, at most {MAX_OUTPUT_BYTES} are allowed."


class Limits(PodLimits):
    """Limits are the resource limits of the sandbox pod, and the limit of the output that is kept."""

    output_bytes: int = Field(
        MAX_OUTPUT_BYTES,
        ge=1024,
        le=MAX_STORED_BYTES,
        description="outputBytes is the number of bytes that are kept of stdout, and the same of stderr. Output beyond "
        f"the limit is counted and discarded. {_WITHOUT_STORE} Defaults to {MAX_OUTPUT_BYTES} "
        f"({MAX_OUTPUT_BYTES // 2**20} MiB).",
    )


_HIGHEST_CPU: Final = "cpu is the highest limits.cpu in cores, as a quantity."
_HIGHEST_MEMORY: Final = "memory is the highest limits.memory in bytes, as a quantity."
_HIGHEST_STORAGE: Final = "ephemeralStorage is the highest limits.ephemeralStorage in bytes, as a quantity."
_HIGHEST_PIDS: Final = "pids is the highest limits.pids."


class PolicyLimits(Model):
    """PolicyLimits are the highest limits that executions, sessions and pools can request."""

    cpu: Quantity = Field("1", description=f"{_HIGHEST_CPU} Defaults to 1.")
    memory: Quantity = Field("1Gi", description=f"{_HIGHEST_MEMORY} Defaults to 1Gi.")
    ephemeral_storage: Quantity = Field("1Gi", description=f"{_HIGHEST_STORAGE} Defaults to 1Gi.")
    pids: int = Field(1024, ge=1, le=MAX_PIDS, description=f"{_HIGHEST_PIDS} Defaults to 1024.")
    output_bytes: int = Field(
        MAX_OUTPUT_BYTES,
        ge=1024,
        le=MAX_STORED_BYTES,
        description="outputBytes is the highest limits.outputBytes, in bytes. "
        f"{_WITHOUT_STORE} Defaults to {MAX_OUTPUT_BYTES}.",
    )


class SomeLimits(Model):
    """SomeLimits are highest limits, each of which is optional."""

    cpu: QuantityText | None = Field(None, description=_HIGHEST_CPU)
    memory: QuantityText | None = Field(None, description=_HIGHEST_MEMORY)
    ephemeral_storage: QuantityText | None = Field(None, description=_HIGHEST_STORAGE)
    pids: int | None = Field(None, ge=1, le=MAX_PIDS, description=_HIGHEST_PIDS)


class PodRequests(Model):
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
