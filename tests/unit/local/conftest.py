"""A caller with something to lose, code that goes for it, and the same code without a sandbox."""

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from executor_client import LocalCodeResult, LocalSandboxExecutor

SIGNS_OF_PRODUCTION = ("CODEEXEC_ENVIRONMENT", "OTEL_RESOURCE_ATTRIBUTES", "KUBERNETES_SERVICE_HOST")


@pytest.fixture(autouse=True)
def not_production(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SIGNS_OF_PRODUCTION:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def landlock() -> None:
    """Skip what can't be had on this machine: see docs/local-sandbox.md."""
    sandlock = pytest.importorskip("sandlock", reason="there is no sandlock for this system")
    found, needed = sandlock.landlock_abi_version(), sandlock.min_landlock_abi()
    if found < needed:
        pytest.skip(f"the kernel has Landlock ABI {found}, and the local sandbox needs {needed} (Linux 6.12)")


@dataclass(frozen=True)
class Caller:
    """What a machine of a developer has."""

    home: Path
    key: Path
    tcp: socket.socket
    udp: socket.socket
    abstract: socket.socket
    named: socket.socket
    process: "subprocess.Popen[bytes]"

    @property
    def values(self) -> dict[str, Any]:
        """What probes are told."""
        return {
            "KEY": str(self.key),
            "HOME_FOLDER": str(self.home),
            "TCP": self.tcp.getsockname(),
            "UDP": self.udp.getsockname(),
            "ABSTRACT": self.abstract.getsockname(),
            "NAMED": self.named.getsockname(),
            "VICTIM": self.process.pid,
        }

    def heard(self) -> list[str]:
        """Which of the canaries have heard something."""
        heard = []
        for name in ("tcp", "udp", "abstract", "named"):
            canary = getattr(self, name)
            try:
                if canary.type == socket.SOCK_DGRAM:
                    canary.recv(1)
                else:
                    canary.accept()[0].close()
                heard.append(name)
            except BlockingIOError:
                continue
        return heard

    def unprotected(self, code: str) -> str:
        """The control: what the same code prints in a plain process of the caller."""
        done = subprocess.run(
            [sys.executable, "-I", "-c", code],
            env={**os.environ, "HOME": str(self.home)},
            cwd=self.home,
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    home = tmp_path / "home"
    key = home / ".ssh" / "id_rsa"
    key.parent.mkdir(parents=True)
    key.write_text("PLANTED-KEY")
    with ExitStack() as stack:
        sockets = {
            "tcp": socket.create_server(("127.0.0.1", 0)),
            "udp": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            "abstract": socket.socket(socket.AF_UNIX),
            "named": socket.socket(socket.AF_UNIX),
        }
        sockets["udp"].bind(("127.0.0.1", 0))
        sockets["abstract"].bind(f"\0codeexec-canary-{os.getpid()}")
        sockets["named"].bind(str(tmp_path / "s"))
        for one in sockets.values():
            stack.enter_context(one)
            one.setblocking(False)
            if one.type == socket.SOCK_STREAM:
                one.listen()
        process = stack.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"PLANTED": "SECRET"}))
        stack.callback(process.kill)
        yield Caller(home, key, process=process, **sockets)
        assert process.poll() is None, f"somebody ended the caller's process: {process.returncode}"


@pytest.fixture
async def make(landlock: None) -> AsyncIterator[Callable[..., LocalSandboxExecutor]]:
    made: list[LocalSandboxExecutor] = []

    def new(**options: Any) -> LocalSandboxExecutor:
        made.append(LocalSandboxExecutor(**{"timeout": 600, **options}))
        return made[-1]

    yield new
    for executor in made:
        await executor.stop()


@pytest.fixture
def executor(make: Callable[..., LocalSandboxExecutor]) -> LocalSandboxExecutor:
    return make()


async def run(executor: LocalSandboxExecutor, code: str, language: str = "python") -> LocalCodeResult:
    block = CodeBlock(textwrap.dedent(code), language)
    return await executor.execute_code_blocks([block], CancellationToken())


@pytest.fixture(name="run")
def run_fixture() -> Callable[..., Any]:
    return run
