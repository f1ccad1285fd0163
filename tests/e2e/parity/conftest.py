"""Fixtures of the parity suite: the executors, at work on the cases, and what the page says of the machine."""

import gc
import os
import platform
import shutil
import subprocess
from collections.abc import AsyncIterator
from importlib.metadata import version

import pytest
import pytest_asyncio
from cluster_tools import Admin
from parity import observed
from parity.lanes import Lanes
from parity.parties import Docker, Local, Ours, Party
from parity.plugin import NAME
from parity.suite import GROUPS


@pytest.fixture(scope="session")
def docker_version() -> str:
    """Version of the Docker daemon; empty if none answers."""
    if shutil.which("docker") is None:
        return ""
    done = subprocess.run(["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.fixture(scope="session")
def peers(request: pytest.FixtureRequest, docker_version: str) -> list[str]:
    """AutoGen's executors that run beside ours: none, if what they gave the last time still stands."""
    gatherer = request.config.pluginmanager.get_plugin(NAME)
    changed = observed.last().differences(observed.here())
    if not (changed or request.config.getoption("--parity-page")):
        gatherer.note = "AutoGen's executors were not run: nothing has changed since they gave what is written"
        return []
    gatherer.note = f"AutoGen's executors were run, because {'; '.join(changed)}" if changed else ""
    return ["Local", *(["Docker"] if docker_version else [])]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lanes(request: pytest.FixtureRequest, peers: list[str], agent_kubeconfig: str) -> AsyncIterator[Lanes]:
    """At work on the cases that were chosen for this run."""
    made = {"Local": Local, "Docker": Docker}

    def parties() -> list[Party]:
        return [*(made[name]() for name in peers), Ours(agent_kubeconfig)]

    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    # AutoGen's Local executor inherits both: pip must not go looking, and no code of ours may see the second.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("OF_THE_CLIENT", "1")
        one = Lanes(GROUPS, {item.callspec.params["case"].id for item in items}, parties)
        yield one
        await one.close()
    gc.collect()  # AutoGen leaves Docker's connections open: they are to be found here, not in another suite


@pytest.fixture(scope="session", autouse=True)
def facts_of_the_page(request: pytest.FixtureRequest, docker_version: str) -> None:
    """What the page says of the machine and of versions."""
    if not request.config.getoption("--parity-page"):
        return
    admin: Admin = request.getfixturevalue("admin")
    [node, *_] = admin.list("node")
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
