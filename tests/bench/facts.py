"""What a measurement ran on, and what was measured."""

import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cluster_tools import ROOT
from kubernetes.aio import client


def docker_version() -> str:
    """Of the Docker daemon; empty if none answers."""
    if shutil.which("docker") is None:
        return ""
    done = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


async def machine(api: client.ApiClient) -> str:
    """What all of it ran on."""
    cpu = Path("/proc/cpuinfo")
    models = [line.split(": ")[1] for line in cpu.read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    nodes: list[Any] = (await client.CoreV1Api(api).list_node()).items
    info = nodes[0].status.node_info
    return ", ".join(
        [
            f"{os.cpu_count()} cores" + (f" ({models[0]})" if models else ""),
            f"{memory:.0f} GiB",
            f"{platform.system()} {platform.release()}",
            f"Python {platform.python_version()}",
            f"Kubernetes {info.kubelet_version} with {info.container_runtime_version.replace('://', ' ')}",
            f"Docker {docker_version() or 'none'}",
        ]
    )


def commit() -> str:
    """What is measured; with a mark if it was changed."""
    done = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def versions() -> dict[str, str]:
    """Of codeexec and of what it is compared with."""
    return {name: version(name) for name in ("codeexec", "autogen-core", "autogen-ext")}
