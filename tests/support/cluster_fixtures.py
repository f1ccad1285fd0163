"""Fixtures for tests on the real cluster that KUBECONFIG names, with codeexec deployed (`make e2e`)."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_tools import (
    DEFAULT_SANDBOX,
    SANDBOX,
    Admin,
    Object,
    a_name,
    image,
    is_ready,
    kubeconfig_with_token,
    policies,
    wait_for,
)
from diagnostics import noting_calls_of_clients
from waits import SECONDS


@contextmanager
def claimed_folder(admin: Admin, name: str, namespace: str, path: str) -> Iterator[Object]:
    """A bound PersistentVolumeClaim of a folder of the node, which is the only kind of volume that the cluster has.

    Kubernetes binds a claim at its first, second or third look, 15 s apart. A scheduler that learns of a pod before its
    claim is bound may look at the pod again after five minutes only, so pods come after this.

    Yields:
        The source of a volume of a pod: the folder, without the claim.
    """
    folder = {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size = {"storage": "1Mi"}
    volume = {**both, **folder, "claimRef": {"name": name, "namespace": namespace}, "capacity": size}
    claim = {**both, "volumeName": name, "resources": {"requests": size}}
    admin.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": claim,
        },
    )
    is_bound = lambda found: found.get("status", {}).get("phase") == "Bound"  # noqa: E731
    admin.wait_until(f"the claim {name} to be bound", "persistentvolumeclaim", name, is_bound, 60, namespace)
    yield folder
    admin.delete("persistentvolumeclaim", name, namespace)
    admin.delete("persistentvolume", name)


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    path = os.environ.get("KUBECONFIG", "")
    if not Path(path).is_file():
        pytest.exit(f"KUBECONFIG={path!r} is no file: run these tests by `make e2e`, which brings up a cluster", 3)
    return path


@pytest.fixture(scope="session")
def admin(kubeconfig: str) -> Admin:
    """The administrator. The sandbox namespace of this worker is served."""
    admin = Admin(kubeconfig)
    if not admin.exists("serviceaccount", "codeexec-agent", SANDBOX):
        pytest.exit(f"codeexec doesn't serve namespace {SANDBOX}: deploy it with --values tests/e2e/values.yaml", 3)
    return admin


class Pool:
    """A SandboxPool of a test."""

    def __init__(self, admin: Admin, name: str) -> None:
        self.admin, self.name = admin, name

    def status(self) -> dict[str, Any]:
        return self.admin.get("sandboxpool", self.name).get("status", {})

    def ready(self, count: int, seconds: float = SECONDS) -> None:
        self.admin.wait_until(
            f"{count} pods of pool {self.name} to be ready",
            "sandboxpool",
            self.name,
            lambda pool: pool.get("status", {}).get("readyReplicas", 0) == count,
            seconds,
        )

    def pods(self) -> dict[str, Object]:
        """Those that nobody has used, by name."""
        labels, fields = f"codeexec.dev/pool={self.name}", "status.phase!=Succeeded,status.phase!=Failed"
        there = self.admin.list("pod", labels=labels, fields=fields)
        return {one["metadata"]["name"]: one for one in there if "deletionTimestamp" not in one["metadata"]}

    def scale(self, replicas: int) -> None:
        self.admin.patch("sandboxpool", self.name, {"spec": {"replicas": replicas}}, subresource="scale")


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
        admin.delete("sandboxpool", pool.name)


@pytest.fixture(scope="session")
def kubeconfig_of(admin: Admin, kubeconfig: str, tmp_path_factory) -> Callable[[str, str], str]:
    """Makes a kubeconfig for a service account, so that tests act with its rights and no others."""

    def make(namespace: str, account: str) -> str:
        path = tmp_path_factory.mktemp("kubeconfig") / account
        path.write_text(yaml.safe_dump(kubeconfig_with_token(kubeconfig, admin.token(account, namespace))))
        return str(path)

    return make


@pytest.fixture(scope="module")
def make_user(admin: Admin, kubeconfig_of) -> Callable[..., Admin]:
    """Makes users with one of the chart's roles, or with several."""

    def make(*roles: str) -> Admin:
        name = a_name("-".join(roles))
        own = {"metadata": {"name": name, "namespace": SANDBOX}}
        admin.create({"apiVersion": "v1", "kind": "ServiceAccount", **own})
        admin.create(*(_a_binding(name, f"codeexec-{role}") for role in roles))
        user = Admin(kubeconfig_of(SANDBOX, name))
        rules = [rule for role in roles for rule in admin.get("role", f"codeexec-{role}")["rules"]]
        wait_for(f"the bindings of {name} to count", lambda: all(rule in rules_of(user) for rule in rules))
        return user

    return make


def _a_binding(account: str, role: str) -> Object:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{account}-{role}", "namespace": SANDBOX},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": SANDBOX}],
    }


def rules_of(user: Admin) -> list[Object]:
    """What the API server's authorizer grants in the sandbox namespace at this moment."""
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    return user.create({**review, "spec": {"namespace": SANDBOX}})["status"]["resourceRules"]


@pytest.fixture(scope="module")
def approver(make_user: Callable[..., Admin]) -> Admin:
    """Somebody who may decide, and nothing else."""
    return make_user("approver")


@pytest.fixture(scope="session")
def agent_kubeconfig(kubeconfig_of) -> Iterator[str]:
    """An agent's, who may submit code in this worker's sandbox namespace. Who has it is watched for calls that fail."""
    with noting_calls_of_clients():
        yield kubeconfig_of(SANDBOX, "codeexec-agent")


@pytest.fixture(scope="session")
def default_agent_kubeconfig(kubeconfig_of) -> str:
    """An agent's, who may submit code in the namespace that clients take by themselves."""
    return kubeconfig_of(DEFAULT_SANDBOX, "codeexec-agent")


@pytest.fixture
async def make_executor(agent_kubeconfig: str):
    """Executors with no more rights than an agent has, stopped after the test; without sessions, unless asked.

    They may use little: the node starts a few pods at a time only, and other tests have pods, too.
    """
    from executor_client import KubernetesCodeExecutor, Limits  # here: it costs tests without a cluster half a second

    made = []
    small = Limits(cpu="250m", memory="128Mi")
    defaults = {
        "kubeconfig": agent_kubeconfig,
        "namespace": SANDBOX,
        "agent": "e2e",
        "session": "per-call",
        "limits": small,
    }

    def make(**options) -> KubernetesCodeExecutor:
        made.append(KubernetesCodeExecutor(**{**defaults, **options}))
        return made[-1]

    yield make
    for one in made:
        await one.stop()


@pytest.fixture
async def executor(make_executor):
    return make_executor(timeout=20)


REACH_PROBE = """
import socket
def reaches(address, port):
    try:
        socket.create_connection((address, port), 3).close()
        return True
    except OSError:
        return False
"""
"""The start of code for a control pod or a sandbox: whether a TCP connection can be opened within 3 s."""


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

    def wait_for(
        self, what: str, expression: str, code: str = "", *, seconds: float = SECONDS, every: float = 0.1
    ) -> Any:
        """The first true value of an expression of Python, as JSON has it. The pod looks again, and not this machine.

        Args:
            what: is awaited.
            expression: a call of what `code` defines, or of what Python has.
            code: runs once, before the first look.
            seconds: after which the wait is in vain. kubectl itself has 120 s.
            every: so many seconds lie between two looks.
        """
        looks = f"""{code}
import json, time
end = time.monotonic() + {seconds}
while not (value := {expression}) and time.monotonic() < end:
    time.sleep({every})
print(json.dumps(value))
"""
        value = json.loads(self(looks).splitlines()[-1])
        assert value, f"waited {seconds:g} s in vain for {what}"
        return value


@pytest.fixture(scope="session")
def make_control_pod(admin: Admin) -> Iterator[Callable[..., ControlPod]]:
    """Makes pods in a namespace that nothing protects: no policy, no Pod Security, no LimitRange."""
    namespace = a_name("codeexec-control")
    admin.create_namespace(namespace)

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
        admin.wait_until(f"control pod {name} to be ready", "pod", name, is_ready, namespace=namespace)
        return ControlPod(admin, namespace, name)

    yield make
    admin.delete("namespace", namespace)


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
    """Puts an ExecutionPolicy into the sandbox namespace; see `policies`."""
    with policies(admin) as put:
        yield put
