"""Executions with permits and mounts: what is made for them, in which order, and what becomes of it."""

import ipaddress
from dataclasses import replace
from typing import Any

import pytest
from factories import (
    AGENT,
    CLUSTER_VIEW,
    NOW,
    OPEN,
    PAYLOAD,
    SESSION_REF,
    TARGET,
    UID,
    a_pod,
    a_policy,
    a_raw_mount,
    a_raw_source,
    a_runner,
    a_sandbox,
    a_view,
    an_approval,
    an_execution,
    seconds,
)
from plans import given_up, outcome

from codeexec_api import CodeExecution, CodeExecutionStatus, EgressVerdict, Permit, Phase, Reason
from codeexec_api.names import EGRESS_LABEL, POOL_LABEL
from codeexec_api.permits import opening, parse_permit
from codeexec_operator.core.actions import AskPool, CloseEgress, CreatePod, DeletePod, Forget, Plan, StartCode
from codeexec_operator.core.cluster_view import ClusterView, NodeView
from codeexec_operator.core.egress import Target, explain, judge
from codeexec_operator.core.observed import Observed
from codeexec_operator.core.observed_pod import Fault, Sandbox
from codeexec_operator.core.payload import build_messages, build_report_request
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.timing import Timing
from codeexec_operator.manifests.network_policy import build_network_policy

TIMING = Timing()
FETCH = 1234
PERMIT = {"cidr": "10.1.2.3/32", "port": 443}
WIDE = {"cidr": "0.0.0.0/0", "port": 443}
NODE = NodeView("node-1", "172.18.0.2", 10250, OPEN, frozenset(), frozenset({"172.18.0.2", "203.0.113.7"}))
AROUND = replace(
    CLUSTER_VIEW,
    required=(TARGET,),
    nodes=(NODE,),
    api_servers=frozenset({"198.51.100.4"}),
    never_permit=(ipaddress.ip_network("192.0.2.128/25"),),
)
POLICY = a_policy(
    egress=[PERMIT, {**WIDE, "endPort": 8443}, {"podSelector": {"matchLabels": {"app": "db"}}, "port": 5432}],
    mounts=[a_raw_source(), a_raw_source("settings", config_map=True)],
)


def seen(execution: CodeExecution | None = None, **rest: Any) -> Observed:
    spec = {name: rest.pop(name) for name in ("egress", "mounts", "requestedBy", "timeoutSeconds") if name in rest}
    known = {"policy": POLICY, "since": NOW, "cluster_view": AROUND, "payload": PAYLOAD}
    return Observed(execution=execution or an_execution(**(spec or {"egress": [PERMIT]})), **known | rest)


def plan(observed: Observed, after: float = 0) -> Plan:
    return decide(observed, NOW + seconds(after), TIMING)


def after(observed: Observed, result: Plan, **changes: Any) -> Observed:
    """What is seen next: the status was written."""
    assert result.status is not None
    status = CodeExecutionStatus.model_validate(result.status.dump())
    return replace(observed, execution=observed.execution.model_copy(update={"status": status}), **changes)


def asked_for(observed: Observed) -> tuple[CodeExecutionStatus, CreatePod]:
    result = plan(observed)
    assert isinstance(result.status, CodeExecutionStatus)
    [create] = result.actions
    assert isinstance(create, CreatePod)
    return result.status, create


def attached(**rest: Any) -> Observed:
    """Its pod runs, and the runner has reported."""
    observed = seen(**rest)
    return after(observed, plan(observed), sandbox=a_sandbox(pod=a_pod(), runner=a_runner()))


class TestStart:
    def test_the_policy_comes_with_the_pod_and_the_record_names_what_it_opens(self) -> None:
        status, create = asked_for(seen())
        assert create.network_policy
        assert [(one.permit, one.left_out) for one in status.egress] == [("10.1.2.3/32:443/TCP", ())]
        label = create.manifest["metadata"]["labels"][EGRESS_LABEL]
        assert create.network_policy["spec"]["podSelector"] == {"matchLabels": {EGRESS_LABEL: label}}
        assert label == UID

    def test_without_permits_there_is_none(self) -> None:
        status, create = asked_for(seen(mounts=[a_raw_mount()]))
        assert create.network_policy is None
        assert status.egress == ()
        assert EGRESS_LABEL not in create.manifest["metadata"]["labels"]

    def test_what_nobody_can_permit_is_left_out(self) -> None:
        status, create = asked_for(seen(egress=[WIDE]))
        left_out = set(status.egress[0].left_out)
        assert {"10.96.0.1/32", "172.18.0.2/32", "203.0.113.7/32", "169.254.0.0/16", "127.0.0.0/8"} <= left_out
        assert {"198.51.100.4/32", "192.0.2.128/25"} <= left_out
        assert create.network_policy
        [rule] = create.network_policy["spec"]["egress"]
        assert rule["to"] == [{"ipBlock": {"cidr": "0.0.0.0/0", "except": list(status.egress[0].left_out)}}]

    def test_after_a_restart_it_is_the_same_policy_whatever_nodes_there_are_now(self) -> None:
        observed = seen(egress=[WIDE])
        first = plan(observed)
        again = after(observed, first, cluster_view=replace(AROUND, nodes=()))
        [create], [before] = plan(again).actions, first.actions
        assert isinstance(create, CreatePod)
        assert isinstance(before, CreatePod)
        assert create.network_policy == before.network_policy

    @pytest.mark.parametrize(
        "asked", [{"egress": [PERMIT]}, {"mounts": [a_raw_mount()]}, {"egress": [PERMIT], "mounts": [a_raw_mount()]}]
    )
    def test_no_pool_is_asked(self, asked: dict[str, Any]) -> None:
        [create] = plan(seen(**asked)).actions
        assert isinstance(create, CreatePod)
        assert POOL_LABEL not in create.manifest["metadata"]["labels"]
        [control] = plan(seen(timeoutSeconds=60)).actions
        assert isinstance(control, AskPool)

    @pytest.mark.parametrize(
        ("cidr", "said"),
        [
            ("10.96.0.1/32", "api-server"),
            ("198.51.100.4/32", "api-server"),
            ("172.18.0.2/32", "nodes"),
            ("203.0.113.7/32", "nodes"),
            ("192.0.2.130/32", "sandbox.neverPermit"),
        ],
    )
    def test_api_server_and_nodes_are_refused_whatever_the_policy_says(self, cidr: str, said: str) -> None:
        result = plan(seen(egress=[{"cidr": cidr, "port": 443}]))
        assert outcome(result) == (Phase.DENIED, "PolicyViolation")
        assert result.status
        assert f"spec.egress[0]: no policy or approval can grant {cidr}:443/TCP: " in result.status.message
        assert said in result.status.message

    def test_nobody_is_asked_to_approve_what_nobody_can_permit(self) -> None:
        policy = a_policy(withApproval={"egress": [WIDE]})
        api_server = {"cidr": "10.96.0.1/32", "port": 443}
        assert outcome(plan(seen(egress=[api_server], requestedBy=AGENT, policy=policy)))[0] is Phase.DENIED
        control = plan(seen(egress=[PERMIT], requestedBy=AGENT, policy=policy))
        assert outcome(control)[0] is Phase.AWAITING_APPROVAL

    @pytest.mark.parametrize("asked", [{"egress": [PERMIT]}, {"mounts": [a_raw_mount()]}])
    def test_a_session_has_neither_even_if_the_api_server_let_it_pass(self, asked: dict[str, Any]) -> None:
        execution = an_execution(**asked, **SESSION_REF)
        assert outcome(plan(seen(execution, session=a_view()))) == (Phase.DENIED, "PolicyViolation")
        control = seen(an_execution(**SESSION_REF), session=a_view())
        assert outcome(plan(control))[0] is Phase.RUNNING

    @pytest.mark.parametrize(
        ("lost", "said"),
        [
            (replace(AROUND, nodes=()), "could not list the nodes"),
            (replace(AROUND, api_servers=frozenset()), "could not list the API server's EndpointSlices"),
        ],
        ids=["nodes", "API servers"],
    )
    def test_where_they_are_not_known_no_address_is_opened(self, lost: ClusterView, said: str) -> None:
        result = plan(seen(cluster_view=lost))
        assert outcome(result) == (Phase.DENIED, "EgressNotEnforced")
        assert result.status
        assert said in result.status.message
        selected = {"podSelector": {"matchLabels": {"app": "db"}}, "port": 5432}
        assert outcome(plan(seen(egress=[selected], cluster_view=lost)))[0] is Phase.STARTING

    def test_where_the_policy_can_not_be_made_no_code_runs(self) -> None:
        fault = Fault(Reason.EGRESS_NOT_ENFORCED, "the API server refused the NetworkPolicy")
        observed = seen()
        result = plan(after(observed, plan(observed), sandbox=Sandbox(requested=True, fault=fault)))
        assert outcome(result) == (Phase.FAILED, "EgressNotEnforced")
        assert DeletePod() in result.actions

    def test_a_missing_mount_is_named_when_the_pod_does_not_start(self) -> None:
        observed = seen(mounts=[a_raw_mount("data"), a_raw_mount("conf", a_raw_source("settings", config_map=True))])
        waiting = after(observed, plan(observed), sandbox=Sandbox(a_pod(running=False), requested=True))
        result = given_up(plan, waiting, TIMING.start_timeout)
        assert outcome(result) == (Phase.FAILED, "StartTimeout")
        assert result.status
        assert "The pod mounts pvc:data, configmap:settings: check that each exists" in result.status.message


class TestApproval:
    POLICY = a_policy(withApproval={"egress": [{"cidr": "10.1.0.0/16", "port": 443}]})

    def approved(self, value: str) -> Plan:
        approval = an_approval(grants=[("spec.egress[0]", value)])
        observed = seen(egress=[PERMIT], requestedBy=AGENT, policy=self.POLICY)
        return plan(after(observed, plan(observed), approvals=(approval,)))

    def test_of_exactly_this_permit_opens_it(self) -> None:
        assert outcome(self.approved("10.1.2.3/32:443/TCP"))[0] is Phase.APPROVED

    @pytest.mark.parametrize(
        "value", ["10.1.2.4/32:443/TCP", "10.1.2.3/32:444/TCP", "10.1.2.3/32:443/UDP", "10.1.0.0/16:443/TCP"]
    )
    def test_of_another_does_not(self, value: str) -> None:
        result = self.approved(value)
        assert outcome(result)[0] is Phase.AWAITING_APPROVAL
        assert isinstance(result.status, CodeExecutionStatus)
        assert result.status.approval
        assert [one.reason for one in result.status.approval.unused] == ["OtherGrants"]

    def test_that_was_revoked_closes_what_was_opened(self) -> None:
        approval = an_approval(grants=[("spec.egress[0]", "10.1.2.3/32:443/TCP")])
        observed = seen(egress=[PERMIT], requestedBy=AGENT, policy=self.POLICY)
        for _ in range(3):  # asked for, approved, started
            observed = after(observed, plan(observed), approvals=(approval,))
        assert observed.execution.status.phase is Phase.STARTING
        gone = plan(replace(observed, approvals=(), sandbox=a_sandbox()))
        assert outcome(gone) == (Phase.DENIED, "ApprovalRevoked")
        assert plan(after(observed, gone)).actions == (CloseEgress(),)


class TestProof:
    def test_says_that_all_else_is_closed(self) -> None:
        result = plan(attached())
        assert outcome(result) == (Phase.RUNNING, "CodeStarted")
        status = result.status
        assert isinstance(status, CodeExecutionStatus)
        assert status.egress_proof
        assert status.egress_proof.verdict is EgressVerdict.RESTRICTED
        assert "NetworkPolicy" in status.layers
        [shown] = [one for one in status.conditions if one.type == "EgressClosed"]
        assert (shown.status, shown.reason) == ("True", "Restricted")
        assert shown.message.startswith("permitted: 10.1.2.3/32:443/TCP; no answer inside the sandbox from: api-server")

    def test_is_as_strict_as_without_permits(self) -> None:
        observed = attached()
        opened = replace(observed, sandbox=a_sandbox(runner=a_runner(answered=True)))
        result = plan(opened)
        assert outcome(result) == (Phase.DENIED, "EgressNotEnforced")
        assert result.status
        assert "Either a permit opens it nevertheless (10.1.2.3/32:443/TCP)" in result.status.message
        unproven = replace(observed, cluster_view=replace(AROUND, reached_at={}))
        assert plan(unproven).status is None
        assert outcome(plan(unproven, TIMING.start_timeout)) == (Phase.DENIED, "EgressNotEnforced")

    def test_a_permit_changes_no_other_verdict(self) -> None:
        dns = Target("dns", "10.96.0.10", 53, "UDP")
        opened, _ = _opened("10.1.2.3/32:443")
        for answered, reached in ((True, True), (False, False), (True, False)):
            known = ([dns], {dns: answered}, {dns: NOW} if reached else {}, NOW)
            assert judge(*known, opened=opened).verdict is judge(*known).verdict
        closed = judge([dns], {dns: False}, {dns: NOW}, NOW, opened=opened)
        assert closed.verdict is EgressVerdict.RESTRICTED
        assert "10.1.2.3/32:443/TCP" in explain(closed, opened)


def _opened(text: str) -> Any:
    return opening([parse_permit(text)])


class TestEnd:
    @pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.TIMED_OUT, Phase.CANCELLED, Phase.LOST])
    def test_what_was_opened_is_closed_once(self, phase: Phase) -> None:
        opened, _ = _opened("10.1.2.3/32:443")
        observed = seen(an_execution(phase=phase, status={"egress": opened}, egress=[PERMIT]), sandbox=a_sandbox())
        assert plan(observed) == Plan(actions=(CloseEgress(),))
        assert CloseEgress() not in plan(replace(observed, egress_closed=True)).actions
        assert plan(replace(observed, egress_closed=True, sandbox=Sandbox(gone=True))).actions == (Forget(),)

    @pytest.mark.parametrize("sandbox", [Sandbox(requested=True), Sandbox(a_pod())])
    def test_what_may_have_been_opened_without_a_record_is_closed(self, sandbox: Sandbox) -> None:
        observed = seen(an_execution(phase=Phase.FAILED, egress=[PERMIT]), sandbox=sandbox)
        assert plan(observed).actions == (CloseEgress(),)

    def test_nothing_is_closed_where_nothing_was_opened(self) -> None:
        observed = seen(an_execution(phase=Phase.DENIED, egress=[PERMIT]))
        assert plan(observed).actions == (Forget(),)


class TestRunner:
    def test_is_told_the_ports(self) -> None:
        permits = [
            PERMIT,
            {**PERMIT, "port": 80},
            {**PERMIT, "cidr": "10.1.2.4/32"},
            {**PERMIT, "port": 53, "protocol": "UDP"},
        ]
        execution = an_execution(egress=permits)
        [job] = build_messages(execution, PAYLOAD, stateful=False, fetch_bytes=FETCH)
        assert job["egress"] == build_report_request(execution)["egress"] == {"tcp": [80, 443], "udp": [53]}

    def test_hears_nothing_of_it_without_permits(self) -> None:
        execution = an_execution(mounts=[a_raw_mount()])
        [job] = build_messages(execution, PAYLOAD, stateful=False, fetch_bytes=FETCH)
        assert "egress" not in job
        assert "egress" not in build_report_request(execution)

    def test_is_told_with_the_code(self) -> None:
        result = plan(attached())
        [start] = [one for one in result.actions if isinstance(one, StartCode)]
        assert start.messages[-1]["egress"] == {"tcp": [443], "udp": []}


def test_the_whole_network_policy() -> None:
    execution = an_execution(
        egress=[
            PERMIT,
            {
                "namespaceSelector": {"matchLabels": {"name": "data"}},
                "podSelector": {"matchLabels": {"app": "db"}},
                "port": 5432,
            },
            {"namespaceSelector": {"matchLabels": {"name": "dns"}}, "port": 53, "protocol": "UDP"},
        ]
    )
    opened, _ = opening(execution.spec.egress or ())
    assert build_network_policy(execution, opened) == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": "run-1-0f8fad5b",
            "namespace": "codeexec-sandbox",
            "labels": {"app.kubernetes.io/managed-by": "codeexec", "codeexec.dev/execution": "run-1"},
            "ownerReferences": [
                {
                    "apiVersion": "codeexec.dev/v1alpha1",
                    "kind": "CodeExecution",
                    "name": "run-1",
                    "uid": UID,
                    "controller": True,
                }
            ],
        },
        "spec": {
            "podSelector": {"matchLabels": {"egress.codeexec.dev/execution": UID}},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [
                {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"port": 443, "protocol": "TCP"}]},
                {
                    "to": [
                        {
                            "namespaceSelector": {"matchLabels": {"name": "data"}},
                            "podSelector": {"matchLabels": {"app": "db"}},
                        }
                    ],
                    "ports": [{"port": 5432, "protocol": "TCP"}],
                },
                {
                    "to": [{"namespaceSelector": {"matchLabels": {"name": "dns"}}}],
                    "ports": [{"port": 53, "protocol": "UDP"}],
                },
            ],
        },
    }


def test_mounts_are_read_only_twice_and_named_apart_from_what_is_writable() -> None:
    _, create = asked_for(
        seen(
            mounts=[a_raw_mount("tmp"), a_raw_mount("conf", a_raw_source("settings", config_map=True))],
            policy=a_policy(mounts=[a_raw_source("data"), a_raw_source("settings", config_map=True)]),
        )
    )
    spec = create.manifest["spec"]
    assert spec["volumes"][2:] == [
        {"name": "mount-tmp", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
        {"name": "mount-conf", "configMap": {"name": "settings"}},
    ]
    assert spec["containers"][0]["volumeMounts"][2:] == [
        {"name": "mount-tmp", "mountPath": "/mnt/tmp", "readOnly": True},
        {"name": "mount-conf", "mountPath": "/mnt/conf", "readOnly": True},
    ]


def test_nodes_and_targets_are_reserved_by_all_their_addresses() -> None:
    around = ClusterView(
        required=(TARGET, Target("api-server", "api.example.org", 443), Target("dns", "fd00::a", 53, "UDP")),
        nodes=(NODE,),
        api_servers=frozenset({"172.18.0.2", "198.51.100.4", "api.example.org"}),
        never_permit=(ipaddress.ip_network("192.0.2.128/25"),),
    )
    assert {str(network): what for network, what in around.reserved} == {
        "10.96.0.1/32": "addresses of the api-server",
        "fd00::a/128": "addresses of the dns",
        "172.18.0.2/32": "addresses of the api-server",
        "198.51.100.4/32": "addresses of the api-server",
        "192.0.2.128/25": "addresses that the chart's sandbox.neverPermit names",
        "203.0.113.7/32": "addresses of nodes",
    }


def test_a_permit_for_pods_opens_no_addresses() -> None:
    permit = Permit.model_validate({"podSelector": {"matchLabels": {"app": "db"}}, "port": 5432})
    status, create = asked_for(seen(egress=[permit.dump()]))
    assert status.egress[0].permit == "pods{app=db}:5432/TCP"
    assert create.network_policy
    assert "ipBlock" not in str(create.network_policy)
