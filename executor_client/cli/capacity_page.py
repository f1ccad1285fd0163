"""`codeexec doctor --capacity`: how many sandboxes fit, which bound binds, and, if asked for, what calls take."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import click

from codeexec_api import Limits
from executor_client.cli import capacity
from executor_client.cli.capacity import NodeFit, QuotaFit, Sandbox, Total, shown
from executor_client.cli.capacity_measure import OWN_POD, Measured, Measurement, Measurer
from executor_client.cli.capacity_reader import CapacityReader, Facts
from executor_client.cli.common import PROGRAM
from executor_client.cli.display import echo_json, echo_table
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import ClusterRef, Request
from executor_client.exceptions import CodeExecError
from executor_client.transport.cluster import Transport

_AGENT: Final = "codeexec-doctor"
_TIMEOUT_SECONDS: Final = 60


@dataclass(frozen=True)
class Options:
    """What the options say."""

    limits: Limits
    runtime_class: str | None
    operator_namespace: str
    calls: int | None
    """Of each kind; None to measure nothing."""
    callers: int


@dataclass(frozen=True)
class Report:
    """What was found; None for what can't be said."""

    limits: Limits
    policy_source: str
    sandbox: Sandbox | None
    nodes: Sequence[NodeFit] | None
    quotas: Sequence[QuotaFit] | None
    problems: Sequence[str]
    total: Total | None
    pools: Sequence[Mapping[str, Any]] | None
    missing: Sequence[str]
    measurement: Measurement | None = None


def judge(facts: Facts, limits: Limits) -> Report:
    """What the facts come to. Pure."""
    sandbox = None
    if facts.policy and facts.runtime_class_known:
        sandbox = Sandbox.make(facts.policy.requests, limits, facts.runtime_class)
    nodes = quotas = None
    problems: Sequence[str] = ()
    if sandbox:
        if facts.nodes is not None and facts.pods is not None:
            nodes = capacity.fits(facts.nodes, facts.pods, sandbox)
        quotas = capacity.quota_fits(facts.quotas, sandbox) if facts.quotas is not None else None
        problems = capacity.forbidden(facts.limit_ranges or (), sandbox)
    known = nodes is not None and quotas is not None and facts.limit_ranges is not None
    total = capacity.total(nodes, quotas, problems) if known and nodes is not None and quotas is not None else None
    pools = None if facts.pools is None else [_pool(one) for one in facts.pools]
    missing = [str(one) for one in facts.missing]
    return Report(limits, facts.policy_source, sandbox, nodes, quotas, problems, total, pools, missing)


def _pool(raw: Mapping[str, Any]) -> dict[str, Any]:
    status = raw.get("status") or {}
    return {
        "pool": raw["metadata"]["name"],
        "replicas": raw["spec"].get("replicas", 1),
        "ready": status.get("readyReplicas", 0),
        "in_use": status.get("claimedReplicas", 0),
        "queued": status.get("queued", 0),
    }


async def examine(ref: ClusterRef, options: Options) -> Report:
    """Read the cluster, and measure calls if that is asked for.

    Raises:
        CodeExecError: the API server doesn't answer, or a call fails.
    """
    async with CapacityReader.opened(**ref.kube_context()) as reader:
        facts = await reader.facts(options.operator_namespace, options.runtime_class)
        report = judge(facts, options.limits)
        if options.calls is None:
            return report
        return Report(**{**vars(report), "measurement": await _measure(reader, facts, options)})


async def _measure(reader: CapacityReader, facts: Facts, options: Options) -> Measurement:
    assert options.calls is not None  # noqa: S101 - the caller has looked

    async def connection() -> Transport:
        return Transport(reader)

    request = Request(
        agent=_AGENT,
        timeout_seconds=_TIMEOUT_SECONDS,
        limits=options.limits,
        runtime_class_name=options.runtime_class,
        executor=PROGRAM,
    )
    async with CodeExecutionClient(transport=connection) as client:
        measurer = Measurer(
            client,
            reader,
            request,
            nodes=[one["metadata"]["name"] for one in facts.nodes or ()],
            calls=options.calls,
            callers=options.callers,
            progress=lambda text: click.echo(f"codeexec: measuring {text}", err=True),
        )
        return await measurer.run()


def run(ref: ClusterRef, options: Options, *, as_json: bool) -> None:
    """Print the report.

    Raises:
        click.ClickException: the cluster can't be read, or a call failed.
    """
    try:
        report = asyncio.run(examine(ref, options))
    except CodeExecError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        echo_json(as_dict(report))
    else:
        show(report)


def as_dict(report: Report) -> dict[str, Any]:
    """The report as JSON. Amounts are in cores and bytes."""
    limits, sandbox = report.limits.dump(), report.sandbox
    return {
        "sandbox": {
            "limits": limits,
            "requests": {kind: float(amount) for kind, amount in sandbox.requests.items()} if sandbox else None,
            "policy": report.policy_source or None,
        },
        "nodes": _dicts(report.nodes),
        "quotas": _dicts(report.quotas),
        "limitRangeProblems": list(report.problems),
        "pools": report.pools,
        "total": asdict(report.total) if report.total else None,
        "missing": list(report.missing),
        "measured": asdict(report.measurement) if report.measurement else None,
    }


def _dicts(found: Sequence[NodeFit] | Sequence[QuotaFit] | None) -> list[dict[str, Any]] | None:
    return None if found is None else [asdict(one) for one in found]


def show(report: Report) -> None:
    """The report as text."""
    sections: list[Callable[[], None]] = [lambda: _show_sandbox(report)]
    if report.nodes is not None:
        rows = [[one.node, *map(str, (one.sandboxes, one.more, one.bound, one.at_limits))] for one in report.nodes]
        sections.append(lambda: echo_table(("NODE", "SANDBOXES", "MORE FIT", "BOUND", "FIT AT LIMITS"), rows))
    if report.quotas:
        quotas = [[one.quota, "-" if one.more is None else str(one.more), one.bound] for one in report.quotas]
        sections.append(lambda: echo_table(("QUOTA", "MORE FIT", "BOUND"), quotas))
    if report.pools:
        pools = [list(map(str, one.values())) for one in report.pools]
        sections.append(lambda: echo_table(("POOL", "REPLICAS", "READY", "IN USE", "QUEUED"), pools))
    sections.append(lambda: _show_total(report))
    if report.measurement:
        sections.append(lambda: _show_measurement(report))
    for number, section in enumerate(sections):
        if number:
            click.echo()
        section()


def _show_sandbox(report: Report) -> None:
    if report.sandbox:
        requests, limits = (
            ", ".join(shown(kind, amount) + (" disk" if kind == capacity.DISK else "") for kind, amount in some.items())
            for some in (report.sandbox.requests, report.sandbox.limits)
        )
        click.echo(f"A sandbox requests {requests} ({report.policy_source}).")
        click.echo(f"It may use {limits}.")
    else:
        click.echo("What a sandbox requests is unknown.")


def _show_total(report: Report) -> None:
    if report.total:
        found = report.total
        click.echo(f"{found.more} more sandboxes fit. The bound is: {found.bound}.")
        click.echo(f"If all sandboxes use all their limits, the nodes have room for {found.at_limits} in total.")
    else:
        click.echo("How many sandboxes fit is unknown.")
    for problem in report.problems:
        click.echo(f"Not accepted: {problem}")
    for missing in report.missing:
        click.echo(f"missing right: {missing}")


def _show_measurement(report: Report) -> None:
    found = report.measurement
    if found is None:
        return
    nodes = sum(one.open for one in report.nodes or ())
    if found.results:
        heading = f"CALLS/S OF {found.callers}"
        echo_table(("KIND", "CALLS", "P50", "P95", heading, "CPU EACH"), [_row(one) for one in found.results])
    for one in found.results:
        if one.kind == OWN_POD:
            each = f", {one.per_second / nodes:.2f} for each of {nodes} nodes that take sandboxes" if nodes else ""
            click.echo(f"Pods: {one.per_second:.2f} started and ended in a second{each}.")
    for note in found.notes:
        click.echo(f"note: {note}")


def _row(one: Measured) -> list[str]:
    cpu = "-" if one.cpu_s is None else f"{1000 * one.cpu_s:.0f} ms"
    times = [f"{1000 * seconds:.0f} ms" for seconds in (one.p50_s, one.p95_s)]
    return [one.kind, str(one.calls), *times, f"{one.per_second:.2f}", cpu]
