"""`codeexec cancel` and `codeexec sessions`."""

from datetime import datetime
from typing import Final

import click

from codeexec_api import CodeSession
from executor_client.cli.common import Cluster, cluster_options, now, output_option
from executor_client.cli.completion import UNFINISHED, name_of, name_or_end
from executor_client.cli.display import age, echo_fields, echo_record, echo_records
from executor_client.cli.show import show_conditions, show_egress, show_time
from executor_client.client.client import CodeExecutionClient

_COLUMNS: Final = ("NAME", "AGENT", "PHASE", "REASON", "EXECUTIONS", "STATEFUL", "USED", "AGE")


@click.command(short_help="Stop executions.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=name_of(UNFINISHED))
@cluster_options
def cancel(cluster: Cluster, names: tuple[str, ...]) -> None:
    """Stop executions. Their records keep the output so far."""

    async def work(client: CodeExecutionClient) -> None:
        for name in names:
            execution = await client.get(name)
            if execution.status.phase.terminal:
                click.echo(f"{name} has ended already: {execution.status.phase}")
            else:
                await client.cancel(name)
                click.echo(f"{name} is being stopped")

    cluster.run(work)


@click.command(short_help="List, show or end sessions.")
@click.argument("names", nargs=-1, metavar="[NAME | end NAME...]", shell_complete=name_or_end)
@output_option
@cluster_options
def sessions(cluster: Cluster, as_json: bool, names: tuple[str, ...]) -> None:
    """List the sessions, newest last, show one, or end some. Ending a session deletes its files; its record stays."""
    if not names:
        found = cluster.run(lambda client: client.list_sessions())
        echo_records(found, _COLUMNS, _row, now(), as_json=as_json)
    elif names[0] == "end":
        if len(names) == 1:
            raise click.UsageError("name the sessions to end: codeexec sessions end NAME...")
        cluster.run(lambda client: _end(client, names[1:]))
    elif len(names) == 1:
        echo_record(cluster.run(lambda client: client.get_session(names[0])), _show, as_json=as_json)
    else:
        raise click.UsageError("give one NAME, or end NAME...")


async def _end(client: CodeExecutionClient, names: tuple[str, ...]) -> None:
    for name in names:
        session = await client.get_session(name)
        if session.status.phase.terminal:
            click.echo(f"{name} has ended already: {session.status.phase}/{session.status.reason}")
        else:
            await client.end_session(name)
            click.echo(f"{name} is being ended")


def _row(session: CodeSession, at: datetime) -> tuple[str, ...]:
    status = session.status
    return (
        session.metadata.name,
        session.spec.source.agent,
        status.phase.value,
        status.reason,
        str(status.executions),
        "yes" if session.spec.stateful else "no",
        age(status.last_used_at, at),
        age(session.metadata.creation_timestamp, at),
    )


def _stored(session: CodeSession) -> str:
    stored = session.status.stored_files
    if stored is None:
        return ""
    return f"{stored.entries} in {stored.url}, {stored.size_bytes} bytes, {show_time(stored.stored_at)}"


def _show(session: CodeSession) -> None:
    spec, status = session.spec, session.status
    echo_fields(
        {
            "Name": session.metadata.name,
            "Agent": spec.source.agent,
            "Executor": spec.source.executor,
            "Phase": status.phase.value,
            "Reason": status.reason,
            "Message": status.message,
            "Executions": str(status.executions),
            "Stateful": "yes" if spec.stateful else "no",
            "Ends": f"after {spec.idle_timeout_seconds} s without use, {spec.max_lifetime_seconds} s at most",
            "Sleeps": f"after {spec.sleep_after_seconds} s without use" if spec.sleep_after_seconds else "",
            "Stored files": _stored(session),
            "Created": show_time(session.metadata.creation_timestamp),
            "Ready": show_time(status.started_at),
            "Last used": show_time(status.last_used_at),
            "Ended": show_time(status.ended_at),
            "Limits": f"cpu {spec.limits.cpu}, memory {spec.limits.memory}",
            "Pod": f"{status.pod_name} on {status.node_name}" if status.node_name else status.pod_name,
            "Pool": status.pool_name,
            "Image": status.image,
            "Runtime class": status.runtime_class_name,
            "Boundary": status.boundary.value if status.boundary else "",
            "Layers": ", ".join(status.layers),
            "Operator": status.operator_version,
        }
    )
    show_conditions(status.conditions)
    show_egress(status.egress_proof)
