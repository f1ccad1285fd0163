"""The release as it is watched: one `helm upgrade` for all tests that read what the operator tells of itself.

These tests are marked `release`: nothing else runs meanwhile, and the operator begins its log with the upgrade.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import otlp_receiver
import pytest
from cluster_fixtures import REACH_PROBE, ControlPod
from cluster_tools import SYSTEM, Admin, helm, image, operator_pod, upgrade_release
from prometheus_client.parser import text_string_to_metric_families

COLLECTOR_PORT = 4318
METRICS = f"http://codeexec-operator-metrics.{SYSTEM}:8082/metrics"
SPANS_OF = f"""
import json, urllib.request
def spans_of(execution):
    with urllib.request.urlopen("http://127.0.0.1:{COLLECTOR_PORT}/spans", timeout=60) as answer:
        # Who gets no answer in time sends them once more.
        spans = list({{one["id"]: one for one in json.load(answer)}}.values())
    traces = {{one["trace"] for one in spans if one["attributes"].get("codeexec.execution.name") == execution}}
    return [one for one in spans if one["trace"] in traces]
"""
FETCH = "import urllib.request\nprint(urllib.request.urlopen({url!r}, timeout=60).read().decode())"

Spans = list[dict[str, Any]]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="session")
def collector(make_control_pod: Callable[..., ControlPod]) -> ControlPod:
    """A pod that takes spans. The operator's image has what is needed to read them."""
    source = Path(otlp_receiver.__file__).read_text()
    container = {"image": image("OPERATOR_IMAGE"), "command": ["python3", "-c", source, str(COLLECTOR_PORT)]}
    pod = make_control_pod("collector", container)
    pod.wait_for("the collector to listen", f"reaches('127.0.0.1', {COLLECTOR_PORT})", REACH_PROBE)
    return pod


@pytest.fixture(scope="session")
def reader(make_control_pod: Callable[..., ControlPod]) -> ControlPod:
    """A pod in the namespace that may read metrics."""
    return make_control_pod("reader", {"command": ["sleep", "infinity"]})


@pytest.fixture(scope="session")
def observed(kubeconfig: str, collector: ControlPod, reader: ControlPod) -> Iterator[None]:
    """An operator that serves metrics and sends spans; it gets its old values back, unless somebody was faster."""
    assert collector.namespace == reader.namespace
    values = {
        "metrics.enabled": "true",
        "metrics.scrapeNamespaces": f"{{{reader.namespace}}}",
        "telemetry.otlp.endpoint": f"http://{collector.ip}:{COLLECTOR_PORT}",
        "telemetry.otlp.namespaces": f"{{{collector.namespace}}}",
    }
    environment = {"OTEL_BSP_SCHEDULE_DELAY": "500", "OTEL_EXPORTER_OTLP_TIMEOUT": "2"}
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    for key, value in environment.items():
        settings += ["--set-string", f"telemetry.otlp.environment.{key}={value}"]
    upgrade_release(kubeconfig, *settings)
    ours = _revision(kubeconfig)
    yield
    if _revision(kubeconfig) == ours:
        helm(kubeconfig, "rollback", "codeexec", "--wait", "--timeout", "2m")


def _revision(kubeconfig: str) -> tuple[int, str]:
    """Of the release: the tests of the installation begin a new one."""
    status = json.loads(helm(kubeconfig, "status", "codeexec", "-o", "json"))
    return status["version"], status["info"]["first_deployed"]


@pytest.fixture(scope="session")
def spans_of(observed: None, collector: ControlPod) -> Callable[[str], Spans]:
    """The operator's spans of an execution, once they have arrived: they are sent together, the whole last."""

    def find(execution: str) -> Spans:
        spans: Spans = collector.wait_for(f"spans of {execution}", f"spans_of({execution!r})", SPANS_OF)
        named = [one for one in spans if one["attributes"].get("codeexec.execution.name") == execution]
        assert len(named) == 1, json.dumps(named, indent=1)
        return spans

    return find


@pytest.fixture(scope="session")
def samples(observed: None, reader: ControlPod) -> Callable[[], Samples]:
    """What /metrics says."""

    def read() -> Samples:
        families = text_string_to_metric_families(reader(FETCH.format(url=METRICS)))
        return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}

    return read


def the_one(spans: Spans, name: str) -> dict[str, Any]:
    [span] = [one for one in spans if one["name"] == name]
    return span


def operator_log(admin: Admin) -> str:
    """Of the process that runs now, as far as the node keeps it."""
    return admin.logs(SYSTEM, operator_pod(admin)["metadata"]["name"])


def audit_lines(log: str) -> list[dict[str, Any]]:
    found = (json.loads(line) for line in log.splitlines() if line.startswith("{") and '"audit"' in line)
    return [one["audit"] for one in found if isinstance(one.get("audit"), dict)]
