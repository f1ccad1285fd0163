"""The door for output that doesn't fit into the record. Behind it are ConfigMaps, or the owner's store."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from codeexec_api import CodeExecution
from codeexec_operator.core.observed import Fault
from codeexec_operator.core.output_parts import OutputPart
from codeexec_operator.core.output_place import OutputPlace


class StoreFailure(OSError):
    """A store did not take a part; another try may help. Says why, in the words of the store."""


class Outputs(Protocol):
    """Where parts of output go: `Cluster` and `OutputStore`."""

    @property
    def place(self) -> OutputPlace:
        """How much it takes, and how records name it."""

    def ask_first(self, may_send: Callable[[], object]) -> None:
        """From now on call this before each write; it must not return if nothing may be written."""

    async def create_output(self, execution: CodeExecution, part: OutputPart, expires_at: datetime) -> Fault | None:
        """Keep a part. A fault is a refusal for good. A part that is there already is fine.

        Raises:
            ApiException: the API server refused for now, or could not be reached.
            StoreFailure: the store did.
        """
