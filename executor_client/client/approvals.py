"""What a caller does when a human has to approve what it asks for, and what that human gets to see."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Self, TypeAlias

from codeexec_api import CodeExecution, Grant, Phase
from executor_client.model import arguments
from executor_client.runtime import asyncio_tasks

ApprovalMode: TypeAlias = Literal["wait", "return"]


@dataclass(frozen=True)
class ApprovalRequest:
    """An execution that waits for a human's decision."""

    execution: str
    """Name of the CodeExecution."""
    uid: str
    """Its UID: one of the same name that comes later is another."""
    namespace: str
    agent: str
    """As claimed by the client."""
    requested_by: str
    """As the API server knows them."""
    grants: tuple[Grant, ...]
    """What is asked for beyond the policy: field and value of each."""
    code_digest: str
    wait_until: datetime | None
    """If nobody has decided by then, the execution ends."""
    message: str
    """All of it for people, with the command that approves it."""


@dataclass(frozen=True)
class ReviewedCode:
    """What an execution that waits for approval would run, and the files that it would find."""

    blocks: tuple[bytes, ...] = field(default=(), repr=False)
    """In order."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Content by path in the workspace. Code may load them: Python imports a module from there before its own."""


@dataclass(frozen=True)
class ApprovalWait:
    """What a call does while a human has to decide.

    Raises:
        ValueError: `seconds` is no number greater than 0, or `mode` is unknown.
    """

    mode: ApprovalMode = "wait"
    """`wait`: until it is decided. `return`: at once, with a result that says what is waited for; the code runs later,
    when it is approved, and `CodeExecutionClient.attach` gets its result."""
    seconds: float | None = None
    """How long to wait; then the execution is cancelled. None: the client sets no limit."""
    notify: Callable[[ApprovalRequest], None] | None = None
    """Called once, in a worker thread, when a decision is needed. If the callback raises, the execution is cancelled,
    and the call raises that exception."""

    def __post_init__(self) -> None:
        if self.mode not in ("wait", "return"):
            raise ValueError(f"mode is {self.mode!r}, but must be 'wait' or 'return'")
        arguments.seconds("seconds", self.seconds)


class Question:
    """Tells of the decision that an execution waits for: once, however many wait for it.

    Args:
        notify: see `ApprovalWait`.
    """

    def __init__(self, notify: Callable[[ApprovalRequest], None] | None) -> None:
        self._notify = notify

    async def __call__(self, current: CodeExecution) -> None:
        """Tell of it, unless that was done."""
        notify, self._notify = self._notify, None
        if notify:
            await asyncio_tasks.in_worker(notify, request_of(current))


class Patience:
    """Looks after one wait for an execution while a human has to decide; an asynchronous context manager.

    Args:
        wait: what the caller wants.
        ask: tells of the decision that is needed.
        give_up: cancels the execution.
    """

    def __init__(
        self,
        wait: ApprovalWait,
        ask: Callable[[CodeExecution], Awaitable[None]],
        give_up: Callable[[], Awaitable[None]],
    ) -> None:
        self.timed_out = False
        """True when the execution was cancelled because nobody has decided in time."""
        self._wait, self._ask, self._give_up = wait, ask, give_up
        self._timer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    def late(self, seconds: float) -> str:
        """Why it is over when its end hasn't come so many seconds after that; empty if it was decided in time."""
        return f"was not approved within {self._wait.seconds} s, nor ended {seconds} s later" if self.timed_out else ""

    async def _stop(self) -> None:
        if self._timer:
            await asyncio_tasks.stop(self._timer)
            self._timer = None

    async def ends_wait(self, current: CodeExecution) -> bool:
        """True if the caller doesn't wait for what has now to be decided."""
        if current.status.phase is not Phase.AWAITING_APPROVAL:
            await self._stop()
            return False
        if self._wait.mode == "wait" and self._wait.seconds is not None and self._timer is None:
            self._timer = asyncio.create_task(self._give_up_after(self._wait.seconds))
        await self._ask(current)
        return self._wait.mode == "return"

    async def _give_up_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.timed_out = True
        await self._give_up()


def request_of(execution: CodeExecution) -> ApprovalRequest:
    """What is to be decided about an execution that waits for it."""
    status = execution.status
    return ApprovalRequest(
        execution=execution.metadata.name,
        uid=execution.metadata.uid,
        namespace=execution.metadata.namespace,
        agent=execution.spec.source.agent,
        requested_by=execution.spec.requested_by or "",
        grants=status.approval.grants if status.approval else (),
        code_digest=status.code_digest,
        wait_until=status.approval.wait_until if status.approval else None,
        message=status.message,
    )
