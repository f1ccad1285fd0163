"""The page of `codeexec audit report`: one HTML file that loads nothing and runs no script."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version

from jinja2 import Environment, PackageLoader, StrictUndefined

from codeexec_api.audit_check import Verification
from executor_client.cli.auditing import Record, many
from executor_client.cli.escaping import one_line
from executor_client.cli.report_entries import entries_of
from executor_client.cli.report_rows import approval_anchor, days_of, shown
from executor_client.cli.report_sums import flagged, found_in_log, problems_of, sum_up


@dataclass(frozen=True)
class MadeFrom:
    """The source of a report."""

    namespace: str
    at: datetime
    chosen: str
    """Which records, in words."""
    logs: tuple[str, ...] = ()
    checked: Verification | None = None


def _seen(value: object) -> object:
    """Escape what nobody would see in a text of records, or what would turn around the text that follows."""
    return one_line(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def render(records: Sequence[Record], made_from: MadeFrom) -> str:
    """The page. All values from records are escaped, and a content security policy forbids to load or run anything."""
    loader = PackageLoader("executor_client.cli", "pages")
    pages = Environment(
        loader=loader,
        autoescape=True,
        finalize=_seen,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"many": many, "shown": shown, "approval_anchor": approval_anchor}
    style, _, _ = loader.get_source(pages, "report.css")
    entries, checked = entries_of(records), made_from.checked
    return pages.get_template("report.html").render(
        style=style,
        style_digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        made_from=made_from,
        version=version("codeexec"),
        sums=sum_up(entries),
        groups=problems_of(entries),
        findings=found_in_log(checked.findings if checked else (), entries),
        notes=found_in_log(checked.notes if checked else (), entries),
        days=days_of(entries, flagged(checked.findings if checked else ())),
    )
