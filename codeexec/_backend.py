"""What runs the code of a client: a cluster, the fake of one, or this machine."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from executor_client.client.request import ListFiles, OnOutput, Request
from executor_client.client.session_handle import SessionHandle
from executor_client.model.blocks import PreparedBlock, SourceBlock, WorkspaceFile
from executor_client.model.results import ExecutionResult


class Backend(Protocol):
    """What runs code: `CodeExecutionClient` for a cluster or its fake, `codeexec.local.Sandbox` for this machine."""

    async def execute(
        self,
        blocks: Sequence[PreparedBlock | SourceBlock],
        request: Request,
        *,
        files: Sequence[WorkspaceFile] = (),
        fetch: Sequence[str] = (),
        list_files: ListFiles = "Changed",
        session: str | None = None,
        cancelled: asyncio.Event | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run blocks in order; see `CodeExecutionClient.execute`."""

    def new_session(
        self,
        request: Request,
        *,
        idle_timeout_seconds: int = 1800,
        max_lifetime_seconds: int = 28_800,
        stateful: bool = False,
        outlives_client: bool = False,
    ) -> SessionHandle:
        """A handle on a session that is not asked for yet; see `CodeExecutionClient.new_session`."""

    async def close(self) -> None:
        """Let go of connections, or of what runs here."""
