"""The page of `codeexec audit report`: one file of HTML that asks for nothing else and runs no script."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version

from jinja2 import Environment, PackageLoader, StrictUndefined

from codeexec_api import CodeExecution
from codeexec_api.audit_check import Verification
from executor_client.cli.auditing import Record, approver_of, kind_of, sum_up


@dataclass(frozen=True)
class MadeFrom:
    """What a report was made from."""

    namespace: str
    at: datetime
    chosen: str
    """Which records, in words."""
    logs: tuple[str, ...] = ()
    checked: Verification | None = None


def render(records: Sequence[Record], made_from: MadeFrom) -> str:
    """The page. All that records say is escaped; the browser is told to load and to run nothing."""
    loader = PackageLoader("executor_client.cli", "pages")
    pages = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, _, _ = loader.get_source(pages, "report.css")
    return pages.get_template("report.html").render(
        style=style,
        style_digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        made_from=made_from,
        version=version("codeexec"),
        sums=sum_up(records),
        rows=[_row(record) for record in records],
    )


def _row(record: Record) -> dict[str, str]:
    status, spec = record.status, record.spec
    execution = record if isinstance(record, CodeExecution) else None
    code = execution.status.exit_code if execution else None
    return {
        "created": shown(record.metadata.creation_timestamp),
        "kind": kind_of(record),
        "name": record.metadata.name,
        "agent": spec.source.agent,
        "requested_by": spec.requested_by or "",
        "phase": status.phase.value,
        "reason": status.reason,
        "exit_code": "" if code is None else str(code),
        "approver": approver_of(record),
        "egress": status.egress_proof.verdict.value if status.egress_proof else "",
        "digest": execution.spec.code_digest if execution else "",
        "line": str(status.audit.sequence) if status.audit else "",
        "chain": status.audit.chain if status.audit else "",
    }


def shown(moment: datetime | None) -> str:
    """A time as the page has it: UTC, to the second."""
    return moment.strftime("%Y-%m-%d %H:%M:%S") if moment else ""
