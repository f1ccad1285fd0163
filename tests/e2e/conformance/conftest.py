"""Fixtures of the conformance suite: the control that each proof needs, the sandbox, and attacks on both."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
from autogen_core.code_executor import CodeExecutor
from cluster_fixtures import ControlPod
from cluster_tools import SANDBOX, Admin
from conformance.attacks import SUCCEEDED, Attack, outcomes, script, words
from conformance.plugin import CALLED, CONTROLS, NAME, RUNTIMES
from conformance.sandbox import DEFAULT_RUNTIME, SHARED, Sandbox

from executor_client import KubernetesCodeExecutor, KubernetesCodeResult

T = TypeVar("T")


class Control:
    """Takes down what succeeded where nothing protects against it. A proof without such a control fails."""

    def __init__(self) -> None:
        self.observations: list[str] = []

    def succeeded(self, what: str, observed: object) -> None:
        """Note that the probe succeeds without protection. `what` is a clause for the page: who could do what."""
        assert observed, f"the control failed, so this test can't tell a closed door from a broken probe: {what}"
        self.observations.append(what)


@pytest.fixture
def control(request: pytest.FixtureRequest) -> Iterator[Control]:
    one = Control()
    yield one
    request.node.stash[CONTROLS] = one.observations
    if request.node.stash.get(CALLED, False) and not one.observations:
        pytest.fail("this test passed without a control that succeeded, so it proves nothing")


@pytest.fixture(scope="session")
def shared_pods(agent_kubeconfig: str) -> Iterator[Callable[[str], CodeExecutor]]:
    """One executor for each runtime, with the pod that `Sandbox.call` uses; made when it is first asked for."""
    made: dict[str, KubernetesCodeExecutor] = {}

    def of(runtime: str) -> CodeExecutor:
        if runtime not in made:
            made[runtime] = KubernetesCodeExecutor(
                kubeconfig=agent_kubeconfig,
                namespace=SANDBOX,
                agent="conformance",
                limits=SHARED,
                timeout=300,
                idle_timeout=60,
                runtime_class_name=None if runtime == DEFAULT_RUNTIME else runtime,
            )
        return made[runtime]

    yield of
    for one in made.values():
        asyncio.run(one.stop())


@pytest.fixture
def sandboxes(
    request: pytest.FixtureRequest, admin: Admin, make_executor: Callable[..., Any], shared_pods: Any
) -> list[Sandbox]:
    """One for each runtime that the test is marked with and that the cluster has, else for the cluster's default."""
    marker = request.node.get_closest_marker("runtimes")
    asked = marker.args if marker else (DEFAULT_RUNTIME,)
    there = [name for name in asked if name == DEFAULT_RUNTIME or admin.exists("runtimeclass", name, "default")]
    if marker:
        request.node.stash[RUNTIMES] = there
    if others := [name for name in there if name != DEFAULT_RUNTIME]:
        request.getfixturevalue("policy")(runtimeClassNames=others)
    return [Sandbox(admin, make_executor, name, shared_pods) for name in there]


@pytest.fixture
def everywhere(sandboxes: list[Sandbox]) -> Callable[..., Awaitable[list[Any]]]:
    """Does the same in a sandbox under each runtime, at the same time; gives what came of it, in their order."""

    async def run(probe: Callable[[Sandbox], Awaitable[T]]) -> list[T]:
        ends = await asyncio.gather(*map(probe, sandboxes), return_exceptions=True)
        for sandbox, end in zip(sandboxes, ends, strict=True):
            if isinstance(end, BaseException):
                end.add_note(f"under the runtime {sandbox.runtime}")
                raise end
        return ends  # type: ignore[return-value]

    return run


@pytest.fixture
def sandbox(sandboxes: list[Sandbox]) -> Sandbox:
    """That of a test which isn't about runtimes."""
    [one] = sandboxes
    return one


@pytest.fixture
def attack(control: Control, everywhere: Callable[..., Any], unprotected_pod: ControlPod) -> Callable[..., Any]:
    """Tries attacks in a control pod, where each has to succeed, and in the sandbox, where each has to be refused.

    With options, which are those of executors, it is a sandbox of its own, else the shared one. With `silence`, what
    nobody answers in the sandbox counts as refused.
    """

    async def run(
        *attacks: Attack,
        at: ControlPod = unprotected_pod,
        facts: dict[str, Any] | None = None,
        facts_inside: dict[str, Any] | None = None,
        helpers: tuple[Callable[..., Any], ...] = (),
        called: Callable[[Attack], str] = words,
        silence: bool = False,
        **options: Any,
    ) -> KubernetesCodeResult:
        # An answer may be late on a busy node. What answers nobody in the sandbox is waited for less.
        code = script(*attacks, facts={"seconds": 20, **(facts or {})}, helpers=helpers)
        inside = script(
            *attacks, facts={"seconds": 3, **(facts_inside or facts or {})}, helpers=helpers, silence=silence
        )

        async def try_inside(sandbox: Sandbox) -> KubernetesCodeResult:
            return await (sandbox.run(inside, **options) if options else sandbox.call(inside))

        in_the_control = asyncio.to_thread(at, code)
        printed, results = await asyncio.gather(in_the_control, everywhere(try_inside))
        there = outcomes(printed)
        failed = {name: outcome for name, outcome in there.items() if outcome != SUCCEEDED}
        assert not failed, f"the control failed: these attacks do not even succeed in the {at.name} pod: {failed}"
        control.succeeded(f"in the {at.name} pod code could {'; '.join(map(called, attacks))}", there)
        for result in results:
            assert result.exit_code == 0, result.output
            succeeded = [name for name, outcome in outcomes(result.stdout).items() if outcome == SUCCEEDED]
            assert succeeded == [], f"attacks that got what they were after: {succeeded}"
        return results[0]

    return run


@pytest.fixture(scope="session")
def addresses(admin, unprotected_pod):
    """Of what answers anyone who may reach it."""

    def service(namespace, name):
        return admin.get("service", name, namespace)["spec"]["clusterIP"]

    [node, *_] = admin.list("node")
    [address] = [one["address"] for one in node["status"]["addresses"] if one["type"] == "InternalIP"]
    return {
        "pod": (unprotected_pod.ip, 8000),
        "api": (service("default", "kubernetes"), 443),
        "kubelet": (address, 10250),
        "dns": (service("kube-system", "kube-dns"), 53),
    }


@pytest.fixture(scope="session", autouse=True)
def cluster_of_the_page(request: pytest.FixtureRequest, admin: Admin) -> None:
    """What the page says of the cluster that the proofs were shown on."""
    if not request.config.getoption("--conformance-page"):
        return
    [node, *_] = admin.list("node")
    classes = admin.list("runtimeclass")
    shell = request.getfixturevalue("node_shell")
    plugins = shell(
        "import glob, json\n"
        "files = sorted(glob.glob('/proc/1/root/etc/cni/net.d/*.conf*'))\n"
        "print(json.load(open(files[0]))['name'] if files else 'unknown')"
    )
    info = node["status"]["nodeInfo"]
    request.config.pluginmanager.get_plugin(NAME).cluster |= {
        "Kubernetes": info["kubeletVersion"],
        "container runtime": info["containerRuntimeVersion"].replace("://", " "),
        "runtime classes": ", ".join(sorted(one["handler"] for one in classes)) or "none",
        "kernel": info["kernelVersion"],
        "network plugin": plugins.strip(),
    }
