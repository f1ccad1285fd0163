"""What code can reach outside of its pod: egress destinations, mounts, and the rules that allow them."""

import ipaddress
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from codeexec_api.v1alpha1.base import Model
from codeexec_api.v1alpha1.bounds import (
    CIDR_PATTERN,
    MAX_LABEL,
    MAX_MOUNTS,
    MAX_PERMITS,
    MOUNT_PATH_PATTERN,
    MOUNT_ROOT,
)
from codeexec_api.v1alpha1.fields import ObjectName, rule, rules


def _label_keys(labels: dict[str, str]) -> dict[str, str]:
    for key in labels:
        if not 1 <= len(key) <= MAX_LABEL:
            raise ValueError(f"the key {key!r} has {len(key)} characters; 1 to {MAX_LABEL} are allowed")
    return labels


class Selector(Model):
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
        json_schema_extra=rules(
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


class Permit(Model):
    """Permit is one egress destination: an address range or a set of pods, and a port.

    Set exactly one of cidr, host, and the selectors (podSelector, namespaceSelector, or both).
    """

    model_config = ConfigDict(
        json_schema_extra=rules(
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


class ClaimSource(Model):
    """ClaimSource refers to a PersistentVolumeClaim."""

    claim_name: ObjectName = Field(
        description="claimName is the name of a PersistentVolumeClaim in the same namespace."
    )


class ConfigMapSource(Model):
    """ConfigMapSource refers to a ConfigMap."""

    name: ObjectName = Field(description="name is the name of a ConfigMap in the same namespace.")


class MountSource(Model):
    """MountSource is an object that can be mounted read-only. Set exactly one of its fields."""

    model_config = ConfigDict(
        json_schema_extra=rules(
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


Mounts = Annotated[tuple[Mount, ...], Field(min_length=1, max_length=MAX_MOUNTS), AfterValidator(_each_once)]


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(f"{error}; write a network such as 10.1.0.0/16, with all bits after its prefix 0") from error


class EgressRule(Model):
    """EgressRule allows egress destinations: those in an address range or with exactly these selectors, and a port.

    Set either cidr or the selectors (podSelector, namespaceSelector, or both).
    """

    model_config = ConfigDict(
        json_schema_extra=rules(
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


EgressRules = Annotated[tuple[EgressRule, ...], Field(max_length=MAX_PERMITS)]
MountRules = Annotated[tuple[MountSource, ...], Field(max_length=MAX_PERMITS)]
