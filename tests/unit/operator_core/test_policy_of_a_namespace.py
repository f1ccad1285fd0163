"""A namespace's policy as the API server has it: valid, absent, or not to be understood; and where it is kept."""

from collections.abc import Mapping
from typing import Any

from factories import IMAGE, a_policy

from codeexec_api import ExecutionPolicySpec
from codeexec_api.v1alpha1.bounds import MAX_STORED_BYTES
from codeexec_operator.adapters.policies import Policies
from codeexec_operator.core.observed import PolicyProblem, parse_policy
from codeexec_operator.core.output_place import CONFIG_MAPS, stored_at

METADATA = {"name": "default", "namespace": "codeexec-sandbox", "resourceVersion": "7"}


def test_a_policy_is_parsed() -> None:
    raw = {"metadata": METADATA, "spec": {"images": [IMAGE], "maxTimeoutSeconds": 5}}
    assert parse_policy(raw) == a_policy(maxTimeoutSeconds=5)


def test_no_policy_is_no_problem() -> None:
    assert parse_policy(None) is None


def test_a_policy_of_another_make_is_a_problem_that_names_the_field_and_the_object() -> None:
    raw = {"metadata": METADATA, "spec": {"images": [IMAGE], "maxTimeoutSeconds": -1, "newRule": True}}
    problem = parse_policy(raw)
    assert isinstance(problem, PolicyProblem)
    assert problem.message.startswith("the ExecutionPolicy 'default' in namespace 'codeexec-sandbox' is not valid: ")
    assert "spec.maxTimeoutSeconds" in problem.message
    assert "spec.newRule" in problem.message


class Played:
    """An API server with this policy."""

    def __init__(self, raw: Mapping[str, Any] | None) -> None:
        self.raw = raw

    async def get_policy(self, namespace: str) -> Mapping[str, Any] | None:
        return self.raw


async def test_it_has_the_isolation_of_the_cluster_where_it_names_none() -> None:
    default = a_policy(runtimeClassName="gvisor", requireUserNamespaces=True)
    cluster: Any = Played({"metadata": METADATA, "spec": {"images": [IMAGE], "maxBlocks": 2}})
    policies = Policies(cluster, default, "the cluster's default policy")
    silent = await policies.of("codeexec-sandbox")
    assert silent == a_policy(runtimeClassName="gvisor", requireUserNamespaces=True, maxBlocks=2)
    named = {"metadata": METADATA, "spec": {"images": [IMAGE], "runtimeClassName": "runc"}}
    policies.observe(named, deleted=False)
    assert policies.known("codeexec-sandbox") == a_policy(runtimeClassName="runc", requireUserNamespaces=True)


async def test_it_is_known_where_the_policy_of_a_namespace_is_kept() -> None:
    own = {"metadata": METADATA, "spec": {"images": [IMAGE]}}
    cluster: Any = Played(None)
    policies = Policies(cluster, a_policy(), "the cluster's default policy")
    assert policies.source("codeexec-sandbox") == "the cluster's default policy"
    await policies.of("codeexec-sandbox")
    assert policies.source("codeexec-sandbox") == "the cluster's default policy"
    policies.observe(own, deleted=False)
    assert policies.source("codeexec-sandbox") == "the ExecutionPolicy 'default' in namespace 'codeexec-sandbox'"
    assert policies.source("another") == "the cluster's default policy"
    policies.observe(own, deleted=True)
    assert policies.source("codeexec-sandbox") == "the cluster's default policy"


async def test_a_policy_that_went_while_nobody_watched_is_noticed() -> None:
    cluster: Any = Played({"metadata": METADATA, "spec": {"images": [IMAGE], "maxBlocks": 2}})
    policies = Policies(cluster, a_policy(), "the cluster's default policy")
    assert await policies.of("codeexec-sandbox") == a_policy(maxBlocks=2)
    assert not await policies.read_again("codeexec-sandbox"), "control: it is the same"
    cluster.raw = None
    assert await policies.of("codeexec-sandbox") == a_policy(maxBlocks=2), "control: it is kept"
    assert await policies.read_again("codeexec-sandbox"), "so pools are told"
    assert await policies.of("codeexec-sandbox") == a_policy()


async def test_no_policy_allows_more_output_than_there_is_place_for() -> None:
    most = {"maxLimits": {"outputBytes": MAX_STORED_BYTES}}
    cluster: Any = Played({"metadata": METADATA, "spec": {"images": [IMAGE], **most}})
    for place in (CONFIG_MAPS, stored_at("s3://bucket")):
        policies = Policies(cluster, a_policy(**most), "the cluster's default policy", place)
        own = await policies.of("codeexec-sandbox")
        assert isinstance(own, ExecutionPolicySpec)
        assert own.max_limits.output_bytes == policies.default.max_limits.output_bytes == place.output_bytes
