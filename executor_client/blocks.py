"""Code blocks on their way to the cluster: pure functions, no I/O, no framework."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from codeexec_api import Block, File
from codeexec_api.digests import sha256_hex
from codeexec_api.languages import canonical, default_file_name, unknown_language
from codeexec_api.paths import check_workspace_path
from codeexec_api.v1alpha1 import MAX_PAYLOAD_BYTES

_FILENAME_MARK: Final = "# filename:"
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

    blocks: tuple[PreparedBlock, ...]
    refusal: str = ""


def prepare(blocks: Sequence[SourceBlock]) -> Prepared:
    """Normalize languages and file names.

    As with AutoGen's own executors, a block that can't be run doesn't keep the blocks before it from running.
    """
    prepared: list[PreparedBlock] = []
    for block in blocks:
        language = canonical(block.language)
        if language is None:
            return Prepared(tuple(prepared), unknown_language(block.language))
        name = file_name(block.code)
        try:
            filename = None if name is None else check_workspace_path(name)
        except ValueError as error:
            return Prepared(tuple(prepared), f"{FILENAME_REFUSED}: {error}")
        prepared.append(PreparedBlock(language, block.code.encode(), filename))
    return Prepared(tuple(prepared))


def file_name(code: str) -> str | None:
    """File name that the first line asks for by `# filename: NAME`, in the form that AutoGen's executors read."""
    first = code.split("\n", 1)[0]
    if not first.startswith(_FILENAME_MARK):
        return None
    return first.split(":", 2)[1].strip()


def check_size(blocks: Iterable[PreparedBlock], files: Iterable[WorkspaceFile]) -> None:
    """Refuse what can't travel in one payload.

    Raises:
        ValueError: blocks and files together are larger than MAX_PAYLOAD_BYTES.
    """
    size = sum(len(block.content) for block in blocks) + sum(len(file.content) for file in files)
    if size > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"blocks and files have {size} bytes together; at most {MAX_PAYLOAD_BYTES} can be sent with one execution"
        )
