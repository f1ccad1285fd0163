"""What separates code from the kernel of its node: what a pod shows of it, and what follows for all that runs code."""

from dataclasses import replace
from typing import Any

import pytest
from factories import (
    BOOT_ID,
    CLUSTER_VIEW,
    NOW,
    OPEN,
    PAYLOAD,
    SESSION_REF,
    a_pod,
    a_policy,
    a_runner,
    a_sandbox,
    a_session,
    a_view,
    an_execution,
    seconds,
)
from hypothesis import given
from hypothesis import strategies as st
from plans import outcome

from codeexec_api import Boundary, CodeExecution, ExecutionPolicySpec, Phase, Reason, SandboxPool, SessionPhase
from codeexec_api.scheduling import Scheduling
from codeexec_operator.core.actions import AdmitMember, CreateMember, CreatePod, DropMember, Plan, StartCode
from codeexec_operator.core.cluster_view import ClusterView, NodeView, RuntimeClass
from codeexec_operator.core.isolation import awaits_node, look_at, promised, unobtainable
from codeexec_operator.core.observed import Observed, ObservedSession
from codeexec_operator.core.observed_pod import PodView, Sandbox
from codeexec_operator.core.observed_pool import Member, ObservedPool
from codeexec_operator.core.pod_template import Template, template_of
from codeexec_operator.core.pool import decide_pool
from codeexec_operator.core.readiness import Readiness
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.session import decide_session
from codeexec_operator.core.timing import Timing

NODE_BOOT_ID = "0f0e0d0c-0b0a-4908-8706-050403020100"
TIMING = Timing()
GVISOR, KATA = a_pod(runtime_class_name="gvisor"), a_pod(runtime_class_name="vm")
OWN_USERS = a_pod(user_namespace=True)
DEMANDING = a_policy(requireUserNamespaces=True)
CLASSES = {"gvisor": RuntimeClass("runsc"), "vm": RuntimeClass("kata-qemu"), "fast": RuntimeClass("crun")}


def a_node(name: str = "node-1", *, boot_id: str = NODE_BOOT_ID, user_namespaces: bool = True) -> NodeView:
    handlers = frozenset({""} if user_namespaces else ())
    return NodeView(name, "172.18.0.2", 10250, OPEN, handlers, boot_id=boot_id)


def around(*nodes: NodeView) -> ClusterView:
    return replace(CLUSTER_VIEW, nodes=nodes or (a_node(),), runtime_classes=CLASSES)


def a_report(boot_id: str = NODE_BOOT_ID, *, user_namespace: bool = False) -> Readiness:
    return Readiness((), {}, boot_id, user_namespace)


@pytest.mark.parametrize(
    ("handler", "kernel"),
    [
        ("runsc", Boundary.GVISOR),
        ("runsc-kvm", Boundary.GVISOR),
        ("gvisor", Boundary.GVISOR),
        ("kata", Boundary.VM),
        ("kata-fc", Boundary.VM),
        *((name, None) for name in ("runc", "crun", "", None, "katana", "my-kata", "runscript", "wasm")),
    ],
)
def test_which_handlers_promise_a_kernel(handler: str | None, kernel: Boundary | None) -> None:
    assert promised(handler) is kernel


@pytest.mark.parametrize(
    ("pod", "report", "boundary"),
    [
        (GVISOR, a_report(BOOT_ID), Boundary.GVISOR),
        (KATA, a_report(BOOT_ID), Boundary.VM),
        (a_pod(), a_report(), Boundary.CONTAINER),
        (OWN_USERS, a_report(user_namespace=True), Boundary.USER_NAMESPACE),
        (OWN_USERS, a_report(user_namespace=False), Boundary.CONTAINER),
        (a_pod(), a_report(user_namespace=True), Boundary.CONTAINER),
        (a_pod(), a_report(BOOT_ID), Boundary.CONTAINER),
        (a_pod(runtime_class_name="fast"), a_report(BOOT_ID), Boundary.CONTAINER),
    ],
    ids=[
        "gVisor",
        "Kata",
        "runc",
        "its own users",
        "none, though it was to have them",
        "those of a node that is in a container itself",
        "a node whose boot ID is hidden from its kubelet, as in LXC",
        "a handler that nobody knows",
    ],
)
def test_the_boundary_is_what_was_asked_for_and_shown(pod: PodView, report: Readiness, boundary: Boundary) -> None:
    found = look_at(pod, report, around())
    assert (found.boundary, found.problem) == (boundary, "")


@pytest.mark.parametrize("pod", [GVISOR, KATA], ids=["gVisor", "Kata"])
@pytest.mark.parametrize("boot_id", [NODE_BOOT_ID, ""], ids=["the node's kernel", "nothing is shown"])
def test_a_kernel_that_is_promised_and_not_shown_is_no_boundary(pod: PodView, boot_id: str) -> None:
    found = look_at(pod, a_report(boot_id), around())
    assert found.boundary is Boundary.CONTAINER
    assert f"did not show a kernel of its own: it reported the boot ID {boot_id or 'none'}" in found.problem
    assert f"and node 'node-1' has {NODE_BOOT_ID}. Check" in found.problem
    unknown = look_at(pod, a_report(boot_id), around(a_node("another")))
    assert "and node 'node-1' has none that is known. Check" in unknown.problem


@given(
    st.sampled_from([None, *CLASSES, "unknown"]),
    st.sampled_from([NODE_BOOT_ID, BOOT_ID, ""]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(a_node(),), (a_node(boot_id=""),), (a_node("another"),), ()]),
)
def test_nothing_is_recorded_without_evidence(
    name: str | None, boot_id: str, asked: bool, shown: bool, nodes: tuple[NodeView, ...]
) -> None:
    pod = a_pod(runtime_class_name=name, user_namespace=asked)
    cluster_view = replace(CLUSTER_VIEW, nodes=nodes, runtime_classes=CLASSES)
    found = look_at(pod, a_report(boot_id, user_namespace=shown), cluster_view)
    if found.boundary in (Boundary.VM, Boundary.GVISOR):
        assert boot_id == BOOT_ID
        assert name in ("gvisor", "vm")
        assert not found.problem
    else:
        assert bool(found.problem) is (name in ("gvisor", "vm"))
    assert found.user_namespace is (asked and shown)


# --- what follows -------------------------------------------------------------------


def starting(sandbox: Sandbox, policy: ExecutionPolicySpec | None = None, *nodes: NodeView) -> Observed:
    status = {"runtime_class_name": (sandbox.pod and sandbox.pod.runtime_class_name) or ""}
    execution = an_execution(phase=Phase.STARTING, status=status)
    return Observed(execution, policy or a_policy(), NOW, payload=PAYLOAD, cluster_view=around(*nodes), sandbox=sandbox)


def reported(pod: PodView, **report: Any) -> Sandbox:
    return a_sandbox(pod=pod, runner=a_runner(**report))


def plan(observed: Observed, after: float = 0) -> Plan:
    return decide(observed, NOW + seconds(after), TIMING)


def starts_code(result: Plan) -> bool:
    return any(isinstance(one, StartCode) for one in result.actions)


UNSHOWN = reported(GVISOR, bootId=NODE_BOOT_ID)
ALLOWED = a_policy(runtimeClassNames=["gvisor"])


def test_the_record_says_which_boundary_held() -> None:
    result = plan(starting(reported(GVISOR), ALLOWED))
    assert starts_code(result)
    assert result.status
    assert getattr(result.status, "boundary") is Boundary.GVISOR  # noqa: B009


def test_code_does_not_run_on_the_nodes_kernel_where_its_class_promises_another() -> None:
    result = plan(starting(UNSHOWN, ALLOWED))
    assert outcome(result) == (Phase.DENIED, "IsolationNotEnforced")
    assert not starts_code(result)
    assert result.status
    assert "the RuntimeClass 'gvisor' stands for gVisor" in getattr(result.status, "message")  # noqa: B009


def test_a_node_that_has_just_joined_is_waited_for() -> None:
    joined = starting(reported(GVISOR), ALLOWED, a_node("another"))
    assert plan(joined) == Plan(wake_at=NOW + seconds(TIMING.node_retry))
    assert starts_code(plan(replace(joined, cluster_view=around())))
    late = plan(joined, 60)
    assert outcome(late) == (Phase.FAILED, "StartTimeout")
    assert late.status
    assert "has not heard of node 'node-1'" in getattr(late.status, "message")  # noqa: B009
    assert not awaits_node(a_pod(), around(a_node("another"))), "the node's kernel needs no evidence"


@pytest.mark.parametrize("shown", [True, False])
def test_what_the_policy_requires_has_to_be_shown(shown: bool) -> None:
    observed = starting(reported(OWN_USERS, userNamespace=shown), DEMANDING)
    assert starts_code(plan(observed)) is shown
    if not shown:
        assert outcome(plan(observed)) == (Phase.DENIED, "IsolationNotEnforced")
        assert starts_code(plan(replace(observed, policy=a_policy()))), "positive control"


def asked(execution: CodeExecution, policy: ExecutionPolicySpec, *nodes: NodeView) -> Observed:
    cluster_view = around(*nodes)
    return Observed(execution, policy, NOW, payload=PAYLOAD, cluster_view=cluster_view, pool_asked=True)


def test_no_pod_is_made_where_a_node_has_no_user_namespaces() -> None:
    mixed = (a_node(), a_node("node-2", user_namespaces=False))
    result = plan(asked(an_execution(), DEMANDING, *mixed))
    assert outcome(result) == (Phase.DENIED, "IsolationNotEnforced")
    assert not any(isinstance(one, CreatePod) for one in result.actions)
    assert result.status
    message = getattr(result.status, "message")  # noqa: B009
    assert "not every node that takes pods of the default runtime gives them a user namespace" in message
    for control in (asked(an_execution(), DEMANDING), asked(an_execution(), a_policy(), *mixed)):
        assert any(isinstance(one, CreatePod) for one in plan(control).actions)


def test_the_refusal_names_the_runtime_class_that_has_no_user_namespaces() -> None:
    ending = unobtainable(DEMANDING, around(), "gvisor")
    assert ending
    assert "takes pods of the RuntimeClass 'gvisor' gives them a user namespace. Nothing was run" in ending.message
    assert "requireUserNamespaces: true" in ending.message


def test_the_refusal_says_that_no_node_takes_pods_of_the_class() -> None:
    dedicated = RuntimeClass("runc", Scheduling((("pool", "sandboxes"),)))
    ending = unobtainable(DEMANDING, replace(around(), runtime_classes={"boxes": dedicated}), "boxes")
    assert ending
    assert "no known node takes pods of the RuntimeClass 'boxes'. Nothing was run" in ending.message


def test_a_session_is_held_to_it_when_it_is_asked_for_and_when_its_pod_has_reported() -> None:
    def decided(phase: SessionPhase, sandbox: Sandbox, policy: ExecutionPolicySpec, *nodes: NodeView) -> Plan:
        session = a_session(phase=phase)
        observed = ObservedSession(
            session, policy, NOW, policy_read=True, pool_asked=True, cluster_view=around(*nodes), sandbox=sandbox
        )
        return decide_session(observed, NOW, TIMING)

    denied = (SessionPhase.DENIED, "IsolationNotEnforced")
    weak = a_node(user_namespaces=False)
    assert outcome(decided(SessionPhase.PENDING, Sandbox(), DEMANDING, weak)) == denied
    assert outcome(decided(SessionPhase.PENDING, Sandbox(), a_policy(), weak))[0] is SessionPhase.STARTING
    assert outcome(decided(SessionPhase.STARTING, UNSHOWN, a_policy())) == denied
    assert outcome(decided(SessionPhase.STARTING, reported(a_pod()), DEMANDING)) == denied
    ready = decided(SessionPhase.STARTING, reported(OWN_USERS), DEMANDING)
    assert outcome(ready)[0] is SessionPhase.READY
    assert ready.status
    assert getattr(ready.status, "boundary") is Boundary.USER_NAMESPACE  # noqa: B009


@pytest.mark.parametrize("layers", [("UserNamespace", "NetworkPolicy", "Seccomp"), ("NetworkPolicy", "Seccomp")])
def test_a_session_of_before_runs_no_code_where_the_policy_now_requires_more(layers: tuple[str, ...]) -> None:
    held = "UserNamespace" in layers
    boundary = Boundary.USER_NAMESPACE if held else Boundary.CONTAINER
    view = a_view(status={"layers": layers, "boundary": boundary})
    execution = an_execution(phase=Phase.STARTING, **SESSION_REF)
    observed = Observed(execution, DEMANDING, NOW, payload=PAYLOAD, cluster_view=around(), session=view)
    result = plan(observed)
    assert starts_code(result) is held
    assert result.status
    assert getattr(result.status, "boundary") is boundary  # noqa: B009
    assert starts_code(plan(replace(observed, policy=a_policy()))), "positive control"


def test_a_pool_makes_and_lets_in_only_what_holds() -> None:
    meta = {"name": "default", "namespace": "n", "uid": "1", "resourceVersion": "7", "generation": 3}
    pool = SandboxPool.model_validate({"metadata": meta, "spec": {"replicas": 1, "runtimeClassName": "gvisor"}})
    observed = ObservedPool(
        pool, ALLOWED, cluster_view=around(), members={}, allowance=5, names=("default-00000000000a",)
    )
    template = template_of(observed)
    assert isinstance(template, Template)

    def decided(sandbox: Sandbox) -> Plan:
        return decide_pool(replace(observed, members={"a": Member(NOW, template.digest, sandbox)}), NOW, TIMING)

    [dropped] = [one for one in decided(UNSHOWN).actions if isinstance(one, DropMember)]
    assert dropped.problem
    assert dropped.problem.reason is Reason.ISOLATION_NOT_ENFORCED
    assert any(isinstance(one, AdmitMember) for one in decided(reported(GVISOR)).actions)
    demanding = replace(observed, policy=a_policy(runtimeClassNames=["gvisor"], requireUserNamespaces=True))
    assert not any(isinstance(one, CreateMember) for one in decide_pool(demanding, NOW, TIMING).actions)
    assert any(isinstance(one, CreateMember) for one in decide_pool(observed, NOW, TIMING).actions), "positive control"
