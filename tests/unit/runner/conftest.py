"""Runs the real runner as PID 1 of a PID namespace of its own.

The runner kills every process that it can see, so it must never be started in any other way than here.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parents[3] / "operator" / "sandbox"
SANDBOX_UID = 1_500_000_000 + os.getpid()
"""A user that nobody else on this machine is: the kernel counts processes for each user."""
# The workspace is a constant of the runner; the launcher sets it before anything runs.
LAUNCHER = """
import os, sys
assert os.getpid() == 1, "not in a PID namespace of its own"
sys.path.insert(0, sys.argv[1])
import runner
runner.WORKSPACE = sys.argv[2]
exec(sys.argv[3])
runner.main()
"""
# Not the interpreter of the virtual environment: the sandbox user may not be able to reach it.
PATH = "/usr/local/bin:/usr/bin:/bin"
PYTHON = shutil.which("python3", path=PATH) or sys.executable
ENVIRONMENT = {"PATH": PATH, "PLANTED": "the runner's own environment is not passed on"}


@dataclass(frozen=True)
class Report:
    """What the runner has said until its end."""

    raw: bytes
    errors: str
    status: int

    @property
    def frames(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.raw.splitlines()]

    @property
    def blocks(self) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if "block" in frame]

    @property
    def totals(self) -> dict[str, Any]:
        return self.frames[-1]

    def text(self, stream: str = "stdout") -> str:
        return "".join(frame["data"] for frame in self.frames if frame.get("stream") == stream)

    @property
    def endings(self) -> list[tuple[int, str]]:
        return [(frame["exitCode"], frame["reason"]) for frame in self.blocks]


class Sandbox:
    """A workspace, and the runner's command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        shutil.copytree(SOURCES, folder / "runner", ignore=shutil.ignore_patterns("Dockerfile", "__pycache__"))
        if os.geteuid() == 0:
            os.chown(self.workspace, SANDBOX_UID, SANDBOX_UID)

    def command(self, *, privileged: bool = False, before: str = "") -> list[str]:
        """The runner's command line; `before` is Python that runs in its place first, not confined."""
        isolate = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        identity: list[str] = []
        if os.geteuid() != 0:
            isolate += ["--user", "--map-root-user"]
        elif not privileged:
            identity = ["setpriv", f"--reuid={SANDBOX_UID}", f"--regid={SANDBOX_UID}", "--clear-groups"]
        start = [PYTHON, "-I", "-B", "-c", LAUNCHER, str(self.folder / "runner"), str(self.workspace)]
        return [*isolate, *identity, *start, before]

    def start(self) -> subprocess.Popen[bytes]:
        """The runner, waiting for a job."""
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command(), stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env=ENVIRONMENT)

    def run(
        self,
        *blocks: str | Mapping[str, Any],
        files: Mapping[str, bytes] | None = None,
        privileged: bool = False,
        before: str = "",
        then: Sequence[Mapping[str, Any]] = (),
        **job: Any,
    ) -> Report:
        """Run blocks (a text is Python code) to the end, with stdin closed behind the job."""
        messages = [a_job(*blocks, files=files, **job), *then]
        done = subprocess.run(
            self.command(privileged=privileged, before=before),
            input="".join(json.dumps(message) + "\n" for message in messages).encode(),
            capture_output=True,
            timeout=60,
            cwd="/",
            env=ENVIRONMENT,
        )
        return Report(done.stdout, done.stderr.decode(), done.returncode)


def a_job(*blocks: str | Mapping[str, Any], files: Mapping[str, bytes] | None = None, **changes: Any) -> dict[str, Any]:
    def a_block(index: int, block: str | Mapping[str, Any]) -> dict[str, Any]:
        given = {"code": block} if isinstance(block, str) else block
        return {"path": f"block{index}.py", "command": ["python3"], **given}

    return {
        "id": "job",
        "blocks": [a_block(index, block) for index, block in enumerate(blocks)],
        "files": [
            {"path": path, "data": base64.b64encode(content).decode()} for path, content in (files or {}).items()
        ],
        "timeoutSeconds": 20,
        "outputBytes": 262_144,
        "memoryBytes": 256 * 2**20,
        "pids": 64,
    } | changes


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    # Not tmp_path: the folders above it are closed to the sandbox user.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="codeexec-") as folder:
        Path(folder).chmod(0o755)
        yield Sandbox(Path(folder))


@pytest.fixture
def run(sandbox: Sandbox) -> Callable[..., Report]:
    return sandbox.run


@pytest.fixture
def job() -> Callable[..., dict[str, Any]]:
    return a_job
