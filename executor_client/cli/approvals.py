"""`codeexec approvals`, `approve`, `deny`, `revoke`: decide about executions that need approval."""

from datetime import datetime, timedelta
from typing import Final

import click

from codeexec_api import ApprovalStatus, CodeExecution
from executor_client.cli.auditing import many
from executor_client.cli.common import Cluster, cluster_options, now, output_option
from executor_client.cli.completion import APPROVED, WAITING, name_of
from executor_client.cli.display import (
    age,
    echo_fields,
    echo_record,
    echo_records,
    echo_table,
    size,
    terminal,
)
from executor_client.cli.escaping import behind_bars, lines_of, one_line
from executor_client.cli.show import show_time
from executor_client.client.client import CodeExecutionClient
from executor_client.exceptions import CodeExecError

_COLUMNS: Final = ("NAME", "AGENT", "REQUESTED-BY", "ASKS-FOR", "LANGUAGE", "DIGEST", "LEFT", "AGE")
_reason = click.option(
    "--reason", metavar="REASON", default="", help="Reason, kept in the record and shown to the agent."
)


@click.command(short_help="List executions that wait for approval, or show one.")
@click.argument("name", required=False, shell_complete=name_of(WAITING))
@output_option
@cluster_options
def approvals(cluster: Cluster, as_json: bool, name: str | None) -> None:
    """List the executions that wait for approval, oldest first, or show one.

    With NAME, show what the execution asks for beyond the policy, and its code if you may read it.
    """
    if name:
        execution = cluster.run(lambda client: client.get(name))
        echo_record(execution, _show, as_json=as_json)
        if not as_json:
            cluster.run(lambda client: _show_code(client, execution))
        return
    echo_records(cluster.run(lambda client: client.list_waiting()), _COLUMNS, _row, now(), as_json=as_json)


@click.command(short_help="Approve an execution.")
@click.argument("name", shell_complete=name_of(WAITING))
@click.option("--uid", metavar="UID", help="Decide only if the execution has this UID, the one you reviewed.")
@click.option(
    "--minutes",
    metavar="MINUTES",
    default=15,
    show_default=True,
    type=click.IntRange(1, 1440),
    help="Minutes after which the approval expires if the code has not started.",
)
@_reason
@cluster_options
def approve(cluster: Cluster, name: str, uid: str | None, minutes: int, reason: str) -> None:
    """Approve exactly what an execution asks for beyond the policy. You cannot approve your own executions."""

    async def work(client: CodeExecutionClient) -> None:
        execution = await _looked_at(client, name, uid)
        await client.approve(execution, reason=reason, valid=timedelta(minutes=minutes))
        asked = execution.status.approval or ApprovalStatus()
        click.echo(f"{name} is approved: {one_line(', '.join(map(str, asked.grants)))}")

    cluster.run(work)


@click.command(short_help="Deny an execution.")
@click.argument("name", shell_complete=name_of(WAITING))
@click.option("--uid", metavar="UID", help="Decide only if the execution has this UID, the one you reviewed.")
@_reason
@cluster_options
def deny(cluster: Cluster, name: str, uid: str | None, reason: str) -> None:
    """Deny an execution whose code has not started. The agent sees the reason."""

    async def work(client: CodeExecutionClient) -> None:
        await client.deny(await _looked_at(client, name, uid), reason=reason)
        click.echo(f"{name} is denied")

    cluster.run(work)


@click.command(short_help="Revoke an approval.")
@click.argument("name", shell_complete=name_of(APPROVED))
@cluster_options
def revoke(cluster: Cluster, name: str) -> None:
    """Revoke the approval of an execution whose code has not started. To stop code that runs, use `codeexec cancel`."""

    async def work(client: CodeExecutionClient) -> None:
        await client.revoke(await client.get(name))
        click.echo(f"the approval of {name} is revoked")

    cluster.run(work)


async def _looked_at(client: CodeExecutionClient, name: str, uid: str | None) -> CodeExecution:
    execution = await client.get(name)
    if uid not in (None, execution.metadata.uid):
        raise click.ClickException(
            f"{name} has the UID {execution.metadata.uid} now, not {uid}: it is another execution of the same name"
        )
    return execution


def _row(execution: CodeExecution, at: datetime) -> tuple[str, ...]:
    spec, status = execution.spec, execution.status
    asked = status.approval or ApprovalStatus()
    return (
        execution.metadata.name,
        spec.source.agent,
        spec.requested_by or "",
        ", ".join(map(str, asked.grants)),
        ",".join(spec.languages),
        status.summary.digest,
        age(at, asked.wait_until) if asked.wait_until else "",
        age(execution.metadata.creation_timestamp, at),
    )


def _show(execution: CodeExecution) -> None:
    spec, status = execution.spec, execution.status
    asked = status.approval or ApprovalStatus()
    echo_fields(
        {
            "Name": execution.metadata.name,
            "UID": execution.metadata.uid,
            "Agent": f"{spec.source.agent} (as claimed)",
            "Requested by": spec.requested_by or "",
            "Conversation": spec.source.conversation or "",
            "Phase": status.phase.value,
            "Message": status.message,
            "Code": status.code_digest,
            "Session": spec.session_ref.name if spec.session_ref else "",
            "Image": spec.image or "",
            "Runtime class": spec.runtime_class_name or "",
            "Limits": f"{spec.timeout_seconds} s a block, cpu {spec.limits.cpu}, memory {spec.limits.memory}, "
            f"disk {spec.limits.ephemeral_storage}, {spec.limits.pids} processes",
            "Fetches": ", ".join(spec.artifacts.fetch),
            "Egress": ", ".join(map(str, spec.egress or ())),
            "Mounts": ", ".join(map(str, spec.mounts or ())),
            "Waits until": show_time(asked.wait_until),
            "Decision": asked.decision,
            "Approver": asked.approver,
            "Reason": asked.reason,
            "Expires": show_time(asked.expires_at),
        }
    )
    if spec.session_ref:
        click.echo("\nThis execution runs in a session. Code that runs there earlier can change files that it uses.")
    if asked.grants:
        click.echo()
        echo_table(("ASKS FOR", "VALUE"), ((grant.field, grant.value) for grant in asked.grants))
    if asked.unused:
        click.echo()
        rows = ((one.name, one.approver, one.reason, one.message) for one in asked.unused)
        echo_table(("DOES NOT COUNT", "APPROVER", "WHY", "MESSAGE"), rows)


async def _show_code(client: CodeExecutionClient, execution: CodeExecution) -> None:
    """Show the blocks. If this identity may not read them, say so; this is not an error."""
    try:
        code = await client.read_code(execution)
    except CodeExecError as error:
        click.echo(f"\nthe code is not shown: {one_line(str(error))}")
        return
    for index, (block, content) in enumerate(zip(execution.spec.blocks, code.blocks, strict=True)):
        _show_content(f"block {index}, {block.language}", block.filename or "", content, block.sha256)
    for index, file in enumerate(execution.spec.files or ()):
        _show_content(f"file {index}", file.path, code.files[file.path], file.sha256)


def _show_content(what: str, name: str, content: bytes, sha256: str) -> None:
    """Show content and its name so that they cannot control the terminal, hide anything or imitate other output."""
    text = _text(content)
    length = "not text" if text is None else many(len(lines_of(text)), "line")
    click.echo(f"\n--- {what}, {size(len(content))}, {length}, sha256 {sha256} ---")
    console = terminal()
    if rows := behind_bars(text or "", name=name, width=console.width if console else None):
        click.echo("\n".join(rows))
    if text is None:
        click.echo("(not shown: this is not text)")


def _text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
