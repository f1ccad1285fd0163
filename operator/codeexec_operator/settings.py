"""The operator's settings, from the environment (prefix CODEEXEC_). What may change meanwhile is a Configuration."""

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from codeexec_api.output_store import check_store_url
from codeexec_operator.core.shard import MOST


def _store_url(value: str) -> str:
    return check_store_url(value) if value else ""


class Settings(BaseSettings):
    """What the Deployment tells the operator."""

    model_config = SettingsConfigDict(env_prefix="CODEEXEC_", frozen=True)

    config_map: Annotated[tuple[str, str], NoDecode]
    """Namespace and name of the ConfigMap with the Configuration, with a slash between them."""
    sealing_secret: Annotated[tuple[str, str], NoDecode]
    """Namespace and name of the Secret for the keys that small payloads are sealed with, with a slash between them."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    health_port: int = 8080
    canary_port: int = 8081
    """Answers everybody, so that a sandbox that is not answered is shown to be closed."""
    canary_service: Annotated[tuple[str, str], NoDecode]
    """Namespace and name of the Service that leads to this port of all replicas, with a slash between them."""
    leader_lease: Annotated[tuple[str, str], NoDecode]
    """Namespace and name of the Lease that one replica leads by, with a slash between them."""
    lease_seconds: Annotated[int, Field(ge=5)] = 10
    """How long the Lease of a leader that has gone silent is not taken by another replica."""
    shard: Annotated[int, Field(ge=0, lt=MOST)] = 0
    """Which of the shards this process is."""
    shards: Annotated[int, Field(ge=1, le=MOST)] = 1
    """How many shards the release has. Each serves its share of the namespaces."""
    metrics_port: int | None = None
    """Serves /metrics; absent: nothing does."""
    otlp_endpoint: Annotated[
        str | None,
        Field(
            pattern=r"^https?://",
            validation_alias=AliasChoices("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ),
    ] = None
    """Where spans are sent, by the variables of OpenTelemetry, which the exporter reads itself; absent: nowhere."""
    output_store: Annotated[str, AfterValidator(_store_url)] = ""
    """URL of the store for large output; absent: ConfigMaps hold it."""
    never_permit: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode] = ()
    """Ranges of addresses that no permit opens, separated by commas."""

    @field_validator("never_permit", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(filter(None, value.replace(" ", "").split(","))) if isinstance(value, str) else value

    @field_validator("config_map", "sealing_secret", "canary_service", "leader_lease", mode="before")
    @classmethod
    def _split_name(cls, value: object) -> object:
        return tuple(value.split("/")) if isinstance(value, str) else value
