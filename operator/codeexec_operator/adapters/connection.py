"""The connection to the runner of one pod, for whoever's code runs there at the moment."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from kubernetes.aio.client.exceptions import ApiException

from codeexec_operator.adapters.api_server import NETWORK_ERRORS as NETWORK_ERRORS
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.runner_link import RunnerLink
from codeexec_operator.core.observed import PodLink, RunnerView
from codeexec_operator.core.transcript import Lines, Transcript, readiness

logger = logging.getLogger(__name__)


class Job(Protocol):
    """Code that was handed to a runner, and who is told what becomes of it."""

    uid: str

    @property
    def transcript(self) -> Transcript:
        """What the runner has said of it."""

    async def store_parts(self) -> None:
        """Keep the parts of the output that there are. Must not raise."""

    def progressed(self) -> None:
        """The transcript is over."""

    def cut_off(self) -> None:
        """The connection has ended before that."""


class Connection:
    """Asks the runner what it has found out, hands it jobs, and takes in what it says.

    Args:
        cluster: where the pod is.
        namespace: namespace of the pod.
        pod: its name.
        greeting: what makes the runner report.
        reusable: the runner takes one job after the other; otherwise it exits after the first.
        changed: called when `view` has changed.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        pod: str,
        *,
        greeting: Mapping[str, Any],
        reusable: bool,
        changed: Callable[[], None],
    ) -> None:
        self.view = RunnerView()
        self.changed = changed
        self._cluster = cluster
        self._namespace, self._pod = namespace, pod
        self._greeting, self._reusable = greeting, reusable
        self._link: RunnerLink | None = None
        self._job: Job | None = None
        self._abandoned: set[str] = set()
        self._first_line = True
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Connect, in the background."""
        self.view = RunnerView(link=PodLink.OPEN, asked_at=datetime.now(UTC))
        self._task = asyncio.create_task(self._run(), name=f"connection to {self._pod}")

    def close(self) -> None:
        """Disconnect. What runs there is not stopped by that."""
        if self._task:
            self._task.cancel()

    async def start(self, job: Job, messages: Sequence[Mapping[str, Any]]) -> None:
        """Hand over a job. If the connection has just ended, `job` hears of that and of nothing else."""
        if self._link is None:
            job.cut_off()
            return
        self._job = job
        for message in messages:
            await self._link.send(message)

    async def cancel(self, uid: str) -> bool:
        """Have a job stopped; False if there is no connection at the moment."""
        if self._link is None:
            return False
        await self._link.send({"cancel": uid})
        return True

    async def acknowledge(self, uid: str) -> None:
        """What came of a job is safe. A runner that takes one job only exits then."""
        if self._link and not self._reusable:
            with suppress(*NETWORK_ERRORS):  # it exits all the same, after a while
                await self._link.send({"ack": uid})

    async def ping(self) -> None:
        """Ask the runner whether it is still there; `view` tells when it was last heard."""
        if self._link:
            self.view = replace(self.view, pinged_at=datetime.now(UTC))
            await self._link.send({"ping": True})

    def abandon(self, uid: str) -> None:
        """Nobody wants to hear of this job any more."""
        if self._job and self._job.uid == uid:
            self._abandoned.add(uid)
            self._job = None

    async def _run(self) -> None:
        lines = Lines()
        try:
            async with self._cluster.attach(self._namespace, self._pod) as link:
                if self._reusable:  # stops what a predecessor of this connection has left running
                    await link.send({"cancel": True})
                await link.send(self._greeting)
                self._link = link
                async for data in link.received():
                    for line in self._complete(lines, data):
                        await self._take(line)
                    if self.view.problem:
                        break
        except (ApiException, *NETWORK_ERRORS) as error:
            logger.warning("%s: the connection to the pod failed (%s)", self._pod, type(error).__name__)
        finally:
            self._link = None
            if self._job:
                self._job.cut_off()
                self._job = None
            self._see(link=PodLink.CLOSED, closed_at=datetime.now(UTC), ready=None)

    def _complete(self, lines: Lines, data: bytes) -> list[bytes]:
        try:
            return lines.feed(data)
        except ValueError as error:
            self._fail(str(error))
            return []

    async def _take(self, line: bytes) -> None:
        first, self._first_line = self._first_line, False
        self.view = replace(self.view, heard_at=datetime.now(UTC))
        try:
            frame = json.loads(line)
            if "pong" in frame:
                return
            if self.view.ready is None:
                if "ready" in frame:
                    self._see(ready=readiness(frame))
                elif "id" not in frame:  # else of a job that was running when this connection was made
                    self._fail("a line that is not a valid frame")
                return
            abandoned = frame.get("id") in self._abandoned
        except Exception as error:  # whatever a pod sends must not get any further
            if first and self._reusable:  # the rest of a line whose start went to a predecessor
                return
            self._fail(f"a line that is not a valid frame ({type(error).__name__})")
            return
        job = self._job
        if job is None or abandoned:
            return
        transcript = job.transcript
        transcript.take(frame, job.uid)
        await job.store_parts()
        if transcript.over:
            if self._job is job:
                self._job = None
            job.progressed()

    def _fail(self, problem: str) -> None:
        if self._job:
            self._job.transcript.fail(problem)
            self._job.progressed()
            self._job = None
        self._see(problem=f"the runner sent {problem}")

    def _see(self, **changes: Any) -> None:
        self.view = replace(self.view, **changes)
        self.changed()
