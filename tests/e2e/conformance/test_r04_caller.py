"""R-04: code sees nothing of the caller's environment, credentials, service-account token or cluster."""

import json
import os

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor

pytestmark = pytest.mark.remit("R-04")

OURS = {"PATH", "HOME", "USER", "TMPDIR", "LANG", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
FURTHER = {"PYTHONNOUSERSITE", "MPLCONFIGDIR", "MPLBACKEND", "OPENBLAS_NUM_THREADS"}
"""Settings of libraries that the image brings."""


@pytest.mark.filterwarnings("ignore:Using LocalCommandLineCodeExecutor")
async def test_the_environment_of_the_caller_stays_there(control, sandbox, monkeypatch, tmp_path):
    """A variable of the caller's environment does not reach the code; what does is a list of ours."""
    monkeypatch.setenv("CALLER_API_KEY", "e2e-caller-key")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    local = LocalCommandLineCodeExecutor(work_dir=tmp_path)
    there = await local.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())
    control.succeeded(
        "AutoGen's local executor handed the caller's API key to the code", "e2e-caller-key" in there.output
    )
    result = await sandbox.call(code)
    assert set(json.loads(result.stdout)) - {"LC_CTYPE"} <= OURS | FURTHER
    assert "e2e-caller-key" not in result.stdout


def read_the_token():
    """read the token of a service account"""
    with open("/var/run/secrets/kubernetes.io/serviceaccount/token") as file:
        return file.read()


def learn_of_the_cluster_from_the_environment():
    """learn the address of the API server from its environment"""
    return os.environ.get("KUBERNETES_SERVICE_HOST")


def learn_of_the_cluster_from_dns():
    """learn the domain and the resolver of the cluster"""
    with open("/etc/resolv.conf") as file:
        return "svc." in file.read()


def read_the_environment_of_the_first_process():
    """read the environment that the container was started with"""
    with open("/proc/1/environ") as file:
        return file.read()


def find_a_secret_of_the_pod():
    """find a variable that the pod was given"""
    return os.environ.get("CALLER_SECRET")


def read_standard_input():
    """be connected with the standard input of the container"""
    return os.path.realpath("/proc/self/fd/0") != "/dev/null"


@pytest.mark.runtimes("runc", "gvisor")
async def test_nothing_tells_of_the_cluster(attack):
    """No token, no address of the API server, no domain of the cluster, no environment of the container's start."""
    await attack(
        read_the_token,
        learn_of_the_cluster_from_the_environment,
        learn_of_the_cluster_from_dns,
        read_the_environment_of_the_first_process,
        find_a_secret_of_the_pod,
        read_standard_input,
    )
