"""Ports to listen at, on any address, that nothing else takes before they are used."""

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import Final, TextIO

_FIRST: Final = 10_000
_BEYOND: Final = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
"""From here on, Linux gives ports to connections and to who asks for any."""
_LOCKS: Final = Path(tempfile.gettempdir()) / f"codeexec-ports-{os.getuid()}"
_held: dict[int, TextIO] = {}


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens at. No other process of these tests gets them as long as this one lives."""
    _LOCKS.mkdir(exist_ok=True)
    found: list[int] = []
    for port in range(_FIRST, _BEYOND):
        if len(found) == count:
            return found
        if port not in _held and _lock(port) and _is_free(port):
            found.append(port)
    raise AssertionError(f"no {count} free ports between {_FIRST} and {_BEYOND}: {len(_held)} are held by this process")


def _lock(port: int) -> bool:
    file = (_LOCKS / str(port)).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    _held[port] = file
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
