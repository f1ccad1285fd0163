"""Fixtures of the end-to-end tests: the real cluster that KUBECONFIG names, with codeexec deployed (`make e2e`)."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from cluster_tools import SANDBOX, Admin, a_name, image, wait_for

from executor_client import KubernetesCodeExecutor

CONTROL = "codeexec-control"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of the installation come last: they take away the operator and the accounts that others use."""
    items.sort(key=lambda item: item.path.name == "test_install.py")


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    path = os.environ.get("KUBECONFIG", "")
    if not Path(path).is_file():
        pytest.exit(f"KUBECONFIG={path!r} is no file: run these tests by `make e2e`, which brings up a cluster", 3)
    return path


@pytest.fixture(scope="session")
def admin(kubeconfig: str) -> Admin:
    return Admin(kubeconfig)


@pytest.fixture(scope="session")
def kubeconfig_of(admin: Admin, kubeconfig: str, tmp_path_factory) -> Callable[[str, str], str]:
    """Makes a kubeconfig for a service account, so that tests act with its rights and no others."""

    def make(namespace: str, account: str) -> str:
        token = admin.kubectl("create", "token", account, "--namespace", namespace, "--duration", "3h").strip()
        raw = yaml.safe_load(admin.kubectl("config", "view", "--raw", "--minify", "--flatten"))
        raw["users"] = [{"name": account, "user": {"token": token}}]
        raw["contexts"] = [{"name": "it", "context": {"cluster": raw["clusters"][0]["name"], "user": account}}]
        raw["current-context"] = "it"
        path = tmp_path_factory.mktemp("kubeconfig") / account
        path.write_text(yaml.safe_dump(raw))
        return str(path)

    return make


@pytest.fixture(scope="session")
def agent_kubeconfig(kubeconfig_of) -> str:
    return kubeconfig_of(SANDBOX, "codeexec-agent")


@pytest.fixture
async def executor(agent_kubeconfig: str):
    """An executor with no more rights than an agent has."""
    async with KubernetesCodeExecutor(kubeconfig=agent_kubeconfig, timeout=20, agent="e2e") as one:
        yield one


@pytest.fixture
async def make_executor(agent_kubeconfig: str):
    """Executors with other settings, stopped after the test."""
    made = []

    def make(**options) -> KubernetesCodeExecutor:
        made.append(KubernetesCodeExecutor(**{"kubeconfig": agent_kubeconfig, "agent": "e2e", **options}))
        return made[-1]

    yield make
    for one in made:
        await one.stop()


@pytest.fixture(scope="session")
def unprotected_pod(admin: Admin) -> Iterator[Callable[[str], str]]:
    """Runs Python in a pod with the defaults of Kubernetes: root, no policy, a token. The positive control.

    A probe that fails in the sandbox proves something only if it succeeds here.
    """
    admin.kubectl("delete", "namespace", CONTROL, "--ignore-not-found", "--wait")
    admin.kubectl("create", "namespace", CONTROL)
    wait_for("its service account", lambda: admin.exists("serviceaccount", "default", CONTROL))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "unprotected", "namespace": CONTROL},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": image(),
                    "command": ["python3", "-m", "http.server", "8000"],
                    "env": [{"name": "CALLER_SECRET", "value": "e2e"}],
                    "securityContext": {"runAsUser": 0},
                    "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
                }
            ],
        },
    }
    admin.apply(pod)
    admin.kubectl("-n", CONTROL, "wait", "--for=condition=Ready", "pod/unprotected", "--timeout=60s")

    def run(code: str) -> str:
        return admin.kubectl("-n", CONTROL, "exec", "-i", "unprotected", "--", "python3", "-", stdin=code)

    run.ip = admin.pod(CONTROL, "unprotected")["status"]["podIP"]
    yield run
    admin.kubectl("delete", "namespace", CONTROL, "--wait=false")


@pytest.fixture
def node_shell(admin: Admin, unprotected_pod) -> Iterator[Callable[[str], str]]:
    """Runs Python as root among the processes of the node, to do what no sandboxed code could."""
    name = a_name("node-shell")
    container = {
        "name": "main",
        "image": image(),
        "command": ["sleep", "600"],
        "securityContext": {"privileged": True, "runAsUser": 0},
    }
    admin.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": CONTROL},
            "spec": {"hostPID": True, "terminationGracePeriodSeconds": 0, "containers": [container]},
        }
    )
    admin.kubectl("-n", CONTROL, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
    yield lambda code: admin.kubectl("-n", CONTROL, "exec", "-i", name, "--", "python3", "-", stdin=code)
    admin.kubectl("-n", CONTROL, "delete", "pod", name, "--now")


@pytest.fixture
def policy(admin: Admin) -> Iterator[Callable[..., None]]:
    """Puts an ExecutionPolicy into the sandbox namespace, and takes it away again."""

    def put(**spec) -> None:
        admin.apply(
            {
                "apiVersion": "codeexec.dev/v1alpha1",
                "kind": "ExecutionPolicy",
                "metadata": {"name": "default", "namespace": SANDBOX},
                "spec": {"images": [image()], **spec},
            }
        )

    yield put
    admin.kubectl("-n", SANDBOX, "delete", "executionpolicy", "default", "--ignore-not-found")
