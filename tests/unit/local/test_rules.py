"""When the local executor runs at all, and what JSON can't say. Pure functions, and the executor's own refusals."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from codeexec_api import ExecutionPolicySpec, Limits
from executor_client import (
    LocalApproval,
    LocalRunNotApproved,
    LocalSandboxExecutor,
    LocalSandboxUnavailable,
)
from executor_client.local.approval import demand_approval, signs_of_production
from executor_client.local.plan import Machine, check_endpoint, plan
from executor_client.runtime import telemetry

NOW = datetime(2026, 1, 1, tzinfo=UTC)
APPROVAL = LocalApproval("ann@example.org", "an incident", NOW + timedelta(hours=1))
IN_TIME = LocalApproval("ann@example.org", "an incident", datetime.max.replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("environ", "signs"),
    [
        ({}, []),
        ({"CODEEXEC_ENVIRONMENT": "development", "KUBERNETES_SERVICE_HOST": ""}, []),
        ({"CODEEXEC_ENVIRONMENT": "reproduce"}, []),
        ({"CODEEXEC_ENVIRONMENT": "Production"}, ["CODEEXEC_ENVIRONMENT=Production"]),
        ({"CODEEXEC_ENVIRONMENT": "prod-eu1"}, ["CODEEXEC_ENVIRONMENT=prod-eu1"]),
        ({"CODEEXEC_ENVIRONMENT": "non-prod"}, ["CODEEXEC_ENVIRONMENT=non-prod"]),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=a, deployment.environment.name=live"},
            ["deployment.environment.name=live in OTEL_RESOURCE_ATTRIBUTES"],
        ),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=%70rod"},
            ["deployment.environment=prod in OTEL_RESOURCE_ATTRIBUTES"],
        ),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=prod"}, []),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "CODEEXEC_ENVIRONMENT": "development"},
            ["KUBERNETES_SERVICE_HOST is set: this is a pod of a Kubernetes cluster"],
        ),
    ],
)
def test_what_counts_as_production(environ: dict[str, str], signs: list[str]) -> None:
    assert signs_of_production(environ) == signs


def test_production_needs_an_approval_that_holds() -> None:
    production = {"CODEEXEC_ENVIRONMENT": "production"}
    demand_approval({}, None, NOW)
    demand_approval(production, APPROVAL, NOW)
    with pytest.raises(LocalRunNotApproved, match=r"production \(CODEEXEC_ENVIRONMENT=production\).*no approval"):
        demand_approval(production, None, NOW)
    with pytest.raises(LocalRunNotApproved, match=r"by ann@example.org expired at 2026-01-01T01:00:00"):
        demand_approval(production, APPROVAL, APPROVAL.expires_at)
    with pytest.raises(LocalRunNotApproved, match="Use KubernetesCodeExecutor, or pass approval="):
        demand_approval(production, APPROVAL, NOW + timedelta(days=1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"approver": " "}, "approver is ' ', but must not be empty"),
        ({"reason": ""}, "reason is '', but must not be empty"),
        ({"expires_at": datetime(2030, 1, 1)}, "must have a time zone"),  # noqa: DTZ001
    ],
)
def test_an_approval_says_who_why_and_until_when(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LocalApproval(**{"approver": "ann", "reason": "because", "expires_at": NOW, **change})
    other = timezone(timedelta(hours=5))
    assert LocalApproval("ann", "because", NOW.astimezone(other)).expires_at == NOW


async def test_an_executor_is_refused_in_production(monkeypatch: pytest.MonkeyPatch, make: Any, run: Any) -> None:
    early = make()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(LocalRunNotApproved):
        make()
    with pytest.raises(LocalRunNotApproved):
        await run(early, "print(1)")
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_TRACER", provider.get_tracer("test"))
    result = await run(make(approval=IN_TIME), "print(1)")
    assert result.output == "1\n"
    with pytest.raises(LocalRunNotApproved):
        await run(early, "print(1)")
    approved, refused = exporter.get_finished_spans()
    assert approved.attributes
    assert approved.attributes["codeexec.approval.approver"] == "ann@example.org"
    assert refused.attributes
    assert refused.attributes["error.type"] == "LocalRunNotApproved"
    assert "codeexec.code.digest" in refused.attributes


async def test_an_approval_does_not_appear_where_none_is_needed(monkeypatch: Any, make: Any, run: Any) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_TRACER", provider.get_tracer("test"))
    await run(make(approval=IN_TIME), "print(1)")
    [span] = exporter.get_finished_spans()
    assert "codeexec.approval.approver" not in span.attributes


@pytest.mark.parametrize("field", ["approval", "endpoints", "policy"])
def test_json_can_not_widen_anything(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGEN_ALLOWED_PROVIDER_NAMESPACES", "executor_client")
    dumped = LocalSandboxExecutor(approval=IN_TIME, endpoints=["127.0.0.1:1"]).dump_component().model_dump()
    assert field not in dumped["config"]
    dumped["config"][field] = {"approver": "the agent itself"}
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        CodeExecutor.load_component(dumped)


def test_a_policy_of_its_own_is_not_lost_in_json() -> None:
    policy = ExecutionPolicySpec(images=(f"a@sha256:{'0' * 64}",))
    with pytest.raises(ValueError, match="an executor with a policy can't be dumped"):
        LocalSandboxExecutor(policy=policy).dump_component()


def test_settings_survive_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOGEN_ALLOWED_PROVIDER_NAMESPACES", "executor_client")
    executor = LocalSandboxExecutor(timeout=7, work_dir=tmp_path, limits=Limits(memory="64Mi"), agent="a")
    loaded = CodeExecutor.load_component(executor.dump_component().model_dump())
    assert isinstance(loaded, LocalSandboxExecutor)
    assert loaded.dump_component() == executor.dump_component()
    assert (loaded.timeout, loaded.work_dir) == (7, tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 0}, "Timeout must be greater than or equal to 1"),
        ({"functions_module": "class"}, "functions_module is 'class'"),
        ({"endpoints": ["*:443"]}, "endpoints has '\\*:443'"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LocalSandboxExecutor(**options)


async def test_no_blocks_are_an_error(executor: Any) -> None:
    with pytest.raises(ValueError, match="No code blocks to execute"):
        await executor.execute_code_blocks([], CancellationToken())
    many = [CodeBlock("1", "python")] * 65
    with pytest.raises(ValueError, match="65 blocks are too many"):
        await executor.execute_code_blocks(many, CancellationToken())


@pytest.mark.parametrize("endpoint", ["api.example.org:443", "127.0.0.1:80", "[::1]:8080", "localhost:1"])
def test_an_endpoint_is_a_host_and_a_port(endpoint: str) -> None:
    assert check_endpoint(endpoint) == endpoint


@pytest.mark.parametrize(
    "endpoint",
    ["", "host", "host:", ":443", "host:0", "host:65536", "host:1,2", "*:1", "udp://h:1", "10.0.0.0/8:1", "h:1 "],
)
def test_anything_else_is_no_endpoint(endpoint: str) -> None:
    with pytest.raises(ValueError, match="one host and one port"):
        check_endpoint(endpoint)


def a_plan(**limits: Any) -> Any:
    machine = Machine("/opt/venv/bin/python", ("/opt/venv", "/usr", "/opt/venv"), Path("/home/ann"), "x86_64")
    return plan(
        ["x"], machine=machine, workspace=Path("/s/workspace"), temporary=Path("/s/tmp"), limits=Limits(**limits)
    )


@pytest.mark.parametrize(
    ("cpu", "cores", "percent"), [("500m", 1, 50), ("1m", 1, 1), ("1", 1, None), ("1500m", 2, None)]
)
def test_cpu_is_a_share_of_a_core_or_a_number_of_cores(cpu: str, cores: int, percent: int | None) -> None:
    found = a_plan(cpu=cpu)
    assert (found.cores, found.cpu_percent) == (cores, percent)


def test_the_plan_names_nothing_of_the_caller_s() -> None:
    found = a_plan(memory="1Mi", pids=3, ephemeral_storage="2Mi")
    assert (found.memory_bytes, found.processes, found.file_bytes) == (2**20, 3, 2**21)
    assert found.writable == ("/s/workspace", "/s/tmp", "/dev/null")
    assert not [path for path in found.readable if path.startswith(("/home", "/root", "/proc", "/sys", "/var", "/run"))]
    assert {"/etc", "/"}.isdisjoint(found.readable)
    assert found.env["HOME"] == "/s/workspace"


@pytest.mark.parametrize("prefix", ["/", "/home", "/home/ann"])
def test_a_python_that_is_installed_in_the_home_folder_is_refused(prefix: str) -> None:
    machine = Machine("/x/python", (prefix,), Path("/home/ann"), "aarch64")
    with pytest.raises(LocalSandboxUnavailable, match=f"installed in {prefix}, which contains the home folder"):
        plan(["x"], machine=machine, workspace=Path("/s"), temporary=Path("/t"), limits=Limits())
