"""Where output goes that doesn't fit into the record, and how much of it may: ConfigMaps, or the owner's store."""

from dataclasses import dataclass
from typing import Final

from codeexec_api.v1alpha1.bounds import (
    MAX_FETCH_BYTES,
    MAX_OUTPUT_BYTES,
    MAX_OUTPUT_PARTS,
    MAX_STORED_BYTES,
    MAX_STORED_PARTS,
)


@dataclass(frozen=True)
class OutputPlace:
    """The place for the output of one execution."""

    url: str = ""
    """Of the output store; empty: in ConfigMaps."""
    output_bytes: int = MAX_OUTPUT_BYTES
    """Of each stream."""
    fetch_bytes: int = MAX_FETCH_BYTES
    """Of all files together."""
    parts: int = MAX_OUTPUT_PARTS


CONFIG_MAPS: Final = OutputPlace()


def stored_at(url: str) -> OutputPlace:
    """The output store with this URL."""
    return OutputPlace(url, MAX_STORED_BYTES, MAX_STORED_BYTES, MAX_STORED_PARTS)
