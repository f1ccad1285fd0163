"""The loop around the decision: observe, decide, act, wait for what comes next. One task an execution.

Handlers feed it with events; it feeds `core.reconcile.decide` with what is known, and carries out the plan. It holds
no policy of its own.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import aiohttp
from kubernetes.aio.client.exceptions import ApiException
from pydantic import ValidationError

from codeexec_api import CodeExecution, CodeExecutionStatus, ExecutionPolicySpec
from codeexec_api.names import EXECUTION_LABEL, pod_name
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.lookout import Lookout
from codeexec_operator.adapters.runner_link import RunnerLink
from codeexec_operator.core import actions
from codeexec_operator.core.actions import Plan
from codeexec_operator.core.observed import Observed, PodLink, parse_pod, parse_policy
from codeexec_operator.core.payload import verify_payload
from codeexec_operator.core.reconcile import Timing, decide
from codeexec_operator.core.results import without_output
from codeexec_operator.core.retention import orphaned_payloads
from codeexec_operator.core.transcript import Transcript

logger = logging.getLogger(__name__)

_RETRY: Final = timedelta(seconds=1)
_SWEEP_SECONDS: Final = 60
_NETWORK_ERRORS: Final = (aiohttp.ClientError, OSError, TimeoutError)


def _now() -> datetime:
    return datetime.now(UTC)


def _lean(execution: CodeExecution) -> CodeExecution:
    """Without the output of a finished execution: it is in the record, and would only fill memory here."""
    if not execution.status.phase.terminal:
        return execution
    status = execution.status.model_copy(update={"stdout": None, "stderr": None, "output_order": (), "blocks": ()})
    return execution.model_copy(update={"status": status})


async def _all(jobs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run jobs at the same time and wait for all of them, then raise what the first of them raised."""
    for result in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


class Worker:
    """Everything that this process knows and does about one execution."""

    def __init__(self, controller: "Controller", execution: CodeExecution) -> None:
        self._controller = controller
        self._cluster = controller.cluster
        self._wake = asyncio.Event()
        self._link: RunnerLink | None = None
        self._streaming: asyncio.Task[None] | None = None
        self._deleted = False
        self._stale = False
        self.seen = Observed(execution=_lean(execution), policy=controller.default_policy)
        self.task = asyncio.create_task(self._run(), name=f"execution {execution.metadata.name}")

    def observe(self, **changes: Any) -> None:
        """Something new is known; decide again."""
        self.seen = replace(self.seen, **changes)
        self._wake.set()

    def observe_execution(self, execution: CodeExecution) -> None:
        """Take a newer version of the object; one that is older than what was written here is ignored."""
        if int(execution.metadata.resource_version) > int(self.seen.execution.metadata.resource_version):
            self.observe(execution=_lean(execution))

    def observe_deletion(self) -> None:
        """The object is gone, and the garbage collector takes its pod: nothing can be recorded any more."""
        self._deleted = True
        self._wake.set()

    async def _run(self) -> None:
        try:
            while not self._deleted:
                self._wake.clear()
                plan = await self._step()
                if any(isinstance(action, actions.Forget) for action in plan.actions):
                    return
                if plan.status is None:
                    await self._sleep(plan.wake_at)
        finally:
            if self._streaming:
                self._streaming.cancel()
            self._controller.forget(self)

    async def _step(self) -> Plan:
        """Decide once and carry it out; what a retry may heal is tried again."""
        try:
            if self._stale:
                await self._refresh()
                if self._deleted:
                    return Plan()
            self.seen = replace(self.seen, surroundings=self._controller.lookout.view)
            plan = decide(self.seen, _now(), self._controller.timing)
            await self._apply(plan)
        except ApiException as error:
            if error.status in (404, 409):
                self._stale = True
                return Plan(wake_at=_now())
            logger.warning("%s: the API server answered %s; trying again", self._name, error.status)
            return Plan(wake_at=_now() + _RETRY)
        except _NETWORK_ERRORS as error:
            logger.warning("%s: no answer from the API server (%s); trying again", self._name, type(error).__name__)
            return Plan(wake_at=_now() + _RETRY)
        except Exception:  # a bug must not leave an execution without anybody who looks after it
            logger.exception("%s: unexpected; trying again", self._name)
            return Plan(wake_at=_now() + _RETRY)
        return plan

    async def _refresh(self) -> None:
        """See the object as it is now, after it turned out to be another than the one that was decided on."""
        meta = self.seen.execution.metadata
        current = await self._cluster.get_execution(meta.namespace, meta.name)
        if current is None or current.metadata.uid != meta.uid:
            self.observe_deletion()
        else:
            self.seen = replace(self.seen, execution=_lean(current))
        self._stale = False

    async def _apply(self, plan: Plan) -> None:
        """Write the status and act at once. Only code waits: until its payload is gone and its start recorded."""
        start = next((action for action in plan.actions if isinstance(action, actions.StartCode)), None)
        jobs: list[Coroutine[Any, Any, None]] = [self._act(action) for action in plan.actions if action is not start]
        if start is None:
            await _all([*jobs, self._write_status(plan.status)] if plan.status else jobs)
            return
        await _all(jobs)
        if plan.status:
            await self._write_status(plan.status)
        if self._link:  # else the connection has ended just now, and so has the execution
            await self._link.send(start.job)

    async def _write_status(self, status: CodeExecutionStatus) -> None:
        try:
            written = await self._cluster.write_status(self.seen.execution, status)
        except ApiException as error:
            if not status.stdout or error.status == 409 or "too large" not in str(error.body):
                raise
            written = await self._cluster.write_status(self.seen.execution, without_output(status))
        self.seen = replace(self.seen, execution=_lean(written))
        if written.status.phase.terminal:
            self.seen = replace(self.seen, payload=None, transcript=Transcript())
        logger.info(
            "%s: %s (%s)",
            self._name,
            written.status.phase.value,
            written.status.reason,
            extra={"execution_uid": written.metadata.uid, "code_digest": written.status.code_digest},
        )

    async def _act(self, action: actions.Action) -> None:
        meta, spec = self.seen.execution.metadata, self.seen.execution.spec
        match action:
            case actions.ReadPayload():
                secret = await self._cluster.get_payload(meta.namespace, spec.payload_ref.name)
                policy = parse_policy(await self._cluster.get_policy(meta.namespace))
                self.observe(
                    payload=verify_payload(self.seen.execution, secret),
                    payload_read_at=_now(),
                    policy=policy or self._controller.default_policy,
                )
            case actions.CreatePod(manifest):
                fault = await self._cluster.create_pod(manifest)
                self.observe(pod_requested=True, fault=fault)
            case actions.DeletePayload(uid):
                await self._cluster.delete_payload(meta.namespace, spec.payload_ref.name, uid)
            case actions.Attach():
                self.seen = replace(self.seen, link=PodLink.OPEN, transcript=Transcript())
                self._streaming = asyncio.create_task(self._stream())
            case actions.CancelCode():
                if self._link:  # else the connection is being opened, and this is decided again when it is
                    await self._link.send({"cancel": True})
                    self.observe(cancel_sent_at=_now())
            case actions.DeletePod():
                await self._cluster.delete_pod(meta.namespace, pod_name(meta.name, meta.uid))
            case _:
                return

    async def _stream(self) -> None:
        """Ask the runner what it has found out, and take in what it says until the end."""
        meta, transcript = self.seen.execution.metadata, self.seen.transcript
        try:
            async with self._cluster.attach(meta.namespace, pod_name(meta.name, meta.uid)) as link:
                await link.send({"report": True})
                self._link = link
                async for data in link.received():
                    known = transcript.ready
                    transcript.feed(data, meta.uid)
                    if transcript.ready is not known:
                        self.observe()
                    if transcript.done or transcript.problem:
                        self.observe()
                        await link.send({"ack": True})
                        break
        except (ApiException, *_NETWORK_ERRORS) as error:
            logger.warning("%s: the connection to the pod failed (%s)", self._name, type(error).__name__)
        finally:
            self._link = None
            self.observe(link=PodLink.CLOSED, link_closed_at=_now())

    async def _sleep(self, wake_at: datetime | None) -> None:
        seconds = None if wake_at is None else max(0.0, (wake_at - _now()).total_seconds())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    @property
    def _name(self) -> str:
        return f"{self.seen.execution.metadata.namespace}/{self.seen.execution.metadata.name}"


class Controller:
    """All executions that are not over, or whose pod is still there."""

    def __init__(
        self,
        cluster: Cluster,
        lookout: Lookout,
        *,
        default_policy: ExecutionPolicySpec,
        namespaces: tuple[str, ...],
        timing: Timing,
    ) -> None:
        self.cluster = cluster
        self.lookout = lookout
        self.timing = timing
        self.default_policy = default_policy
        self._namespaces = namespaces
        self._workers: dict[str, Worker] = {}

    def forget(self, worker: Worker) -> None:
        """A worker has ended."""
        del self._workers[worker.seen.execution.metadata.uid]

    def on_execution(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A CodeExecution was seen, changed or deleted."""
        worker = self._workers.get(raw["metadata"]["uid"])
        if deleted:
            if worker:
                worker.observe_deletion()
            return
        execution = self._parse(raw)
        if execution is None:
            return
        if worker:
            worker.observe_execution(execution)
        elif not execution.status.phase.terminal:
            self._start(execution)

    async def on_pod(self, raw: Mapping[str, Any], *, deleted: bool) -> None:
        """A sandbox pod was seen, changed or deleted."""
        meta = raw["metadata"]
        owners = [one["uid"] for one in meta.get("ownerReferences") or () if one.get("controller")]
        if not owners:
            return
        worker = self._workers.get(owners[0])
        if worker is None and not deleted:
            # Left over from before this process started; the record says whether and when it goes.
            execution = await self.cluster.get_execution(meta["namespace"], meta["labels"][EXECUTION_LABEL])
            if execution is None or execution.metadata.uid != owners[0]:
                return  # the garbage collector takes it
            worker = self._workers.get(owners[0]) or self._start(execution)
        if worker:
            worker.observe(pod=parse_pod(raw), pod_gone=deleted)

    def _start(self, execution: CodeExecution) -> Worker:
        worker = self._workers[execution.metadata.uid] = Worker(self, execution)
        return worker

    async def sweep(self) -> None:
        """Delete payloads that nobody comes for, again and again, until cancelled."""
        while True:
            for namespace in self._namespaces:
                try:
                    secrets = await self.cluster.list_payloads(namespace)
                    for name, uid in orphaned_payloads(secrets, _now()):
                        await self.cluster.delete_payload(namespace, name, uid)
                        logger.info("%s/%s: deleted a payload that no execution came for", namespace, name)
                except (ApiException, *_NETWORK_ERRORS) as error:
                    logger.warning("%s: could not look for orphaned payloads (%s)", namespace, type(error).__name__)
            await asyncio.sleep(_SWEEP_SECONDS)

    async def stop(self) -> None:
        """End all work; what was running is marked as lost when the operator starts again."""
        workers = [worker.task for worker in self._workers.values()]
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await self.cluster.close()

    @staticmethod
    def _parse(raw: Mapping[str, Any]) -> CodeExecution | None:
        try:
            return CodeExecution.parse(raw)
        except ValidationError as error:  # the schema of the CRD is the same model, so it is older than this operator
            name = f"{raw['metadata']['namespace']}/{raw['metadata']['name']}"
            logger.error("%s: not understood, left alone: %s", name, error.errors(include_input=False))
            return None
