"""What a block may do on this machine: pure functions that make the plan its supervisor is given."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from codeexec_api import Limits
from codeexec_api.quantities import parse_quantity
from executor_client.exceptions import LocalSandboxUnavailable
from executor_client.local.system_calls import Program, numbers, refused, seccomp_program

_SYSTEM: Final = ("/usr", "/lib", "/lib64", "/bin", "/sbin")
"""Programs and libraries, the same on each machine of a distribution."""
_FILES: Final = (
    "/etc/ld.so.cache",
    "/etc/alternatives",  # Debian: where awk and others lead
    "/etc/localtime",
    "/etc/ssl/openssl.cnf",  # Node doesn't start without it
    "/etc/ssl/certs",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
)
_ENDPOINT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?):([0-9]{1,5})")


@dataclass(frozen=True)
class Plan:
    """One block, for `worker.py`: what is run, and within what."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    readable: tuple[str, ...]
    """Files and folders with all below them. What the machine doesn't have is left out."""
    writable: tuple[str, ...]
    memory_bytes: int
    """Of all processes together."""
    processes: int
    cores: int
    """How many the block may use at the same time."""
    cpu_percent: int | None
    """Of one core, if it is less than one."""
    file_bytes: int
    """Largest file."""
    endpoints: tuple[str, ...]
    filter: Program
    """System calls that are refused besides those that sandlock refuses."""
    numbers: Mapping[str, int]
    """Of system calls, by name."""


@dataclass(frozen=True)
class Machine:
    """What the plan takes from this machine."""

    python: str
    """The interpreter of the caller, which also runs Python blocks."""
    prefixes: tuple[str, ...]
    """Its folders: the virtual environment, and the Python that this is of."""
    home: Path
    """Home folder of the caller, resolved."""
    processor: str
    """One of `ARCHITECTURES`."""

    def search_path(self) -> str:
        """PATH of the code."""
        return f"{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin"


def readable(machine: Machine) -> tuple[str, ...]:
    """What code may read besides its workspace.

    Raises:
        LocalSandboxUnavailable: Python is installed in such a way that this would be the caller's home folder.
    """
    for prefix in machine.prefixes:
        if machine.home.is_relative_to(Path(prefix).resolve()):
            raise LocalSandboxUnavailable(
                f"Python is installed in {prefix}, which contains the home folder {machine.home}, so code could read "
                "all of it. Use a Python in a folder of its own, such as a virtual environment"
            )
    return (*_SYSTEM, *_FILES, *dict.fromkeys(machine.prefixes))


def environment(machine: Machine, workspace: Path, temporary: Path) -> dict[str, str]:
    """All variables that code has; nothing of it is the caller's."""
    return {
        "PATH": machine.search_path(),
        "HOME": str(workspace),
        "TMPDIR": str(temporary),
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLCONFIGDIR": str(temporary / "matplotlib"),
        "MPLBACKEND": "Agg",
        "OPENBLAS_NUM_THREADS": "1",
    }


def plan(
    argv: Sequence[str],
    *,
    machine: Machine,
    workspace: Path,
    temporary: Path,
    limits: Limits,
    endpoints: Sequence[str] = (),
) -> Plan:
    """The plan of one block.

    Raises:
        LocalSandboxUnavailable: see `readable`.
    """
    cpu = parse_quantity(limits.cpu)
    return Plan(
        argv=tuple(argv),
        cwd=str(workspace),
        env=environment(machine, workspace, temporary),
        readable=readable(machine),
        writable=(str(workspace), str(temporary), "/dev/null"),
        memory_bytes=int(parse_quantity(limits.memory)),
        processes=limits.pids,
        cores=math.ceil(cpu),
        cpu_percent=max(1, int(cpu * 100)) if cpu < 1 else None,
        file_bytes=int(parse_quantity(limits.ephemeral_storage)),
        endpoints=tuple(endpoints),
        filter=seccomp_program(machine.processor, refused(network=bool(endpoints))),
        numbers=numbers(machine.processor),
    )


def check_endpoint(endpoint: str) -> str:
    """An endpoint that code may open TCP connections to.

    Raises:
        ValueError: it is no HOST:PORT.
    """
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or not 1 <= int(match[2]) <= 65_535:
        raise ValueError(
            f"endpoints has {endpoint!r}, but each must be one host and one port, such as 'api.example.org:443' or "
            "'127.0.0.1:8080'; TCP only, and no patterns"
        )
    return endpoint
