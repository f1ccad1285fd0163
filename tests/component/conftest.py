"""Fixtures of the component tier: a stage for each worker of pytest, and an operator that is well."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from cluster_tools import SANDBOX, Admin, a_name, wait_for
from component_stage import LIMITS, STAGES, Stage, in_thread
from diagnostics import BEGAN, given_to, noting_calls_of_clients
from fault_proxy import Seen
from operator_process import OperatorProcess

from codeexec_api.output_store import STORE_VARIABLE
from executor_client import ClusterRef, CodeExecutionClient, Limits, Request
from executor_client.client import waiting

_hurrying: list[OperatorProcess] = []
"""The operators of a module that has its own: with a fast clock, with a store, or that keep pods for longer."""
IMPATIENCE = 150
"""Seconds that a start may take where a test is about that: 15 s of this machine, whose pods start in less."""


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with noting_calls_of_clients(), Stage(tmp_path_factory.mktemp("stage"), forked=True) as stage:
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


@pytest.fixture
def nobody_leads(stage: Stage, _one_operator: OperatorProcess) -> None:
    """For a test that starts operators of its own."""
    _one_operator.end()
    for other in _hurrying:
        _end(stage, other)


@pytest.fixture(scope="module")
def fast(stage: Stage, _one_operator: OperatorProcess) -> Iterator[OperatorProcess]:
    yield from _fast(stage, _one_operator)


@pytest.fixture(scope="module")
def fast_and_impatient(stage: Stage, _one_operator: OperatorProcess) -> Iterator[OperatorProcess]:
    yield from _fast(stage, _one_operator, timing={"start_timeout": IMPATIENCE})


@pytest.fixture(scope="module")
def keeping(stage: Stage, _one_operator: OperatorProcess) -> Iterator[OperatorProcess]:
    timing = {"reuse_idle": 600, "reset_answer": 60, "reuse_run": 600}
    yield from _fast(stage, _one_operator, clock=None, timing=timing)


@pytest.fixture(scope="module")
def storing(
    stage: Stage, _one_operator: OperatorProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    folder = tmp_path_factory.mktemp("stored") / "store"
    yield from _fast(stage, _one_operator, clock=None, environment={STORE_VARIABLE: folder.as_uri()})


def _fast(
    stage: Stage,
    usual: OperatorProcess,
    *,
    clock: str | None = "+11m x10",
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[OperatorProcess]:
    operator = stage.operator(clock=clock, **options)
    operator.environment.update(environment or {})
    _hurrying.append(operator)
    yield operator
    if not usual.running and not any(one.running for one in _hurrying if one is not operator):
        _end(stage, operator)
    _hurrying.remove(operator)


def _end(stage: Stage, fast: OperatorProcess) -> None:
    """End an operator whose clock runs fast. If it can't give its Lease back, no other leads for that long."""
    fast.end()
    stage.free_lease()


@pytest.fixture
async def hurried(
    stage: Stage, _one_operator: OperatorProcess, fast: OperatorProcess, request: pytest.FixtureRequest
) -> OperatorProcess:
    """The operator whose clock runs fast; the others rest. Pods have as much time to start as the machine needs."""
    return await in_thread(_alone, stage, _one_operator, fast, request)


@pytest.fixture
async def impatient(
    stage: Stage, _one_operator: OperatorProcess, fast_and_impatient: OperatorProcess, request: pytest.FixtureRequest
) -> OperatorProcess:
    """The same, for tests of what becomes of pods that don't start, within IMPATIENCE."""
    return await in_thread(_alone, stage, _one_operator, fast_and_impatient, request)


@pytest.fixture
async def keeps(
    stage: Stage, _one_operator: OperatorProcess, keeping: OperatorProcess, request: pytest.FixtureRequest
) -> OperatorProcess:
    """One that keeps pods which were used for as long as a test takes, by a clock that runs as it should."""
    return await in_thread(_alone, stage, _one_operator, keeping, request)


@pytest.fixture
async def stores(
    stage: Stage, _one_operator: OperatorProcess, storing: OperatorProcess, request: pytest.FixtureRequest
) -> OperatorProcess:
    """One with an output store in a folder."""
    return await in_thread(_alone, stage, _one_operator, storing, request)


def _alone(
    stage: Stage, usual: OperatorProcess, fast: OperatorProcess, request: pytest.FixtureRequest
) -> OperatorProcess:
    if usual.running:
        usual.stop()
    for other in _hurrying:
        if other is not fast and other.running:
            _end(stage, other)
    if not fast.running:
        fast.start()
    request.node.stash[LOGS] = [(fast, fast.log.stat().st_size)]
    return fast


@pytest.fixture(scope="session")
def kubeconfig(stage: Stage) -> str:
    """The administrator's: `make_user` and `approver` of `cluster_fixtures` make users of this control plane."""
    return stage.plane.kubeconfig


@pytest.fixture(scope="session")
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
def one_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the operator is, the client opens no watch of its own beside the one that all its calls share."""
    monkeypatch.setattr(waiting, "WORD_SECONDS", 600)


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


@pytest.fixture(autouse=True)
def no_traceback() -> Iterator[None]:
    """An error that the operator does not expect fails the test during which it came, whatever else came of it."""
    yield
    said = [line for stage in STAGES for operator in stage.operators for line in operator.tracebacks()]
    assert not said, "\n".join(said)


# --- what a failing test tells --------------------------------------------------------------------------------------

LOGS = pytest.StashKey[list[tuple[OperatorProcess, int]]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        told = dict(item.stash.get(LOGS, []))
        stages = [one for one in given_to(item) if isinstance(one, Stage)]
        ran = [one for stage in stages for one in stage.operators if one.wrote_since(item.stash.get(BEGAN, 0))]
        for operator, begin in {**dict.fromkeys(ran, 0), **told}.items():
            said = operator.log.read_bytes()[begin:].decode(errors="replace").splitlines()
            report.sections.append(("log of the operator since the test began", "\n".join(_short(said[-80:]))))
            report.sections.append(("tasks of the operator", _tasks(operator)))
        began = time.monotonic() - (time.time() - item.stash.get(BEGAN, time.time()))
        for stage in stages:
            failed = [one for one in stage.proxy.seen() if one.at >= began and not 100 <= one.status < 400]
            report.sections.append(
                ("calls through the fault proxy that failed", "\n".join(map(_of_call, failed[-80:])))
            )
    return report


def _of_call(seen: Seen) -> str:
    call, answer = seen.call, seen.status or "no answer"
    return f"{call.verb} {call.resource}/{call.subresource} {call.namespace}/{call.name}: {answer}"


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
def policy(stage: Stage, operator: OperatorProcess) -> Iterator[Callable[..., None]]:
    """Puts a policy into the namespace, and takes it away again, so that the operator has heard of it each time."""
    yield stage.put_policy
    stage.drop_policy()
