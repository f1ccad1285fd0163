"""Moves the files of a session that sleeps into the store, and back into a pod. `core/sleep.py` decides when."""

import asyncio
import secrets
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from codeexec_api import PodLimits, Reason, StoredFiles
from codeexec_api.digests import sha256_hex
from codeexec_operator.adapters.api_server import NETWORK_ERRORS
from codeexec_operator.adapters.connection import Connection
from codeexec_operator.adapters.output_room import Share
from codeexec_operator.adapters.outputs import FileStore, StoreDamage, StoreFailure
from codeexec_operator.adapters.pod_worker import PodWorker
from codeexec_operator.adapters.worker import now
from codeexec_operator.core import actions
from codeexec_operator.core.workspace_copy import (
    FILES_JOB,
    Listing,
    Transfer,
    Unpacking,
    WorkspaceCopy,
    build_listing,
    differs,
)


class SessionFiles:
    """The files of one session. `storing` and `restoring` are the transfers that go on or have ended."""

    def __init__(self, worker: PodWorker, limits: PodLimits) -> None:
        self.storing: Transfer | None = None
        self.restoring: Transfer | None = None
        self._worker, self._limits = worker, limits
        self._job: _ListingJob | None = None
        self._putting: asyncio.Task[None] | None = None

    def forget(self) -> None:
        """The session has no pod any more. What is on its way into that pod ends, wherever it is."""
        self._keep_awake()
        if self._putting:
            self._putting.cancel()
        self._putting = self.restoring = None

    def act(
        self,
        action: actions.StoreFiles | actions.KeepAwake | actions.RestoreFiles,
        runner: Connection | None,
        *,
        needed: bool,
    ) -> None:
        """Carry out an action on the files. Without a connection, nothing begins, and the next decision asks again.

        Args:
            action: what `core/sleep.py` has decided.
            runner: the connection to the runner, if there is one.
            needed: True if an execution needs the session.
        """
        files = self._worker.context.outputs.files
        match action:
            case actions.StoreFiles() if runner and files and not needed:  # else one has come meanwhile
                self.storing = Transfer(now())
                self._worker.run_in_background(self._store(runner, files, self.storing))
            case actions.KeepAwake():
                self._keep_awake()
            case actions.RestoreFiles(stored) if runner:
                self.restoring = Transfer(now())
                self._worker.run_in_background(self._restore(runner, stored, self.restoring))
        self._worker.wake()

    def _keep_awake(self) -> None:
        """Store nothing more, and forget what was stored."""
        if self._job:
            self._job.give_up()
        self._job = self.storing = None

    async def _store(self, runner: Connection, files: FileStore, transfer: Transfer) -> None:
        """Have the runner list all files, store their content while it arrives, and set the outcome."""
        outcome: Transfer | None = None  # it is begun anew over the next connection
        job = _ListingJob(self._worker, _Objects(self._worker, files))
        seconds = self._worker.context.timing.workspace_transfer
        limit = asyncio.timeout(seconds)
        try:
            async with limit, self._turn():
                if self.storing is not transfer:
                    return
                self._job = job
                if await job.run(runner, self._limits):
                    outcome = await job.stored(self._worker.context.outputs.place.url, transfer)
        except Exception as error:
            if limit.expired() or not isinstance(error, NETWORK_ERRORS):
                problem = f"it took longer than {seconds:g} s" if limit.expired() else type(error).__name__
                outcome = replace(transfer, ended_at=now(), problem=problem, reason=Reason.FILES_NOT_STORED)
        finally:
            job.give_up()
            if self.storing is transfer:
                self.storing, self._job = outcome, None
                self._worker.wake()

    def _turn(self) -> AbstractAsyncContextManager[None]:
        return self._worker.context.transfers.slot(self._worker.meta.namespace)

    async def _restore(self, runner: Connection, stored: StoredFiles, transfer: Transfer) -> None:
        """Put all files into the pod, then compare the pod's files with the list."""
        problem, reason = "", Reason.STORE_UNAVAILABLE
        self._putting = asyncio.current_task()
        try:
            async with self._turn():
                if self.restoring is not transfer:
                    return
                listing = await self._put(runner, stored)
                found = await self._look(runner)
            if found is None:
                self._over(transfer, None)
                return
            if wrong := found.problem or differs(listing, Listing(tuple(found.entries))):
                problem = f"the files in the new pod are not those that were stored: {wrong}"
                reason = Reason.FILES_DIFFER
        except NETWORK_ERRORS as error:
            if not isinstance(error, StoreFailure):
                self._over(transfer, None)
                return
            problem = str(error)
        except Exception as error:  # StoreDamage, or whatever is wrong with an object
            words = str(error) if isinstance(error, StoreDamage | ValueError) else type(error).__name__
            problem, reason = f"the stored files are not what the record says: {words}", Reason.FILES_DIFFER
        self._over(transfer, replace(transfer, ended_at=now(), problem=problem, reason=reason))

    def _over(self, transfer: Transfer, after: Transfer | None) -> None:
        """Set the outcome of a transfer that was not given up. None: the next connection begins anew."""
        if self.restoring is transfer:
            self.restoring = after
            self._worker.wake()

    async def _put(self, runner: Connection, stored: StoredFiles) -> Listing:
        outputs = self._worker.context.outputs
        if outputs.files is None or outputs.place.url != stored.url:
            raise StoreFailure(f"the files are in the output store {stored.url}, which this operator does not have")
        objects = _Objects(self._worker, outputs.files)
        listing = Listing.load(await objects.load(stored.sha256))
        unpacking = Unpacking(listing)
        for sha256 in listing.parts:
            for message in unpacking.of_object(await objects.load(sha256)):
                await runner.put(message)
                await asyncio.sleep(0)
        for message in unpacking.rest():
            await runner.put(message)
        return listing

    async def _look(self, runner: Connection) -> WorkspaceCopy | None:
        """The files in the pod; None if the connection ends before the list is complete."""
        job = _ListingJob(self._worker, None)
        return job.transcript if await job.run(runner, self._limits) else None


class _ListingJob:
    """The `Job` of a runner that lists the whole workspace. With `objects`, the content of files is stored there."""

    def __init__(self, worker: PodWorker, objects: "_Objects | None") -> None:
        self.uid = f"{FILES_JOB}{secrets.token_hex(16)}"  # a runner begins no job twice
        self.transcript = WorkspaceCopy(content=objects is not None)
        self.share = Share(worker.context.output, worker.meta.namespace, self)
        self.run_in_background = worker.run_in_background
        self._objects = objects
        self._sha256s: list[str] = []
        self._storing = asyncio.Lock()
        self._over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True if the list is complete or faulty; False if the connection has ended, or nobody wants the list."""
        self._reason = Reason.FILES_NOT_STORED

    async def run(self, runner: Connection, limits: PodLimits) -> bool:
        """Have the runner list all files; False if no list comes."""
        await runner.start(self, [build_listing(self.uid, limits, content=self._objects is not None)])
        return await self._over

    def give_up(self) -> None:
        """Ignore all further frames."""
        self._end(complete=False)
        self.transcript.fail("a list that is no longer wanted")

    def _end(self, *, complete: bool) -> None:
        self.share.close()
        if not self._over.done():
            self._over.set_result(complete)

    async def stored(self, url: str, transfer: Transfer) -> Transfer:
        """Store the list, and return the outcome of the transfer."""
        copy = self.transcript
        if copy.problem or not self._objects:
            return replace(transfer, ended_at=now(), problem=copy.problem, reason=self._reason)
        listing = Listing(tuple(copy.entries), tuple(self._sha256s))
        try:
            sha256 = await self._objects.keep(listing.dump())
        except (StoreFailure, StoreDamage) as error:
            return replace(transfer, ended_at=now(), problem=str(error))
        size = listing.size_bytes
        stored = StoredFiles(url=url, sha256=sha256, entries=len(listing.entries), size_bytes=size, stored_at=now())
        return replace(transfer, ended_at=now(), stored=stored)

    # --- Job, and Holder of a share of the room for output ---

    @property
    def held_bytes(self) -> int:
        """How many bytes of the files are in memory."""
        return self.transcript.parts.held_bytes

    async def shorten(self) -> bool:
        """Store the content that is held, as an object that is not full; False if nothing is held."""
        if not self.transcript.cut():
            return False
        await self.store_parts()
        return True

    async def store_parts(self) -> None:
        """Store the objects, one after the other, until an execution needs the session."""
        async with self._storing:
            over: asyncio.Future[Any] = self._over
            while self._objects and not over.done() and (data := self.transcript.next_object):
                keeping: asyncio.Future[Any] = asyncio.ensure_future(self._objects.keep(data))
                await asyncio.wait({keeping, over}, return_when=asyncio.FIRST_COMPLETED)
                if not keeping.done():
                    keeping.cancel()
                    return
                if error := keeping.exception():
                    self.transcript.problem, self._reason = str(error), Reason.STORE_UNAVAILABLE
                    return
                self._sha256s.append(keeping.result())
                self.transcript.object_stored()

    def progressed(self) -> None:
        """The list is complete, or faulty."""
        self._end(complete=True)

    def cut_off(self) -> None:
        """The connection has ended before the list was complete."""
        self._end(complete=False)

    def resumed(self, missing: str) -> None:
        """Nobody asks a runner to repeat a list."""


class _Objects:
    """The objects of a session in the store. A call that fails is repeated."""

    def __init__(self, worker: PodWorker, files: FileStore) -> None:
        self._worker, self._files = worker, files
        self._place = (worker.meta.namespace, worker.meta.uid)

    async def keep(self, data: bytes) -> str:
        """Keep an object, and return its digest.

        Raises:
            StoreFailure: the store did not take it.
            StoreDamage: another object is there.
        """
        sha256 = sha256_hex(data)
        await self._worker.attempt("files were not stored", self._files.keep, *self._place, sha256, data)
        return sha256

    async def load(self, sha256: str) -> bytes:
        """The object with this digest.

        Raises:
            StoreFailure: the store did not give it.
            StoreDamage: the object is not there, or has another content.
        """
        return await self._worker.attempt("files were not read", self._files.load, *self._place, sha256)
