"""The largest that an agent can put into a record, and that its code can make the operator write there."""

from typing import Any

from codeexec_api.v1alpha1.bounds import MAX_ARTIFACTS, MAX_INLINE_BYTES

Object = dict[str, Any]

FACE = "\N{GRINNING FACE}"
"""Four bytes in UTF-8, and as much in Python for each character of a text that has one of them."""
LARGEST_REQUEST = 300 * 1024
"""Bytes of a record before anything has run. docs/scale.md names this number."""
ESCAPED = "<"
"""One byte in UTF-8, and six in the JSON of the API server."""

_MANAGED: Object = {
    "apiVersion": "codeexec.dev/v1alpha1",
    "fieldsType": "FieldsV1",
    "time": "2026-01-01T00:00:00Z",
}


def managed(*fields: Object, operation: str = "Update") -> Object:
    """Metadata which says that somebody has written these fields: padding, of any size."""
    entry = _MANAGED | {"operation": operation}
    return {"managedFields": [entry | {"manager": f"m{number}", "fieldsV1": one} for number, one in enumerate(fields)]}


def nested(depth: int) -> Object:
    """A managed field at the end of so long a path."""
    return {"f:x": nested(depth - 1)} if depth else {}


def the_largest_request(filler: str = FACE) -> tuple[Object, Object]:
    """Metadata and spec of a CodeExecution, with all that an agent may put there: such characters, and one of FACE."""

    def path(start: str) -> str:
        return start + filler * (252 // len(filler.encode()))

    content = {"sha256": "0" * 64, "sizeBytes": 1}
    numbers = range(64)
    prefix = ".".join(["x" * 60] * 4)
    meta = {
        "annotations": {"a": filler * (4090 // len(filler.encode())) + FACE},
        "labels": {f"{prefix}/{'y' * 60}{one:03}": "z" * 63 for one in range(32)},
    }
    spec = {
        "blocks": [{"language": "javascript", "filename": path(f"b{one:02}"), **content} for one in numbers],
        "files": [{"path": path(f"f{one:02}"), **content} for one in numbers],
        "artifacts": {"list": "All", "fetch": [f"{one:02}" + filler * 253 for one in numbers]},
        "sealedPayload": {"keyName": "k" * 253, "data": "A" * 32_768},
        "egress": [_permit(1000 + number) for number in range(16)],
        "mounts": [_mount(f"{'m' * 31}{number}") for number in range(8)],
        "source": dict.fromkeys(("agent", "executor", "conversation"), filler * 128),
    }
    return meta, spec


def _permit(port: int) -> Object:
    labels = {"matchLabels": {f"{key}{'k' * 62}": "v" * 63 for key in "abc"}}
    return {"podSelector": labels, "namespaceSelector": labels, "port": port, "protocol": "TCP"}


def _mount(name: str) -> Object:
    return {"name": name, "mountPath": f"/mnt/{name}", "persistentVolumeClaim": {"claimName": "c" * 253}}


def the_largest_output() -> Object:
    """What the operator writes into the status of a finished record: each stream as long as the record holds it."""
    text = FACE * (MAX_INLINE_BYTES // 4)
    stream = {"text": text, "sha256": "0" * 64, "keptBytes": MAX_INLINE_BYTES, "totalBytes": MAX_INLINE_BYTES}
    artifact = {"sizeBytes": 1, "sha256": "0" * 64}
    return {
        "stdout": stream | {"truncated": False},
        "stderr": stream | {"truncated": False},
        "artifacts": [artifact | {"path": f"{one:03}" + FACE * 63} for one in range(MAX_ARTIFACTS)],
    }
