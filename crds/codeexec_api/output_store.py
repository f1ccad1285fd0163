"""Objects in an output store: their names, and what is in them. The operator writes them, and clients read them. Pure.

One object is one part of the output: a line of JSON with the key and the length of each value, then the values.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

from codeexec_api.digests import SHA256_HEX
from codeexec_api.v1alpha1.bounds import MAX_STORE_URL, PART_PATTERN, STORE_URL_PATTERN

MAX_OBJECT_BYTES: Final = 2 * 1024 * 1024
"""No object is larger, so nobody reads more of one."""
STORE_VARIABLE: Final = "CODEEXEC_OUTPUT_STORE"
"""Names the store in the environment of the operator, and of clients."""
_URL: Final = re.compile(STORE_URL_PATTERN)
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PART: Final = re.compile(PART_PATTERN)
_KEY: Final = re.compile(r"[a-z0-9.-]{1,64}")


def check_store_url(url: str) -> str:
    """The URL of a store, without a slash at its end.

    It stands in records, so it holds no user, password, query or second URL.

    Raises:
        ValueError: it can't be used as one.
    """
    bare = url.rstrip("/")
    if len(bare) > MAX_STORE_URL or not _URL.fullmatch(bare) or {".", ".."} & set(bare.split("/")):
        raise ValueError(
            f"{url!r} is not the URL of an output store. Allowed is PROTOCOL://PLACE, such as s3://bucket/prefix or "
            f"file:///mnt/store: letters, digits and ._~/-, no '..', at most {MAX_STORE_URL} characters. Set users and "
            "passwords in the environment, as the backend of fsspec wants them"
        )
    return bare


def object_path(namespace: str, uid: str, part: str) -> str:
    """Where a part is, below the URL of its store. Nothing but the API server decides about these names.

    Raises:
        ValueError: the namespace or the UID isn't what the API server makes, or no part has this name.
    """
    return _path(namespace, uid, part, _PART)


def content_path(namespace: str, uid: str, sha256: str) -> str:
    """The same for an object of a session that sleeps, which is named by the digest of what it holds.

    Raises:
        ValueError: the namespace or the UID isn't what the API server makes, or that is no digest.
    """
    return _path(namespace, uid, sha256, SHA256_HEX)


def _path(namespace: str, uid: str, name: str, allowed: re.Pattern[str]) -> str:
    if not (_NAMESPACE.fullmatch(namespace) and _UID.fullmatch(uid) and allowed.fullmatch(name)):
        raise ValueError(f"no object of an output store has the name {namespace!r}/{uid!r}/{name!r}")
    return f"{namespace}/{uid}/{name}"


def below(root: str, path: str) -> str:
    """A path in a store, whose root may be empty."""
    return f"{root}/{path}" if root else path


def dump_part(contents: Mapping[str, bytes]) -> bytes:
    """The object that holds these values."""
    header = json.dumps({key: len(value) for key, value in contents.items()}, separators=(",", ":")).encode()
    return b"\n".join((header, b"".join(contents.values())))


def load_part(data: bytes) -> dict[str, bytes]:
    """The values that an object holds.

    Raises:
        ValueError: it is not what `dump_part` makes.
    """
    header, _, values = data.partition(b"\n")
    lengths = json.loads(header)
    if not isinstance(lengths, dict) or not all(
        _KEY.fullmatch(key) and type(length) is int and length >= 0 for key, length in lengths.items()
    ):
        raise ValueError("its first line does not name keys and lengths")
    if sum(lengths.values()) != len(values):
        raise ValueError(f"it holds {len(values)} bytes instead of {sum(lengths.values())}")
    contents, start = {}, 0
    for key, length in lengths.items():
        contents[key] = values[start : start + length]
        start += length
    return contents
