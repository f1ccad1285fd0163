"""A cluster without a kubelet: control plane, chart, simulated nodes, and whatever operators a test starts.

One for each worker of pytest.
"""

import asyncio
import functools
import os
import socketserver
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self, TypeAlias, TypeVar

import yaml
from api_calls import Match
from chart.helm import render, tool
from chart.install import IMAGE, wait_until_served
from cluster_tools import SANDBOX, SYSTEM, TERMINAL, Admin, a_name, put_policy, wait_for
from control_plane import (
    API_SERVER,
    AUTOSCALING_CONTROLLERS,
    CONTROLLERS,
    NEEDED_CONTROLLERS,
    NODE_CONTROLLERS,
    SCHEDULER,
    ControlPlane,
)
from factories import A_SIGNING_KEY
from fault_proxy import FaultProxy
from image_release.signing import statement
from operator_process import OperatorProcess
from scripted_nodes import ScriptedNodes
from scripted_runner import Script
from waits import phase_of

from codeexec_api.names import EXECUTION_PLURAL, GROUP, VERSION

T = TypeVar("T")
_Key: TypeAlias = tuple[str, str, str]
"""Kind, namespace and name of an object."""

OPERATOR: Final = "codeexec-operator"
LIMITS: Final = {"cpu": "100m", "memory": "96Mi"}
RUNTIME_CLASS: Final = "simulated"
PRETENDED: Final = "pretended"
"""A RuntimeClass that promises gVisor's kernel."""
_SIMULATED: Final = "codeexec.dev/simulated"
_QUOTA: Final = {"pods": 2000, "cpu": "2000", "memory": "2000Gi", "ephemeralStorage": "2000Gi", "secrets": 20000}


_THREAD: Final = ThreadPoolExecutor(1, "component stage")


async def in_thread(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """What a call that blocks returns; meanwhile the event loop goes on.

    It is always the same thread, which outlives the test: a process that is started here ends with it.
    """
    return await asyncio.get_running_loop().run_in_executor(_THREAD, functools.partial(call, *arguments, **options))


STAGES: Final[list["Stage"]] = []
"""Those that there are at this moment."""


class Stage:
    """What a component test stands on.

    Args:
        folder: for keys, logs and kubeconfigs.
        namespaces: sandbox namespaces.
        values: of the chart, beside those that simulated nodes need.
        nodes: how many.
        api_server_arguments: beside those that every control plane of tests has.
        forked: see `OperatorProcess`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        namespaces: tuple[str, ...] = (SANDBOX,),
        values: Mapping[str, Any] | None = None,
        nodes: int = 3,
        api_server_arguments: Sequence[str] = (),
        forked: bool = False,
    ) -> None:
        self.folder, self.namespaces, self._count, self._forked = folder, namespaces, nodes, forked
        self._values = {**_values(namespaces), **(values or {})}
        self._api_server_arguments = api_server_arguments
        self._stack = ExitStack()
        self.operators: list[OperatorProcess] = []
        """All that were made."""

    def __enter__(self) -> Self:
        with self._stack:
            programs = (*API_SERVER, *CONTROLLERS, *SCHEDULER)
            controllers = (*NEEDED_CONTROLLERS, *NODE_CONTROLLERS, *AUTOSCALING_CONTROLLERS)
            often = ["--horizontal-pod-autoscaler-sync-period=1s"]
            plane = ControlPlane(
                self.folder / "plane",
                programs=programs,
                controllers=controllers,
                controller_manager_arguments=often,
                api_server_arguments=self._api_server_arguments,
            )
            self.plane = self._stack.enter_context(plane)
            self.admin = Admin(self.plane.kubeconfig)
            self._install()
            authority, where = self.plane.folder / "ca.crt", self.plane.address
            nodes = ScriptedNodes(self.plane.kubeconfig, authority, where, self.folder, count=self._count)
            self.nodes = self._stack.enter_context(nodes)
            # Without a client certificate, which the API server would look at before the token of who asks.
            without = self.plane.kubeconfig_with_token("none")
            self.proxy = self._stack.enter_context(FaultProxy(without))
            self.client_proxy = self._stack.enter_context(FaultProxy(without))
            STAGES.append(self)
            self._stack.callback(STAGES.remove, self)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def script(self) -> Script:
        """What the runners share."""
        return self.nodes.script

    def operator(self, *, direct: bool = False, through: FaultProxy | None = None, **options: Any) -> OperatorProcess:
        """One that has not been started; it talks to the API server through a proxy, the stage's own, or directly."""
        folder = self.folder / f"operator-{len(self.operators) + 1}"
        folder.mkdir()
        token = self.token(SYSTEM, OPERATOR)
        proxied = (through or self.proxy).write_kubeconfig(folder / "kubeconfig", token=token)
        path = self.plane.kubeconfig_with_token(token) if direct else proxied
        operator = OperatorProcess(
            folder,
            environment=self._environment,
            kubeconfig=path,
            api_server=self.plane.url,
            free_lease=self.free_lease,
            forked=self._forked,
            **options,
        )
        self.operators.append(operator)
        return operator

    def lease(self) -> dict[str, Any]:
        """What the Lease says that the leading operator holds."""
        return dict(self.admin.get("lease", OPERATOR, SYSTEM)["spec"])

    def free_lease(self) -> None:
        """When the leader has gone and has not said so: the next one need not wait until its Lease has run out.

        The Lease stays. Without it, an operator whose clock was ahead would have a higher epoch than the next one.
        """
        if self.admin.exists("lease", OPERATOR, SYSTEM):
            self.admin.patch("lease", OPERATOR, {"spec": {"holderIdentity": ""}}, SYSTEM)

    def token(self, namespace: str, account: str) -> str:
        """Of a service account."""
        return self.admin.token(account, namespace)

    def agent_kubeconfig(self, namespace: str = SANDBOX, *, through: FaultProxy | None = None) -> str:
        """With the rights of an agent of this namespace, straight to the API server unless a proxy is named."""
        token = self.token(namespace, "codeexec-agent")
        if through is None:
            return self.plane.kubeconfig_with_token(token)
        return str(through.write_kubeconfig(self.folder / a_name("agent"), token=token))

    def records(self, namespace: str = SANDBOX, *, agent: str = "") -> list[dict[str, Any]]:
        """The executions of a namespace, of this agent if one is named."""
        return _of(agent, self.admin.list("cex", namespace))

    def record(self, agent: str) -> dict[str, Any]:
        """The only execution of this agent."""
        [one] = self.records(agent=agent)
        return one

    def made(self, agent: str, namespace: str = SANDBOX) -> dict[str, Any]:
        """The only execution of this agent, once it is there."""
        return self._once(f"the request of {agent} to be there", agent, lambda _: True, namespace)

    def in_phase(self, agent: str, phase: str, namespace: str = SANDBOX) -> dict[str, Any]:
        """The only execution of this agent, once it is in this phase; fails at once if it ends in another one."""
        wait = f"the execution of {agent} to become {phase}"

        def there(record: Mapping[str, Any]) -> bool:
            found = phase_of(dict(record))
            assert found == phase or not _over(record), f"waited for {wait}, but it ended as {record['status']}"
            return found == phase

        return self._once(wait, agent, there, namespace)

    def ended(self, agent: str) -> dict[str, Any]:
        """The only execution of this agent, once it is over."""
        return self._once(f"the execution of {agent} to be over", agent, _over, SANDBOX)

    def _once(self, what: str, agent: str, true: Callable[[Mapping[str, Any]], bool], namespace: str) -> dict[str, Any]:
        """The only execution of this agent, once this is true of it. A watch tells: each look would list them all."""
        there = self.admin.wait_until_all(
            what, "cex", lambda records: any(map(true, _of(agent, records))), namespace=namespace
        )
        [record] = _of(agent, there)
        return record

    def taken_up(self, agent: str, count: int) -> None:
        """Wait until an operator has told of so many executions of this agent. A client waits for that only so long."""

        def told(records: list[dict[str, Any]]) -> bool:
            known = [one.get("status", {}).get("observedGeneration") for one in _of(agent, records)]
            return len(known) == count and all(known)

        self.admin.wait_until_all(f"{count} executions of {agent} to be taken up", "cex", told)

    def recorded_within(self, seconds: float, since: datetime, record: Mapping[str, Any]) -> None:
        """The API server has taken the last write of its status so soon. A test that sees it late doesn't matter.

        The API server runs on this machine, so its clock is that of the test. It tells whole seconds.
        """
        fields = record["metadata"]["managedFields"]
        written = [datetime.fromisoformat(one["time"]) for one in fields if one.get("subresource") == "status"]
        took = (max(written) - since).total_seconds()
        assert took <= seconds, f"recorded after {took:.1f} s, and promised within {seconds} s"

    def ran_once(self, record: Mapping[str, Any]) -> None:
        """Its code was handed to a runner, and to no other."""
        assert self.script.jobs[record["metadata"]["uid"]] == 1

    def never_ran(self, record: Mapping[str, Any]) -> None:
        """Its code was not handed to anybody."""
        assert self.script.jobs[record["metadata"]["uid"]] == 0

    def a_policy(self, namespace: str = SANDBOX, **spec: Any) -> dict[str, Any]:
        """An ExecutionPolicy of a namespace: the default one with these changes."""
        default = yaml.safe_load(self.configuration["data"]["policy.yaml"])
        meta = {"name": "default", "namespace": namespace}
        kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "ExecutionPolicy"}
        return {**kind, "metadata": meta, "spec": {**default, **spec}}

    def put_policy(self, namespace: str = SANDBOX, **spec: Any) -> None:
        """Put such a policy into a namespace, and wait until the operator, which has to run, knows it."""
        put_policy(self.admin, self.a_policy(namespace, **spec))

    def drop_policy(self) -> None:
        """Take it away again. The default one is put first: nobody can tell when the operator knows that there is none.

        A test that has failed may have left no operator.
        """
        if any(one.running for one in self.operators):
            self.put_policy()
        self.admin.delete("executionpolicy", "default", wait=True)

    def pods(self, namespace: str = SANDBOX) -> set[str]:
        """Names of the pods that there are."""
        return {pod["metadata"]["name"] for pod in self.admin.list("pod", namespace)}

    @property
    def configuration(self) -> dict[str, Any]:
        """What the operator watches, as the chart makes it."""
        return self._objects["ConfigMap", SYSTEM, OPERATOR]

    def upgrade(self, *, namespaces: tuple[str, ...] | None = None, **values: Any) -> None:
        """What `helm upgrade` does with other values, but for the Deployment: operators that run go on."""
        before, self.namespaces = self._objects, namespaces or self.namespaces
        self._values |= {"sandbox": _sandbox(self.namespaces), **values}
        after = self._render()
        self._put({key: one for key, one in after.items() if before.get(key) != one})
        for kind, namespace, name in before.keys() - after.keys():
            annotations = before[kind, namespace, name]["metadata"].get("annotations", {})
            if annotations.get("helm.sh/resource-policy") != "keep":
                self.admin.delete(kind, name, namespace, wait=True)
        self._objects = after

    def _install(self) -> None:
        os.environ["PATH"] = f"{Path(tool('helm')).parent}:{Path(tool('kubectl')).parent}:{os.environ['PATH']}"
        self._objects = self._render()
        custom = [one for (kind, *_), one in self._objects.items() if kind == "CustomResourceDefinition"]
        classes = _runtime_class(RUNTIME_CLASS, "runc"), _runtime_class(PRETENDED, "runsc")
        self.admin.apply(*classes, _api_server_endpoints(), *custom)
        wait_until_served(self.admin, custom)
        self._put(self._objects)
        self._stack.enter_context(_Canary(self.admin.get("service", "codeexec-canary", SYSTEM)["spec"]["clusterIP"]))
        deployment = self._objects["Deployment", SYSTEM, OPERATOR]
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        self._environment = {one["name"]: one["value"] for one in container["env"] if "value" in one}

    def _render(self) -> dict[_Key, dict[str, Any]]:
        values = self.folder / f"{a_name('values')}.yaml"
        values.write_text(yaml.safe_dump(self._values))
        objects = render("--values", str(values))
        return {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in objects}

    def _put(self, objects: Mapping[_Key, dict[str, Any]]) -> None:
        for namespace in (SYSTEM, *self.namespaces):
            self.admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        left_out = ("CustomResourceDefinition", "Deployment", "Pod")
        self.admin.apply(*(one for (kind, *_), one in objects.items() if kind not in left_out))
        for namespace in self.namespaces:
            wait_for(
                f"the quota of {namespace} to be counted",
                lambda namespace=namespace: all("used" in one["status"] for one in self._quotas(namespace)),
            )

    def _quotas(self, namespace: str) -> list[dict[str, Any]]:
        return self.admin.list("resourcequota", namespace)


RUNNING: Final = Match("patch", EXECUTION_PLURAL, subresource="status", where=lambda call: call.phase == "Running")
"""The write that has to come before code is handed over."""


class _Canary(socketserver.TCPServer):
    """Answers at the address of the canary's Service, as a replica of the operator does."""

    allow_reuse_address = True

    def __init__(self, address: str) -> None:
        super().__init__((address, 8081), socketserver.BaseRequestHandler)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, name="canary", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


def _of(agent: str, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in records if agent in ("", one["spec"]["source"]["agent"])]


def _over(record: Mapping[str, Any]) -> bool:
    return phase_of(dict(record)) in TERMINAL


def _api_server_endpoints() -> dict[str, Any]:
    """An API server on the loopback interface has none, and without them the operator opens no address."""
    metadata = {"name": "stage", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}}
    content = {"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.10"]}], "ports": [{"port": 6443}]}
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, **content}


def _runtime_class(name: str, handler: str) -> dict[str, Any]:
    scheduling = {
        "nodeSelector": {_SIMULATED: "true"},
        "tolerations": [{"key": _SIMULATED, "operator": "Exists", "effect": "NoSchedule"}],
    }
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass"}
    return {**kind, "metadata": {"name": name}, "handler": handler, "scheduling": scheduling}


def _sandbox(namespaces: tuple[str, ...]) -> dict[str, Any]:
    return {
        "namespaces": list(namespaces),
        "createNamespaces": False,
        "imageVerification": {"publicKeys": A_SIGNING_KEY.public_pem},
        "image": {"signature": A_SIGNING_KEY.sign(statement(IMAGE))},
    }


def _values(namespaces: tuple[str, ...]) -> dict[str, Any]:
    return {
        "sandbox": _sandbox(namespaces),
        "policy": {"runtimeClassName": RUNTIME_CLASS, "runtimeClassNames": [PRETENDED], "podTTLSeconds": 0},
        "defaultPool": {"enabled": False},
        "resourceQuota": {**_QUOTA, "configMaps": 20000},
        "operator": {"logLevel": "INFO"},
    }
