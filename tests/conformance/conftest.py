"""Fixtures of the conformance suite: the control that each proof needs, the sandbox, and attacks on both."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from cluster_fixtures import ControlPod
from cluster_tools import Admin
from conformance.attacks import SUCCEEDED, Attack, outcomes, script, words
from conformance.plugin import CONTROLS, PASSED

from codeexec_api import Limits
from executor_client import KubernetesCodeResult

ALONE = Limits(cpu="300m", memory="128Mi")
BESIDE_OTHERS = Limits(cpu="200m", memory="128Mi")
AT_THE_SAME_TIME = 4
"""So many pods of this size have room on a node of two processors, and start there without starving each other."""

Block: TypeAlias = str | tuple[str, str]
"""Python, or language and code."""


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
    if request.node.stash[PASSED] and not one.observations:
        pytest.fail("this test passed without a control that succeeded, so it proves nothing")


@pytest.fixture
def runtime(request: pytest.FixtureRequest, admin: Admin) -> Iterator[str]:
    """The RuntimeClass that code runs under; a test that doesn't ask for one gets the cluster's default."""
    name = getattr(request, "param", "runc")
    if name != "runc":
        if not admin.exists("runtimeclass", name, "default"):
            pytest.skip(f"the cluster has no RuntimeClass {name}")
        put = request.getfixturevalue("policy")
        put(runtimeClassName=name)
    return name


class Sandbox:
    """Runs code as an agent does, by AutoGen's executor with an agent's rights, and knows its record."""

    def __init__(self, admin: Admin, make_executor: Callable[..., Any], runtime: str) -> None:
        self._admin = admin
        self._make_executor = make_executor
        self._runtime = runtime

    def session(self, **options: Any) -> CodeExecutor:
        """An executor whose calls share a workspace."""
        return self._make(session="per-executor", **options)

    async def run(self, *blocks: Block, at: CodeExecutor | None = None, **options: Any) -> KubernetesCodeResult:
        """Run blocks in one execution, in a pod of its own or with a given executor. Options are those of executors."""
        executor = at or self._make(**options)
        pairs = [("python", block) if isinstance(block, str) else block for block in blocks]
        code_blocks = [CodeBlock(code, language) for language, code in pairs]
        result = await executor.execute_code_blocks(code_blocks, CancellationToken())
        if result.execution and self._runtime != "runc":
            assert self.record(result)["status"]["runtimeClassName"] == self._runtime
        return result

    async def run_all(self, cases: Mapping[str, Sequence[Block]], **options: Any) -> dict[str, KubernetesCodeResult]:
        """Run each case as an execution of its own, some at the same time."""
        room = asyncio.Semaphore(AT_THE_SAME_TIME)

        async def run(blocks: Sequence[Block]) -> KubernetesCodeResult:
            async with room:
                return await self.run(*blocks, **{"limits": BESIDE_OTHERS, **options})

        return dict(zip(cases, await asyncio.gather(*map(run, cases.values())), strict=True))

    def _make(self, **options: Any) -> CodeExecutor:
        return self._make_executor(**{"timeout": 60, "limits": ALONE, "agent": "conformance", **options})

    def record(self, result: KubernetesCodeResult) -> dict[str, Any]:
        """The CodeExecution that the run has left."""
        assert result.execution
        return self._admin.execution(result.execution)


@pytest.fixture
def sandbox(admin: Admin, make_executor: Callable[..., Any], runtime: str) -> Sandbox:
    return Sandbox(admin, make_executor, runtime)


@pytest.fixture
def attack(control: Control, sandbox: Sandbox, unprotected_pod: ControlPod) -> Callable[..., Any]:
    """Tries attacks in a control pod, where each has to succeed, and in the sandbox, where none may."""

    async def run(
        *attacks: Attack,
        at: ControlPod = unprotected_pod,
        facts: dict[str, Any] | None = None,
        facts_inside: dict[str, Any] | None = None,
        helpers: tuple[Callable[..., Any], ...] = (),
        **options: Any,
    ) -> KubernetesCodeResult:
        code = script(*attacks, facts=facts, helpers=helpers)
        there = outcomes(at(code))
        failed = {name: outcome for name, outcome in there.items() if outcome != SUCCEEDED}
        assert not failed, f"the control failed: these attacks do not even succeed in the {at.name} pod: {failed}"
        control.succeeded(f"in the {at.name} pod code could {'; '.join(map(words, attacks))}", there)
        if facts_inside:
            code = script(*attacks, facts=facts_inside, helpers=helpers)
        result = await sandbox.run(code, **options)
        assert result.exit_code == 0, result.output
        succeeded = [name for name, outcome in outcomes(result.stdout).items() if outcome == SUCCEEDED]
        assert succeeded == [], f"attacks that got what they were after: {succeeded}"
        return result

    return run


@pytest.fixture(scope="session")
def addresses(admin, unprotected_pod):
    """Of what answers anyone who may reach it."""

    def service(namespace, name):
        return admin.get("service", name, namespace)["spec"]["clusterIP"]

    node = json.loads(admin.kubectl("get", "nodes", "-o", "json"))["items"][0]
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
    [node, *_] = json.loads(admin.kubectl("get", "nodes", "-o", "json"))["items"]
    classes = json.loads(admin.kubectl("get", "runtimeclasses", "-o", "json"))["items"]
    shell = request.getfixturevalue("node_shell")
    plugins = shell(
        "import glob, json\n"
        "files = sorted(glob.glob('/proc/1/root/etc/cni/net.d/*.conf*'))\n"
        "print(json.load(open(files[0]))['name'] if files else 'unknown')"
    )
    info = node["status"]["nodeInfo"]
    request.config.pluginmanager.get_plugin("conformance-gatherer").cluster |= {
        "Kubernetes": info["kubeletVersion"],
        "container runtime": info["containerRuntimeVersion"].replace("://", " "),
        "runtime classes": ", ".join(sorted(one["handler"] for one in classes)) or "none",
        "kernel": info["kernelVersion"],
        "network plugin": plugins.strip(),
    }
