"""Code blocks on their way to the cluster: pure functions, no I/O, no framework."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from codeexec_api import Block, File
from codeexec_api.digests import sha256_hex
from codeexec_api.languages import canonical, default_file_name, unknown_language
from codeexec_api.names import block_key, file_key
from codeexec_api.paths import check_workspace_path
from codeexec_api.v1alpha1.bounds import (
    MAX_BLOCKS,
    MAX_CODE_BYTES,
    MAX_FILES,
    MAX_PART_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_PAYLOAD_PARTS,
)

_FILENAME_MARK: Final = "# filename:"
_PART_BYTES: Final = 750_000
"""Of one Secret, if there may be enough of them: in base64 that is less than 1 MiB, above which aiohttp warns."""
_REMOVER: Final = "tmp_code_remove.sh"
_REMOVE: Final = ("rm -- ", f"; code=$?; rm -f -- {_REMOVER}; exit $code")
FILENAME_REFUSED: Final = "Filename is not in the workspace"


@dataclass(frozen=True)
class SourceBlock:
    """A block as a caller gives it: language in any spelling, code as text."""

    language: str
    code: str


@dataclass(frozen=True, repr=False)
class PreparedBlock:
    """A block that is ready to be sent. Has no repr, so that code can't slip into a log line."""

    language: str
    content: bytes
    filename: str | None = None

    def announce(self) -> Block:
        """The block as the spec describes it: by digest and size."""
        return Block(
            language=self.language,
            filename=self.filename,
            sha256=sha256_hex(self.content),
            size_bytes=len(self.content),
        )

    @property
    def file(self) -> str:
        """Name of the file in the workspace that the code is written to."""
        return self.filename or default_file_name(self.language, sha256_hex(self.content))


@dataclass(frozen=True, repr=False)
class WorkspaceFile:
    """A file for the workspace, before the first block runs."""

    path: str
    content: bytes

    def announce(self) -> File:
        """The file as the spec describes it: by digest and size."""
        return File(path=self.path, sha256=sha256_hex(self.content), size_bytes=len(self.content))


@dataclass(frozen=True)
class Prepared:
    """The blocks that can be run, and what stands in the way of the one after them."""

    runnable: tuple[PreparedBlock, ...]
    refusal: str = ""

    @property
    def blocks(self) -> tuple[PreparedBlock, ...]:
        """All blocks.

        Raises:
            ValueError: one can't be run; the text says why.
        """
        if self.refusal:
            raise ValueError(f"{self.refusal}; nothing was run")
        return self.runnable


def prepare(blocks: Sequence[SourceBlock], unknown: Callable[[str], str] = unknown_language) -> Prepared:
    """Normalize languages and file names.

    As with AutoGen's own executors, a block that can't be run doesn't keep the blocks before it from running.

    Args:
        blocks: as the caller gives them.
        unknown: the message for a language that nothing runs.
    """
    prepared: list[PreparedBlock] = []
    for block in blocks:
        language = canonical(block.language)
        if language is None:
            return Prepared(tuple(prepared), unknown(block.language))
        name = file_name(block.code)
        try:
            filename = None if name is None else check_workspace_path(name)
        except ValueError as error:
            return Prepared(tuple(prepared), f"{FILENAME_REFUSED}: {error}")
        prepared.append(PreparedBlock(language, block.code.encode(), filename))
    return Prepared(tuple(prepared))


def all_prepared(blocks: Sequence[PreparedBlock | SourceBlock]) -> tuple[PreparedBlock, ...]:
    """The blocks, each ready to be sent.

    Raises:
        ValueError: one can't be run; the text says why.
    """
    return tuple(
        block for one in blocks for block in ((one,) if isinstance(one, PreparedBlock) else prepare([one]).blocks)
    )


def removal(path: str) -> PreparedBlock:
    """A block that deletes a file of the workspace, and then itself."""
    return PreparedBlock("sh", f"{_REMOVE[0]}{shlex.quote(path)}{_REMOVE[1]}".encode(), _REMOVER)


def removed_by(language: str, code: str) -> str | None:
    """The path that a block of `removal` deletes; None if it is another block."""
    if language != "sh" or not (code.startswith(_REMOVE[0]) and code.endswith(_REMOVE[1])):
        return None
    paths = shlex.split(code.removeprefix(_REMOVE[0]).removesuffix(_REMOVE[1]))
    return paths[0] if len(paths) == 1 else None


def file_name(code: str) -> str | None:
    """File name that the first line asks for by `# filename: NAME`, in the form that AutoGen's executors read."""
    first = code.split("\n", 1)[0]
    if not first.startswith(_FILENAME_MARK):
        return None
    return first.split(":", 2)[1].strip()


def check_size(blocks: Sequence[PreparedBlock], files: Sequence[WorkspaceFile]) -> None:
    """Refuse what can't travel with one execution.

    Raises:
        ValueError: too many blocks or files, or too many bytes; names the numbers and what to do.
    """
    code = sum(len(block.content) for block in blocks)
    total = code + sum(len(file.content) for file in files)
    for what, found, most, remedy in (
        ("blocks", len(blocks), MAX_BLOCKS, "split the call"),
        ("files", len(files), MAX_FILES, "upload them in several calls of one session, or as an archive"),
        ("bytes of code", code, MAX_CODE_BYTES, "upload data as files"),
        ("bytes of code and files", total, MAX_PAYLOAD_BYTES, "upload them in several calls of one session"),
    ):
        if found > most:
            raise ValueError(f"{found} {what} are too many for one execution (at most {most}): {remedy}")


def payload_of(blocks: Sequence[PreparedBlock], files: Sequence[WorkspaceFile]) -> dict[str, bytes]:
    """Content of each block and file by its key in the payload."""
    payload = {block_key(index): block.content for index, block in enumerate(blocks)}
    return payload | {file_key(index): file.content for index, file in enumerate(files)}


def count_parts(payload: Mapping[str, bytes]) -> int:
    """Number of Secrets for a payload: at least one, and so many that their requests are small, as far as allowed."""
    return min(MAX_PAYLOAD_PARTS, max(1, -(-_size(payload) // _PART_BYTES)))


def split_payload(payload: Mapping[str, bytes], parts: int) -> list[dict[str, bytes]]:
    """A payload in pieces of the same size for this many Secrets.

    The content of a key is what the Secrets hold under it, joined in order. An empty one has its key, too.

    Raises:
        ValueError: it doesn't fit.
    """
    most = max(1, -(-_size(payload) // parts))
    if most > MAX_PART_BYTES:
        raise ValueError(f"{_size(payload)} bytes don't fit into {parts} Secrets of at most {MAX_PART_BYTES} bytes")
    pieces: list[dict[str, bytes]] = [{}]
    room = most
    for key, content in payload.items():
        pieces[-1][key] = content[:room]
        room -= len(pieces[-1][key])
        for start in range(len(pieces[-1][key]), len(content), most):
            pieces.append({key: content[start : start + most]})
            room = most - len(pieces[-1][key])
    return pieces + [{} for _ in range(parts - len(pieces))]


def _size(payload: Mapping[str, bytes]) -> int:
    return sum(map(len, payload.values()))
