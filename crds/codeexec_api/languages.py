"""Languages of code blocks: the spellings that are accepted, and how each is run.

The client normalizes with `canonical`; the API accepts canonical names only; the runner gets `command`.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Language:
    """How blocks of one language are stored and started."""

    name: str
    extension: str
    command: tuple[str, ...]
    aliases: tuple[str, ...] = ()


_ALL: Final = (
    Language("python", ".py", ("python3",), ("py", "python3")),
    Language("bash", ".sh", ("bash",)),
    Language("sh", ".sh", ("sh",), ("shell",)),
    Language("javascript", ".js", ("node",), ("js", "node")),
    Language("pwsh", ".ps1", ("pwsh", "-NoProfile", "-NonInteractive", "-File"), ("powershell", "ps1")),
)

LANGUAGES: Final = MappingProxyType({language.name: language for language in _ALL})
"""Canonical name to language, in the order in which messages list them. Which of them run is up to the image."""

DEFAULT_LANGUAGES: Final = ("python", "bash", "sh")
"""Those that the default sandbox image runs, in the same order."""

_SPELLINGS: Final = {alias: one.name for one in _ALL for alias in (one.name, *one.aliases)}


def canonical(spelling: str) -> str | None:
    """Canonical name for a spelling in any case (`Python`, `py`, `shell`), or None if it is unknown."""
    return _SPELLINGS.get(spelling.strip().lower())


def default_file_name(language: str, sha256: str) -> str:
    """File in the workspace for a block that names none: AutoGen's scheme, made of the digest of the code."""
    return f"tmp_code_{sha256}{LANGUAGES[language].extension}"


def unknown_language(spelling: str) -> str:
    """The one message for a language that no image runs. The image decides which of the others run."""
    others = [one for one in _ALL if one.name not in DEFAULT_LANGUAGES]
    return (
        f"unknown language {spelling}; supported languages: {', '.join(DEFAULT_LANGUAGES)}. A sandbox image with "
        f"{' or '.join(one.command[0] for one in others)} also runs {' or '.join(one.name for one in others)}: see "
        "docs/images.md"
    )
