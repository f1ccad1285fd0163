"""Says what is wrong with an object. Only objects of the platform owner are quoted: an agent's may hold code."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

_SHOWN: Final = 100
"""Characters of a value."""


def wrong_fields(error: ValidationError) -> str:
    """Each wrong field with the value found and what is allowed, in one line."""
    return "; ".join(f"{place_of(one) or 'the value'}: {_wrong(one)}" for one in error.errors(include_url=False))


def place_of(one: Mapping[str, Any]) -> str:
    """The field of one of pydantic's errors, such as `limits.cpu`; empty if the whole value is wrong."""
    return ".".join(map(str, one["loc"]))


def words_of(one: Mapping[str, Any]) -> str:
    """What one of pydantic's errors says is allowed, without the kind of the error."""
    return str(one["msg"]).removeprefix("Value error, ")


def _wrong(one: Mapping[str, Any]) -> str:
    if one["type"] == "missing":  # the value found is that of the whole object
        return words_of(one)
    found = _text_of(one["input"])
    found = found if len(found) <= _SHOWN else f"{found[:_SHOWN]}…"
    if one["type"] == "extra_forbidden":
        return f"found {found}, but this version knows no such field"
    return f"found {found}: {words_of(one)}"


def _text_of(value: Any) -> str:
    try:
        return json.dumps(value, default=str)
    except (TypeError, ValueError):  # YAML has keys that are no texts, and values that hold themselves
        return repr(value)
