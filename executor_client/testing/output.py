"""What an execution gives out: the streams, the files, and the ConfigMaps and the log in which a client finds them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from codeexec_api import ArtifactRequest, ArtifactStatus, OutputRun, StreamStatus
from codeexec_api.digests import sha256_hex
from codeexec_api.names import ORDER_KEY, artifact_key
from codeexec_api.paths import check_workspace_path
from codeexec_api.v1alpha1.bounds import MAX_ARTIFACTS, MAX_FETCH_BYTES, MAX_INLINE_BYTES
from executor_client.model.selection import fitting, place, selected
from executor_client.model.stream import Stream
from executor_client.testing.outcomes import StreamName, Workspace

STREAMS: Final[tuple[StreamName, StreamName]] = ("stdout", "stderr")
_PART_BYTES: Final = 640 * 1024
_MAX_HASHED_BYTES: Final = 64 * 1024 * 1024
_HEAD_CHARACTERS: Final = 4096
_MAX_RUNS: Final = 1024


class Output:
    """stdout and stderr of one execution, as its blocks write them."""

    def __init__(self, limit: int) -> None:
        self._streams = {name: Stream(limit) for name in STREAMS}
        self._runs: list[tuple[StreamName, str]] = []

    def write(self, name: StreamName, data: bytes, *, final: bool = False) -> str:
        """Take what was written, and return the text that is kept of it."""
        text = self._streams[name].take(data, final=final)
        if text:
            self._runs.append((name, text))
        return text

    def total_bytes(self, name: StreamName) -> int:
        """How much was written to a stream until now, kept or not."""
        return self._streams[name].total_bytes

    def totals(self) -> dict[str, dict[str, Any]]:
        """As the runner reports them at the end."""
        return {
            name: {"bytes": one.total_bytes, "sha256": sha256_hex(one.text.encode()), "truncated": one.truncated}
            for name, one in self._streams.items()
        }

    @property
    def small(self) -> bool:
        """True when the record itself has room for both streams."""
        return all(len(one.text.encode()) <= MAX_INLINE_BYTES for one in self._streams.values())

    def status(self, name: StreamName, *, referenced: bool, complete: bool) -> StreamStatus:
        """One stream for the record; `complete` is false if its pod was lost before the end."""
        stream = self._streams[name]
        text, whole = stream.text, stream.text.encode()
        return StreamStatus(
            text=text[:_HEAD_CHARACTERS] if referenced else text,
            sha256=sha256_hex(whole),
            kept_bytes=len(whole),
            total_bytes=stream.total_bytes,
            truncated=stream.truncated or not complete,
            referenced=referenced and bool(whole),
        )

    def order(self) -> tuple[OutputRun, ...]:
        """How the streams were interleaved."""
        merged: list[OutputRun] = []
        for name, text in self._runs:
            if merged and merged[-1].stream == name:
                merged[-1] = OutputRun(stream=name, characters=merged[-1].characters + len(text))
            else:
                merged.append(OutputRun(stream=name, characters=len(text)))
        return tuple(merged[:_MAX_RUNS])

    def parts(self, files: Mapping[int, bytes]) -> list[dict[str, bytes]]:
        """What ConfigMaps hold when the record has no room: the streams, and the files by index of their artifact."""
        parts: list[dict[str, bytes]] = []
        order: list[tuple[str, int]] = []
        entries: list[tuple[str, bytes]] = [(name, text.encode()) for name, text in self._runs]
        entries += [(artifact_key(index), content) for index, content in files.items()]
        room = 0
        for key, content in entries:
            for start in range(0, max(len(content), 1), _PART_BYTES):
                piece = content[start : start + _PART_BYTES]
                if not parts or len(piece) > room:
                    parts.append({})
                    order, room = [], _PART_BYTES
                parts[-1][key] = parts[-1].get(key, b"") + piece
                room -= len(piece)
                if key in STREAMS:
                    order.append((key, len(piece)))
                parts[-1][ORDER_KEY] = json.dumps(order).encode()
        return parts


@dataclass(frozen=True)
class Collected:
    """The files that an execution names, and the content of those that it gives out, by index."""

    artifacts: tuple[ArtifactStatus, ...] = ()
    omitted: int = 0
    contents: Mapping[int, bytes] = field(default_factory=dict)


def collect(workspace: Workspace, request: ArtifactRequest) -> Collected:
    """What is wanted of the workspace, once the last block has ended."""
    if request.list == "None" and not request.fetch:
        return Collected()
    usable = [path for path in workspace if _usable(path)]
    wanted = sorted(
        (path for path in usable if selected(path, request.fetch)), key=lambda one: place(one, request.fetch)
    )
    listed = {"None": [], "Changed": [path for path in usable if path in workspace.changed], "All": usable}
    rest = [path for path in listed[request.list] if path not in wanted]
    named = sorted([*wanted, *rest][:MAX_ARTIFACTS])
    sizes = {path: len(workspace[path]) for path in named if path in wanted}
    to_send = fitting(sizes, request.fetch, MAX_FETCH_BYTES)
    room_to_hash = _MAX_HASHED_BYTES - (MAX_FETCH_BYTES if request.fetch else 0)
    artifacts, contents = [], {}
    for index, path in enumerate(named):
        content, size = workspace[path], len(workspace[path])
        if sent := path in to_send:
            contents[index] = content
        hashed = sent or (size <= MAX_FETCH_BYTES and size <= room_to_hash)
        if hashed and not sent:
            room_to_hash -= size
        digest = sha256_hex(content) if hashed else None
        artifacts.append(ArtifactStatus(path=path, size_bytes=size, sha256=digest, fetched=sent))
    omitted = len(workspace) - len(usable) + len(wanted) + len(rest) - len(named)
    return Collected(tuple(artifacts), omitted, contents)


def _usable(path: str) -> bool:
    try:
        check_workspace_path(path)
    except ValueError:
        return False
    return True


class Frames:
    """The lines that the runner writes to the log of the pod about one execution."""

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._sequence = 0

    def frame(self, **fields: Any) -> bytes:
        """The next line, without its end."""
        raw = {"id": self._uid, "seq": self._sequence, **fields}
        self._sequence += 1
        return json.dumps(raw, ensure_ascii=False, separators=(",", ":")).encode()
