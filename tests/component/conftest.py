"""Fixtures of the component tier: a stage for each worker of pytest, and an operator that is well."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster_tools import SANDBOX, Admin, a_name, wait_for
from component_stage import LIMITS, Stage, in_thread
from operator_process import OperatorProcess

from executor_client import ClusterRef, CodeExecutionClient, Limits, Request


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The limit is for a test alone: the first of a worker also waits for its stage."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(120, func_only=True))


_hurrying: list[OperatorProcess] = []
"""The operator whose clock runs fast, in a module that has one."""


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


@pytest.fixture(scope="session")
def _one_operator(stage: Stage) -> Iterator[OperatorProcess]:
    operator = stage.operator()
    yield operator
    operator.end()


@pytest.fixture
def operator(stage: Stage, _one_operator: OperatorProcess, request: pytest.FixtureRequest) -> OperatorProcess:
    """One that is ready; the same for all tests, as long as none of them ends it."""
    if not _one_operator.running:
        for fast in _hurrying:
            _end(stage, fast)
        _one_operator.start()
    request.node.stash[LOGS] = [(_one_operator, _one_operator.log.stat().st_size)]
    return _one_operator


@pytest.fixture(scope="module")
def fast(stage: Stage, _one_operator: OperatorProcess) -> Iterator[OperatorProcess]:
    operator = stage.operator(clock="+11m x10")
    _hurrying.append(operator)
    yield operator
    if not _one_operator.running:
        _end(stage, operator)
    _hurrying.remove(operator)


def _end(stage: Stage, fast: OperatorProcess) -> None:
    """End an operator whose clock runs fast. If it can't give its Lease back, no other leads for that long."""
    fast.end()
    stage.free_lease()


@pytest.fixture
async def hurried(
    _one_operator: OperatorProcess, fast: OperatorProcess, request: pytest.FixtureRequest
) -> OperatorProcess:
    """The operator whose clock runs fast; the other one rests."""
    if _one_operator.running:
        await in_thread(_one_operator.stop)
    if not fast.running:
        await in_thread(fast.start)
    request.node.stash[LOGS] = [(fast, fast.log.stat().st_size)]
    return fast


@pytest.fixture
def admin(stage: Stage) -> Admin:
    return stage.admin


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is entered here ends with the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def agent() -> str:
    """A name of an agent that no other test has."""
    return a_name("agent")


@pytest.fixture
async def make_client(stage: Stage) -> AsyncIterator[Callable[..., CodeExecutionClient]]:
    """Clients with an agent's rights, straight to the API server, or through a proxy; closed after the test."""
    made: list[CodeExecutionClient] = []

    def make(*, through: Any = None, namespace: str = SANDBOX) -> CodeExecutionClient:
        path = stage.agent_kubeconfig(namespace, through=through)
        made.append(CodeExecutionClient(ClusterRef(kubeconfig=path, namespace=namespace)))
        return made[-1]

    yield make
    for one in made:
        await one.close()


@pytest.fixture
async def client(make_client: Callable[..., CodeExecutionClient]) -> CodeExecutionClient:
    return make_client()


@pytest.fixture
def asking(agent: str) -> Callable[..., Request]:
    """Makes requests of this test's agent, for a small pod.

    Their code has ten minutes, however busy the machine is: only a test about time limits sets a shorter one.
    """

    def make(**options: Any) -> Request:
        return Request(**{"agent": agent, "timeout_seconds": 600, "limits": Limits(**LIMITS), **options})

    return make


class Pool:
    """A SandboxPool."""

    def __init__(self, stage: Stage, name: str, replicas: int, **spec: Any) -> None:
        self.stage, self.name = stage, name
        kind = {"apiVersion": "codeexec.dev/v1alpha1", "kind": "SandboxPool"}
        meta = {"name": name, "namespace": SANDBOX}
        stage.admin.apply({**kind, "metadata": meta, "spec": {"replicas": replicas, "limits": LIMITS, **spec}})

    def status(self) -> dict[str, Any]:
        return dict(self.stage.admin.get("sandboxpool", self.name).get("status", {}))

    def ready(self, count: int) -> None:
        what = f"{count} pods of {self.name} to be ready"
        ready = lambda pool: pool.get("status", {}).get("readyReplicas", 0) == count  # noqa: E731
        self.stage.admin.wait_until(what, "sandboxpool", self.name, ready)

    def pods(self) -> set[str]:
        return {one for one in self.stage.pods() if one.startswith(f"{self.name}-")}

    def scale(self, replicas: int) -> None:
        self.stage.admin.patch("sandboxpool", self.name, {"spec": {"replicas": replicas}}, subresource="scale")


@pytest.fixture
async def make_pool(stage: Stage, admin: Admin) -> AsyncIterator[Callable[..., Awaitable[Pool]]]:
    """Makes pools, which go after the test. An operator has to run."""
    made: list[Pool] = []

    async def make(replicas: int, *, ready: bool = True, **spec: Any) -> Pool:
        made.append(await in_thread(lambda: Pool(stage, a_name("pool"), replicas, **spec)))
        if ready:
            await in_thread(made[-1].ready, replicas)
        return made[-1]

    yield make
    for pool in made:
        await in_thread(admin.delete, "sandboxpool", pool.name, wait=True)
        await in_thread(wait_for, f"the pods of {pool.name} to go", lambda pool=pool: not pool.pods())


# --- what a failing test tells --------------------------------------------------------------------------------------

LOGS = pytest.StashKey[list[tuple[OperatorProcess, int]]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        for operator, begin in item.stash.get(LOGS, []):
            said = operator.log.read_bytes()[begin:].decode(errors="replace").splitlines()
            report.sections.append(("log of the operator since the test began", "\n".join(_short(said[-80:]))))
            report.sections.append(("tasks of the operator", _tasks(operator)))
    return report


def _tasks(operator: OperatorProcess) -> str:
    try:
        return operator.tasks() if operator.running else "it has ended"
    except (Exception, pytest.fail.Exception) as error:  # nothing here may hide why the test failed
        return f"not known: {error!r}"


def _short(lines: list[str]) -> Iterator[str]:
    """JSON log lines without what is the same in each."""
    for line in lines:
        try:
            one = json.loads(line)
        except ValueError:
            yield line
            continue
        yield f"{one.get('timestamp', '')} {one.get('severity', '')} {one.get('message', line)}"


@pytest.fixture
def policy(stage: Stage, admin: Admin, operator: OperatorProcess) -> Iterator[Callable[..., None]]:
    """Puts a policy into the namespace, and takes it away again, so that the operator has heard of it each time."""

    def put(**spec: Any) -> None:
        admin.apply(stage.a_policy(**spec))

    yield put
    admin.delete("executionpolicy", "default", wait=True)
