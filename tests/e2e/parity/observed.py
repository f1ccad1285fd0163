"""Whether the other two executors have to be run again, or what they gave the last time still stands.

What AutoGen's executors give is written in the cases, and was observed. It changes only with them, with AutoGen, with
the client's Python, or with what Docker is spoken to by. `observed.toml` keeps what it was observed with.
"""

import hashlib
import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent
RECORD = FOLDER / "observed.toml"
LOCKED = FOLDER.parents[2] / "requirements" / "dev.txt"
PACKAGES = ("autogen-agentchat", "autogen-core", "autogen-ext", "docker")
SOURCES = ("case.py", "parties.py", "cases/*.py")


@dataclass(frozen=True)
class Basis:
    """What an observation depends on."""

    python: str
    packages: Mapping[str, str]
    cases: str
    """Digest of the sources of the cases."""

    def differences(self, now: "Basis") -> list[str]:
        """In words, what is different now."""
        before, after = self._named(), now._named()
        return [f"{name} was {before[name]} and is {after[name]}" for name in before if before[name] != after[name]]

    def written(self) -> str:
        """As `observed.toml` holds it."""
        rows = [f'{name} = "{value}"' for name, value in sorted(self.packages.items())]
        return "\n".join(
            [
                "# Written by `make parity`: what AutoGen's own executors were last observed with.",
                f'python = "{self.python}"',
                f'cases = "{self.cases}"',
                "",
                "[packages]",
                *rows,
                "",
            ]
        )

    def _named(self) -> dict[str, str]:
        return {"Python": self.python, "the digest of the cases": self.cases[:12], **self.packages}


def last() -> Basis:
    """That of the last observation."""
    kept = tomllib.loads(RECORD.read_text())
    return Basis(kept["python"], kept["packages"], kept["cases"])


def here() -> Basis:
    """That of a run in this environment."""
    python = ".".join(platform.python_version_tuple()[:2])
    return Basis(python, {name: version(name) for name in PACKAGES}, digest())


def locked(python: str) -> Basis:
    """That of the project, by its lock file."""
    pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", LOCKED.read_text(), re.MULTILINE))
    return Basis(python, {name: pins[name] for name in PACKAGES}, digest())


def digest(folder: Path = FOLDER) -> str:
    """Of the sources of all that the cases do."""
    files = sorted(file for pattern in SOURCES for file in folder.glob(pattern))
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()
