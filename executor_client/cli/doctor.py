"""`codeexec doctor`: check everything that code needs to run, and say how to fix what is missing.

With `--capacity` it says instead how many sandboxes fit; see `capacity_page`.
"""

import asyncio
import sys
from dataclasses import asdict
from importlib.metadata import version
from typing import Final

import click
from click.core import ParameterSource
from rich.text import Text

from codeexec_api import Limits, Phase
from codeexec_api.names import NODE_RUNTIME
from executor_client.cli import capacity_page
from executor_client.cli.common import (
    PROGRAM,
    Cluster,
    cluster_options,
    now,
    output_option,
    parsed,
    quantity,
    runtime_class_name,
)
from executor_client.cli.diagnosis import (
    RIGHTS,
    Finding,
    Outcome,
    failed,
    judge_clock,
    judge_kinds,
    judge_probe,
    judge_rights,
    judge_runtime_class,
)
from executor_client.cli.display import echo_json, styled, terminal
from executor_client.cli.escaping import one_line
from executor_client.cli.inspector import Inspector
from executor_client.cli.operator_log import OPERATOR_NAMESPACE
from executor_client.client.approvals import ApprovalWait
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import ClusterRef, Request
from executor_client.exceptions import CodeExecError
from executor_client.model.blocks import SourceBlock, prepare
from executor_client.transport.cluster import Transport

_PROBE: Final = SourceBlock("python", "print('codeexec doctor')")
_PROBE_SECONDS: Final = 30
_MORE: Final = "do what the message says; docs/troubleshooting.md has more, at 'Python raises an exception'"
_FIRST: Final = "correct what the failed check names, and run codeexec doctor again"
_OF_CAPACITY: Final = ("callers", "cpu", "measure", "memory", "operator_namespace")
"""Options that only `--capacity` has a use for."""


@click.command(short_help="Check the cluster, the installation and your rights.")
@click.option(
    "--runtime-class",
    metavar="NAME",
    callback=parsed(runtime_class_name),
    help="Also check this RuntimeClass, and run the probe with it.",
)
@click.option("--no-run", is_flag=True, help="Run no code; only check what the API server reports.")
@click.option(
    "--capacity", is_flag=True, help="Instead of the checks, show how many sandboxes fit, and what limits the number."
)
@click.option(
    "--measure",
    metavar="N",
    type=click.IntRange(2, 1000),
    help="With --capacity: also run N calls of each kind one after the other, and N by several callers.",
)
@click.option(
    "--callers",
    metavar="N",
    type=click.IntRange(1, 100),
    default=4,
    show_default=True,
    help="With --measure: concurrent callers.",
)
@click.option("--cpu", metavar="QUANTITY", callback=parsed(quantity), help="With --capacity: CPU limit of a sandbox.")
@click.option(
    "--memory", metavar="QUANTITY", callback=parsed(quantity), help="With --capacity: memory limit of a sandbox."
)
@click.option(
    "--operator-namespace",
    metavar="NAME",
    default=OPERATOR_NAMESPACE,
    show_default=True,
    help="With --capacity: namespace of the operator, which has the default policy.",
)
@output_option
@cluster_options
def doctor(
    cluster: Cluster,
    as_json: bool,
    runtime_class: str | None,
    no_run: bool,
    capacity: bool,
    measure: int | None,
    callers: int,
    cpu: str | None,
    memory: str | None,
    operator_namespace: str,
) -> None:
    """Check the cluster, the installation and your rights, run one line of Python, and say how to fix faults.

    Exits with 1 if a check failed. With --capacity, show how many sandboxes fit instead.
    """
    _check_usage(capacity=capacity, no_run=no_run, measure=measure is not None)
    if capacity:
        limits = Limits.model_validate({name: value for name, value in (("cpu", cpu), ("memory", memory)) if value})
        options = capacity_page.Options(limits, runtime_class, operator_namespace, measure, callers)
        capacity_page.run(cluster.ref, options, as_json=as_json)
        return
    findings = asyncio.run(examine(cluster.ref, runtime_class=runtime_class, probe=not no_run))
    if as_json:
        echo_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            _echo(finding)
    sys.exit(1 if failed(findings) else 0)


def _check_usage(*, capacity: bool, no_run: bool, measure: bool) -> None:
    """Refuse an option that would have no effect."""
    context = click.get_current_context()
    given = [
        f"--{name.replace('_', '-')}"
        for name in _OF_CAPACITY
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if given and not capacity:
        raise click.UsageError(f"{' and '.join(given)} {'need' if len(given) > 1 else 'needs'} --capacity")
    if capacity and no_run:
        raise click.UsageError("give either --capacity or --no-run: only --measure makes --capacity run code")
    if "--callers" in given and not measure:
        raise click.UsageError("--callers needs --measure")


async def examine(ref: ClusterRef, *, runtime_class: str | None, probe: bool) -> list[Finding]:
    """Run the checks, and return the findings in order. If a check fails that others need, those are left out."""
    try:
        async with Inspector.opened(**ref.kube_context()) as inspector:
            return await _examine(inspector, runtime_class=runtime_class, probe=probe)
    except CodeExecError as error:
        return [Finding("API server", Outcome.FAILED, str(error), _MORE)]


async def _examine(inspector: Inspector, *, runtime_class: str | None, probe: bool) -> list[Finding]:
    try:
        asked = now()
        server = await inspector.server()
        answered = now()
        findings = [
            Finding("API server", Outcome.OK, f"Kubernetes {server.version} at {server.address}"),
            judge_clock(server.date, asked, answered),
            judge_kinds(await inspector.kinds()),
        ]
        answers = await asyncio.gather(*(inspector.may(right) for right in RIGHTS))
        findings.append(judge_rights(dict(zip(RIGHTS, answers, strict=True)), inspector.namespace))
        if runtime_class and runtime_class != NODE_RUNTIME:
            findings.append(judge_runtime_class(runtime_class, await inspector.runtime_class_exists(runtime_class)))
    except CodeExecError as error:
        return [Finding("API server", Outcome.FAILED, str(error), _MORE)]
    if not probe:
        return findings
    if failed(findings):
        return [*findings, Finding("execution", Outcome.UNKNOWN, "no code was run, because a check failed", _FIRST)]
    return [*findings, *await _run_probe(inspector, runtime_class)]


async def _run_probe(inspector: Inspector, runtime_class: str | None) -> list[Finding]:
    async def connection() -> Transport:
        return Transport(inspector)

    request = Request(
        agent="codeexec-doctor",
        timeout_seconds=_PROBE_SECONDS,
        runtime_class_name=runtime_class,
        executor=PROGRAM,
        approval=ApprovalWait("return"),
    )
    try:
        async with CodeExecutionClient(transport=connection) as client:
            handle = await client.submit(prepare([_PROBE]).blocks, request, list_files="None")
            probed = await handle.finished()
            if probed.status.phase is Phase.AWAITING_APPROVAL:
                await handle.cancel()
            return judge_probe(probed, version("codeexec"))
    except CodeExecError as error:
        return [Finding("execution", Outcome.FAILED, str(error), _MORE)]


def _echo(finding: Finding) -> None:
    outcome, check = f"{finding.outcome.value:<9}", f"{finding.check:<14}"
    if console := terminal():
        console.print(Text.assemble(styled(outcome), (check, "bold"), one_line(finding.found)), soft_wrap=True)
    else:
        click.echo(f"{outcome}{check}{one_line(finding.found)}")
    if finding.advice:
        click.echo(f"{'':23}what to do: {one_line(finding.advice)}")
