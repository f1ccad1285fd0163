"""What `make dist` has built, and clean environments with it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")


@dataclass(frozen=True)
class Wheel:
    """A distribution in a file."""

    path: Path
    metadata: Metadata

    def requirements(self, extra: str = "") -> list[Requirement]:
        """What it needs from others, on this Python."""
        listed = self.metadata.requires_dist or ()
        mine = [one for one in listed if not one.marker or one.marker.evaluate({"extra": extra})]
        return [one for one in mine if one.name != "codeexec"]


@pytest.fixture(scope="session")
def wheels() -> dict[str, Wheel]:
    """Both distributions, by name."""
    found = {}
    for path in (ROOT / "dist").glob("*.whl"):
        with ZipFile(path) as archive:
            [name] = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
            wheel = Wheel(path, Metadata.from_email(archive.read(name)))
            found[wheel.metadata.name] = wheel
    assert set(found) == {"codeexec", "codeexec-operator"}, "run `make packages`, which builds them first"
    return found


class Environment:
    """A virtual environment of this Python, with nothing in it.

    All of them have the same path, one after the other, and share byte code: most of the time was compiling.
    """

    def __init__(self, place: Path, folder: Path) -> None:
        self._folder, self._byte_code = folder, place / "byte-code"
        self._run(UV, "venv", "--quiet", "--clear", "--python", sys.executable, place / "environment")
        self.python = place / "environment" / "bin" / "python"

    def install(self, *arguments: str) -> None:
        self._run(UV, "pip", "install", "--quiet", "--no-config", "--python", self.python, *arguments)

    def run(self, *arguments: str | Path) -> str:
        """Run Python, with no package but those of the environment."""
        return self._run(self.python, "-I", "-X", f"pycache_prefix={self._byte_code}", *arguments)

    def _run(self, *command: str | Path) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CODEEXEC_")}
        environment["PYTHONPYCACHEPREFIX"] = str(self._byte_code)
        done = subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture
def environment(place: Path, tmp_path: Path) -> Environment:
    return Environment(place, tmp_path)
