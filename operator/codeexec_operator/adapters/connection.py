"""The connection to the runner of one pod, for whoever's code runs there."""

import asyncio
import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import aiohttp
from kubernetes.aio.client.exceptions import ApiException

from codeexec_operator.adapters.api_server import NETWORK_ERRORS, REQUEST_ERRORS
from codeexec_operator.adapters.cluster import Cluster, RunnerLink
from codeexec_operator.adapters.output_room import FREE_BYTES, Share
from codeexec_operator.core.frames import Frames, Lines
from codeexec_operator.core.observed_pod import PodLink, RunnerView
from codeexec_operator.core.pod_reset import reset_of
from codeexec_operator.core.readiness import readiness

logger = logging.getLogger(__name__)

_AT_A_TIME: Final = 100
"""Lines that are taken in before something else has its turn. Lines that come one by one count, too."""
_numbers = itertools.count(1)
"""Each connection of this process has a higher number than those before: what these still send is refused."""


class Job(Protocol):
    """A job of a runner, and what has to know how it goes on."""

    uid: str
    """UID of the execution, or the name of a list of files."""

    @property
    def transcript(self) -> Frames:
        """The frames that have arrived."""

    @property
    def share(self) -> Share:
        """The share of the memory for output."""

    async def store_parts(self) -> None:
        """Store the parts of the output. Must not raise."""

    def progressed(self) -> None:
        """The transcript is over."""

    def cut_off(self) -> None:
        """The connection has ended before the job was over."""

    def resumed(self, missing: str) -> None:
        """The runner sends frames again, or it can't, for this reason."""


class _GarbledError(ConnectionError):
    """The runner did not understand something that was sent, so it is not known what it has taken."""


@dataclass
class _Followed:
    job: Job
    tells: bool
    """True if frames that come are the next. Those that come before a runner has said that it resumes are not."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the runner has answered a ping that came behind the job, or the connection has ended."""


class Connection:
    """Asks the runner what it has found out, hands it jobs, and takes in what it says.

    Args:
        cluster: where the pod is.
        namespace: namespace of the pod.
        pod: its name.
        epoch: of the leader that this process is.
        greeting: what makes the runner report.
        reusable: the runner takes one job after the other; otherwise it exits after the first.
        before: the attempt before this one, if there was one.
        changed: called when `view` has changed.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        pod: str,
        *,
        epoch: int,
        greeting: Mapping[str, Any],
        reusable: bool,
        before: "Connection | None" = None,
        changed: Callable[[], None],
    ) -> None:
        self.view: RunnerView = RunnerView(refused_since=before.view.refused_since if before else None)
        self.changed = changed
        self._cluster = cluster
        self._namespace, self._pod = namespace, pod
        self._epoch = [epoch, next(_numbers)]
        self.reusable = reusable
        self._greeting = greeting
        self._link: RunnerLink | None = None
        self._followed: dict[str, _Followed] = {}
        self._first_line = True
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Connect, in the background."""
        self._see(link=PodLink.OPEN, asked_at=datetime.now(UTC))
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
        self._followed[job.uid] = _Followed(job, tells=True)
        self.view = replace(self.view, handed=job.uid, handed_at=datetime.now(UTC))
        for message in messages:
            await self._send(message)

    async def put(self, message: Mapping[str, Any]) -> None:
        """Put a piece of a file, ahead of a job.

        Raises:
            ConnectionResetError: the connection has ended.
        """
        if not await self._send(message):
            raise ConnectionResetError

    async def resume(self, job: Job) -> None:
        """Have a job told again, from where its transcript ends. `job` hears whether that is so."""
        if self._link is None:
            job.cut_off()
            return
        self._followed[job.uid] = _Followed(job, tells=False)
        await self._send({"resume": job.uid, "from": job.transcript.next_frame})

    async def cancel(self, uid: str) -> bool:
        """Have a job stopped; False if there is no connection at the moment."""
        return await self._send({"cancel": uid})

    async def cancel_stray(self, uid: str) -> None:
        """Have a job stopped of which nobody wants to hear. Until the runner has ended it, it counts as handed over."""
        if await self.cancel(uid) and self.view.ready and self.view.ready.job == uid:  # else it has ended meanwhile
            self.view = replace(self.view, handed=uid, handed_at=datetime.now(UTC))
            self._at_rest(uid)

    async def acknowledge(self, uid: str) -> None:
        """What came of a job is safe. A runner that takes one job only exits then."""
        if self._link and not self.reusable:
            with suppress(*NETWORK_ERRORS):  # it exits all the same, after a while
                await self._send({"ack": uid})

    def forget_reset(self) -> None:
        """What the runner has said of its pod until now doesn't count: it was not asked yet."""
        self.view = replace(self.view, reset=None)

    async def release(self, uid: str) -> None:
        """The same, and the runner is to make its pod clean for another job; `view.reset` tells whether it is."""
        with suppress(*NETWORK_ERRORS):  # then the connection ends, and the pod with it
            await self._send({"ack": uid, "reuse": True})

    async def ping(self) -> None:
        """Ask the runner whether it is still there; `view` tells when it was last heard."""
        if self._link:
            self.view = replace(self.view, pinged_at=datetime.now(UTC))
            await self._send({"ping": True})

    async def answers(self, uid: str) -> bool:
        """True once the runner has answered a ping that comes behind this job. False if the connection ends before."""
        followed = self._followed.get(uid)
        if followed and await self._send({"ping": uid}):
            await followed.arrived.wait()
        return uid in self._followed

    async def greet(self, greeting: Mapping[str, Any]) -> None:
        """Ask for another report. If the connection has just ended, the next one begins with what it is for."""
        await self._send(greeting)

    def abandon(self, uid: str) -> None:
        """Nobody wants to hear of this job any more."""
        self._followed.pop(uid, None)

    async def _send(self, message: Mapping[str, Any]) -> bool:
        if self._link is None:
            return False
        await self._link.send({**message, "epoch": self._epoch})
        return True

    async def _run(self) -> None:
        lines, numbers = Lines(), itertools.count(1)
        try:
            async with self._cluster.attach(self._namespace, self._pod) as link:
                self._link = link
                self.view = replace(self.view, refused_since=None)
                await link.end_line()
                await self._send(self._greeting)
                async for data in link.received():
                    *_, latest = [None, *self._followed.values()]
                    if latest:
                        await latest.job.share.need(lines.pending + len(data))
                    for line, number in zip(self._complete(lines, data), numbers, strict=False):
                        await self._take(line)
                        if number % _AT_A_TIME == 0:
                            await asyncio.sleep(0)
                    if latest:
                        latest.job.share.settle(lines.pending)
                    if self.view.problem:
                        break
        except REQUEST_ERRORS as error:
            logger.warning("%s: the connection to the pod failed (%s)", self._pod, type(error).__name__)
            since = self.view.refused_since or datetime.now(UTC)
            self.view = replace(self.view, refused_since=since if _is_of_pod(error) else None)
        finally:
            self._link = None
            followed, self._followed = self._followed, {}
            for one in followed.values():
                one.job.share.settle(0)
                one.job.cut_off()
                one.arrived.set()
            self._see(link=PodLink.CLOSED, closed_at=datetime.now(UTC), ready=None, handed="")

    def _complete(self, lines: Lines, data: bytes) -> list[bytes]:
        try:
            return lines.feed(data, skip_beyond=None if self._followed else FREE_BYTES)
        except ValueError as error:
            self._fail(str(error))
            return []

    async def _take(self, line: bytes) -> None:
        first, self._first_line = self._first_line, False
        self.view = replace(self.view, heard_at=datetime.now(UTC))
        try:
            frame = json.loads(line)
            if "ready" in frame:
                self._see(ready=readiness(frame))
                return
            followed = self._of(frame)
        except _GarbledError:
            raise
        except Exception as error:  # whatever a pod sends must not get any further
            if first and self.view.ready is None:  # the rest of a line whose start went to whoever was connected then
                return
            self._fail(f"a line that is not a valid frame ({type(error).__name__})")
            return
        if followed is None:
            return
        job = followed.job
        job.transcript.take(frame, job.uid)
        await job.store_parts()
        if job.transcript.over:
            self._followed.pop(job.uid, None)
            self._at_rest(job.uid)
            job.progressed()

    def _of(self, frame: Mapping[str, Any]) -> _Followed | None:
        """Whose frame this is, if it is to be taken.

        Raises:
            Exception: it is no frame, of whatever type; the caller treats all alike.
        """
        if "pong" in frame and (asked := self._followed.get(str(frame["pong"]))):
            asked.arrived.set()
        if "pong" in frame or "refused" in frame:
            return None
        if "repeated" in frame:
            self._over(frame["repeated"])
            return None
        if "resumed" in frame:
            self._resumed(frame["resumed"], str(frame.get("missing", "")))
            return None
        if "reset" in frame:
            self._see(reset=reset_of(frame))
            return None
        uid = frame["id"]
        if uid is None and self.view.ready:  # else it is the rest of what somebody else has said
            raise _GarbledError
        if "done" in frame or "fault" in frame or "error" in frame:
            self._at_rest(uid)
            self._over(uid)
        followed = self._followed.get(uid)
        return followed if followed and followed.tells else None

    def _resumed(self, uid: str, missing: str) -> None:
        followed = self._followed.get(uid)
        if followed is None:
            return
        if missing:
            del self._followed[uid]
        followed.tells = True
        followed.job.resumed(missing)

    def _at_rest(self, uid: str) -> None:
        ready = self.view.ready
        if ready and ready.job == uid:
            self._see(ready=replace(ready, job=None))

    def _over(self, uid: str) -> None:
        """The runner goes on to what comes next. It doesn't while it tells what nobody wants to hear any more."""
        if self.view.handed == uid:
            self._see(handed="")

    def _fail(self, problem: str) -> None:
        followed, self._followed = self._followed, {}
        for one in followed.values():
            one.job.transcript.fail(problem)
            one.job.progressed()
        self._see(problem=f"the runner sent {problem}")

    def _see(self, **changes: Any) -> None:
        self.view = replace(self.view, **changes)
        self.changed()


def _is_of_pod(error: Exception) -> bool:
    """True if it is the pod or its node that can't be reached.

    The API server says so, or is still waiting for the node. A leader that can't reach the API server doesn't last long
    enough for this to matter.
    """
    if isinstance(error, ApiException | aiohttp.ClientResponseError):
        return True
    return isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ServerTimeoutError)
