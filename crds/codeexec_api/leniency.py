"""Reads objects that another version has written: with fields, values and sizes that this one doesn't know.

Only what is read back may be read so. A request is checked by the models as they stand.
"""

import functools
from enum import Enum
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from pydantic_core import SchemaValidator

_Model = TypeVar("_Model", bound=BaseModel)

_BOUNDS: Final = ("pattern", "min_length", "max_length", "ge", "gt", "le", "lt", "multiple_of")
_EXTRA: Final = ("extra_behavior", "extra_fields_behavior")
_OPAQUE: Final = ("metadata", "cls", "serialization")


def read(model: type[_Model], raw: Any) -> _Model:
    """The object; fields that are not known are left out, and values that are not known stay as they are.

    Raises:
        pydantic.ValidationError: a field is missing, or of another type.
    """
    found: _Model = _validator(model).validate_python(raw)
    return found


@functools.cache
def _validator(model: type[BaseModel]) -> SchemaValidator:
    return SchemaValidator(_relaxed(model.__pydantic_core_schema__), _use_prebuilt=False)  # not that of the model


def _relaxed(schema: Any) -> Any:
    """The schema of a model without what limits its values, and without what looks at them afterwards."""
    if isinstance(schema, list):
        return [_relaxed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind == "function-after":
        return _relaxed(schema["schema"] | {key: schema[key] for key in ("ref",) if key in schema})
    if kind == "literal" and all(isinstance(one, str) for one in schema["expected"]):
        return {"type": "str"}
    if kind == "enum":
        function = {"type": "no-info", "function": functools.partial(_member, schema["cls"])}
        return {"type": "function-plain", "function": function}
    limited = kind in ("str", "int", "float", "tuple", "list")
    kept = {key: value for key, value in schema.items() if not (limited and key in _BOUNDS)}
    return {
        key: "ignore" if key in _EXTRA else value if key in _OPAQUE else _relaxed(value) for key, value in kept.items()
    }


def _member(kind: type[Enum], value: object) -> Enum:
    """A member of this class, also one that the class doesn't list.

    Raises:
        ValueError: the value is no text.
    """
    if not (isinstance(value, str) and issubclass(kind, str)):
        return kind(value)
    if value in kind._value2member_map_:
        return kind(value)
    member: Any = str.__new__(kind, value)
    member._name_, member._value_ = value, value
    return member  # type: ignore[no-any-return]
