"""Puts up what the load test needs beside what is deployed, and takes all of it away again, also after a failure.

A second release of the chart, `codeexec-load`, with an operator and a sandbox namespace of its own: quotas, records
and figures are the test's alone, and the release `codeexec` isn't touched. The RuntimeClass `simulated` brings its pods
to the simulated nodes, whose taint keeps all others away; nothing is cordoned.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from cluster_tools import ROOT, TERMINAL, Admin, image, operator_pod

SIMULATED: Final = "codeexec.dev/simulated"
RELEASE: Final = "codeexec-load"
SYSTEM: Final = "codeexec-load-system"
NAMESPACE: Final = "codeexec-load"
RUNTIME_CLASS: Final = "simulated"
POOL: Final = "load"
LIMITS: Final = {"cpu": "100m", "memory": "96Mi"}
_HERE: Final = Path(__file__).parent


class Simulator:
    """The process of the simulated kubelets."""

    def __init__(self, nodes: int, address: str) -> None:
        script, where = str(_HERE / "simulated_kubelets.py"), ("--address", address, "--namespace", NAMESPACE)
        command = [sys.executable, script, "--nodes", str(nodes), *where]
        # Not in our process group: Ctrl-C is for us, who end it in its turn.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        )
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def counts(self) -> dict[str, int]:
        """What it has counted; see `simulated_kubelets.Counts`."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, int]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the simulator has ended; what it said stands above"
        counts: dict[str, int] = json.loads(line)
        return counts

    def close(self) -> None:
        """Take the nodes away and end."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=60)


class Stage:
    """Simulated nodes, an operator with a namespace of its own, and a kubeconfig with the rights of an agent there.

    Args:
        nodes: how many are simulated.
        pods: how many the quota has to have room for.
        helm_args: further arguments of `helm upgrade`.
    """

    def __init__(self, *, nodes: int, pods: int, helm_args: list[str]) -> None:
        self._nodes, self._pods, self._helm_args = nodes, pods, helm_args
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
            admin = Admin(os.environ["KUBECONFIG"])
            if not os.environ.get("ALONGSIDE"):
                _refuse_company(admin)
            self.node, server, self.gateway = _the_real_node(admin)
            # Straight to the node: Docker's proxy on the loopback would cost CPU that is nobody's here.
            self.kubeconfig = _kubeconfig(admin, server, folder / "admin", token=None)
            os.environ["KUBECONFIG"] = self.kubeconfig
            self.admin = Admin(self.kubeconfig)
            self._sweep()
            self._stack.callback(self._sweep)
            self.simulator = Simulator(self._nodes, self.gateway)
            self._stack.callback(self.simulator.close)
            self.admin.apply(_runtime_class())
            self._stack.callback(self._uninstall)
            self._install()
            token = self.admin.kubectl("-n", NAMESPACE, "create", "token", "codeexec-agent", "--duration", "3h").strip()
            self.agent_kubeconfig = _kubeconfig(admin, server, folder / "agent", token=token)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def make_pool(self, replicas: int) -> None:
        """Create the pool, or scale it."""
        spec = {"replicas": replicas, "runtimeClassName": RUNTIME_CLASS, "limits": LIMITS}
        meta = {"name": POOL, "namespace": NAMESPACE}
        kind = {"apiVersion": "codeexec.dev/v1alpha1", "kind": "SandboxPool"}
        self.admin.apply({**kind, "metadata": meta, "spec": spec})

    def operator(self) -> dict[str, Any]:
        """The pod of the replica that leads."""
        return operator_pod(self.admin, RELEASE, SYSTEM)

    def _install(self) -> None:
        values = json.dumps(_values(self.node, self._pods))
        command = ["helm", "upgrade", "--install", RELEASE, str(ROOT / "charts" / "codeexec"), "--namespace", SYSTEM]
        options = ["--create-namespace", "--wait", "--timeout", "3m", "--values", "-", *self._helm_args]
        done = subprocess.run([*command, *options], input=values, capture_output=True, text=True)
        assert done.returncode == 0, f"helm: {done.stderr}"

    def _uninstall(self) -> None:
        # The pool first: while it is there, its operator replaces what is deleted.
        self.admin.try_kubectl("-n", NAMESPACE, "delete", "sandboxpools", "--all", "--timeout=60s")
        subprocess.run(["helm", "uninstall", RELEASE, "--namespace", SYSTEM, "--wait"], capture_output=True)
        for namespace in (NAMESPACE, SYSTEM):
            # Not by Admin: thousands of records take longer than it waits.
            command = ["kubectl", "delete", "namespace", namespace, "--ignore-not-found", "--timeout=10m"]
            subprocess.run(command, capture_output=True, env=os.environ | {"KUBECONFIG": self.kubeconfig})

    def _sweep(self) -> None:
        """What a run that was killed has left behind, too."""
        if self.admin.exists("namespace", SYSTEM, ""):
            self._uninstall()
        self.admin.kubectl("delete", "runtimeclass", RUNTIME_CLASS, "--ignore-not-found")
        self.admin.kubectl("delete", "nodes", "-l", SIMULATED, "--ignore-not-found")
        self.admin.kubectl("-n", "kube-node-lease", "delete", "leases", "-l", SIMULATED, "--ignore-not-found")
        self.admin.wait_until_all(
            "the simulated nodes to be gone", "node", lambda nodes: not nodes, namespace=None, labels=SIMULATED
        )


def _refuse_company(admin: Admin) -> None:
    """Whoever else measures or tests here would be disturbed, and would disturb us."""
    table = "jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {.status.phase}{'\\n'}{end}"
    rows = [row.split() for row in admin.kubectl("get", "codeexecutions,codesessions", "-A", "-o", table).splitlines()]
    at_work = [name for name, *phase in rows if name.split("/")[0] != NAMESPACE and not over(phase)]
    if at_work:
        sys.exit(
            f"{len(at_work)} executions or sessions are not over, such as {at_work[0]}: the load test wants the "
            "cluster for itself, because it takes all of the machine. ALONGSIDE=1 runs it all the same"
        )


def over(phase: list[str]) -> bool:
    """True if an execution or a session in this phase needs nobody any more."""
    return bool(phase) and phase[0] in TERMINAL | {"Ended"}


def _the_real_node(admin: Admin) -> tuple[str, str, str]:
    """Name of the kind node, URL of the API server there, and the address of this machine as the node sees it."""
    selector = "node-role.kubernetes.io/control-plane"
    [node] = json.loads(admin.kubectl("get", "nodes", "-l", selector, "-o", "json"))["items"]
    name: str = node["metadata"]["name"]
    [address] = [one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP"][:1]
    template = "{{range .NetworkSettings.Networks}}{{.Gateway}} {{end}}"
    done = subprocess.run(["docker", "inspect", "--format", template, name], capture_output=True, text=True)
    assert done.returncode == 0, f"the load test needs a kind cluster, whose node is a Docker container: {done.stderr}"
    return name, f"https://{address}:6443", done.stdout.split()[0]


def _kubeconfig(admin: Admin, server: str, path: Path, *, token: str | None) -> str:
    raw = yaml.safe_load(admin.kubectl("config", "view", "--raw", "--minify", "--flatten"))
    raw["clusters"][0]["cluster"]["server"] = server
    if token:
        raw["users"][0]["user"] = {"token": token}
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(raw))
    return str(path)


def _runtime_class() -> Mapping[str, Any]:
    # The handler is one that real nodes have: else no pod would get a user namespace, as long as they are there.
    scheduling = {
        "nodeSelector": {SIMULATED: "true"},
        "tolerations": [{"key": SIMULATED, "operator": "Exists", "effect": "NoSchedule"}],
    }
    meta = {"name": RUNTIME_CLASS}
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
    return {**kind, "metadata": meta, "handler": "runc", "scheduling": scheduling}


def _values(node: str, pods: int) -> Mapping[str, Any]:
    def split(reference: str) -> dict[str, str]:
        repository, digest = reference.split("@")
        return {"repository": repository, "digest": digest}

    return {
        "image": split(image("OPERATOR_IMAGE")),
        "sandbox": {"image": split(image()), "namespaces": [NAMESPACE]},
        "crds": {"install": False, "keep": False},
        "defaultPool": {"enabled": False},
        "policy": {"runtimeClassName": "runc", "runtimeClassNames": [RUNTIME_CLASS]},
        "resourceQuota": {
            **{"pods": pods, "cpu": str(pods), "memory": f"{pods}Gi", "ephemeralStorage": f"{pods}Gi"},
            "configMaps": 1000,
        },
        "operator": {"nodeSelector": {"kubernetes.io/hostname": node}},
    }
