"""Says what is wrong with an object of the platform owner's. An agent's may hold code, which no message repeats."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

_SHOWN: Final = 100
"""Characters of a value."""


def wrong_fields(error: ValidationError) -> str:
    """Each wrong field with the value found and what is allowed, in one line."""
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {_wrong(one)}" for one in error.errors(include_url=False))


def _wrong(one: Mapping[str, Any]) -> str:
    if one["type"] == "missing":  # the value found is that of the whole object
        return str(one["msg"])
    found = json.dumps(one["input"], default=str)
    found = found if len(found) <= _SHOWN else f"{found[:_SHOWN]}…"
    if one["type"] == "extra_forbidden":
        return f"found {found}, but this version knows no such field"
    return f"found {found}: {one['msg']}"
