"""Runs the real runner as PID 1 of a PID namespace of its own.

The runner kills every process that it can see, so it must never be started in any other way than here.
"""

import base64
import functools
import gzip
import hashlib
import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ipykernel
import pytest

SOURCES = Path(__file__).parents[3] / "operator" / "sandbox"
SANDBOX_UID = 1_500_000_000 + os.getpid()
"""A user that nobody else on this machine is: the kernel counts processes for each user."""
# The workspace is a constant of the runner; the launcher sets it before anything runs. For each file of the workspace
# that is named `later…`, the runner's clock is 75 s ahead: code that makes one is as slow as it says, on any machine.
LAUNCHER = """
import glob, os, sys, time
assert os.getpid() == 1, "not in a PID namespace of its own"
sys.path.insert(0, sys.argv[1])
import workspace
workspace.WORKSPACE = sys.argv[2]
import first_day, job, kernel, processes, runner, start
first_day.VOLUMES = (sys.argv[2],)  # those of the machine are not emptied
kernel.FOLDERS = sys.argv[3]
processes.STOP_SECONDS = 60  # the machine may be busy
clock = time.monotonic
time.monotonic = lambda: clock() + 75 * len(glob.glob(f"{workspace.WORKSPACE}/later*"))
exec(sys.argv[4])
start.main()
"""
# Not the interpreter of the virtual environment: the sandbox user may not be able to reach it.
PATH = "/usr/local/bin:/usr/bin:/bin"
PYTHON = shutil.which("python3", path=PATH) or sys.executable
_NUMBERS = itertools.count()
ENVIRONMENT = {"PATH": PATH, "PLANTED": "the runner's own environment is not passed on"}


def _data(frame: Mapping[str, Any]) -> bytes:
    if "gzip64" in frame:
        return gzip.decompress(base64.b64decode(frame["gzip64"]))
    return base64.b64decode(frame["data64"])


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
        return "".join(
            frame["data"] if "data" in frame else _data(frame).decode()
            for frame in self.frames
            if frame.get("stream") == stream
        )

    @property
    def artifacts(self) -> dict[str, tuple[int, str | None]]:
        """Path to size and digest, in the order of the report."""
        return {frame["path"]: (frame["size"], frame["sha256"]) for frame in self.frames if "artifact" in frame}

    @property
    def sent(self) -> dict[str, bytes]:
        """Path to content, of what was sent."""
        paths = [frame["path"] for frame in self.frames if "artifact" in frame]
        files: dict[str, bytes] = {}
        for frame in self.frames:
            if "file" in frame:
                path = paths[frame["file"]]
                files[path] = files.get(path, b"") + _data(frame)
        return files

    @property
    def endings(self) -> list[tuple[int, str]]:
        return [(frame["exitCode"], frame["reason"]) for frame in self.blocks]


class Sandbox:
    """A workspace, and the runner's command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.temporary = folder / "tmp"
        self.python = PYTHON
        self.environment = dict(ENVIRONMENT)
        self.workspace_bytes = 0
        """Of a file system of its own, as in a pod; 0: it has none."""
        self.isolated = False
        """True: it has its own network, IPC objects, and all volumes of a pod in memory."""
        self.workspace.mkdir()
        self.temporary.mkdir()
        shutil.copytree(SOURCES, folder / "runner", ignore=shutil.ignore_patterns("Dockerfile", "__pycache__"))
        if os.geteuid() == 0:
            for one in (self.workspace, self.temporary):
                os.chown(one, SANDBOX_UID, SANDBOX_UID)

    def command(self, *, privileged: bool = False, before: str = "") -> list[str]:
        """The runner's command line; `before` is Python that runs in its place first, not confined."""
        isolate = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        isolate += ["--ipc", "--net"] if self.isolated else []
        identity: list[str] = []
        if os.geteuid() != 0:
            isolate += ["--user", "--map-root-user"]
        elif not privileged:
            identity = ["setpriv", f"--reuid={SANDBOX_UID}", f"--regid={SANDBOX_UID}", "--clear-groups"]
        mount: list[str] = []
        if self.workspace_bytes:
            options = f"mode=777,size={self.workspace_bytes}"
            mount = ["sh", "-c", f'mount -t tmpfs -o {options} tmpfs {self.workspace} && exec "$@"', "sh"]
        if self.isolated:
            mount = ["sh", "-ec", self._mounts(), "sh"]
        folders = map(str, (self.folder / "runner", self.workspace, self.temporary))
        return [*isolate, *mount, *identity, self.python, "-I", "-B", "-c", LAUNCHER, *folders, before]

    def _mounts(self) -> str:
        """What a pod has in memory. And no cgroup: its counts would be those of all that the machine does."""
        volumes = f"{self.workspace} {self.temporary} /dev/shm"
        return (
            f"for one in {volumes} /sys/fs/cgroup; do mount -t tmpfs tmpfs $one; done; "
            f"mount -t devpts -o newinstance,ptmxmode=666 devpts /dev/pts; chown {SANDBOX_UID} {self.workspace}; "
            f"mkdir {self.folder}/queues; mount -t mqueue mqueue {self.folder}/queues; "
            f'chmod 1777 {volumes} {self.folder}/queues; exec "$@"'
        )

    @property
    def here(self) -> str:
        """Python that tells an isolated runner where its volumes are."""
        volumes = (str(self.workspace), str(self.temporary), "/dev/shm")
        return f"first_day.VOLUMES, first_day.QUEUES = {volumes!r}, '{self.folder}/queues'\n"

    def start(self, *, before: str = "") -> subprocess.Popen[bytes]:
        """The runner, waiting for a job."""
        pipe = subprocess.PIPE
        command = self.command(before=before)
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env=self.environment)

    @contextmanager
    def connect(self, *, before: str = "") -> Iterator["Connection"]:
        """A runner to talk to. Its end is awaited, and it must be in order."""
        with self.start(before=before) as runner:
            connection = Connection(runner)
            yield connection
            runner.stdin.close()  # type: ignore[union-attr]
            assert runner.wait(60) == 0
            assert runner.stderr.read() == b""  # type: ignore[union-attr]

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
        messages = [*puts(files or {}), a_job(*blocks, **job), *then]
        done = subprocess.run(
            self.command(privileged=privileged, before=before),
            input="".join(json.dumps(message) + "\n" for message in messages).encode(),
            capture_output=True,
            cwd="/",
            env=self.environment,
        )
        return Report(done.stdout, done.stderr.decode(), done.returncode)


class Connection:
    """Speaks with a runner as the operator does, with time to think in between."""

    def __init__(self, runner: subprocess.Popen[bytes]) -> None:
        assert runner.stdin
        assert runner.stdout
        self._stdin, self._stdout = runner.stdin, runner.stdout

    def say(self, *messages: Mapping[str, Any] | bytes) -> None:
        for message in messages:
            self._stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
        self._stdin.flush()

    def hear(self, *ends: str) -> Report:
        """All frames up to the first that has one of these fields."""
        lines = []
        while line := self._stdout.readline():
            lines.append(line)
            if any(end in json.loads(line) for end in ends):
                break
        return Report(b"".join(lines), "", 0)

    def run(self, *blocks: str | Mapping[str, Any], files: Mapping[str, bytes] | None = None, **job: Any) -> Report:
        """A job of a session, to its end."""
        self.say(*puts(files or {}), a_job(*blocks, **{"session": True, **job}))
        return self.hear("done", "fault", "error")


def puts(files: Mapping[str, bytes], piece: int = 700_000) -> Iterator[dict[str, Any]]:
    for path, content in files.items():
        for start in range(0, len(content) or 1, piece):
            data = base64.b64encode(content[start : start + piece]).decode()
            yield {"put": path, "data": data, "append": start > 0}


def a_job(*blocks: str | Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    def a_block(index: int, block: str | Mapping[str, Any]) -> dict[str, Any]:
        given = {"code": block} if isinstance(block, str) else block
        digest = hashlib.sha256(given["code"].encode()).hexdigest()
        return {"path": f"block{index}.py", "command": ["python3"], "language": "python", "sha256": digest, **given}

    return {
        "id": f"job-{next(_NUMBERS)}",
        "session": False,
        "stateful": False,
        "blocks": [a_block(index, block) for index, block in enumerate(blocks)],
        "timeoutSeconds": 90,
        "outputBytes": 262_144,
        "fetchBytes": 16 * 2**20,
        "memoryBytes": 256 * 2**20,
        "pids": 64,
        "artifacts": {"list": "None", "fetch": []},
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


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Connection]:
    with sandbox.connect() as connection:
        yield connection


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Path]:
    """Where there is a `python3` of the version that the packages of the virtual environment are compiled for."""
    version = "python{}.{}".format(*sys.version_info)
    question = "import sys; print('python{}.{}'.format(*sys.version_info))"
    if subprocess.check_output([PYTHON, "-I", "-c", question], text=True).strip() == version:
        yield Path(PYTHON).parent
        return
    # The system's is another one. A copy, because the sandbox user may not be able to reach the original.
    original = Path(sys.base_prefix)
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="codeexec-python-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        unneeded = shutil.ignore_patterns("test", "site-packages", "__pycache__", "config-*", "ensurepip", "idlelib")
        shutil.copytree(original / "lib" / version, folder / "lib" / version, ignore=unneeded)
        for library in (original / "lib").glob("libpython*"):
            shutil.copy2(library, folder / "lib")
        (folder / "bin").mkdir()
        shutil.copy2(original / "bin" / version, folder / "bin" / "python3")
        yield folder / "bin"


@pytest.fixture(scope="session")
def packages() -> Iterator[Path]:
    """Those of the virtual environment, where the sandbox user can read them: a checkout may stand in root's home."""
    installed = Path(ipykernel.__file__).parents[1]
    if all(folder.stat().st_mode & stat.S_IXOTH for folder in (installed, *installed.parents)):
        yield installed
        return
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="codeexec-packages-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(installed, folder / "packages", copy_function=_link)
        yield folder / "packages"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


@pytest.fixture
def before() -> str:
    """Python that runs in the runner first, for `stateful`."""
    return ""


@pytest.fixture
def stateful(sandbox: Sandbox, interpreter: Path, packages: Path, before: str) -> Iterator[Callable[..., Report]]:
    """Runs jobs of one stateful session; the packages are those of the virtual environment."""
    sandbox.python = str(interpreter / "python3")
    libraries = {"LD_LIBRARY_PATH": str(interpreter.parent / "lib")}  # its own path may lead to where nobody may look
    sandbox.environment |= libraries
    environment = libraries | {"PYTHONPATH": str(packages), "PATH": f"{interpreter}:{PATH}"}
    with sandbox.connect(before=f"runner.ENVIRONMENT.update({environment!r})\n{before}") as connection:
        # The start of a kernel counts, too.
        yield functools.partial(connection.run, **{"stateful": True, "timeoutSeconds": 90})
