"""What humans decide about one execution, and the copy of its code that they read."""

from codeexec_api import CodeExecution, ExecutionApproval
from codeexec_operator.adapters.worker import OUTAGE_SECONDS, Worker, parse_or_log
from codeexec_operator.core.payload import Payload


class Approvals:
    """Decisions about executions of one name: the newest version that was heard of."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._by_name: dict[str, tuple[int, ExecutionApproval | None]] = {}
        """With their resource versions; None if one was deleted."""
        self._heard: set[str] = set()
        """Names of those that were heard of since they were listed."""
        self._read = False
        self.unreadable = False
        """True if the code could not be put where whoever decides can read it."""

    @property
    def known(self) -> tuple[ExecutionApproval, ...] | None:
        """Those that there are; None if they were not read yet."""
        return tuple(approval for _, approval in self._by_name.values() if approval) if self._read else None

    def observe(self, approval: ExecutionApproval, *, deleted: bool) -> None:
        """A decision was seen, changed or deleted."""
        name, version = approval.metadata.name, int(approval.metadata.resource_version)
        if version > self._by_name.get(name, (0, None))[0]:
            self._by_name[name] = (version, None if deleted else approval)
            self._heard.add(name)
            self._worker.wake()

    async def read(self) -> None:
        """List all decisions again. A decision that arrives meanwhile is newer than the list."""
        meta = self._worker.meta
        self._heard.clear()
        listed = await self._worker.context.cluster.list_approvals(meta.namespace, meta.name)
        self._by_name = {name: self._by_name[name] for name in self._heard}
        for raw in listed:
            if approval := parse_or_log(ExecutionApproval.parse, raw):
                self.observe(approval, deleted=False)
        self._read = True
        self._worker.wake()

    async def publish(self, execution: CodeExecution, payload: Payload) -> None:
        """Put its code where whoever decides can read it."""
        publish = self._worker.context.cluster.publish_code
        failure = "the code could not be published for approvers"
        self.unreadable = not await self._worker.insist(failure, publish, execution, payload, seconds=OUTAGE_SECONDS)
        self._worker.wake()

    async def withdraw(self, execution: CodeExecution) -> None:
        """Delete that copy. If it can't be, it is left to the sweeper."""
        withdraw = self._worker.context.cluster.withdraw_code
        await self._worker.insist("the code for approvers was not deleted", withdraw, execution)
