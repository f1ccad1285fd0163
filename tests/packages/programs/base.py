"""What a client has without extras: the API, the fake, the way to a cluster, and errors that name what is not there."""

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from first_page import PNG, first_page, scripted

import codeexec
import codeexec.local
import codeexec.sync
import executor_client
from codeexec.testing import FakeCluster

NOWHERE = """
apiVersion: v1
kind: Config
clusters: [{name: nowhere, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: nobody, user: {token: x}}]
contexts: [{name: here, context: {cluster: nowhere, user: nobody}}]
current-context: here
"""


async def on_the_fake() -> None:
    async with codeexec.Client(agent="analyst", backend=FakeCluster(run=scripted).client()) as client:
        assert await first_page(client) == PNG


async def refused(make: Callable[[], codeexec.Client]) -> str:
    """What a client says that can't run code."""
    try:
        async with make() as client:
            return (await client.run("print(6 * 7)")).stdout
    except codeexec.Error as error:
        return str(error)


def missing(name: str) -> str:
    """What a name says that can't be loaded."""
    try:
        getattr(executor_client, name)
    except ImportError as error:
        return str(error)
    return f"{name} is there"


Path("kubeconfig").write_text(NOWHERE)
asyncio.run(on_the_fake())
said = asyncio.run(refused(lambda: codeexec.Client(agent="analyst", kubeconfig="kubeconfig")))
assert "https://127.0.0.1:1" in said, said
said = asyncio.run(refused(lambda: codeexec.Client(agent="analyst", backend=codeexec.local.Sandbox())))
assert '`pip install ".[local]"`' in said, said
for executor in ("KubernetesCodeExecutor", "LocalSandboxExecutor"):
    said = missing(executor)
    assert said.endswith('`pip install ".[autogen]"` (docs/install.md)'), said
command = subprocess.run([Path(sys.executable).with_name("codeexec")], capture_output=True, text=True, check=False)
assert command.returncode == 1, command
assert command.stderr.endswith('`pip install ".[cli]"` (docs/install.md)\n'), command
for package in ("autogen_core", "click", "codeexec_operator", "jinja2", "kopf", "obstore", "rich", "sandlock"):
    assert importlib.util.find_spec(package) is None, package
