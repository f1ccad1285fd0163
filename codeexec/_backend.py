"""What runs the code of a client: a cluster, the fake of one, or this machine."""

from typing import Protocol

from codeexec_api.v1alpha1.bounds import DEFAULT_IDLE_SECONDS, DEFAULT_LIFETIME_SECONDS
from executor_client.client.request import Request
from executor_client.client.session_handle import Executes, SessionHandle


class Backend(Executes, Protocol):
    """What runs code: `CodeExecutionClient` for a cluster or its fake, `codeexec.local.Sandbox` for this machine."""

    def new_session(
        self,
        request: Request,
        *,
        idle_timeout_seconds: int = DEFAULT_IDLE_SECONDS,
        max_lifetime_seconds: int = DEFAULT_LIFETIME_SECONDS,
        stateful: bool = False,
        outlives_client: bool = False,
        sleep_after_seconds: int | None = None,
    ) -> SessionHandle:
        """A handle on a session that is not asked for yet; see `CodeExecutionClient.new_session`."""

    async def close(self) -> None:
        """Let go of connections, or of what runs here."""
