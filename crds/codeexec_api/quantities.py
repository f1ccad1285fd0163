"""Kubernetes quantities: parse, compare, and scale to base units.

Objects of ours take those suffixes of apimachinery's resource.Quantity that make sense for CPU, memory and storage.
"""

import re
from decimal import Decimal
from typing import Final

_SUFFIXES: Final = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
}

_RARE: Final = {
    "n": Decimal(10) ** -9,
    "u": Decimal(10) ** -6,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
"""Suffixes that only objects of others have."""

QUANTITY_PATTERN: Final = r"^[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")
_ANY: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)([A-Za-z]{0,2})")


def parse_quantity(text: str) -> Decimal:
    """Value of a quantity in base units (cores, bytes).

    Raises:
        ValueError: the text is not a quantity such as `500m`, `0.5` or `256Mi`.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or not re.match(QUANTITY_PATTERN, text):
        raise ValueError(f"{text!r} is not a quantity such as '500m', '0.5' or '256Mi'")
    return Decimal(match[1]) * _SUFFIXES[match[2]]


def read_quantity(text: str) -> Decimal:
    """Value of any quantity of an object that the API server has accepted, such as `16389548Ki`, `1e3` or `98n`.

    Raises:
        ValueError: the text is no quantity.
    """
    match = _ANY.fullmatch(text)
    scale = (_SUFFIXES | _RARE).get(match[2]) if match else None
    if match is None or scale is None:
        raise ValueError(f"{text!r} is not a quantity")
    return Decimal(match[1]) * scale
