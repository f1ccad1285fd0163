"""The face of the fake: what a test gives it, asks it and does to it."""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Final

from codeexec_api import CodeExecution, CodeSession, EgressVerdict, ExecutionPolicySpec, Reason
from codeexec_api.names import block_key
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import DEFAULT_NAMESPACE
from executor_client.exceptions import ClusterUnreachable, CodeExecError
from executor_client.testing.outcomes import FakeBlock, FakeOutcome, Script
from executor_client.testing.simulation import Simulation
from executor_client.testing.transport import FakeTransport
from executor_client.transport.protocol import ClusterTransport

_START: Final = datetime(2026, 1, 1, tzinfo=UTC)


class FakeCluster:
    r"""A cluster with codeexec, in memory. It runs no code: `run` or `answers` say what comes of each block.

        fake = FakeCluster(run=lambda block: FakeOutcome(stdout="42\n"))
        executor = KubernetesCodeExecutor(client=fake.client())

    A block that nothing was said about fails, with a text that says so. May be used from several threads and event
    loops. Time passes only by `FakeOutcome.takes` and `advance`.

    Args:
        namespace: the sandbox namespace that it has.
        policy: the ExecutionPolicy of the namespace; default: the namespace has none, and the cluster's default policy
            counts, as the chart installs it, with `FAKE_IMAGE` as the image.
        run: says what comes of a block, and changes the files of the workspace as the block would. What it raises is
            raised where the block was submitted.
        languages: those that the image has a program for.
        now: the time on its clock at the beginning.
    """

    def __init__(
        self,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        policy: ExecutionPolicySpec | None = None,
        run: Script | None = None,
        languages: Collection[str] = ("bash", "python", "sh"),
        now: datetime = _START,
    ) -> None:
        self._answers: dict[str, FakeOutcome] = {}
        self._run = run or _unscripted
        self._simulation = Simulation(
            namespace=namespace,
            policy=policy,
            script=self._outcome,
            languages=languages,
            now=now,
        )

    def client(self, user: str = "fake-agent") -> CodeExecutionClient:
        """A client of this cluster, as this user. Whoever approves an execution has to be another one than its own."""

        async def connect() -> ClusterTransport:
            return FakeTransport(self._simulation, user)

        return CodeExecutionClient(transport=connect)

    # --- what code does ---

    def answers(self, outcomes: Mapping[str, FakeOutcome]) -> None:
        """Say what comes of blocks with exactly this text, ahead of what `run` says. Adds to earlier answers."""
        self._answers.update(outcomes)

    def _outcome(self, block: FakeBlock) -> FakeOutcome:
        return self._answers[block.code] if block.code in self._answers else self._run(block)

    # --- what became of it ---

    @property
    def executions(self) -> list[CodeExecution]:
        """The records, in order of their creation."""
        return self._simulation.state.executions.all()

    @property
    def sessions(self) -> list[CodeSession]:
        """The records, in order of their creation."""
        return self._simulation.state.sessions.all()

    def code(self, name: str) -> list[bytes]:
        """The blocks that were submitted with the execution of this name.

        Raises:
            NotFound: there is none.
        """
        blocks = self._simulation.state.executions[name].spec.blocks
        return [self._simulation.state.payloads[name][block_key(index)] for index in range(len(blocks))]

    @property
    def audit_log(self) -> list[str]:
        """Lines of the operator's log that make its audit log, as `codeexec audit verify` reads them."""
        return list(self._simulation.state.audit_log)

    # --- time ---

    @property
    def now(self) -> datetime:
        """The time on its clock."""
        return self._simulation.state.now

    def advance(self, seconds: float) -> None:
        """Set the clock forward. Limits that pass meanwhile take effect, in order."""
        self._simulation.advance(seconds)

    # --- faults ---

    def fail(self, error: Callable[[str], CodeExecError] = ClusterUnreachable) -> None:
        """Have every call to the cluster fail from now on, and every watch: `fail(NotPermitted)`."""
        self._simulation.fail(lambda: error("the fake cluster was told to fail"))

    def recover(self) -> None:
        """Take back all faults that are still to come."""
        self._simulation.fail(None)
        self._simulation.state.start_fault = None
        self._simulation.state.operator_absent = False
        self._simulation.state.egress = EgressVerdict.CLOSED

    def fail_to_start(self, reason: Reason, message: str) -> None:
        """Have no pod start from now on, for a reason such as `Reason.IMAGE_PULL_FAILED`."""
        self._simulation.state.start_fault = (reason, message)

    def open_network(self) -> None:
        """Have it found of pods, from now on, that their network is open. Whether code runs is up to the policy."""
        self._simulation.state.egress = EgressVerdict.OPEN

    def stop_operator(self) -> None:
        """Have nobody notice what is created from now on."""
        self._simulation.state.operator_absent = True

    def lose_pod(self, name: str) -> None:
        """Delete the pod of the session, or of the execution outside sessions, of this name.

        Raises:
            NotFound: there is neither.
        """
        self._simulation.lose_pod(name)


def _unscripted(block: FakeBlock) -> FakeOutcome:
    first = block.code.strip().split("\n")[0][:80]
    text = f"FakeCluster has no outcome for this {block.language} block; pass run= or call answers(): {first}\n"
    return FakeOutcome(stderr=text, exit_code=1)
