"""Kubernetes quantities: parse, compare, and scale to base units.

Follows the suffixes of apimachinery's resource.Quantity that make sense for CPU, memory and storage.
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

QUANTITY_PATTERN: Final = r"^[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")


def parse_quantity(text: str) -> Decimal:
    """Value of a quantity in base units (cores, bytes).

    Raises:
        ValueError: the text is not a quantity such as `500m`, `0.5` or `256Mi`.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or not re.match(QUANTITY_PATTERN, text):
        raise ValueError(f"{text!r} is not a quantity such as '500m', '0.5' or '256Mi'")
    return Decimal(match[1]) * _SUFFIXES[match[2]]
