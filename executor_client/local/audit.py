"""The audit log of a local executor: the same lines as the operator's, in a file of the caller's."""

import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from errno import ESTALE
from importlib.metadata import version
from pathlib import Path
from typing import Any

from codeexec_api import CodeExecution, CodeExecutionStatus, Phase
from codeexec_api.audit import AuditEvent, Segment, log_entry, of_a_write
from codeexec_api.audit_file import LogFile
from codeexec_api.names import LOCAL_NAMESPACE
from executor_client.exceptions import AuditLogUnavailable
from executor_client.runtime import forks

logger = logging.getLogger(__name__)


class LocalAuditLog:
    """One chain in a file, which others may append to as well.

    Args:
        path: of the file; it is created, for its owner only, or appended to. Not followed if it is a link. It must stay
            there: what was moved or replaced is not written to.
        clock: gives the time.

    Raises:
        AuditLogUnavailable: it can't be written to.
    """

    def __init__(self, path: Path, clock: Callable[[], datetime]) -> None:
        self._path, self._clock = path.absolute(), clock
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise self._unavailable(error) from error
        weakref.finalize(self, os.close, descriptor)
        self._descriptor, self._write = descriptor, LogFile(descriptor)
        self.begin_anew()
        self._append(AuditEvent.OPERATOR_STARTED, {})
        self._process = os.getpid()
        forks.begins_anew(self)

    def begin_anew(self) -> None:
        """Begin a chain; see `executor_client.runtime.forks`."""
        self._lock = threading.Lock()
        self._segment = Segment(secrets.token_hex(16), LOCAL_NAMESPACE, version("codeexec"))

    def tell(self, before: Phase, record: CodeExecution) -> None:
        """Write down what becomes of an execution; `before` is the phase that it had.

        Raises:
            AuditLogUnavailable: it could not be written down.
        """
        if self._process != os.getpid():
            self._append(AuditEvent.OPERATOR_STARTED, {})
            self._process = os.getpid()
        self._append(AuditEvent.STATUS_WRITE, of_a_write(CodeExecutionStatus(phase=before), record))

    def tell_the_end(self, before: Phase, record: CodeExecution) -> None:
        """The same, of what has happened already: that it can't be written down is logged, and the next call fails."""
        try:
            self.tell(before, record)
        except AuditLogUnavailable as error:
            logger.error("the end of %s is not in the audit log: %s", record.metadata.name, error)

    def _append(self, event: AuditEvent, more: Mapping[str, Any]) -> None:
        with self._lock:
            segment, line = self._segment.append(event, self._clock(), more)
            try:
                if not os.path.samestat(os.fstat(self._descriptor), self._path.lstat()):
                    raise FileNotFoundError(ESTALE, "another file has taken its place")
                self._write(log_entry(line))
            except OSError as error:
                raise self._unavailable(error) from error
            self._segment = segment

    def _unavailable(self, error: OSError) -> AuditLogUnavailable:
        cause = error.strerror or type(error).__name__
        return AuditLogUnavailable(
            f"audit_log {str(self._path)!r} can't be written ({cause}), so no code runs; give a file, or a new name "
            "in a folder where files can be created"
        )
