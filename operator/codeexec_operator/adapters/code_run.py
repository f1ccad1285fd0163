"""Code that was handed to a runner: its frames so far, and whether more can arrive."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from codeexec_api import ExecutionPolicySpec
from codeexec_operator.adapters.api_server import REQUEST_ERRORS
from codeexec_operator.adapters.connection import Connection
from codeexec_operator.adapters.output_room import Share
from codeexec_operator.adapters.outputs import StoreFailure
from codeexec_operator.adapters.pod_worker import PodWorker
from codeexec_operator.adapters.worker import OUTAGE_SECONDS, now
from codeexec_operator.core import actions
from codeexec_operator.core.observed import FrameStream, Observed
from codeexec_operator.core.output_parts import OutputPart
from codeexec_operator.core.transcript import Transcript


class CodeRun:
    """The code of one execution, as the `Job` of a connection to a runner. `seen` returns what is observed now."""

    def __init__(self, worker: PodWorker, seen: Callable[[], Observed]) -> None:
        self._worker, self._seen = worker, seen
        self.transcript = self._new_transcript()
        self._frames = FrameStream.CLOSED
        self._frames_since: datetime | None = None
        self._begun_at: datetime | None = None
        self._missing = ""
        self._cancel_sent_at: datetime | None = None
        self._answered = False
        self._storing = asyncio.Lock()
        self.share = Share(worker.context.output, worker.meta.namespace, self)
        self.uid, self.run_in_background, self.progressed = worker.meta.uid, worker.run_in_background, worker.wake

    @property
    def told(self) -> bool:
        """True if the code was handed to the runner, and its frames arrive here."""
        return self._frames is FrameStream.OPEN

    @property
    def arrived(self) -> bool:
        """True if the runner has shown that it has the code. What was sent into a silent connection may be lost."""
        return self.told and (self._answered or self.transcript.next_frame > 0)

    async def arrives(self, runner: Connection | None) -> bool:
        """Wait for that; False if the connection ends before."""
        if self.told and not self.arrived and runner:
            self._answered = await runner.answers(self.uid)
        return self.arrived

    @property
    def facts(self) -> dict[str, Any]:
        """What is observed of the code, as fields of `Observed`."""
        return {
            "transcript": self.transcript,
            "frames": self._frames,
            "frames_since": self._frames_since,
            "begun_at": self._begun_at,
            "missing": self._missing,
            "cancel_sent_at": self._cancel_sent_at,
        }

    def begin(self) -> None:
        """Begin a new transcript: the start of the execution is on record."""
        self.transcript = self._new_transcript()
        self._frames_are(FrameStream.OPEN)
        self._begun_at = self._frames_since

    async def start(self, runner: Connection | None, messages: Sequence[Mapping[str, Any]]) -> None:
        """Hand the code over."""
        if runner:
            await runner.start(self, messages)
        else:
            self.cut_off()

    async def act(self, action: actions.CancelCode | actions.ResumeCode, runner: Connection | None) -> None:
        """Carry out an action on code that runs."""
        if isinstance(action, actions.CancelCode):
            if runner and await runner.cancel(self.uid):
                self._cancel_sent_at = now()
                self._worker.wake()
            return
        self._frames_are(FrameStream.REQUESTED)
        if runner:
            await runner.resume(self)
        else:
            self.cut_off()

    @property
    def kept(self) -> bool:
        """True if no more frames are taken, and each part of the output is stored or given up."""
        return self.transcript.finished and not (self._storing.locked() or self.transcript.parts.waits)

    async def keep(self) -> None:
        """Take no more frames, and store what is left of the output."""
        self.transcript.finish()
        await self.store_parts()

    def over(self) -> None:
        """Forget the output: it is on record, or nobody needs it any more."""
        self.transcript = self._new_transcript()
        self.share.close()

    def _new_transcript(self) -> Transcript:
        return Transcript.of(self._worker.context.outputs.place)

    # --- Job, and Holder of a share of the room for output ---

    @property
    def held_bytes(self) -> int:
        """How many bytes of the output are in memory."""
        return self.transcript.parts.held_bytes

    async def shorten(self) -> bool:
        """Store the output that is held, as a part that is not full; False if that can't be done."""
        if not self.transcript.cut():
            return False
        await self.store_parts()
        return True

    async def store_parts(self) -> None:
        """Store the parts of the output, one after the other."""
        transcript = self.transcript
        async with self._storing:
            while part := transcript.parts.next_part:
                await self._store(transcript, part)

    async def _store(self, transcript: Transcript, part: OutputPart) -> None:
        """Store a part of the output. If the part is lost, the record says why."""
        seen, context = self._seen(), self._worker.context
        policy = seen.policy if isinstance(seen.policy, ExecutionPolicySpec) else context.policies.default
        expires_at = now() + timedelta(seconds=policy.output_ttl_seconds)
        failure, create = "a part of the output was not stored", context.outputs.create_output
        try:
            fault = await self._worker.attempt(
                failure, create, seen.execution, part, expires_at, seconds=OUTAGE_SECONDS
            )
        except REQUEST_ERRORS as error:
            why = str(error) if isinstance(error, StoreFailure) else "the API server did not accept it"
            transcript.parts.lose(part, why)
        else:
            if fault:
                transcript.parts.lose(part, fault.message)
            else:
                transcript.parts.stored(part)

    def cut_off(self) -> None:
        """The connection to the runner has ended."""
        self._frames_are(FrameStream.CLOSED)

    def resumed(self, missing: str) -> None:
        """The runner sends frames again, or it can't, for this reason."""
        self._frames_are(FrameStream.CLOSED if missing else FrameStream.OPEN, missing)
        self._answered = not missing

    def _frames_are(self, frames: FrameStream, missing: str = "") -> None:
        self._frames, self._frames_since, self._missing = frames, now(), missing
        self._cancel_sent_at, self._answered = None, False  # what was sent may have gone the way of the connection
        self._worker.wake()
