"""The door for output that doesn't fit into the record. Behind it are ConfigMaps, or the owner's store."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from codeexec_api import CodeExecution
from codeexec_operator.core.observed_pod import Fault
from codeexec_operator.core.output_parts import OutputPart
from codeexec_operator.core.output_place import OutputPlace


class StoreFailure(OSError):
    """A store did not take a part; another try may help. Says why, in the words of the store."""


class StoreDamage(Exception):
    """An object isn't in the store as it was put there. No other try helps."""


class FileStore(Protocol):
    """Where the files of sessions are that sleep: `OutputStore`."""

    async def keep(self, namespace: str, uid: str, sha256: str, data: bytes) -> None:
        """Keep an object of a session, which has this digest, and see that it is there.

        Raises:
            StoreFailure: the store refused for now, or could not be reached.
            StoreDamage: another object is there.
        """

    async def load(self, namespace: str, uid: str, sha256: str) -> bytes:
        """An object of a session, which has this digest.

        Raises:
            StoreFailure: the store could not be read for now.
            StoreDamage: it is not there, or has another digest.
        """


class Outputs(Protocol):
    """Where parts of output go: `Cluster` and `OutputStore`."""

    @property
    def place(self) -> OutputPlace:
        """How much it takes, and how records name it."""

    @property
    def files(self) -> FileStore | None:
        """The store for files of sessions; None if there is none."""

    def ask_first(self, may_send: Callable[[], object]) -> None:
        """From now on call this before each write; it must not return if nothing may be written."""

    async def create_output(self, execution: CodeExecution, part: OutputPart, expires_at: datetime) -> Fault | None:
        """Keep a part. A fault is a refusal for good. A part that is there already is fine.

        Raises:
            ApiException: the API server refused for now, or could not be reached.
            StoreFailure: the store did.
        """
