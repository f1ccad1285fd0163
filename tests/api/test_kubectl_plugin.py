"""The command line as a plugin: kubectl finds it on the PATH, and starts it with what follows `kubectl codeexec`."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from cluster_tools import SANDBOX, Admin, a_name, an_execution

BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def plugin(agent_kubeconfig: str) -> Callable[..., Done]:
    """`kubectl codeexec` with the rights of an agent."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": os.environ["HOME"], "KUBECONFIG": agent_kubeconfig}

    def call(*arguments: str) -> Done:
        command = ["kubectl", "codeexec", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)

    return call


def test_it_is_a_plugin_of_kubectl(plugin, admin: Admin):
    assert plugin("--version").stdout.split()[-1] == version("codeexec")
    name = a_name("listed")
    admin.create(an_execution(name, [BLOCK], source={"agent": name}))
    done = plugin("get", "-n", SANDBOX, "--agent", name)
    header, row = done.stdout.splitlines()
    assert (header.split()[0], row.split()[0], done.returncode) == ("NAME", name, 0)
    refused = plugin("get", "-n", "kube-system")
    assert refused.returncode == 1
    assert "in namespace 'kube-system'" in refused.stderr
