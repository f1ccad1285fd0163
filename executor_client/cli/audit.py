"""`codeexec audit`: what the records tell, and whether the operator's log and they agree."""

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from codeexec_api import CodeExecution, Phase, SessionPhase
from codeexec_api.audit_check import Finding, LogLine, Verification, read_log, verify
from executor_client.cli import auditing
from executor_client.cli.auditing import Asked, Record
from executor_client.cli.common import Cluster, cluster_options, now, output_option
from executor_client.cli.display import as_list, as_object, echo_fields, echo_json, echo_table, one_line
from executor_client.cli.show import show_time
from executor_client.client import CodeExecutionClient
from executor_client.exceptions import NotFound

_COLUMNS: Final = ("CREATED", "KIND", "NAME", "AGENT", "REQUESTED-BY", "PHASE", "REASON", "APPROVER", "DIGEST")
_PHASES: Final = list(dict.fromkeys([one.value for one in Phase] + [one.value for one in SessionPhase]))
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
_FINDINGS: Final = 1
"""Exit code of `verify` if something is not as the operator has written it."""
_SHOWN: Final = 20
"""Notes, and names of what is gone, that are listed one by one."""


class _Since(click.ParamType):  # type: ignore[type-arg] # it takes none before click 8.3
    """A time, or how long ago: 30m, 24h, 7d."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        if value[:-1].isdigit() and value[-1] in _UNITS:
            return now() - timedelta(**{_UNITS[value[-1]]: int(value[:-1])})
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time: give 30m, 24h, 7d, 2026-11-21 or 2026-11-21T12:00:00Z", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    """The options that choose records; the command gets each by its name."""
    for option in (
        click.option("--since", type=_Since(), help="Only those created since then: 30m, 24h, 7d, or a time."),
        click.option("--phase", type=click.Choice(_PHASES), help="Only those in this phase."),
        click.option("--approver", help="Only those that this user has decided about."),
        click.option("--requested-by", help="Only those that this user has created."),
        click.option("--agent", help="Only those of this agent."),
    ):
        command = option(command)
    return command


_FILE: Final = click.Path(allow_dash=True, dir_okay=False)
_log = click.option("--log", "logs", multiple=True, type=_FILE, help="Log of the operator; - is stdin.")


@click.group(short_help="Look at records, and check them against the operator's log.")
def audit() -> None:
    """What was run, who asked for it, who approved it, and whether anybody has changed the record of it."""


@audit.command("list", short_help="List executions and sessions.")
@_filters
@output_option
@cluster_options
def list_command(cluster: Cluster, as_json: bool, **asked: Any) -> None:
    """List executions and sessions, oldest first."""
    found = cluster.run(lambda client: _records(client, Asked(**asked)))
    if as_json:
        echo_json(as_list(found))
    else:
        echo_table(_COLUMNS, map(_row, found))


@audit.command(short_help="Show what happened to an execution or a session, and when.")
@click.argument("name")
@_log
@output_option
@cluster_options
def show(cluster: Cluster, as_json: bool, name: str, logs: tuple[str, ...]) -> None:
    """Show the timeline of an execution, or of a session, and the lines of the operator's log that tell of it."""
    record = cluster.run(lambda client: _find(client, name))
    told = auditing.lines_about(record, _read(logs))
    if as_json:
        echo_json({"record": as_object(record), "lines": [vars(one) for one in told]})
        return
    _show(record)
    moments = auditing.timeline(record)
    click.echo()
    echo_table(("TIME", "WHAT", "MESSAGE"), ((show_time(one.at), one.what, one.detail) for one in moments))
    if logs:
        click.echo()
        rows = ((one.time, str(one.sequence), one.said, one.where, one.digest) for one in told)
        echo_table(("WRITTEN", "LINE", "SAYS", "WHERE", "HASH"), rows)


@audit.command("verify", short_help="Check the operator's log, and the records against it.")
@click.argument("logs", nargs=-1, required=True, metavar="FILE...", type=_FILE)
@click.option("--no-cluster", is_flag=True, help="Check the log alone.")
@click.option("--complete", is_flag=True, help="Nothing is left out of the logs: what they don't have is a finding.")
@output_option
@cluster_options
def verify_command(cluster: Cluster, as_json: bool, logs: tuple[str, ...], no_cluster: bool, complete: bool) -> None:
    """Check the audit lines in logs of the operator (- is stdin), and hold the records of the cluster against them.

    Lines of others are ignored. Exits with 0 if nothing was found, and with 1 if a line or a record was changed, or
    lines are missing. What can't be told from the logs given is listed as a note.
    """
    lines = list(_read(logs))  # before the records: what is in the log then is in the records, too
    records = None if no_cluster else cluster.run(lambda client: client.list_stored())
    found = verify(lines, records, namespace=cluster.ref.namespace, now=now(), complete=complete)
    if as_json:
        echo_json(_as_dict(found))
    else:
        _show_verification(found, with_records=not no_cluster)
    sys.exit(_FINDINGS if found.findings else 0)


@audit.command(short_help="Write one page of HTML about the records.")
@click.option("-o", "--output", "target", required=True, type=_FILE, metavar="FILE.html", help="- is stdout.")
@_filters
@_log
@cluster_options
def report(cluster: Cluster, target: str, logs: tuple[str, ...], **asked: Any) -> None:
    """Write a page that says who had what run, what was refused and who approved what. It loads nothing else."""
    # Only here: the template library is of no use to the other commands.
    from executor_client.cli.report_page import MadeFrom, render

    lines = list(_read(logs))
    chosen = Asked(**asked)

    async def work(client: CodeExecutionClient) -> tuple[list[Record], Verification | None]:
        stored = await client.list_stored() if logs else ()
        checked = verify(lines, stored, namespace=cluster.ref.namespace, now=now()) if logs else None
        return await _records(client, chosen), checked

    records, checked = cluster.run(work)
    made_from = MadeFrom(cluster.ref.namespace, now(), _in_words(asked), tuple(map(_named, logs)), checked)
    page = render(records, made_from)
    try:
        with click.open_file(target, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        raise click.ClickException(f"can't write {target}: {error.strerror}") from error
    if target != "-":
        click.echo(f"{len(records)} records are in {target}")


async def _records(client: CodeExecutionClient, asked: Asked) -> list[Any]:
    found: list[Record] = [*await client.list_executions(), *await client.list_sessions()]
    return auditing.by_age(one for one in found if asked.takes(one))


async def _find(client: CodeExecutionClient, name: str) -> Record:
    try:
        return await client.get(name)
    except NotFound:
        return await client.get_session(name)


def _read(logs: tuple[str, ...]) -> Iterator[LogLine]:
    """The lines of logs.

    Raises:
        click.ClickException: one can't be read.
    """
    for log in logs:
        try:
            with click.open_file(log, encoding="utf-8", errors="replace") as file:
                yield from read_log(_named(log), file)
        except OSError as error:
            raise click.ClickException(f"can't read {log}: {error.strerror}") from error


def _named(log: str) -> str:
    """Name of a log, for findings and for the report."""
    return "stdin" if log == "-" else Path(log).name


def _row(record: Record) -> tuple[str, ...]:
    spec, status = record.spec, record.status
    return (
        show_time(record.metadata.creation_timestamp),
        auditing.kind_of(record),
        record.metadata.name,
        spec.source.agent,
        spec.requested_by or "",
        status.phase.value,
        status.reason,
        auditing.approver_of(record),
        record.status.summary.digest if isinstance(record, CodeExecution) else "",
    )


def _show(record: Record) -> None:
    anchor = record.status.audit
    echo_fields(
        {
            "Name": record.metadata.name,
            "Kind": auditing.kind_of(record),
            "UID": record.metadata.uid,
            "Agent": f"{record.spec.source.agent} (as claimed)",
            "Requested by": record.spec.requested_by or "",
            "Phase": record.status.phase.value,
            "Code": record.spec.code_digest if isinstance(record, CodeExecution) else "",
            "Operator": record.status.operator_version,
            "Audit line": f"{anchor.sequence} of chain {anchor.chain}" if anchor else "",
            "Hash": anchor.hash if anchor else "",
        }
    )


def _show_verification(found: Verification, *, with_records: bool) -> None:
    rows = (
        (one.namespace, one.chain, f"{one.first} to {one.last}", one.since, one.until, one.operator)
        for one in found.chains
    )
    echo_table(("NAMESPACE", "CHAIN", "LINES", "FROM", "UNTIL", "OPERATOR"), rows)
    click.echo()
    _show_list("FINDING", found.findings, len(found.findings))
    _show_list("CAN'T BE TOLD", found.notes, _SHOWN)
    if found.gone:
        names = ", ".join(map(one_line, found.gone[:_SHOWN])) + (" …" if len(found.gone) > _SHOWN else "")
        click.echo(f"not in the cluster any more, though the log tells of them: {len(found.gone)}: {names}\n")
    click.echo(f"{_many(found.lines, 'audit line')} in {_many(len(found.chains), 'chain')}")
    if with_records:
        click.echo(f"{_many(found.records, 'record')} as the log tells")
    notes = f", {_many(len(found.notes), 'thing')} that can't be told" if found.notes else ""
    click.echo(f"{'FAILED' if found.findings else 'ok'}: {_many(len(found.findings), 'finding')}{notes}")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _show_list(title: str, findings: tuple[Finding, ...], most: int) -> None:
    if findings:
        echo_table((title, "WHERE", "MESSAGE"), ((one.kind.value, one.where, one.message) for one in findings[:most]))
        if len(findings) > most:
            click.echo(f"and {len(findings) - most} more; -o json lists all")
        click.echo()


def _as_dict(found: Verification) -> dict[str, Any]:
    return {
        "ok": not found.findings,
        "findings": [vars(one) for one in found.findings],
        "notes": [vars(one) for one in found.notes],
        "chains": [vars(one) for one in found.chains],
        "lines": found.lines,
        "records": found.records,
        "gone": list(found.gone),
    }


def _in_words(asked: dict[str, Any]) -> str:
    chosen = [f"{name.replace('_', ' ')} {value}" for name, value in sorted(asked.items()) if value is not None]
    return f"records with {', '.join(chosen)}" if chosen else "all records"
