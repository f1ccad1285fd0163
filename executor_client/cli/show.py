"""`codeexec get` and `codeexec logs`: show records, and the output of executions."""

import asyncio
from contextlib import aclosing
from datetime import datetime
from typing import Final

import click

from codeexec_api import ArtifactStatus, BlockStatus, CodeExecution, CodeFinding, Condition, EgressProof, Phase
from executor_client.cli.common import Cluster, cluster_options, now, output_option
from executor_client.cli.completion import EXECUTIONS, name_of
from executor_client.cli.display import (
    Printer,
    age,
    echo_fields,
    echo_record,
    echo_records,
    echo_table,
    report,
    size,
)
from executor_client.client.client import CodeExecutionClient
from executor_client.client.execution import over
from executor_client.model.results import ExecutionResult
from executor_client.runtime.asyncio_tasks import stop

_FIRST_SECONDS: Final = 15.0
"""How long `logs` waits for the first output of a running execution."""
_QUIET_SECONDS: Final = 2.0
"""After this long without output, `logs` has read everything a running execution printed so far."""
_COLUMNS: Final = ("NAME", "AGENT", "LANGUAGE", "PHASE", "REASON", "EXIT", "DURATION", "SESSION", "AGE")


@click.command(short_help="List executions, or show one.")
@click.argument("name", required=False, shell_complete=name_of(EXECUTIONS))
@click.option("--agent", metavar="NAME", help="Only executions of this agent.")
@click.option("--phase", type=click.Choice([phase.value for phase in Phase]), help="Only executions in this phase.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Only this many, the newest.")
@click.option("--all", "with_transfers", is_flag=True, help="Also list transfers of files, which run no code.")
@output_option
@cluster_options
def get(
    cluster: Cluster,
    as_json: bool,
    name: str | None,
    agent: str | None,
    phase: str | None,
    limit: int | None,
    with_transfers: bool,
) -> None:
    """List the executions, newest last, or show the whole record of one."""
    if name:
        echo_record(cluster.run(lambda client: client.get(name)), _show, as_json=as_json)
        return

    def takes(one: CodeExecution) -> bool:
        return agent in (None, one.spec.source.agent) and (with_transfers or bool(one.spec.blocks))

    asked = Phase(phase) if phase else None
    found = cluster.run(lambda client: client.list_executions(phase=asked, takes=takes, limit=limit))
    echo_records(found, _COLUMNS, _row, now(), as_json=as_json)


@click.command(short_help="Show the output of an execution.")
@click.argument("name", shell_complete=name_of(EXECUTIONS))
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the execution ends.")
@cluster_options
def logs(cluster: Cluster, name: str, follow: bool) -> None:
    """Show the output of an execution, with stdout and stderr on their own streams.

    If the execution still runs, show the output so far. With -f, follow it to the end.
    """
    printer = Printer()

    async def work(client: CodeExecutionClient) -> ExecutionResult | None:
        ended = over(await client.get(name))
        handle = client.attach(name)
        patience = _FIRST_SECONDS
        async with aclosing(handle.output()) as chunks:
            while True:
                coming = asyncio.ensure_future(anext(chunks))
                try:
                    await asyncio.wait([coming], timeout=None if follow or ended else patience)
                    if not coming.done() and not handle.ended:
                        return None
                    printer(await coming)  # of what has ended meanwhile, all is read
                except StopAsyncIteration:
                    return await handle.result()
                finally:
                    await stop(coming)
                patience = _QUIET_SECONDS

    result = cluster.run(work)
    printer.finish()
    if result:
        report(result)
    else:
        click.echo(f"codeexec: {name} has not ended; use -f to follow its output", err=True)


def _row(execution: CodeExecution, at: datetime) -> tuple[str, ...]:
    spec, status = execution.spec, execution.status
    return (
        execution.metadata.name,
        spec.source.agent,
        spec.summary.languages,
        status.phase.value,
        status.reason,
        "" if status.exit_code is None else str(status.exit_code),
        status.summary.duration,
        spec.session_ref.name if spec.session_ref else "",
        age(execution.metadata.creation_timestamp, at),
    )


def _show(execution: CodeExecution) -> None:
    spec, status = execution.spec, execution.status
    echo_fields(
        {
            "Name": execution.metadata.name,
            "Agent": spec.source.agent,
            "Executor": spec.source.executor,
            "Phase": status.phase.value,
            "Reason": status.reason,
            "Message": status.message,
            "Exit code": "" if status.exit_code is None else str(status.exit_code),
            "Created": show_time(execution.metadata.creation_timestamp),
            "Started": show_time(status.started_at),
            "Finished": show_time(status.finished_at),
            "Code": status.code_digest if spec.blocks or spec.files else "",
            "Session": spec.session_ref.name if spec.session_ref else "",
            "Limits": f"{spec.timeout_seconds} s a block, cpu {spec.limits.cpu}, memory {spec.limits.memory}",
            "Egress": ", ".join(map(str, spec.egress or ())),
            "Mounts": ", ".join(map(str, spec.mounts or ())),
            "Pod": f"{status.pod_name} on {status.node_name}" if status.node_name else status.pod_name,
            "Image": status.image,
            "Runtime class": status.runtime_class_name,
            "Boundary": status.boundary.value if status.boundary else "",
            "Layers": ", ".join(status.layers),
            "Operator": status.operator_version,
            "Output": _output(execution),
        }
    )
    show_conditions(status.conditions)
    _show_blocks(execution, status.blocks)
    _show_findings(status.code_findings)
    show_egress(status.egress_proof)
    _show_artifacts(status.artifacts, status.artifacts_omitted)


def show_conditions(conditions: tuple[Condition, ...]) -> None:
    """Show the conditions of an execution or a session."""
    if conditions:
        click.echo()
        rows = (
            (one.type, one.status, one.reason, show_time(one.last_transition_time), one.message) for one in conditions
        )
        echo_table(("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"), rows)


def show_egress(proof: EgressProof | None) -> None:
    """Show which addresses the network check tried, and who got an answer."""
    if proof:
        click.echo()
        answers = {None: "not tried", True: "no", False: "yes"}
        rows = (
            (
                one.name,
                f"{one.address}:{one.port}/{one.protocol}",
                answers[one.refused],
                "yes" if one.reachable else "no",
            )
            for one in proof.targets
        )
        echo_table((f"EGRESS {proof.verdict.value.upper()}", "ADDRESS", "ANSWERED THE SANDBOX", "THE OPERATOR"), rows)


def _show_blocks(execution: CodeExecution, ended: tuple[BlockStatus, ...]) -> None:
    if not execution.spec.blocks:
        return
    rows = []
    for index, block in enumerate(execution.spec.blocks):
        status = ended[index] if index < len(ended) else None
        outcome = (
            (status.reason, str(status.exit_code), f"{status.duration_ms / 1000:.2f}s") if status else ("", "", "")
        )
        rows.append((str(index), block.language, *outcome, size(block.size_bytes), block.sha256[:12]))
    click.echo()
    echo_table(("BLOCK", "LANGUAGE", "ENDED", "EXIT", "DURATION", "SIZE", "DIGEST"), rows)


def _show_findings(findings: tuple[CodeFinding, ...]) -> None:
    if findings:
        click.echo()
        rows = (
            (one.found, one.action.value, ", ".join(one.places) + (", …" if one.count > len(one.places) else ""))
            for one in findings
        )
        echo_table(("FOUND IN THE CODE", "ACTION", "WHERE"), rows)


def _show_artifacts(artifacts: tuple[ArtifactStatus, ...], omitted: int) -> None:
    if artifacts:
        click.echo()
        rows = (
            (size(one.size_bytes), (one.sha256 or "")[:12], "yes" if one.fetched else "no", one.path)
            for one in artifacts
        )
        echo_table(("SIZE", "DIGEST", "FETCHED", "ARTIFACT"), rows)
    if omitted:
        click.echo(f"and {omitted} more files, not listed")


def _output(execution: CodeExecution) -> str:
    streams = (("stdout", execution.status.stdout), ("stderr", execution.status.stderr))
    return ", ".join(
        f"{name} {size(one.total_bytes)}{' (truncated)' if one.truncated else ''}" for name, one in streams if one
    )


def show_time(moment: datetime | None) -> str:
    """A time as Kubernetes writes it. Empty for None."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else ""
