"""SHA-256 digests, and the digest of an execution's code, for the client, the operator and auditors."""

import hashlib
import re
from collections.abc import Iterable
from typing import Final

SHA256_HEX: Final = re.compile(r"[0-9a-f]{64}")
"""What `sha256_hex` gives."""


def sha256_hex(data: bytes) -> str:
    """SHA-256 as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def code_digest(parts: Iterable[tuple[str, str]]) -> str:
    r"""Digest of a whole execution, as `sha256:…`.

    Args:
        parts: (name, SHA-256 of the content) for blocks in order, then for files in order. The name of a block is its
            language, and ` ./<filename>` if the block has a filename. The name of a file is `./<path>`. The digest is
            the SHA-256 of the lines `<name> <SHA-256>\n`, so an auditor who has the code can recompute it.
    """
    lines = "".join(f"{label} {digest}\n" for label, digest in parts)
    return f"sha256:{sha256_hex(lines.encode())}"
