"""Reads what an execution refers to: its policy, its payload, and what rules want to know of its code."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecutionSpec, ExecutionPolicySpec, PayloadRef, Phase, SealedPayload
from codeexec_api.code_rules import Inquiry
from codeexec_api.policy import policy_for
from codeexec_operator.adapters.worker import Worker, now
from codeexec_operator.core.approving import to_be_read
from codeexec_operator.core.observed import Observed
from codeexec_operator.core.payload import Payload, PayloadProblem, code_size, is_new, open_payload, verify_payload


class RequestReader:
    """For one execution. `seen` is what is known of it now."""

    def __init__(self, worker: Worker, seen: Callable[[], Observed]) -> None:
        self._worker, self._seen = worker, seen

    async def read(self) -> dict[str, Any]:
        """All of it, as what is observed; nothing if the execution is gone meanwhile."""
        context, namespace = self._worker.context, self._worker.meta.namespace
        policy = await context.policies.of(namespace)
        seen = self._seen()
        spec, reading = seen.execution.spec, seen.reading
        if to_be_read(seen, policy):
            async with context.reader.turn(namespace, code_size(spec)):
                if self._worker.deleted:
                    return {}
                payload = await self._open(spec)
                wanted = to_be_read(self._seen(), policy)  # it may be cancelled by now
                if wanted and isinstance(payload, Payload) and isinstance(policy, ExecutionPolicySpec):
                    rules = policy_for(spec, policy).code_rules
                    reading = await context.reader.read(Inquiry(spec, payload.blocks, payload.files, rules))
        else:
            payload = await self._open(spec)
        return {"payload": payload, "payload_read_at": now(), "policy": policy, "reading": reading}

    async def _open(self, spec: CodeExecutionSpec) -> Payload | PayloadProblem:
        execution = self._seen().execution
        if sealed := spec.sealed_payload:
            return open_payload(execution, await self._whole(sealed), self._worker.context.sealing.ring)
        if spec.payload_ref:
            secrets = await self._read_payload(spec.payload_ref)
            return verify_payload(self._seen().execution, secrets)
        return Payload()

    async def _whole(self, sealed: SealedPayload) -> SealedPayload:
        """With its data, which was let go of when it had been verified.

        Raises:
            ApiException: 404, if the execution is gone.
        """
        if sealed.data:
            return sealed
        meta = self._worker.meta
        found = await self._worker.context.cluster.get_execution(meta.namespace, meta.name)
        if found is None or found.metadata.uid != meta.uid or found.spec.sealed_payload is None:
            raise ApiException(status=404, reason="the execution is gone")
        return found.spec.sealed_payload

    async def _read_payload(self, ref: PayloadRef) -> Sequence[Mapping[str, Any] | None]:
        """The Secrets of the payload.

        Whoever creates an execution may be creating its Secret at this moment. That Secret is not asked for: its
        arrival will be heard of. An execution that is cancelled is over too soon for that, so its Secret is asked for,
        and deleted with it.
        """
        context, namespace, seen = self._worker.context, self._worker.meta.namespace, self._seen()
        if ref.parts == 1:
            known = context.payloads.seen(namespace, ref.name)
            if secret := context.payloads.take(namespace, ref.name):
                return (secret,)
            execution, first = seen.execution, seen.payload_read_at is None
            coming = first and execution.status.phase is Phase.PENDING and is_new(execution, now())
            if coming and not (known or execution.spec.cancelled):
                return (None,)
        return await context.cluster.get_payload(namespace, ref.name, ref.parts)
