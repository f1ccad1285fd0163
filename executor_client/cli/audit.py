"""`codeexec audit`: list and report records, and check that they agree with the operator's log."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from codeexec_api import CodeExecution, CodeSession, Phase, SessionPhase
from codeexec_api.audit_check import Verification, read_log, verify
from codeexec_api.audit_export import export_files
from codeexec_api.audit_findings import Finding, LogLine
from codeexec_api.checkpoints import Witness, checkpoint_files
from codeexec_api.signed_note import VerifyingKey
from executor_client.cli import auditing
from executor_client.cli.auditing import Record, RecordFilter, many
from executor_client.cli.common import Cluster, cluster_options, now, output_option
from executor_client.cli.completion import EXECUTIONS, SESSIONS, name_of
from executor_client.cli.display import as_object, echo_fields, echo_json, echo_table, json_list
from executor_client.cli.escaping import one_line
from executor_client.cli.evidence_store import EvidenceStore
from executor_client.cli.operator_log import OPERATOR_NAMESPACE, verify_with_operator
from executor_client.cli.show import show_time
from executor_client.cli.streams import InputFile
from executor_client.client.client import CodeExecutionClient
from executor_client.exceptions import NotFound

_COLUMNS: Final = ("CREATED", "KIND", "NAME", "AGENT", "REQUESTED-BY", "PHASE", "REASON", "APPROVER", "DIGEST")
_PHASES: Final = list(dict.fromkeys([one.value for one in Phase] + [one.value for one in SessionPhase]))
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
FINDINGS: Final = 1
"""Exit code if there are findings."""
_READ_AT_ONCE: Final = 8
_SHOWN: Final = 20
"""How many notes, and how many names of deleted records, are listed one by one."""


class _Since(click.ParamType):  # type: ignore[type-arg] # it takes none before click 8.3
    """A time, or an age such as 30m, 24h or 7d."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            if value[:-1].isdecimal() and value[-1] in _UNITS:
                return now() - timedelta(**{_UNITS[value[-1]]: int(value[:-1])})
            moment = datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time: use 30m, 24h, 7d, 2026-11-21 or 2026-11-21T12:00:00Z", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select records. The command receives each by its name."""
    for option in (
        click.option("--since", type=_Since(), help="Only records created since this time: 30m, 24h, 7d, or a date."),
        click.option("--phase", type=click.Choice(_PHASES), help="Only records in this phase."),
        click.option("--approver", metavar="USER", help="Only records that this user approved or denied."),
        click.option("--requested-by", metavar="USER", help="Only records that this user created."),
        click.option("--agent", metavar="NAME", help="Only records of this agent."),
    ):
        command = option(command)
    return command


LOG_FILE: Final = InputFile(allow_dash=True, dir_okay=False)
_log = click.option("--log", "logs", multiple=True, type=LOG_FILE, help="Operator log, - for stdin; can be repeated.")


@click.group(short_help="List, check and report records.")
def audit() -> None:
    """Show what ran, who requested and approved it, and check whether anyone changed its record."""


@audit.command("list", short_help="List executions and sessions.")
@_filters
@output_option
@cluster_options
def list_command(cluster: Cluster, as_json: bool, **options: Any) -> None:
    """List executions and sessions, oldest first."""
    if as_json:
        cluster.run(lambda client: _echo_whole(client, RecordFilter(**options)))
    else:
        echo_table(_COLUMNS, map(_row, cluster.run(lambda client: _records(client, RecordFilter(**options)))))


@audit.command(short_help="Show what happened to an execution or a session, and when.")
@click.argument("name", shell_complete=name_of(EXECUTIONS, SESSIONS))
@_log
@output_option
@cluster_options
def show(cluster: Cluster, as_json: bool, name: str, logs: tuple[str, ...]) -> None:
    """Show the timeline of an execution or a session. With --log, also show its lines in the operator's log."""
    record = cluster.run(lambda client: _find(client, name))
    told = auditing.lines_about(record, read_logs(logs))
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


@audit.command("verify", short_help="Check the operator's log, and compare the records with it.")
@click.argument("logs", nargs=-1, metavar="[FILE...]", type=LOG_FILE)
@click.option("--from-cluster", is_flag=True, help="Read the logs of the operator's pods from the cluster.")
@click.option(
    "--operator-namespace",
    metavar="NAME",
    default=OPERATOR_NAMESPACE,
    show_default=True,
    help="Namespace of the operator, for --from-cluster.",
)
@click.option("--no-cluster", is_flag=True, help="Check the log alone.")
@click.option("--complete", is_flag=True, help="Treat the logs as complete, and report notes as findings.")
@click.option(
    "--checkpoint",
    "place",
    metavar="PLACE",
    help="Also compare the log with the checkpoints in this place: an existing folder, or a URL.",
)
@click.option(
    "--key", "public_key", metavar="KEY", help="Public key of these checkpoints, as `codeexec audit keygen` printed it."
)
@click.option(
    "--export",
    "export_place",
    metavar="PLACE",
    help="Also check the records and audit lines that `codeexec audit export` wrote to this place: an existing folder, "
    "or a URL.",
)
@output_option
@cluster_options
def verify_command(
    cluster: Cluster,
    as_json: bool,
    logs: tuple[str, ...],
    from_cluster: bool,
    operator_namespace: str,
    no_cluster: bool,
    complete: bool,
    place: str | None,
    public_key: str | None,
    export_place: str | None,
) -> None:
    """Check the audit lines in logs of the operator (- is stdin), and compare the records of the cluster with them.

    Other lines in the logs are ignored. Exits with 0 if there is no finding, and with 1 if a line or a record was
    changed, or lines are missing. A note lists each question that the given logs cannot answer.
    """
    if not logs and not from_cluster and not export_place:
        raise click.UsageError(
            "which log? Use --from-cluster to read the operator's log from the cluster, or give log files (- is stdin) "
            "or an --export"
        )
    if from_cluster and no_cluster:
        raise click.UsageError("give either --from-cluster or --no-cluster")
    witness = _witness(place, public_key)  # read before the logs, which may only be newer
    namespace = cluster.ref.namespace
    export = _exported(export_place, namespace) if export_place else None
    lines = list(read_logs(logs))  # read before the records, so that every line read has its record
    if from_cluster:
        click.echo(f"codeexec: reading the operator's log in namespace {operator_namespace!r}", err=True)
        found = cluster.run(
            lambda client: verify_with_operator(
                client, cluster.ref, operator_namespace, lines, complete=complete, witness=witness, export=export
            )
        )
    else:
        records = None if no_cluster else cluster.run(lambda client: client.list_evidence())
        found = verify(
            lines, records, namespace=namespace, now=now(), complete=complete, witness=witness, export=export
        )
    if as_json:
        echo_json(_as_dict(found))
    else:
        _show_verification(found, with_records=not no_cluster or export is not None)
    sys.exit(FINDINGS if found.findings else 0)


def _exported(place: str, namespace: str) -> dict[str, bytes]:
    store = EvidenceStore(place, "records", namespace)
    return store.read(export_files(store.names()))


def _witness(place: str | None, public_key: str | None) -> Witness | None:
    if (place is None) != (public_key is None):
        raise click.UsageError("give both --checkpoint and --key, or neither")
    if place is None or public_key is None:
        return None
    try:
        key = VerifyingKey.parse(public_key)
    except ValueError as error:
        raise click.UsageError(f"the value of --key can't be used: {error}") from error  # it may be the private key
    store = EvidenceStore(place, "checkpoints")
    return Witness(store.read(checkpoint_files(store.names())), key)


@audit.command(short_help="Write an HTML report.")
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    type=click.Path(allow_dash=True, dir_okay=False),
    metavar="FILE.html",
    help="Page; - is stdout.",
)
@_filters
@_log
@cluster_options
def report(cluster: Cluster, target: str, logs: tuple[str, ...], **options: Any) -> None:
    """Write an HTML page: who ran what, what was refused, and who approved what. The page loads no other files."""
    # Imported here, because the other commands do not need the template library.
    from executor_client.cli.report_page import MadeFrom, render

    lines = list(read_logs(logs))
    chosen = RecordFilter(**options)

    async def work(client: CodeExecutionClient) -> tuple[list[Record], Verification | None]:
        stored = await client.list_evidence() if logs else ()
        checked = verify(lines, stored, namespace=cluster.ref.namespace, now=now()) if logs else None
        return await _records(client, chosen), checked

    records, checked = cluster.run(work)
    made_from = MadeFrom(cluster.ref.namespace, now(), _in_words(options), tuple(_names(logs).values()), checked)
    page = render(records, made_from)
    try:
        with click.open_file(target, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        raise click.ClickException(f"can't write {target}: {error.strerror}") from error
    if target != "-":
        click.echo(f"{len(records)} records are in {target}")


async def _records(client: CodeExecutionClient, chosen: RecordFilter) -> list[Record]:
    """The records that were asked for. Output is let go of page by page: a namespace may hold gigabytes of it."""
    found: list[Record] = [one for one in await client.list_sessions() if chosen.takes(one)]
    async with aclosing((await client.connect()).list()) as executions:
        async for one in executions:
            if chosen.takes(one):
                found.append(auditing.without_output(one))
    return auditing.by_age(found)


async def _echo_whole(client: CodeExecutionClient, chosen: RecordFilter) -> None:
    """Print the same records with their output. Each execution is read again, so that few are held at a time."""
    records = await _records(client, chosen)
    with json_list() as echo:
        for start in range(0, len(records), _READ_AT_ONCE):
            some = records[start : start + _READ_AT_ONCE]
            for whole in await asyncio.gather(*(_whole(client, one) for one in some)):
                if whole:
                    echo(as_object(whole))


async def _whole(client: CodeExecutionClient, record: Record) -> Record | None:
    """The record with its output; None if it was deleted meanwhile."""
    if isinstance(record, CodeSession):
        return record
    try:
        return await client.get(record.metadata.name)
    except NotFound:
        return None


async def _find(client: CodeExecutionClient, name: str) -> Record:
    try:
        return await client.get(name)
    except NotFound:
        return await client.get_session(name)


def read_logs(logs: tuple[str, ...]) -> Iterator[LogLine]:
    """Read the lines of the logs.

    Raises:
        click.ClickException: a log can't be read.
    """
    for log, name in _names(logs).items():
        try:
            with click.open_file(log, encoding="utf-8", errors="replace") as file:
                yield from read_log(name, file)
        except OSError as error:
            raise click.ClickException(f"can't read {log}: {error.strerror}") from error


def _names(logs: Iterable[str]) -> dict[str, str]:
    """Names of logs, for findings and for the report: without folders, unless several logs have the same name."""
    short = {log: "stdin" if log == "-" else Path(log).name for log in logs}
    uses = Counter(short.values())
    return {log: name if uses[name] == 1 else log for log, name in short.items()}


def _row(record: Record) -> tuple[str, ...]:
    spec, status = record.spec, record.status
    return (
        show_time(record.metadata.creation_timestamp),
        record.kind,
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
            "Kind": record.kind,
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
    show_findings("FINDING", found.findings, len(found.findings))
    show_findings("NOTE", found.notes, _SHOWN)
    if found.gone:
        names = ", ".join(map(one_line, found.gone[:_SHOWN])) + (" …" if len(found.gone) > _SHOWN else "")
        click.echo(f"in the log, but not in the cluster any more: {len(found.gone)}: {names}\n")
    click.echo(f"{many(found.lines, 'audit line')} in {many(len(found.chains), 'chain')}")
    if with_records:
        click.echo(f"{many(found.records, 'record')} {'agrees' if found.records == 1 else 'agree'} with the log")
    if found.checkpoints:
        newest = found.checkpoints[-1]
        click.echo(
            f"{many(len(found.checkpoints), 'signed checkpoint')} of {newest.origin}, the newest of {newest.time}"
        )
    notes = f", {many(len(found.notes), 'note')}" if found.notes else ""
    click.echo(f"{'FAILED' if found.findings else 'ok'}: {many(len(found.findings), 'finding')}{notes}")


def show_findings(title: str, findings: tuple[Finding, ...], most: int) -> None:
    """Print a table of findings or notes, if there are any."""
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
        "checkpoints": [{"file": one.file, "time": one.time} for one in found.checkpoints],
        "gone": list(found.gone),
    }


def _in_words(options: dict[str, Any]) -> str:
    chosen = [f"{name.replace('_', ' ')} {value}" for name, value in sorted(options.items()) if value is not None]
    return f"records with {', '.join(chosen)}" if chosen else "all records"
