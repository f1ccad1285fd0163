"""Decides about executions that wait for a human, and reads what they would run."""

import secrets
from datetime import timedelta
from typing import Literal

from codeexec_api import (
    CodeExecution,
    ExecutionApproval,
    ExecutionApprovalSpec,
    ExecutionRef,
    Grant,
    Phase,
)
from codeexec_api.digests import sha256_hex
from codeexec_api.names import block_key, file_key, payload_name
from executor_client.client.approvals import ReviewedCode
from executor_client.client.connected import Connected
from executor_client.exceptions import NotFound, NothingToDecide, OutputUnavailable


class Reviewing(Connected):
    """What approves and denies; see `CodeExecutionClient`."""

    async def approve(
        self, execution: CodeExecution, *, reason: str = "", valid: timedelta = timedelta(minutes=15)
    ) -> ExecutionApproval:
        """Approve exactly what this record asks for. Nothing else: not what another execution of this name asks for.

        Args:
            execution: the record that the approver has seen.
            reason: why, for the record and the agent; at most 1024 characters.
            valid: the code has to start within this time.

        Raises:
            NothingToDecide: the execution does not wait for approval.
            NotPermitted: the identity in use may not decide.
            InvalidExecution: it has requested the execution itself.
            CodeExecError: see `executor_client.exceptions`.
        """
        if execution.status.phase is not Phase.AWAITING_APPROVAL or execution.status.approval is None:
            raise _nothing_to_decide(execution)
        grants = execution.status.approval.grants
        return await self._decide(execution, decision="Approve", grants=grants, reason=reason, valid=valid)

    async def deny(self, execution: CodeExecution, *, reason: str = "") -> ExecutionApproval:
        """Have this execution not run. Can be called as long as the code has not started.

        Args:
            execution: the record that the approver has seen.
            reason: why, for the record and the agent; at most 1024 characters.

        Raises:
            NothingToDecide: the execution needs no approval, or its code has started.
            CodeExecError: as `approve`.
        """
        status = execution.status
        if status.phase.terminal or status.started_at or status.approval is None:
            raise _nothing_to_decide(execution)
        return await self._decide(execution, decision="Deny", reason=reason)

    async def revoke(self, execution: CodeExecution) -> None:
        """Take the approval back that counts for this execution. Has no effect on code that has started: cancel that.

        Raises:
            NothingToDecide: the execution was not approved, or its code has started.
            CodeExecError: as `approve`.
        """
        status = execution.status
        if status.phase.terminal or status.started_at or status.approval is None or not status.approval.name:
            raise _nothing_to_decide(execution)
        await (await self.connect()).revoke(status.approval.name)

    async def read_code(self, execution: CodeExecution) -> ReviewedCode:
        """Blocks and files of an execution that waits for approval, checked against the digests in its record.

        Raises:
            NothingToDecide: the execution does not wait for approval, so its code can't be read.
            NotPermitted: the identity in use may decide, but not read code.
            OutputUnavailable: the code is gone, or isn't what the record says.
            CodeExecError: see `executor_client.exceptions`.
        """
        status, spec = execution.status, execution.spec
        if status.phase is not Phase.AWAITING_APPROVAL or status.approval is None:
            raise _nothing_to_decide(execution)
        if not spec.blocks and not spec.files:
            return ReviewedCode()
        if not status.approval.code_secret:
            raise OutputUnavailable(
                f"the code of execution {execution.metadata.name} can't be read: the operator could not store it in a "
                "Secret, for example because the namespace's quota for Secrets is used up. The operator's log says why"
            )
        transport = await self.connect()
        count = spec.payload_ref.parts if spec.payload_ref else 1
        names = [payload_name(status.approval.code_secret, part) for part in range(count)]
        try:
            parts = [await transport.read_code(name) for name in names]
        except NotFound as error:
            raise OutputUnavailable(f"the code of execution {execution.metadata.name} is gone: {error}") from error

        def content(key: str, what: str, sha256: str) -> bytes:
            found = b"".join(part.get(key, b"") for part in parts)
            if sha256_hex(found) != sha256:
                raise OutputUnavailable(
                    f"{what} of execution {execution.metadata.name} does not match its record: SHA-256 "
                    f"{sha256_hex(found)} instead of {sha256}; deny it"
                )
            return found

        blocks = (content(block_key(i), f"block {i}", one.sha256) for i, one in enumerate(spec.blocks))
        files = {
            one.path: content(file_key(i), f"file {one.path!r}", one.sha256) for i, one in enumerate(spec.files or ())
        }
        return ReviewedCode(tuple(blocks), files)

    async def _decide(
        self,
        execution: CodeExecution,
        *,
        decision: Literal["Approve", "Deny"],
        reason: str,
        grants: tuple[Grant, ...] | None = None,
        valid: timedelta | None = None,
    ) -> ExecutionApproval:
        transport, meta = await self.connect(), execution.metadata
        ref = ExecutionRef(name=meta.name, uid=meta.uid, requested_by=execution.spec.requested_by or "unknown")
        spec = ExecutionApprovalSpec(
            execution_ref=ref,
            decision=decision,
            grants=grants,
            approver=await transport.whoami(),
            reason=reason,
            expires_at=transport.now() + valid if valid is not None else None,
        )
        return await transport.decide(f"{meta.name}-{secrets.token_hex(4)}", spec)


def _nothing_to_decide(execution: CodeExecution) -> NothingToDecide:
    status = execution.status
    return NothingToDecide(
        f"execution {execution.metadata.name} does not wait for a decision: its phase is {status.phase.value}"
        f"{f' ({status.reason})' if status.reason else ''}"
    )
