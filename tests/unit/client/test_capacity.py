"""How many sandboxes fit: as the scheduler and the quota count."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from codeexec_api import ExecutionPolicySpec, Limits, PodRequests
from executor_client.cli import main
from executor_client.cli.capacity import (
    NodeFit,
    QuotaFit,
    Sandbox,
    closed_because,
    fits,
    forbidden,
    quota_fits,
    requests_of,
    total,
)
from executor_client.cli.capacity_measure import CpuMeter, Measured, Measurement, cores, cpu_each
from executor_client.cli.capacity_page import as_dict, judge, show
from executor_client.cli.capacity_reader import Facts, Missing
from executor_client.cli.diagnosis import Right

LIMITS = Limits(cpu="500m", memory="256Mi", ephemeral_storage="256Mi")
SANDBOX = Sandbox.make(PodRequests(cpu="20m", memory="64Mi", ephemeral_storage="16Mi"), LIMITS)
IMAGE = "registry.example/sandbox@sha256:" + "a" * 64


def a_node(name: str = "one", *, labels: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    spec = {key: changes.pop(key) for key in ("taints", "unschedulable") if key in changes}
    conditions = changes.pop("conditions", [{"type": "Ready", "status": "True"}])
    room = {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "20Gi", "pods": "110", **changes}
    status = {"allocatable": room, "conditions": conditions}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": status}


def a_pod(node: str = "one", *, ours: bool = False, phase: str = "Running", **requests: str) -> dict[str, Any]:
    labels = {"codeexec.dev/session": "it"} if ours else {}
    container = {"resources": {"requests": requests}}
    return {
        "metadata": {"name": "p", "labels": labels},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": phase},
    }


def a_quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    status = {"hard": hard, "used": used if used is not None else dict.fromkeys(hard, "0")}
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": status}


@pytest.mark.parametrize(
    ("room", "more", "bound"),
    [
        ({}, 64, "memory requests"),
        ({"cpu": "1"}, 50, "CPU requests"),
        ({"cpu": "1950m", "memory": "64Gi"}, 97, "CPU requests"),
        ({"cpu": "32", "memory": "64Gi"}, 110, "pods per node"),
        ({"cpu": "32", "memory": "64Gi", "ephemeral-storage": "160Mi"}, 10, "disk requests"),
        ({"memory": "63Mi"}, 0, "memory requests"),
        ({"cpu": "640m", "memory": "2Gi"}, 32, "CPU requests and memory requests"),
    ],
)
def test_what_is_used_up_first_is_the_bound(room, more, bound) -> None:
    [fit] = fits([a_node(**room)], [], SANDBOX)
    assert (fit.more, fit.bound) == (more, bound)


def test_a_node_that_tells_of_no_room_has_none() -> None:
    node = a_node()
    del node["status"]["allocatable"]
    assert fits([node], [a_pod()], SANDBOX) == [NodeFit("one", 0, 0, "pods per node", 0)]


def test_what_pods_request_is_gone_and_what_ended_is_not() -> None:
    pods = [a_pod(cpu="950m"), a_pod(ours=True, cpu="50m"), a_pod(phase="Succeeded", cpu="1"), a_pod("other", cpu="2")]
    [fit] = fits([a_node(memory="64Gi")], pods, SANDBOX)
    assert (fit.sandboxes, fit.more, fit.bound) == (1, 50, "CPU requests")
    assert fit.at_limits == 2, "1.05 CPU besides other pods, 0.5 for each"


def test_a_pod_counts_as_kubernetes_counts_it() -> None:
    def one(cpu: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    sidecar = one("100m", restartPolicy="Always")
    spec = {"containers": [one("200m"), one("300m")], "initContainers": [sidecar, one("900m")]}
    assert str(requests_of({"spec": spec})["cpu"]) == "1.000", "the init container beside the sidecar"
    spec |= {"initContainers": [sidecar], "overhead": {"cpu": "50m"}}
    assert str(requests_of({"spec": spec})["cpu"]) == "0.650"
    assert str(requests_of({"spec": {**spec, "resources": {"requests": {"cpu": "2"}}}})["cpu"]) == "2.050"


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({}, ""),
        ({"unschedulable": True}, "cordoned"),
        ({"taints": [TAINT]}, "taint gpu:NoSchedule"),
        ({"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, ""),
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, "not ready"),
        ({"conditions": []}, "not ready"),
        ({"conditions": [{"type": "MemoryPressure", "status": "False"}]}, "not ready"),
    ],
)
def test_a_node_that_takes_no_sandboxes_says_why(node, why) -> None:
    assert closed_because(a_node(**node), SANDBOX) == why
    [fit] = fits([a_node(**node)], [], SANDBOX)
    assert (fit.more == 0) == bool(why)


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "no"}, False),
    ],
)
def test_a_runtime_class_opens_nodes_and_adds_its_overhead(toleration, tolerated) -> None:
    scheduling = {"nodeSelector": {"kind": "kata"}, "tolerations": [toleration]}
    raw = {"overhead": {"podFixed": {"cpu": "80m", "memory": "64Mi"}}, "scheduling": scheduling}
    sandbox = Sandbox.make(PodRequests(), LIMITS, raw)
    assert str(sandbox.requests["cpu"]) == "0.100"
    assert closed_because(a_node(taints=[TAINT], labels={"kind": "kata"}), sandbox) == (
        "" if tolerated else "taint gpu:NoSchedule"
    )
    assert closed_because(a_node(), sandbox) == "lacks the label kind=kata"


def test_a_pod_with_a_lower_limit_requests_its_limit() -> None:
    assert str(Sandbox.make(PodRequests(cpu="600m"), LIMITS).requests["cpu"]) == "0.500"


@pytest.mark.parametrize(
    ("quota", "found"),
    [
        (a_quota({"pods": "20", "limits.cpu": "10"}), QuotaFit("q", 20, "limits.cpu and pods")),
        (a_quota({"pods": "20", "limits.cpu": "5"}), QuotaFit("q", 10, "limits.cpu")),
        (a_quota({"pods": "20", "limits.cpu": "5"}, {"limits.cpu": "4600m"}), QuotaFit("q", 0, "limits.cpu")),
        (a_quota({"requests.memory": "1Gi", "count/pods": "90"}), QuotaFit("q", 16, "requests.memory")),
        (a_quota({"cpu": "100m"}), QuotaFit("q", 5, "cpu")),
        (a_quota({"count/secrets": "1"}), QuotaFit("q", None, "limits no pods")),
        (a_quota({"pods": "1"}, scopes=["BestEffort"]), QuotaFit("q", None, "counts only pods of its scopes")),
        ({"metadata": {"name": "q"}, "spec": {}, "status": {}}, QuotaFit("q", None, "not counted yet")),
    ],
)
def test_a_quota_counts_what_it_names(quota, found) -> None:
    assert quota_fits([quota], SANDBOX) == [found]


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"max": {"cpu": "1"}}, ""),
        ({"max": {"cpu": "250m"}}, "limits.cpu is 0.5 CPU, at most 0.25 CPU is allowed"),
        ({"min": {"memory": "128Mi"}}, "requests.memory is 64 MiB, at least 128 MiB is allowed"),
        ({"maxLimitRequestRatio": {"cpu": "10"}}, "limits.cpu is 25.0 times requests.cpu, at most 10 times is allowed"),
    ],
)
def test_a_limit_range_that_refuses_the_sandbox_says_why(item, problem) -> None:
    ranges = [{"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", **item}]}}]
    assert forbidden(ranges, SANDBOX) == ([f"LimitRange 'r': {problem}"] if problem else [])


@pytest.mark.parametrize("kind", ["Container", "Pod"])
def test_a_limit_range_counts_containers_and_not_the_overhead_of_a_runtime_class(kind) -> None:
    overhead = {"overhead": {"podFixed": {"cpu": "250m", "memory": "160Mi"}}}
    sandbox = Sandbox.make(PodRequests(cpu="20m", memory="64Mi"), LIMITS, overhead)
    assert sandbox.limits["memory"] == 416 * 2**20, "control: a quota and a node count the overhead"

    def found(**item: Any) -> list[str]:
        return forbidden([{"metadata": {"name": "r"}, "spec": {"limits": [{"type": kind, **item}]}}], sandbox)

    allowed = {"max": {"cpu": "500m", "memory": "256Mi"}, "maxLimitRequestRatio": {"cpu": "25"}}
    assert found(**allowed) == []
    assert found(max={"memory": "255Mi"}) == [
        "LimitRange 'r': limits.memory is 256 MiB, at most 255 MiB is allowed",
    ]
    assert found(min={"memory": "100Mi"}) == [
        "LimitRange 'r': requests.memory is 64 MiB, at least 100 MiB is allowed",
    ]
    assert found(maxLimitRequestRatio={"cpu": "24"}) == [
        "LimitRange 'r': limits.cpu is 25.0 times requests.cpu, at most 24 times is allowed",
    ]


def test_the_total_names_the_bound_that_is_met_first() -> None:
    nodes = [NodeFit("a", 0, 30, "CPU requests", 2), NodeFit("b", 0, 0, "cordoned", 0, open=False)]
    assert (total(nodes, []).more, total(nodes, []).bound) == (30, "CPU requests")
    found = total(nodes, [QuotaFit("q", 20, "pods"), QuotaFit("other", None, "limits no pods")])
    assert (found.more, found.bound, found.at_limits) == (20, "quota q, pods", 2)
    assert total([nodes[1]], []).bound == "no node takes sandboxes"
    assert total(nodes, [], ["LimitRange 'r': no"]).more == 0


def a_policy() -> ExecutionPolicySpec:
    return ExecutionPolicySpec.model_validate({"images": [IMAGE], "requests": {"cpu": "100m"}})


def test_what_may_not_be_read_is_named_and_not_guessed(capsys) -> None:
    right = Missing(Right("", "pods", "list"), "in all namespaces", "what the nodes' room is used for is unknown")
    facts = Facts(policy=a_policy(), policy_source="the default policy", nodes=[a_node()], quotas=[], limit_ranges=[])
    facts.missing.append(right)
    report = judge(facts, LIMITS)
    assert (report.nodes, report.total) == (None, None)
    assert as_dict(report)["missing"] == [
        "list pods in all namespaces: what the nodes' room is used for is unknown",
    ]
    show(report)
    out = capsys.readouterr().out
    assert "How many sandboxes fit is unknown." in out
    assert "missing right: list pods in all namespaces" in out
    assert "requests 0.1 CPU, 64 MiB, 16 MiB disk (the default policy)" in out
    nothing = judge(Facts(), LIMITS)
    assert (nothing.sandbox, nothing.nodes, nothing.quotas, nothing.total) == (None, None, None, None)


def test_all_of_it_is_shown(capsys) -> None:
    pool = {"metadata": {"name": "default"}, "spec": {"replicas": 3}, "status": {"readyReplicas": 2, "queued": 1}}
    facts = Facts(a_policy(), "p", [a_node()], [], [a_quota({"pods": "7"})], [], [pool])
    measured = Measurement(4, [Measured("own pod", 10, 1.7, 1.8, 1.5, 0.9), Measured("session", 10, 0.04, 0.05, 9)])
    report = judge(facts, LIMITS)
    show(type(report)(**{**vars(report), "measurement": measured}))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "one 0 20 CPU requests 4" in lines
    assert "q 7 pods" in lines
    assert "default 3 2 0 1" in lines
    assert "7 more sandboxes fit. The bound is: quota q, pods." in lines
    assert "own pod 10 1700 ms 1800 ms 1.50 900 ms" in lines
    assert "session 10 40 ms 50 ms 9.00 -" in lines
    assert "Pods: 1.50 started and ended in a second, 1.50 for each of 1 nodes that take sandboxes." in lines
    json.dumps(as_dict(report))


def test_the_cpu_of_a_call_is_what_nodes_used_more_than_at_rest() -> None:
    before, after = {"a": (0.0, 100.0), "b": (5.0, 50.0)}, {"a": (20.0, 130.0), "b": (15.0, 60.0)}
    assert cores(before, after) == {"a": 1.5, "b": 1.0}
    assert cpu_each(before, after, {"a": 0.5, "b": 0}, calls=10) == pytest.approx(3)
    assert cpu_each(before, after, {"a": 2, "b": 2}, calls=10) == 0


async def test_figures_of_the_nodes_count_when_each_kubelet_has_measured_again() -> None:
    answers = {"a": iter([(1.0, 10.0), (1.0, 10.0), (2.0, 11.0)]), "b": iter([(1.0, 5.0), (2.0, 6.0), (3.0, 7.0)])}

    async def ask(node: str) -> tuple[float, float] | str:
        return next(answers[node])

    assert await CpuMeter(ask, ["a", "b"], pause=0).fresh() == {"a": (2.0, 11.0), "b": (3.0, 7.0)}


async def test_what_the_nodes_use_at_rest_is_measured_first() -> None:
    answers = iter([(0.0, 1.0), (10.0, 2.0), (10.0, 2.0), (30.0, 12.0)])

    async def ask(node: str) -> tuple[float, float] | str:
        return next(answers)

    meter = CpuMeter(ask, ["a"], rest_seconds=0, pause=0)
    await meter.rest()
    assert meter.at_rest == {"a": 0.5}


async def test_why_cpu_is_not_measured_is_said() -> None:
    async def refuse(node: str) -> tuple[float, float] | str:
        return "the right get nodes/proxy is missing"

    says = "CPU was not measured: "
    assert await CpuMeter(refuse, ["a"]).why_not() == f"{says}the right get nodes/proxy is missing"
    assert await CpuMeter(refuse, []).why_not() == f"{says}the nodes are unknown"
    assert "more than 50 nodes" in await CpuMeter(refuse, [str(one) for one in range(51)]).why_not()


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--measure", "5"], "--measure needs --capacity"), (["--capacity", "--cpu", "many"], "cpu")],
)
def test_wrong_usage_is_said(options, says) -> None:
    done = CliRunner().invoke(main, ["doctor", *options])
    assert done.exit_code == 2
    assert says in done.output
