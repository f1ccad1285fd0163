"""What callers give to calls, checked before anything is done. An error names the argument and what to write. Pure."""

import math
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from codeexec_api import Phase
from codeexec_api.characters import ONE_UNSEEN
from codeexec_api.paths import check_workspace_path
from executor_client.exceptions import FileTransferError

T = TypeVar("T")

_WORKSPACE: Final = "/workspace/"
_MAX_AGENT: Final = 128
"""As in `Source.agent` of the contract."""


def several(name: str, given: Iterable[T]) -> tuple[T, ...]:
    """The items of an argument that takes several.

    Raises:
        ValueError: the argument is one string, whose characters would be taken for the items.
    """
    if isinstance(given, str | bytes | bytearray):
        text = given if isinstance(given, str) else given.decode(errors="replace")
        raise ValueError(
            f"{name} is {given!r}, but must be a list or another sequence of strings: write {name}=[{text!r}]"
        )
    return tuple(given)


def inside(path: str) -> str:
    """The path of a file in the workspace, relative to the workspace: of `/workspace/a`, as code prints it, `a`.

    Takes patterns, too: none that is refused here selects a file.

    Raises:
        FileTransferError: the path can't be one in the workspace.
    """
    if not isinstance(path, str):
        raise FileTransferError(f"the path {path!r} is of type {type(path).__name__}, but must be a string")
    if path.startswith("/") and not path.startswith(_WORKSPACE):
        raise FileTransferError(
            f"{path!r} is outside the workspace: give a relative path, or a path that begins with {_WORKSPACE}"
        )
    try:
        return check_workspace_path(path.removeprefix(_WORKSPACE))
    except ValueError as error:
        raise FileTransferError(str(error)) from None


def to_fetch(fetch: Iterable[str]) -> tuple[str, ...]:
    """Paths and patterns of files that are asked for, relative to the workspace.

    Raises:
        FileTransferError: a path leads out of the workspace.
        ValueError: all are one string.
    """
    return tuple(map(inside, several("fetch", fetch)))


def contents(files: Mapping[str, bytes | str]) -> dict[str, bytes]:
    """Files for the workspace as they are sent: content by path, text as UTF-8.

    Raises:
        FileTransferError: a path can't be one in the workspace, or two are those of one file.
        ValueError: the argument holds no content, or content that is neither bytes nor text.
    """
    if not isinstance(files, Mapping):
        raise ValueError(f"files is {files!r}, but must have the content by path: write files={{'a.txt': 'text'}}")
    found: dict[str, bytes] = {}
    for path, content in files.items():
        name = inside(path)
        if name in found:
            raise FileTransferError(f"{path!r} is in files twice, with and without {_WORKSPACE!r}: leave one out")
        found[name] = _as_bytes(path, content)
    return found


def _as_bytes(path: str, content: bytes | str) -> bytes:
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise ValueError(f"the content of {path!r} is of type {type(content).__name__}, but must be bytes or a string")


def whole_seconds(name: str, given: float, most: int) -> int:
    """A number of seconds without a fraction, such as 30 or 30.0.

    Raises:
        ValueError: the argument is no such number, or out of range.
    """
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not 1 <= given <= most or int(given) != given:
        raise ValueError(f"{name} is {given!r}, but must be whole seconds, 1 to {most}")
    return int(given)


def seconds(name: str, given: float | None) -> float | None:
    """A number of seconds, with a fraction or without; None for no limit.

    Raises:
        ValueError: the argument is no such number, or not greater than 0.
    """
    if given is None:
        return None
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not 0 < given < math.inf:
        raise ValueError(f"{name} is {given!r}, but must be a number greater than 0, or None")
    return given


def phase_of(given: str | None) -> Phase | None:
    """A phase, which may be given as its word, such as `Succeeded`; None for no phase.

    Raises:
        ValueError: there is no such phase.
    """
    try:
        return None if given is None else Phase(given)
    except ValueError:
        raise ValueError(f"phase is {given!r}, but must be one of {', '.join(Phase)}, or None for all") from None


def check_agent(agent: str) -> None:
    """Refuse a name that no record takes.

    Raises:
        ValueError: the name is empty, too long or no string, or holds two blanks in a row or a character that nobody
            sees.
    """
    if not isinstance(agent, str) or not 1 <= len(agent) <= _MAX_AGENT:
        raise ValueError(
            f"agent is {agent!r}, but must be a name of 1 to {_MAX_AGENT} characters: the record says who has asked"
        )
    unseen = ONE_UNSEEN.search(agent)
    if unseen or "  " in agent:
        what = f"U+{ord(unseen[0]):04X}" if unseen else "two blanks in a row"
        raise ValueError(
            f"agent is {agent!r}, which contains {what}; use letters, digits, punctuation and single blanks"
        )
