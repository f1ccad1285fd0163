"""`make syscalls`: runs the workloads under strace and writes which system calls they use.

The table goes to operator/sandbox/system_calls.py, which is shipped in the image.

The environment has the packages of the sandbox image, on Debian's Python. The workloads run as a user without rights.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from syscalls.headers import numbers

ROOT = Path(__file__).parents[3]
WORKLOADS = Path(__file__).parent / "workloads"
OUTPUT = ROOT / "operator" / "sandbox" / "system_calls.py"
PATH = "/usr/local/bin:/usr/bin:/bin"
USER = 65534  # "nobody": Node looks its user up
PROGRAMS = {name.partition(".")[0]: name for name in ("python.py", "science.py", "kernel.py", "shell.sh", "node.js")}
# The argument that says what a call is about.
SELECTORS = {"ioctl": 1, "prctl": 0}
_LINE = re.compile(r"^\d+ +(\w+)\(([^,) \n]*)(?:, ([^,) \n]*))?", re.MULTILINE)
HEAD = '''"""The kernel's system calls, and which workloads use them. Written by `make syscalls`; don't edit."""

# Name: (number on x86-64, number on arm64, which workloads of tests/support/syscalls used it).
'''


def observe(workload: str, interpreter: str) -> str:
    """Run one workload to its end and return what strace has written."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        home.mkdir()
        script = shutil.copy(WORKLOADS / PROGRAMS[workload], folder)
        for path in (Path(folder), home, Path(script)):
            os.chown(path, USER, USER)
        trace = Path(folder, "trace")
        command = ["strace", "-f", "-qq", "-Xraw", "-esignal=none", f"-o{trace}", interpreter, script]
        environment = {"PATH": PATH, "HOME": str(home), "LANG": "C.UTF-8", "TMPDIR": str(home)}
        done = subprocess.run(
            command, cwd=home, env=environment, user=USER, group=USER, extra_groups=[], capture_output=True, text=True
        )
        if done.returncode != 0:
            sys.exit(f"workload {workload} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return trace.read_text(errors="replace")


def table(name: str, rows: dict[str, str]) -> str:
    lines = "".join(f"    {key}: {value},\n" for key, value in rows.items())
    return f"{name} = {{\n{lines}}}\n"


def main() -> None:
    python = str(Path(sys.argv[1]).absolute())
    node = shutil.which("node", path=PATH)
    if node is None or shutil.which("strace") is None:
        sys.exit("make syscalls needs node and strace: apt-get install nodejs strace")
    interpreters = {"shell": "bash", "node": node}
    users = defaultdict[str, list[str]](list)
    requests = defaultdict[str, dict[int, list[str]]](lambda: defaultdict(list))
    for workload in PROGRAMS:
        trace = observe(workload, interpreters.get(workload, python))
        seen = {(name, *arguments) for name, *arguments in _LINE.findall(trace)}
        for name in {name for name, *_ in seen}:
            users[name].append(workload)
        for selector, position in SELECTORS.items():
            for number in {int(arguments[position], 0) & 0xFFFF_FFFF for name, *arguments in seen if name == selector}:
                requests[selector][number].append(workload)
        print(f"{workload}: {len({name for name, *_ in seen})} system calls")
    x86, arm = numbers("x86_64"), numbers("aarch64")
    calls = {
        f'"{name}"': f'({x86.get(name)}, {arm.get(name)}, "{" ".join(users[name])}")'
        for name in sorted(x86.keys() | arm.keys())
    }
    if unknown := users.keys() - x86.keys():
        sys.exit(f"strace saw {', '.join(sorted(unknown))}, which the kernel's headers here don't have")
    text = HEAD + table("CALLS", calls)
    for selector, seen_requests in requests.items():
        rows = {f"0x{number:X}": f'"{" ".join(who)}"' for number, who in sorted(seen_requests.items())}
        text += f"\n# What {selector} was asked for.\n" + table(f"{selector.upper()}_REQUESTS", rows)
    OUTPUT.write_text(text)


if __name__ == "__main__":
    main()
