"""Finished records of long ago, with the audit lines of an operator that would have written them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cluster_tools import SANDBOX, a_name
from kube import Kube
from operator_process import OperatorProcess

from codeexec_api import CodeExecution, CodeSession, Phase, SessionPhase
from codeexec_api.audit import MEMBER, AuditEvent, Segment, log_entry, of_a_write
from codeexec_api.names import API_VERSION

BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}


class OldRecords:
    """Makes records as the administrator.

    A record is there for a moment before it has its status. An operator that runs would take it up in that moment.

    Args:
        kube: the administrator.
        me: the administrator's user name.
        operator: who serves the namespace. It may not run while a record is made.
    """

    def __init__(self, kube: Kube, me: str, operator: OperatorProcess) -> None:
        self._kube, self._me, self._operator = kube, me, operator
        self._segment = Segment("0" * 31 + "1", SANDBOX, "1.2.3")
        self.log: list[str] = []
        self._say(AuditEvent.OPERATOR_STARTED, timedelta(days=9), {})

    def execution(self, age: timedelta, session: str = "") -> str:
        """Name of an execution that ended so long ago."""
        name = a_name("old")
        code = {"sessionRef": {"name": session}} if session else {}
        spec = {"blocks": [BLOCK], "payloadRef": {"name": name}, **code}
        before = CodeExecution.parse(self._create("CodeExecution", name, spec))
        ended = {"started_at": self._ago(age), "finished_at": self._ago(age)}
        self._end(before, age, {"phase": Phase.SUCCEEDED, "reason": "Completed", "exit_code": 0, **ended})
        return name

    def session(self, name: str, age: timedelta) -> str:
        """A session that ended so long ago."""
        before = CodeSession.parse(self._create("CodeSession", name, {}))
        ended = {"started_at": self._ago(age), "ended_at": self._ago(age)}
        self._end(before, age, {"phase": SessionPhase.ENDED, "reason": "EndRequested", **ended})
        return name

    def write_log(self, path: Path) -> str:
        """The log in a file; its name."""
        path.write_text("".join(f"{line}\n" for line in self.log))
        return str(path)

    def _create(self, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        assert not self._operator.running, "stop the operator before you make an old record"
        least = {"source": {"agent": "old"}, "requestedBy": self._me}
        meta = {"name": name, "namespace": SANDBOX}
        return dict(
            self._kube.create({"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": {**least, **spec}})
        )

    def _end(self, before: CodeExecution | CodeSession, age: timedelta, changes: dict[str, Any]) -> None:
        status = before.status.model_copy(update=changes)
        after = before.model_copy(update={"status": status})
        line = self._say(AuditEvent.STATUS_WRITE, age, of_a_write(before.status, after))
        written = status.model_copy(update={MEMBER: line.anchor}).dump()
        kind = "codeexecution" if isinstance(before, CodeExecution) else "codesession"
        self._kube.patch(kind, before.metadata.name, {"status": written}, SANDBOX, subresource="status")

    def _say(self, event: AuditEvent, age: timedelta, more: Any) -> Any:
        self._segment, line = self._segment.append(event, self._ago(age), more)
        self.log.append(log_entry(line))
        return line

    @staticmethod
    def _ago(age: timedelta) -> datetime:
        return datetime.now(UTC) - age
