"""The operator's settings, from the environment (prefix CODEEXEC_) and from the policy file that it names."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AliasChoices, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from codeexec_api import ExecutionPolicySpec, SandboxPoolSpec
from codeexec_api.image_signatures import ImageKey, parse_keys


class Settings(BaseSettings):
    """What the Deployment tells the operator."""

    model_config = SettingsConfigDict(env_prefix="CODEEXEC_", frozen=True)

    namespaces: Annotated[tuple[str, ...], NoDecode, Field(min_length=1)]
    """Sandbox namespaces to serve, separated by commas."""
    policy_file: Path
    """YAML file with the cluster's default policy: the spec of an ExecutionPolicy."""
    policy_config_map: Annotated[tuple[str, str] | None, NoDecode] = None
    """Namespace and name of the ConfigMap that this file comes from, with a slash between them; for messages."""
    pool_file: Path | None = None
    """YAML file with the pool that each sandbox namespace gets to begin with: the spec of a SandboxPool."""
    image_keys_file: Path | None = None
    """PEM file with the public keys that sign images; absent: images need no signature."""
    sealing_secret: Annotated[tuple[str, str], NoDecode]
    """Namespace and name of the Secret for the keys that small payloads are sealed with, with a slash between them."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    health_port: int = 8080
    canary_port: int = 8081
    """Answers everybody, so that a sandbox that is not answered is shown to be closed."""
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
    pod_ips: Annotated[tuple[str, ...], NoDecode] = ()
    """Addresses of this pod, separated by commas."""
    never_permit: Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode] = ()
    """Ranges of addresses that no permit opens, separated by commas."""

    @field_validator("namespaces", "pod_ips", "never_permit", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(filter(None, value.replace(" ", "").split(","))) if isinstance(value, str) else value

    @field_validator("policy_config_map", "sealing_secret", mode="before")
    @classmethod
    def _split_name(cls, value: object) -> object:
        return tuple(value.split("/")) if isinstance(value, str) else value

    def default_policy(self) -> ExecutionPolicySpec:
        """The policy of namespaces that have none of their own.

        Raises:
            OSError: the file can't be read.
            yaml.YAMLError: it is not YAML.
            pydantic.ValidationError: a ValueError that names each wrong field.
        """
        return ExecutionPolicySpec.model_validate(yaml.safe_load(self.policy_file.read_text()))

    def image_keys(self) -> tuple[ImageKey, ...]:
        """The public keys of which one must have signed an image; none if images need no signature.

        Raises:
            OSError: the file can't be read.
            ValueError: it holds something else, or nothing.
        """
        return parse_keys(self.image_keys_file.read_text()) if self.image_keys_file else ()

    def default_pool(self) -> SandboxPoolSpec | None:
        """The pool that namespaces get; None if they get none.

        Raises:
            OSError: the file can't be read.
            yaml.YAMLError: it is not YAML.
            pydantic.ValidationError: a ValueError that names each wrong field.
        """
        if self.pool_file is None:
            return None
        return SandboxPoolSpec.model_validate(yaml.safe_load(self.pool_file.read_text()))
