"""Fixtures for tests on the real cluster that KUBECONFIG names, with codeexec deployed (`make e2e`)."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_tools import SANDBOX, Admin, a_name, image, wait_for


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    path = os.environ.get("KUBECONFIG", "")
    if not Path(path).is_file():
        pytest.exit(f"KUBECONFIG={path!r} is no file: run these tests by `make e2e`, which brings up a cluster", 3)
    return path


@pytest.fixture(scope="session")
def admin(kubeconfig: str) -> Iterator[Admin]:
    """The administrator. Meanwhile the default pool is empty: the node has room for a few pods only."""
    admin = Admin(kubeconfig)
    scale = ("-n", SANDBOX, "scale", "sandboxpool", "default", "--replicas")
    before = admin.try_kubectl("-n", SANDBOX, "get", "sandboxpool", "default", "-o", "jsonpath={.spec.replicas}").stdout
    if before:
        admin.kubectl(*scale, "0")
    yield admin
    if before and admin.exists("sandboxpool", "default", SANDBOX):
        admin.kubectl(*scale, before)


class Pool:
    """A SandboxPool of a test."""

    def __init__(self, admin: Admin, name: str) -> None:
        self.admin, self.name = admin, name

    def status(self) -> dict[str, Any]:
        return self.admin.get("sandboxpool", self.name).get("status", {})

    def ready(self, count: int, seconds: float = 90) -> None:
        wait_for(
            f"{count} pods of pool {self.name} to be ready",
            lambda: self.status().get("readyReplicas", 0) == count,
            seconds,
        )

    def pods(self) -> dict[str, dict[str, Any]]:
        """Those that nobody has taken, by name."""
        selector = f"codeexec.dev/pool={self.name}"
        found = json.loads(self.admin.kubectl("-n", SANDBOX, "get", "pods", "-l", selector, "-o", "json"))
        return {one["metadata"]["name"]: one for one in found["items"]}

    def scale(self, replicas: int) -> None:
        self.admin.kubectl("-n", SANDBOX, "scale", "sandboxpool", self.name, "--replicas", str(replicas))


@pytest.fixture
def make_pool(admin: Admin) -> Iterator[Callable[..., Pool]]:
    """Makes pools of small pods in the sandbox namespace, and takes them away again."""
    made: list[Pool] = []

    def make(replicas: int = 2, *, cpu: str = "100m", **spec: Any) -> Pool:
        pool = Pool(admin, a_name("pool"))
        admin.apply(
            {
                "apiVersion": "codeexec.dev/v1alpha1",
                "kind": "SandboxPool",
                "metadata": {"name": pool.name, "namespace": SANDBOX},
                "spec": {"replicas": replicas, "limits": {"cpu": cpu, "memory": "96Mi"}, **spec},
            }
        )
        made.append(pool)
        return pool

    yield make
    for pool in made:
        admin.kubectl("-n", SANDBOX, "delete", "sandboxpool", pool.name, "--ignore-not-found", "--wait=false")


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


@pytest.fixture(scope="module")
def make_user(admin: Admin, kubeconfig_of) -> Callable[..., Admin]:
    """Makes users with one of the chart's roles, or with several."""

    def make(*roles: str) -> Admin:
        name = a_name("-".join(roles))
        admin.kubectl("-n", SANDBOX, "create", "serviceaccount", name)
        for role in roles:
            account = f"--serviceaccount={SANDBOX}:{name}"
            admin.kubectl("-n", SANDBOX, "create", "rolebinding", f"{name}-{role}", f"--role=codeexec-{role}", account)
        user = Admin(kubeconfig_of(SANDBOX, name))
        wait_for("the binding to count", lambda: not user.try_kubectl("-n", SANDBOX, "get", "cex").returncode)
        return user

    return make


@pytest.fixture(scope="module")
def approver(make_user: Callable[..., Admin]) -> Admin:
    """Somebody who may decide, and nothing else."""
    return make_user("approver")


@pytest.fixture(scope="session")
def agent_kubeconfig(kubeconfig_of) -> str:
    return kubeconfig_of(SANDBOX, "codeexec-agent")


@pytest.fixture
async def make_executor(agent_kubeconfig: str):
    """Executors with no more rights than an agent has, stopped after the test; without sessions, unless asked."""
    from executor_client import KubernetesCodeExecutor  # here: it costs tests without a cluster half a second

    made = []
    defaults = {"kubeconfig": agent_kubeconfig, "agent": "e2e", "session": "per-call"}

    def make(**options) -> KubernetesCodeExecutor:
        made.append(KubernetesCodeExecutor(**{**defaults, **options}))
        return made[-1]

    yield make
    for one in made:
        await one.stop()


@pytest.fixture
async def executor(make_executor):
    return make_executor(timeout=20)


class ControlPod:
    """A pod that nothing protects, and Python in it: the positive control."""

    def __init__(self, admin: Admin, namespace: str, name: str) -> None:
        self.namespace, self.name = namespace, name
        self.ip: str = admin.pod(namespace, name)["status"]["podIP"]
        self._admin = admin

    def __call__(self, code: str) -> str:
        """What this Python code prints."""
        return self._admin.kubectl(
            "-n", self.namespace, "exec", "-i", self.name, "--", "python3", "-I", "-", stdin=code
        )


@pytest.fixture(scope="session")
def make_control_pod(admin: Admin) -> Iterator[Callable[..., ControlPod]]:
    """Makes pods in a namespace that nothing protects: no policy, no Pod Security, no LimitRange."""
    namespace = a_name("codeexec-control")
    admin.kubectl("create", "namespace", namespace)
    wait_for("its service account", lambda: admin.exists("serviceaccount", "default", namespace))

    def make(name: str, container: dict[str, Any], **spec: Any) -> ControlPod:
        container = {"name": "main", "image": image(), "resources": {"requests": {"cpu": "10m"}}, **container}
        admin.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], **spec},
            }
        )
        admin.kubectl("-n", namespace, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
        return ControlPod(admin, namespace, name)

    yield make
    admin.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture(scope="session")
def unprotected_pod(make_control_pod) -> ControlPod:
    """Runs Python in a pod with the defaults of Kubernetes: root, no policy, a token. The positive control.

    A probe that fails in the sandbox proves something only if it succeeds here.
    """
    container = {
        "command": ["python3", "-m", "http.server", "8000", "--directory", "/opt"],
        "env": [{"name": "CALLER_SECRET", "value": "e2e"}],
        "securityContext": {"runAsUser": 0},
    }
    return make_control_pod("unprotected", container)


@pytest.fixture(scope="session")
def privileged_pod(make_control_pod) -> ControlPod:
    """Runs Python in a privileged pod: the control for what even a pod with default settings may not do."""
    container = {"command": ["sleep", "infinity"], "securityContext": {"privileged": True, "runAsUser": 0}}
    return make_control_pod("privileged", container)


@pytest.fixture(scope="session")
def node_shell(make_control_pod) -> ControlPod:
    """Runs Python as root among the processes of the node, to do what no sandboxed code could."""
    container = {"command": ["sleep", "infinity"], "securityContext": {"privileged": True, "runAsUser": 0}}
    return make_control_pod("node-shell", container, hostPID=True)


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
