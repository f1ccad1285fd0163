"""What every model and every kind of the contract is made of."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from codeexec_api import leniency


class Model(BaseModel):
    """Part of a spec: camelCase in the API, frozen, without unknown fields."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, frozen=True, extra="forbid"
    )

    def dump(self) -> dict[str, Any]:
        """The form that the API server stores: camelCase, JSON types, no nulls."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Status(Model):
    """Part of a status, which a newer operator may have written: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    def dump(self) -> dict[str, Any]:
        """The form that the API server stores, without fields that have their default values."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


class ObjectMeta(Status):
    """The metadata that the operator and the client read."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None


class Object(Status):
    """An object of the API server."""

    kind: ClassVar[str]
    plural: ClassVar[str]
    """Of the resource, in paths."""

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
