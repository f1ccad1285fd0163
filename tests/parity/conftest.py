"""Fixtures of the parity suite: the three executors, and what the page says of the machine."""

import gc
import json
import os
import platform
import shutil
import subprocess
from collections.abc import AsyncIterator
from importlib.metadata import version

import pytest
import pytest_asyncio
from cluster_tools import Admin
from parity.parties import Docker, Local, Ours, Party
from parity.plugin import NAME


@pytest.fixture(scope="session")
def docker_version() -> str:
    """Version of the Docker daemon; empty if none answers."""
    if shutil.which("docker") is None:
        return ""
    done = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parties(docker_version: str, agent_kubeconfig: str) -> AsyncIterator[list[Party]]:
    """The executors that can be run here."""
    # AutoGen's Local executor inherits both: pip must not go looking, and no code of ours may see the second.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("OF_THE_CLIENT", "1")
        made = [Local(), *([Docker()] if docker_version else []), Ours(agent_kubeconfig)]
        yield made
        for one in made:
            await one.close()
    gc.collect()  # AutoGen leaves Docker's connections open: they are to be found here, not in another suite


@pytest.fixture(scope="session", autouse=True)
def facts_of_the_page(request: pytest.FixtureRequest, docker_version: str) -> None:
    """What the page says of the machine and of versions."""
    if not request.config.getoption("--parity-page"):
        return
    admin: Admin = request.getfixturevalue("admin")
    [node, *_] = json.loads(admin.kubectl("get", "nodes", "-o", "json"))["items"]
    info = node["status"]["nodeInfo"]
    request.config.pluginmanager.get_plugin(NAME).facts |= {
        "AutoGen": f"autogen-core {version('autogen-core')}, autogen-ext {version('autogen-ext')}, "
        f"autogen-agentchat {version('autogen-agentchat')}",
        "codeexec": version("codeexec"),
        "Docker": docker_version or "no daemon, so the column is empty",
        "Kubernetes": f"{info['kubeletVersion']}, {info['containerRuntimeVersion'].replace('://', ' ')}",
        "machine": f"{platform.system()} {platform.release()}, {os.cpu_count()} processors, "
        f"Python {platform.python_version()}",
    }
