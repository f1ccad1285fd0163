"""The numbers of system calls, as the kernel's headers on this machine have them (Debian: linux-libc-dev)."""

import re
import subprocess
from pathlib import Path

# What the kernel defines before it includes the generic table: arch/arm64/include/uapi/asm/unistd.h.
_GENERIC = "".join(
    f"#define __ARCH_WANT_{name}\n"
    for name in ("RENAMEAT", "NEW_STAT", "SET_GET_RLIMIT", "TIME32_SYSCALLS", "SYS_CLONE3", "MEMFD_SECRET")
)
_SOURCES = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", ""),
    "aarch64": ("/usr/include/asm-generic/unistd.h", _GENERIC),
}
_DEFINITION = re.compile(r"#define __NR(?:3264)?_(\w+) (?:__NR3264_(\w+)|(\d+))$", re.MULTILINE)
_NO_CALLS = {"syscalls", "arch_specific_syscall"}


def has_headers(machine: str) -> bool:
    """Whether the machine's table is here."""
    return Path(_SOURCES[machine][0]).exists()


def numbers(machine: str) -> dict[str, int]:
    """Name to number of each system call of `x86_64` or `aarch64`.

    The generic table gives `fstatat` and a few others a name of their own and points to it; both are resolved.
    """
    path, before = _SOURCES[machine]
    source = f'{before}#include "{path}"\n'
    command = ["gcc", "-E", "-dM", "-"]
    text = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    raw = dict[str, int]()
    aliases = dict[str, str]()
    for name, alias, number in _DEFINITION.findall(text):
        if number:
            raw[name] = int(number)
        else:
            aliases[name] = alias
    own = set(aliases.values()) - set(aliases)
    calls = raw | {name: raw[alias] for name, alias in aliases.items()}
    return {name: number for name, number in calls.items() if name not in own | _NO_CALLS}
