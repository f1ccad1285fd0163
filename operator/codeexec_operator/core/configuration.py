"""What may change while the operator runs: the namespaces that it serves, their default policy and pool, image keys.

It stands in one ConfigMap, which the chart writes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import yaml
from pydantic import ValidationError

from codeexec_api import ExecutionPolicySpec, SandboxPoolSpec
from codeexec_api.image_signatures import ImageKey, parse_keys
from codeexec_api.invalid import wrong_fields

NAMESPACES_KEY: Final = "namespaces.yaml"
POLICY_KEY: Final = "policy.yaml"
POOL_KEY: Final = "pool.yaml"
IMAGE_KEYS_KEY: Final = "image-keys.pem"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

T = TypeVar("T")


class ConfigurationError(ValueError):
    """The ConfigMap can't be used. The text names the key, what was found, and what is allowed."""


@dataclass(frozen=True)
class Configuration:
    """What one version of the ConfigMap says."""

    namespaces: frozenset[str]
    policy: ExecutionPolicySpec
    """Of namespaces that have none of their own."""
    pool: SandboxPoolSpec | None
    """The pool that each namespace gets to begin with; None: no pool."""
    image_keys: tuple[ImageKey, ...] = ()
    """The public keys of which one must have signed an image; none: images need no signature."""


def parse_configuration(data: Mapping[str, str]) -> Configuration:
    """Read the data of the ConfigMap, all of it or nothing.

    Raises:
        ConfigurationError: a part is missing or isn't valid.
    """
    return Configuration(
        namespaces=_part(data, NAMESPACES_KEY, _namespaces),
        policy=_part(data, POLICY_KEY, ExecutionPolicySpec.model_validate),
        pool=_part(data, POOL_KEY, SandboxPoolSpec.model_validate) if POOL_KEY in data else None,
        image_keys=_image_keys(data[IMAGE_KEYS_KEY]) if IMAGE_KEYS_KEY in data else (),
    )


def _part(data: Mapping[str, str], key: str, parse: Callable[[Any], T]) -> T:
    if key not in data:
        raise ConfigurationError(f"the key {key} is missing: the chart writes it, run `helm upgrade` again")
    try:
        return parse(yaml.safe_load(data[key]))
    except ValidationError as error:
        raise ConfigurationError(f"{key}: {wrong_fields(error)}") from error
    except (yaml.YAMLError, ValueError) as error:  # PyYAML raises the latter for a date that there isn't
        raise ConfigurationError(f"{key} is not YAML: {error}") from error


def _image_keys(text: str) -> tuple[ImageKey, ...]:
    try:
        return parse_keys(text)
    except ValueError as error:
        raise ConfigurationError(f"{IMAGE_KEYS_KEY}: {error}") from error


def _namespaces(value: object) -> frozenset[str]:
    if not isinstance(value, list) or not value:
        raise ConfigurationError(f"{NAMESPACES_KEY} is {value!r}: it has to be a list of at least one namespace")
    wrong = [name for name in value if not (isinstance(name, str) and _NAME.fullmatch(name))]
    if wrong:
        raise ConfigurationError(
            f"{NAMESPACES_KEY} contains {wrong[0]!r}: a namespace has 1 to 63 lower-case letters, digits and hyphens"
        )
    return frozenset(value)
