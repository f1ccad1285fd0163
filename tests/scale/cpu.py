"""Who uses the CPU: of the control plane, of the operator, of the test itself. In seconds, from /proc."""

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_COMMANDS: Final = {
    "kube-apiserver": "kube-apiserver",
    "etcd": "etcd",
    "kube-scheduler": "kube-scheduler",
    "kube-controller": "kube-controller-manager",  # the kernel keeps 15 characters
    "kubelet": "kubelet",
    "containerd": "containerd",
    "cilium-agent": "cilium-agent",
}
_TICKS: Final = os.sysconf("SC_CLK_TCK")
MACHINE: Final = "all of the machine"
STOLEN: Final = "stolen by the machine's host"

Seconds = Mapping[str, float]


@dataclass(frozen=True)
class Meter:
    """Reads the CPU time of the processes that matter.

    Args:
        node: the kind node's container.
        operator: process id of the operator, as the node counts them.
        ours: process ids on this machine, by what they are.
    """

    node: str
    operator: int
    ours: Mapping[str, Iterable[int]]

    def read(self) -> Seconds:
        """CPU time of each so far."""
        taken = dict.fromkeys(("operator", *_COMMANDS.values()), 0.0)
        for line in _in(self.node, "cat /proc/[0-9]*/stat 2>/dev/null || true").splitlines():
            process, command, seconds = _parse(line)
            if process == self.operator:
                taken["operator"] += seconds
            elif command in _COMMANDS:
                taken[_COMMANDS[command]] += seconds
        for name, processes in self.ours.items():
            taken[name] = sum(_parse(Path(f"/proc/{one}/stat").read_text())[2] for one in processes)
        return taken | _machine()

    def operator_memory(self) -> dict[str, float]:
        """Of the operator, in MiB: resident now, and at most so far."""
        lines = _in(self.node, f"cat /proc/{self.operator}/status").splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        return {name: int(fields[key].split()[0]) / 1024 for name, key in (("now", "VmRSS"), ("peak", "VmHWM"))}


def spent(before: Seconds, after: Seconds) -> dict[str, float]:
    """CPU time of each between two readings."""
    return {name: after[name] - before[name] for name in before}


def process_of_pod(node: str, uid: str, command: str) -> int:
    """Process id, as the node counts them, of the one process of a pod whose command line contains `command`."""
    marks = f"-e {uid} -e {uid.replace('-', '_')}"
    print_one = "echo ${p#/proc/} $(tr '\\0' ' ' <$p/cmdline)"
    script = f"for file in $(grep -ls {marks} /proc/[0-9]*/cgroup); do p=${{file%/cgroup}}; {print_one}; done"
    found = [line.split()[0] for line in _in(node, script).splitlines() if command in line]
    [process] = found
    return int(process)


def _in(node: str, script: str) -> str:
    done = subprocess.run(["docker", "exec", node, "sh", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, f"docker exec {node}: {done.stderr}"
    return done.stdout


def _parse(stat: str) -> tuple[int, str, float]:
    """Process id, command and CPU time in seconds, from /proc/PID/stat."""
    head, _, tail = stat.rpartition(")")
    process, _, command = head.partition("(")
    fields = tail.split()
    return int(process), command, (int(fields[11]) + int(fields[12])) / _TICKS


def _machine() -> dict[str, float]:
    fields = [int(one) / _TICKS for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal, *_ = fields
    return {MACHINE: user + nice + system + irq + softirq, STOLEN: steal}
