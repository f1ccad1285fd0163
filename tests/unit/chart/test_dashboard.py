"""The dashboard, the document and the operator speak of the same metrics."""

import json
import re
from typing import Any

import pytest
from chart.helm import CHART, ROOT, render
from prometheus_client import CollectorRegistry

from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.core.measures import Census, PoolCount

DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
NAME = re.compile(r"\b(?:codeexec|process)_[a-z_]+\b")


@pytest.fixture(scope="module")
def families() -> dict[str, Any]:
    """What the operator exposes: each family with the names of its labels."""
    metrics = Metrics("1")
    metrics.leads(lambda: Census({}, {}, [PoolCount("box", 1, 1, 1, 1, 1, last_refill_ms=1)]), lambda: {"box": True})
    return {family.name: family for family in metrics.registry.collect()}


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def exposed(families: dict[str, Any]) -> set[str]:
    kinds = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",), "gauge": ("",)}
    return {name + suffix for name, family in families.items() for suffix in kinds[family.type]}


def test_each_metric_of_the_dashboard_is_one_that_the_operator_exposes(families) -> None:
    used = {name for text in expressions() for name in NAME.findall(text)}
    assert used
    assert used <= exposed(families)


def test_each_metric_of_ours_is_on_the_dashboard_and_in_the_document(families) -> None:
    ours = {name for name in families if name.startswith("codeexec_")}
    text = (ROOT / "docs" / "telemetry.md").read_text()
    documented = set(re.findall(r"^\| `(codeexec_[a-z_]+)`", text, flags=re.MULTILINE))
    kinds = {"counter": "_total", "info": "_info"}
    assert documented == {name + kinds.get(families[name].type, "") for name in ours}
    for name in ours:
        assert any(re.search(rf"\b{name}(_total|_bucket|_info)?\b", expression) for expression in expressions()), name


def test_labels_are_those_that_the_operator_gives(families) -> None:
    """In selectors and in `by (…)`; what joins with the target's own labels aside."""
    labels = {"le", "instance", "job", "version", "sandbox_namespace", "phase", "reason", "languages", "origin"}
    labels |= {"status", "result"}
    for expression in expressions():
        grouped = {name for group in re.findall(r"by \(([^)]*)\)", expression) for name in group.split(", ")}
        selected = set(re.findall(r"[{,]\s*([a-z_]+)[=!]", expression))
        assert grouped | selected <= labels, expression


def test_no_label_is_a_name_of_an_execution_or_of_a_person(families) -> None:
    """The labels are closed sets, so that their number is bounded whatever agents do."""
    known = {"sandbox_namespace", "phase", "reason", "languages", "origin", "status", "result", "version", "le"}
    metrics = Metrics("1")
    for collector in vars(metrics).values():
        assert set(getattr(collector, "_labelnames", ())) <= known
    used = {label for family in families.values() for sample in family.samples for label in sample.labels}
    assert used <= known


def test_panels_do_not_overlap_and_each_says_what_it_shows() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["title"]
        assert panel["description"]
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + 8)}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_chart_ships_the_dashboard_as_it_is() -> None:
    objects = render("--set", "metrics.enabled=true", "--set", "metrics.dashboard.enabled=true")
    [held] = [one["data"]["codeexec.json"] for one in objects if "codeexec.json" in one.get("data", {})]
    assert json.loads(held) == DASHBOARD


def test_the_registry_is_not_the_one_that_all_share() -> None:
    """Two of them in one process don't get in each other's way."""
    assert isinstance(Metrics("1").registry, CollectorRegistry)
    assert Metrics("1").registry is not Metrics("1").registry


def alerts() -> list[str]:
    block = (ROOT / "docs" / "telemetry.md").read_text().split("```promql\n")[1].split("```")[0]
    return [line.partition(" # ")[0].strip() for line in block.splitlines() if line and not line.startswith("#")]


def test_alerts_use_only_metrics_that_the_operator_exposes(families) -> None:
    assert alerts()
    assert {name for alert in alerts() for name in NAME.findall(alert)} <= exposed(families)


def test_an_alert_sees_the_first_event_although_its_series_begins_with_it() -> None:
    """`increase` sees no rise in a series that begins with 1: it has to be there with 0, or its beginning counts."""
    there = {one.name for family in Metrics("1").registry.collect() for one in family.samples}
    counters = [(alert, name) for alert in alerts() for name in re.findall(r"increase\((\w+)", alert)]
    assert counters
    for alert, name in counters:
        assert name in there or re.search(rf"or \({name}(\{{.*\}})? unless {name}\1 offset 10m\)", alert), alert
