"""Simulated nodes keep other pods away, and count what their runners were given."""

import sys
from pathlib import Path

from kubernetes.aio import client
from scripted_runner import Script

sys.path.append(str(Path(__file__).parents[2] / "scale"))
import simulated_kubelets

from codeexec_operator.core.cluster_view import parse_node


def test_a_simulated_node_is_closed_to_pods_that_do_not_ask_for_it() -> None:
    node = simulated_kubelets.node("simulated-000", "172.18.0.1", simulated_kubelets.PORT)
    assert parse_node(node).meant_for == frozenset()
    assert [one["effect"] for one in node["spec"]["taints"]] == ["NoSchedule"]


async def test_jobs_and_pods_that_were_used_twice_are_counted() -> None:
    script = Script(pods_used_twice=1)
    async with client.ApiClient() as api:
        kubelets = simulated_kubelets.Kubelets(api, namespace=None, address="172.18.0.1", port=1, script=script)
    for job in ("a", "a", "b"):
        script.handed_over(job)
    assert (kubelets.counts.jobs, kubelets.counts.pods_used_twice) == (3, 1)
