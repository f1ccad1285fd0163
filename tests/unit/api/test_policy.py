"""The policy's verdict: total, complete and monotone."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from factories import CODE, IMAGE, OTHER_IMAGE, a_policy, a_raw_block, a_raw_mount, a_raw_source, a_spec
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import (
    CodeExecutionSpec,
    CodeSessionSpec,
    Decision,
    ExecutionPolicySpec,
    Grant,
    Limits,
    PodRequests,
    SandboxPoolSpec,
    evaluate,
)
from codeexec_api.code_rules import Inquiry
from codeexec_api.policy import capped, cluster_policy, inheriting, namespace_policy, policy_for, without_store
from codeexec_api.v1alpha1.bounds import (
    MAX_BLOCKS,
    MAX_GRANTS,
    MAX_IMPORTS,
    MAX_MOUNTS,
    MAX_OUTPUT_BYTES,
    MAX_PERMITS,
    MAX_PIDS,
    MAX_SESSION_SECONDS,
    MAX_STORED_BYTES,
)
from codeexec_api.v1alpha1.limits import SomeLimits
from codeexec_api.v1alpha1.policy import Approvable

QUANTITIES = ["1m", "250m", "0.5", "1", "64Mi", "1Gi", "2G"]
LANGUAGES = ["python", "bash", "sh", "javascript", "pwsh"]
quantities = st.sampled_from(QUANTITIES)
output_bytes = st.integers(1024, MAX_OUTPUT_BYTES)
timeouts = st.integers(1, 86_400)
pids = st.integers(1, MAX_PIDS)
runtime_classes = st.sampled_from([None, "gvisor", "kata", "runc"])
images = st.sampled_from([None, IMAGE, OTHER_IMAGE])
session_seconds = st.integers(1, MAX_SESSION_SECONDS)
limits = st.fixed_dictionaries(
    {
        "cpu": quantities,
        "memory": quantities,
        "ephemeralStorage": quantities,
        "pids": pids,
        "outputBytes": output_bytes,
    }
)


AGENTS = ["tester", "newcomer"]
USERS = ["anna", "bob"]
sources = st.sampled_from(AGENTS).map(lambda agent: {"agent": agent})
users = st.none() | st.sampled_from(USERS)


def a_session_spec(**changes: Any) -> CodeSessionSpec:
    return CodeSessionSpec.model_validate({"source": {"agent": "tester"}} | changes)


executions = st.builds(
    lambda languages, limits, **rest: a_spec(
        blocks=[a_raw_block(language=language) for language in languages], limits=limits, **rest
    ),
    languages=st.lists(st.sampled_from(LANGUAGES), min_size=1, max_size=8),
    limits=limits,
    timeoutSeconds=timeouts,
    runtimeClassName=runtime_classes,
    image=images,
    source=sources,
    requestedBy=users,
)
sessions = st.builds(
    a_session_spec,
    limits=limits,
    idleTimeoutSeconds=session_seconds,
    maxLifetimeSeconds=session_seconds,
    runtimeClassName=runtime_classes,
    image=images,
    stateful=st.booleans(),
    source=sources,
    requestedBy=users,
)
requests = executions | sessions
Request = CodeExecutionSpec | CodeSessionSpec
some_languages = st.lists(st.sampled_from(LANGUAGES), unique=True)
some_classes = st.lists(st.sampled_from(["gvisor", "kata", "runc"]), unique=True)
some_limits = st.fixed_dictionaries(
    {}, optional={"cpu": quantities, "memory": quantities, "ephemeralStorage": quantities, "pids": pids}
)
approvables = st.fixed_dictionaries(
    {},
    optional={
        "images": st.lists(st.sampled_from([IMAGE, OTHER_IMAGE]), unique=True),
        "languages": some_languages,
        "runtimeClassNames": some_classes,
        "maxTimeoutSeconds": timeouts,
        "maxBlocks": st.integers(1, 8),
        "maxLimits": some_limits,
    },
)
agent_rules = st.builds(
    lambda whom, what: whom | what,
    st.sampled_from([{"agent": "newcomer"}, {"requestedBy": "anna"}, {"agent": "newcomer", "requestedBy": "bob"}]),
    st.fixed_dictionaries(
        {},
        optional={
            "images": st.sampled_from([[IMAGE], [OTHER_IMAGE]]),
            "languages": st.lists(st.sampled_from(LANGUAGES), min_size=1, unique=True),
            "runtimeClassNames": some_classes,
            "maxTimeoutSeconds": timeouts,
            "maxBlocks": st.integers(1, 8),
            "maxLimits": some_limits,
            "withApproval": approvables,
        },
    ),
)
policies = st.builds(
    a_policy,
    images=st.sampled_from([[IMAGE], [OTHER_IMAGE], [IMAGE, OTHER_IMAGE]]),
    languages=st.lists(st.sampled_from(LANGUAGES), min_size=1, unique=True),
    maxBlocks=st.integers(1, MAX_BLOCKS),
    maxTimeoutSeconds=timeouts,
    maxLimits=limits,
    maxSessionIdleSeconds=session_seconds,
    maxSessionLifetimeSeconds=session_seconds,
    runtimeClassName=runtime_classes,
    runtimeClassNames=some_classes,
    withApproval=approvables,
    agentRules=st.lists(agent_rules, max_size=3),
)

EVERYTHING = {
    "images": [IMAGE, OTHER_IMAGE],
    "languages": LANGUAGES,
    "runtimeClassNames": ["gvisor", "kata", "runc"],
    "maxTimeoutSeconds": 86_400,
    "maxBlocks": MAX_BLOCKS,
    "maxLimits": {"cpu": "2G", "memory": "2G", "ephemeralStorage": "2G", "pids": MAX_PIDS},
}
lenient_policies = st.builds(
    lambda policy, rules, some: a_policy(
        **policy.dump()
        | {
            "withApproval": EVERYTHING | some,
            "agentRules": [one | {"withApproval": EVERYTHING} for one in rules],
            "maxLimits": policy.max_limits.dump() | {"outputBytes": MAX_OUTPUT_BYTES},
        }
    ),
    policies,
    st.lists(agent_rules, max_size=2),
    st.just({}) | approvables,
)
"""Under which much is approvable."""
policies = policies | lenient_policies

# Each asks for one thing that `strict` does not allow: the field that is named, and what is asked.
ONE_TOO_MUCH_OF_A_POD = {
    "spec.image": {"image": OTHER_IMAGE},
    "spec.limits.outputBytes": {"limits": {"outputBytes": 4097}},
    "spec.runtimeClassName": {"runtimeClassName": "kata"},
    "spec.limits.pids": {"limits": {"pids": 257, "outputBytes": 4096}},
    "spec.limits.cpu": {"limits": {"cpu": "501m", "outputBytes": 4096}},
    "spec.limits.memory": {"limits": {"memory": "257Mi", "outputBytes": 4096}},
    "spec.limits.ephemeralStorage": {"limits": {"ephemeralStorage": "1Gi", "outputBytes": 4096}},
}
ONE_TOO_MUCH = {
    **ONE_TOO_MUCH_OF_A_POD,
    "spec.blocks[0].language": {"blocks": [a_raw_block(language="sh")]},
    "spec.blocks": {"blocks": [a_raw_block()] * 3},
    "spec.timeoutSeconds": {"timeoutSeconds": 31},
}
ONE_TOO_MUCH_OF_A_SESSION = {
    **ONE_TOO_MUCH_OF_A_POD,
    "spec.idleTimeoutSeconds": {"idleTimeoutSeconds": 301},
    "spec.maxLifetimeSeconds": {"maxLifetimeSeconds": 3601},
}

RANK = {Decision.ALLOWED: 0, Decision.NEEDS_APPROVAL: 1, Decision.DENIED: 2}
APPROVABLE = {
    "images": [OTHER_IMAGE],
    "languages": ["sh"],
    "runtimeClassNames": ["kata"],
    "maxTimeoutSeconds": 60,
    "maxBlocks": 4,
    "maxLimits": {"cpu": "2", "memory": "1Gi", "ephemeralStorage": "1Gi", "pids": 512},
}
THIRD_IMAGE = OTHER_IMAGE.replace("b", "c")


def within(**limits: object) -> dict[str, Any]:
    return {"limits": {"outputBytes": 4096, **limits}}


# By field: the most that `strict` allows, what a human may approve at least and at most, and what nobody may.
BOUNDS: dict[str, list[dict[str, Any]]] = {
    "spec.image": [{"image": IMAGE}, {"image": OTHER_IMAGE}, {"image": OTHER_IMAGE}, {"image": THIRD_IMAGE}],
    "spec.runtimeClassName": [{"runtimeClassName": name} for name in ("gvisor", "kata", "kata", "firecracker")],
    "spec.blocks[0].language": [{"blocks": [a_raw_block(language=name)]} for name in ("bash", "sh", "sh", "pwsh")],
    "spec.blocks": [{"blocks": [a_raw_block()] * count} for count in (2, 3, 4, 5)],
    "spec.timeoutSeconds": [{"timeoutSeconds": count} for count in (30, 31, 60, 61)],
    "spec.limits.pids": [within(pids=count) for count in (256, 257, 512, 513)],
    "spec.limits.cpu": [within(cpu=size) for size in ("0.5", "501m", "2000m", "2001m")],
    "spec.limits.memory": [within(memory=size) for size in ("256Mi", "257Mi", "1024Mi", "1025Mi")],
    "spec.limits.ephemeralStorage": [within(ephemeralStorage=one) for one in ("256Mi", "257Mi", "1Gi", "1025Mi")],
}


def strict(**changes: object) -> ExecutionPolicySpec:
    most = {
        "languages": ["python", "bash"],
        "maxBlocks": 2,
        "maxTimeoutSeconds": 30,
        "maxLimits": {
            "cpu": "500m",
            "memory": "256Mi",
            "ephemeralStorage": "256Mi",
            "pids": 256,
            "outputBytes": 4096,
        },
        "runtimeClassNames": ["gvisor"],
        "maxSessionIdleSeconds": 300,
        "maxSessionLifetimeSeconds": 3600,
    }
    return a_policy(**{**most, **changes})


def asking(**changes: object) -> CodeExecutionSpec:
    return a_spec(**{"timeoutSeconds": 30, "limits": {"outputBytes": 4096}, **changes})


def asking_for_a_session(**changes: object) -> CodeSessionSpec:
    most = {"idleTimeoutSeconds": 300, "maxLifetimeSeconds": 3600, "limits": {"outputBytes": 4096}}
    return a_session_spec(**{**most, **changes})


def test_sessions_sleep_only_where_the_policy_and_a_store_let_them() -> None:
    asked, sleepy = asking_for_a_session(sleepAfterSeconds=60), strict(sessionSleep={"minAfterSeconds": 60})
    assert evaluate(asked, sleepy).allowed
    sooner = evaluate(asking_for_a_session(sleepAfterSeconds=59), sleepy)
    assert "spec.sleepAfterSeconds: 59 is not allowed by the policy (allowed: at least 60)" in sooner.message
    for policy in (strict(), without_store(sleepy)):
        refused = evaluate(asked, policy)
        assert "(allowed: none; sleeping needs an output store (Helm value outputStore.url)" in refused.message


@pytest.mark.parametrize("spec", [asking(), asking_for_a_session(stateful=True)], ids=["execution", "session"])
def test_what_is_exactly_at_the_limit_is_allowed(spec: Request) -> None:
    verdict = evaluate(spec, strict())
    assert verdict.allowed
    assert verdict.message == "allowed by the policy"


def test_files_alone_need_no_language() -> None:
    files_alone = asking(blocks=[], sessionRef={"name": "mine"}, artifacts={"list": "All"})
    assert evaluate(files_alone, strict()).allowed


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        *((field, asking(**changes)) for field, changes in ONE_TOO_MUCH.items()),
        *((field, asking_for_a_session(**changes)) for field, changes in ONE_TOO_MUCH_OF_A_SESSION.items()),
    ],
)
def test_a_violation_names_field_found_and_allowed(field: str, spec: Request) -> None:
    verdict = evaluate(spec, strict())
    assert [violation.field for violation in verdict.violations] == [field]
    [violation] = verdict.violations
    assert violation.field in verdict.message
    assert violation.found in verdict.message
    assert violation.allowed in verdict.message
    assert verdict.message.endswith(". Ask for less, or ask the platform owner to change the policy")


def test_a_denial_says_where_the_policy_is_kept() -> None:
    own, shared = namespace_policy("codeexec-sandbox"), cluster_policy(("codeexec-system", "codeexec-operator"))
    assert own == "the ExecutionPolicy 'default' in namespace 'codeexec-sandbox'"
    where = "Helm value policy, ConfigMap 'codeexec-operator' in namespace 'codeexec-system'"
    assert shared == f"the cluster's default policy ({where})"
    assert cluster_policy(None) == "the cluster's default policy (Helm value policy)"
    for kept in (own, shared):
        denied = evaluate(asking(timeoutSeconds=31), strict(), source=kept)
        assert denied.message.endswith(f". Ask for less, or ask the platform owner to change {kept}")
        assert kept not in evaluate(asking(), strict(), source=kept).message


def test_more_output_than_config_maps_hold_needs_a_store_and_a_policy_and_the_denial_says_both() -> None:
    asked = a_spec(limits={"outputBytes": 100_000_000})
    policy = a_policy(maxLimits={"outputBytes": MAX_STORED_BYTES})
    assert evaluate(asked, policy).allowed
    denied = evaluate(asked, capped(policy, MAX_OUTPUT_BYTES))
    assert denied.message == evaluate(asked, a_policy()).message
    assert denied.message.startswith(
        "spec.limits.outputBytes: 100000000 is not allowed by the policy (allowed: at most 16777216; more than "
        "16777216 needs an output store (Helm value outputStore.url) and a policy whose maxLimits.outputBytes allows "
        "that)"
    )


@pytest.mark.parametrize(
    ("allowed", "asked"),
    [(2048, 4096), (2048, MAX_OUTPUT_BYTES), (2 * MAX_OUTPUT_BYTES, MAX_STORED_BYTES)],
)
def test_a_store_is_no_answer_where_the_policy_allows_less_or_has_more(allowed: int, asked: int) -> None:
    policy = a_policy(maxLimits={"outputBytes": allowed})
    denied = evaluate(a_spec(limits={"outputBytes": asked}), policy)
    assert denied.message.startswith("spec.limits.outputBytes")
    assert "store" not in denied.message


@pytest.mark.parametrize(("allowed", "place", "most"), [(2048, 4096, 2048), (4096, 4096, 4096), (4097, 4096, 4096)])
def test_a_policy_allows_no_more_output_than_there_is_place_for(allowed: int, place: int, most: int) -> None:
    assert capped(a_policy(maxLimits={"outputBytes": allowed}), place) == a_policy(maxLimits={"outputBytes": most})


def test_every_violation_is_listed() -> None:
    greedy = asking(
        image=OTHER_IMAGE,
        blocks=[a_raw_block(language="sh")] * 3,
        timeoutSeconds=31,
        runtimeClassName="kata",
        limits={"cpu": "2", "memory": "1Gi", "ephemeralStorage": "1Gi", "pids": 257, "outputBytes": 4097},
    )
    found = {violation.field for violation in evaluate(greedy, strict()).violations}
    assert found == {*ONE_TOO_MUCH, "spec.blocks[1].language", "spec.blocks[2].language"}


def test_every_violation_of_a_session_is_listed() -> None:
    greedy = asking_for_a_session(
        image=OTHER_IMAGE,
        idleTimeoutSeconds=301,
        maxLifetimeSeconds=3601,
        runtimeClassName="kata",
        limits={"cpu": "2", "memory": "1Gi", "ephemeralStorage": "1Gi", "pids": 257, "outputBytes": 4097},
    )
    found = {violation.field for violation in evaluate(greedy, strict()).violations}
    assert found == set(ONE_TOO_MUCH_OF_A_SESSION)


@pytest.mark.parametrize("spec_of", [a_spec, a_session_spec], ids=["execution", "session"])
def test_the_first_image_of_the_policy_is_the_default(spec_of: Callable[..., Request]) -> None:
    policy = a_policy(images=[OTHER_IMAGE, IMAGE])
    assert evaluate(spec_of(), policy).image == OTHER_IMAGE
    assert evaluate(spec_of(image=IMAGE), policy).image == IMAGE


@given(spec=requests, policy=policies)
def test_total_and_consistent(spec: Request, policy: ExecutionPolicySpec) -> None:
    verdict = evaluate(spec, policy)
    found = [one.field for one in (*verdict.violations, *verdict.beyond)]
    assert verdict.allowed == (not found)
    assert len(set(found)) == len(found)  # above all: none is both
    assert not verdict.allowed or verdict.image in policy_for(spec, policy).images
    assert all(str(one) in verdict.message for one in (*verdict.violations, *verdict.beyond))
    assert len(verdict.grants) <= MAX_GRANTS


@given(spec=executions, policy=policies, more=timeouts, more_output=output_bytes, quantity=quantities)
def test_asking_for_more_never_makes_a_denied_thing_allowed(
    spec: CodeExecutionSpec, policy: ExecutionPolicySpec, more: int, more_output: int, quantity: str
) -> None:
    greedier = spec.model_copy(
        update={
            "timeout_seconds": max(spec.timeout_seconds, more),
            "limits": _raised(spec.limits, more_output, quantity),
            "blocks": (*spec.blocks, spec.blocks[0]),
        }
    )
    assert _fields(spec, policy) <= _fields(greedier, policy)
    assert RANK[evaluate(spec, policy).decision] <= RANK[evaluate(greedier, policy).decision]


@given(spec=sessions, policy=policies, more=session_seconds, more_output=output_bytes, quantity=quantities)
def test_asking_for_a_longer_session_never_makes_a_denied_one_allowed(
    spec: CodeSessionSpec, policy: ExecutionPolicySpec, more: int, more_output: int, quantity: str
) -> None:
    greedier = spec.model_copy(
        update={
            "idle_timeout_seconds": max(spec.idle_timeout_seconds, more),
            "max_lifetime_seconds": max(spec.max_lifetime_seconds, more),
            "limits": _raised(spec.limits, more_output, quantity),
        }
    )
    assert _fields(spec, policy) <= _fields(greedier, policy)
    assert RANK[evaluate(spec, policy).decision] <= RANK[evaluate(greedier, policy).decision]


@given(spec=requests, policy=policies)
def test_a_policy_that_allows_more_never_denies_more(spec: Request, policy: ExecutionPolicySpec) -> None:
    wider = a_policy(
        images=[*policy.images, *({IMAGE, OTHER_IMAGE} - set(policy.images))],
        languages=LANGUAGES,
        maxBlocks=min(MAX_BLOCKS, policy.max_blocks + 1),
        maxTimeoutSeconds=86_400,
        maxLimits={
            "cpu": "2G",
            "memory": "2G",
            "ephemeralStorage": "2G",
            "pids": MAX_PIDS,
            "outputBytes": MAX_OUTPUT_BYTES,
        },
        maxSessionIdleSeconds=MAX_SESSION_SECONDS,
        maxSessionLifetimeSeconds=MAX_SESSION_SECONDS,
        runtimeClassNames=["gvisor", "kata", "runc"],
        withApproval=policy.with_approval.dump(),
    )
    policy = policy.model_copy(update={"agent_rules": ()})
    assert _fields(spec, wider) <= _fields(spec, policy)
    assert RANK[evaluate(spec, wider).decision] <= RANK[evaluate(spec, policy).decision]


@given(spec=sessions, policy=policies)
def test_a_session_gets_no_pod_that_an_execution_would_not_get(
    spec: CodeSessionSpec, policy: ExecutionPolicySpec
) -> None:
    same = ("source", "requested_by", "limits", "image", "runtime_class_name")
    alone = a_spec().model_copy(update={name: getattr(spec, name) for name in same})
    of_the_pod = {field for field in _fields(alone, policy) if not field.startswith(("spec.blocks", "spec.timeout"))}
    assert of_the_pod == _fields(spec, policy) - {"spec.idleTimeoutSeconds", "spec.maxLifetimeSeconds"}
    assert evaluate(alone, policy).image == evaluate(spec, policy).image
    assert evaluate(alone, policy).runtime_class_name == evaluate(spec, policy).runtime_class_name


@pytest.mark.parametrize("spec_of", [a_spec, a_session_spec], ids=["execution", "session"])
def test_the_class_of_the_policy_can_not_be_left_by_naming_none(spec_of: Callable[..., Request]) -> None:
    policy = a_policy(runtimeClassName="gvisor", runtimeClassNames=["kata"])
    assert evaluate(spec_of(), policy).runtime_class_name == "gvisor"
    assert evaluate(spec_of(runtimeClassName="kata"), policy).runtime_class_name == "kata"
    assert evaluate(spec_of(), a_policy()).runtime_class_name is None


@given(requests, policies)
def test_the_nodes_runtime_is_only_for_those_who_name_it_and_may(spec: Request, policy: ExecutionPolicySpec) -> None:
    """Where there is another default: the request names it, and policy, rule or approver allow the name."""
    ours = policy_for(spec, policy)
    if ours.runtime_class_name in (None, "runc"):
        return
    verdict = evaluate(spec, policy)
    named = spec.runtime_class_name == "runc"
    assert (verdict.runtime_class_name is None) is named
    if named and "runc" not in ours.runtime_class_names:
        approvable = "runc" in ours.with_approval.runtime_class_names
        assert verdict.decision is not Decision.ALLOWED
        assert approvable or verdict.decision is Decision.DENIED


def test_the_nodes_runtime_is_allowed_by_its_name_like_any_class() -> None:
    strong = a_policy(runtimeClassName="gvisor")
    asked = a_spec(runtimeClassName="runc")
    refused = evaluate(asked, strong)
    assert "spec.runtimeClassName: runc is not allowed by the policy (allowed: gvisor)" in refused.message
    for policy in (
        a_policy(runtimeClassName="gvisor", runtimeClassNames=["runc"]),
        a_policy(runtimeClassName="runc"),
    ):
        assert evaluate(asked, policy).allowed
        assert evaluate(asked, policy).runtime_class_name is None
    approvable = evaluate(asked, a_policy(runtimeClassName="gvisor", withApproval={"runtimeClassNames": ["runc"]}))
    assert [(one.field, one.value) for one in approvable.grants] == [("spec.runtimeClassName", "runc")]


@given(policies, st.sampled_from(["gvisor", "runc", None]), st.booleans(), st.booleans())
def test_a_policy_that_is_silent_about_isolation_does_not_weaken_it(
    policy: ExecutionPolicySpec, default_class: str | None, required: bool, asked: bool
) -> None:
    own = policy.model_copy(update={"require_user_namespaces": asked})
    default = a_policy(runtimeClassName=default_class, requireUserNamespaces=required)
    counts = inheriting(own, default)
    assert counts.requests == default.requests
    assert counts.runtime_class_name == (policy.runtime_class_name or default_class)
    assert counts.require_user_namespaces is (required or asked)
    changed = {"runtime_class_name": None, "require_user_namespaces": False}
    assert counts.model_copy(update=changed) == own.model_copy(update=changed)


def test_a_policy_replaces_single_requests_of_the_default() -> None:
    default = a_policy(requests={"cpu": "20m", "memory": "64Mi"})
    counts = inheriting(a_policy(requests={"memory": "1Gi"}), default)
    assert counts.requests == PodRequests(cpu="20m", memory="1Gi")


class TestApprovable:
    """What is allowed, what takes a human's approval, and what is never granted."""

    @pytest.mark.parametrize("field", BOUNDS)
    def test_at_its_bounds(self, field: str) -> None:
        policy = strict(withApproval=APPROVABLE)
        verdicts = [evaluate(asking(**changes), policy) for changes in BOUNDS[field]]
        assert [one.decision for one in verdicts] == [
            Decision.ALLOWED,
            Decision.NEEDS_APPROVAL,
            Decision.NEEDS_APPROVAL,
            Decision.DENIED,
        ]
        assert [[one.field for one in verdict.grants] for verdict in verdicts] == [[], [field], [field], []]
        assert [one.field for one in verdicts[-1].violations] == [field]

    def test_a_grant_is_the_value_as_it_is_asked_for(self) -> None:
        greedy = asking(
            image=OTHER_IMAGE,
            runtimeClassName="kata",
            blocks=[a_raw_block(), a_raw_block(language="sh"), a_raw_block()],
            timeoutSeconds=60,
            **within(cpu="1.5", memory="1024Mi", ephemeralStorage="1Gi", pids=512),
        )
        assert {(one.field, one.value) for one in evaluate(greedy, strict(withApproval=APPROVABLE)).grants} == {
            ("spec.image", OTHER_IMAGE),
            ("spec.runtimeClassName", "kata"),
            ("spec.blocks[1].language", "sh"),
            ("spec.blocks", "3"),
            ("spec.timeoutSeconds", "60"),
            ("spec.limits.cpu", "1.5"),
            ("spec.limits.memory", "1024Mi"),
            ("spec.limits.ephemeralStorage", "1Gi"),
            ("spec.limits.pids", "512"),
        }

    @pytest.mark.parametrize("field", BOUNDS)
    def test_nothing_is_approvable_unless_the_policy_says_so(self, field: str) -> None:
        assert evaluate(asking(**BOUNDS[field][1]), strict()).decision is Decision.DENIED

    def test_as_many_grants_as_an_execution_can_need(self) -> None:
        approvable = {
            **APPROVABLE,
            "maxBlocks": MAX_BLOCKS,
            "egress": [{"cidr": "10.0.0.0/8", "port": 443}],
            "mounts": [a_raw_source()],
        }
        greedy = asking(
            image=OTHER_IMAGE,
            runtimeClassName="kata",
            blocks=[a_raw_block(language="sh", filename="tool.py")] * MAX_BLOCKS,
            timeoutSeconds=60,
            egress=[{"cidr": "10.1.2.3/32", "port": 443}] * MAX_PERMITS,
            mounts=[a_raw_mount(f"data-{number}") for number in range(MAX_MOUNTS)],
            **within(cpu="2", memory="1Gi", ephemeralStorage="1Gi", pids=512),
        )
        code = [{"action": "NeedApproval", "imports": [f"module{number}" for number in range(MAX_IMPORTS)]}]
        policy = strict(withApproval=approvable, codeRules=code)
        inquiry = Inquiry(greedy, [CODE] * MAX_BLOCKS, (), policy.code_rules)
        reading = inquiry.reading(
            f"{list(range(MAX_IMPORTS))}\n".encode()
        )  # of the first block; of the others, nothing
        assert len(evaluate(greedy, policy, reading).grants) == MAX_GRANTS

    @pytest.mark.parametrize(
        ("field", "spec"),
        [
            ("spec.limits.outputBytes", asking(limits={"outputBytes": 4097})),
            ("spec.limits.outputBytes", asking_for_a_session(limits={"outputBytes": 4097})),
            ("spec.idleTimeoutSeconds", asking_for_a_session(idleTimeoutSeconds=301)),
            ("spec.maxLifetimeSeconds", asking_for_a_session(maxLifetimeSeconds=3601)),
            ("spec.sleepAfterSeconds", asking_for_a_session(sleepAfterSeconds=60)),
        ],
    )
    def test_nobody_can_approve_more_output_or_longer_sessions(self, field: str, spec: Request) -> None:
        verdict = evaluate(spec, strict(withApproval=APPROVABLE))
        assert (verdict.decision, [one.field for one in verdict.violations]) == (Decision.DENIED, [field])

    @pytest.mark.parametrize(
        "spec",
        [
            asking_for_a_session(image=OTHER_IMAGE),
            asking_for_a_session(runtimeClassName="kata"),
            asking_for_a_session(**within(memory="1Gi")),
            SandboxPoolSpec.model_validate({"limits": {"memory": "1Gi"}}),
        ],
    )
    def test_sessions_and_pools_ask_nobody(self, spec: SandboxPoolSpec | CodeSessionSpec) -> None:
        """Nothing could approve them: what is not allowed is denied, and no approval is held out."""
        verdict = evaluate(spec, strict(withApproval=APPROVABLE, agentRules=[{"agent": "tester"}]))
        assert verdict.decision is Decision.DENIED
        assert "approv" not in verdict.message

    def test_one_thing_that_nobody_may_approve_denies_all(self) -> None:
        verdict = evaluate(asking(timeoutSeconds=61, image=OTHER_IMAGE), strict(withApproval=APPROVABLE))
        assert verdict.decision is Decision.DENIED
        assert "spec.timeoutSeconds" in verdict.message
        assert "spec.image" in verdict.message

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            (
                within(memory="1Gi"),
                "spec.limits.memory: 1Gi is not allowed by the policy "
                "(allowed: at most 256Mi; with approval: at most 1Gi)",
            ),
            (
                {"timeoutSeconds": 31},
                "spec.timeoutSeconds: 31 is not allowed by the policy (allowed: at most 30; with approval: at most 60)",
            ),
            (
                {"runtimeClassName": "kata"},
                "spec.runtimeClassName: kata is not allowed by the policy (allowed: gvisor; with approval: kata)",
            ),
        ],
    )
    def test_the_message_names_field_found_allowed_and_with_approval(self, changes: Any, told: str) -> None:
        assert evaluate(asking(**changes), strict(withApproval=APPROVABLE)).message == told

    def test_the_message_of_a_denial_says_what_approval_would_give(self) -> None:
        message = evaluate(asking(timeoutSeconds=61), strict(withApproval=APPROVABLE)).message
        assert "61 is not allowed by the policy (allowed: at most 30; with approval: at most 60)" in message
        assert message.endswith("ask the platform owner to change the policy")

    def test_a_time_limit_counts_for_blocks_only(self) -> None:
        """Files of a session that are put, listed or fetched run no code."""
        moved = asking(timeoutSeconds=61, blocks=[], payloadRef=None, sessionRef={"name": "work-1"})
        assert evaluate(moved, strict(withApproval=APPROVABLE)).allowed


class TestAgentRules:
    """The first rule that fits counts, alone."""

    def test_a_claim_does_not_get_anybody_out_of_what_is_proven(self) -> None:
        rules = [
            {"agent": "newcomer", "maxTimeoutSeconds": 60},
            {"requestedBy": "mallory", "maxTimeoutSeconds": 5},
        ]
        claims = asking(source={"agent": "newcomer"}, requestedBy="mallory", timeoutSeconds=6)
        assert not evaluate(claims, strict(agentRules=rules)).allowed
        honest = asking(source={"agent": "newcomer"}, requestedBy="other", timeoutSeconds=6)
        assert evaluate(honest, strict(agentRules=rules)).allowed

    def test_the_first_that_fits_counts_alone(self) -> None:
        rules = [
            {"agent": "other", "maxTimeoutSeconds": 1},
            {"agent": "tester", "maxTimeoutSeconds": 60},
            {"agent": "tester", "maxTimeoutSeconds": 90, "maxBlocks": 64},
        ]
        policy = strict(agentRules=rules)
        assert evaluate(asking(timeoutSeconds=60), policy).allowed
        assert _fields(asking(timeoutSeconds=61, blocks=[a_raw_block()] * 3), policy) == {
            "spec.timeoutSeconds",
            "spec.blocks",
        }

    @pytest.mark.parametrize(
        ("rule", "agent", "user", "fits"),
        [
            ({"agent": "tester"}, "tester", None, True),
            ({"agent": "tester"}, "tester", "anna", True),
            ({"agent": "tester"}, "newcomer", "anna", False),
            ({"requestedBy": "anna"}, "whoever", "anna", True),
            ({"requestedBy": "anna"}, "anna", "bob", False),
            ({"requestedBy": "anna"}, "anna", None, False),
            ({"agent": "tester", "requestedBy": "anna"}, "tester", "anna", True),
            ({"agent": "tester", "requestedBy": "anna"}, "tester", "bob", False),
            ({"agent": "tester", "requestedBy": "anna"}, "newcomer", "anna", False),
        ],
    )
    @pytest.mark.parametrize("spec_of", [asking, asking_for_a_session], ids=["execution", "session"])
    def test_what_a_rule_names_must_fit_both_agent_and_user(
        self, spec_of: Callable[..., Request], rule: dict[str, str], agent: str, user: str | None, fits: bool
    ) -> None:
        spec = spec_of(source={"agent": agent}, image=OTHER_IMAGE, **({"requestedBy": user} if user else {}))
        assert evaluate(spec, strict(agentRules=[rule | {"images": [OTHER_IMAGE]}])).allowed is fits

    def test_what_a_rule_does_not_name_is_as_in_the_policy(self) -> None:
        plain = strict(withApproval=APPROVABLE)
        policy = strict(withApproval=APPROVABLE, agentRules=[{"agent": "tester"}])
        for changes in (one for bounds in BOUNDS.values() for one in bounds):
            assert evaluate(asking(**changes), policy) == evaluate(asking(**changes), plain)

    def test_each_limit_that_a_rule_names_replaces_that_one(self) -> None:
        policy = strict(agentRules=[{"agent": "tester", "maxLimits": {"cpu": "2", "pids": 100}}])
        assert evaluate(asking(**within(cpu="2", pids=100)), policy).allowed
        greedy = asking(**within(cpu="2001m", pids=101, memory="257Mi"))
        assert _fields(greedy, policy) == {"spec.limits.cpu", "spec.limits.pids", "spec.limits.memory"}

    def test_what_a_rule_makes_approvable_replaces_all_that_was(self) -> None:
        rule = {"agent": "tester", "withApproval": {"maxBlocks": 3}}
        policy = strict(withApproval=APPROVABLE, agentRules=[rule])
        assert evaluate(asking(blocks=[a_raw_block()] * 3), policy).decision is Decision.NEEDS_APPROVAL
        assert evaluate(asking(timeoutSeconds=31), policy).decision is Decision.DENIED
        nothing = strict(withApproval=APPROVABLE, agentRules=[rule | {"withApproval": {}}])
        assert evaluate(asking(blocks=[a_raw_block()] * 3), nothing).decision is Decision.DENIED

    def test_no_classes_in_a_rule_means_none_besides_the_default(self) -> None:
        policy = strict(runtimeClassName="kata", agentRules=[{"agent": "tester", "runtimeClassNames": []}])
        assert evaluate(asking(runtimeClassName="kata"), policy).allowed
        assert not evaluate(asking(runtimeClassName="gvisor"), policy).allowed

    def test_the_first_image_of_a_rule_is_its_default(self) -> None:
        policy = strict(agentRules=[{"agent": "tester", "images": [OTHER_IMAGE]}])
        assert evaluate(asking(), policy).image == OTHER_IMAGE
        assert not evaluate(asking(image=IMAGE), policy).allowed

    def test_pools_are_under_no_rule(self) -> None:
        rules = [{"agent": "tester", "maxLimits": {"cpu": "1m"}}, {"requestedBy": "anna", "images": [OTHER_IMAGE]}]
        verdict = evaluate(SandboxPoolSpec(), strict(agentRules=rules))
        assert (verdict.allowed, verdict.image) == (True, IMAGE)


@given(spec=requests, policy=policies, more=approvables)
def test_a_policy_that_makes_more_approvable_never_decides_worse(
    spec: Request, policy: ExecutionPolicySpec, more: dict[str, Any]
) -> None:
    counts = policy_for(spec, policy).model_copy(update={"agent_rules": ()})
    wider = counts.model_copy(update={"with_approval": _joined(counts.with_approval, Approvable.model_validate(more))})
    before, after = evaluate(spec, counts), evaluate(spec, wider)
    assert RANK[after.decision] <= RANK[before.decision]
    assert set(before.grants) <= set(after.grants)
    assert before.allowed == after.allowed


@given(spec=executions, policy=lenient_policies)
def test_grants_are_exactly_what_the_policy_lacks(spec: CodeExecutionSpec, policy: ExecutionPolicySpec) -> None:
    """Widened by all of them it allows the request; by all but one, it is that one that has to be approved."""
    verdict = evaluate(spec, policy)
    if verdict.decision is Decision.NEEDS_APPROVAL:
        counts = policy_for(spec, policy).model_copy(update={"agent_rules": ()})
        assert evaluate(spec, _widened(counts, verdict.grants)).allowed
        for left_out in verdict.grants:
            others = [one for one in verdict.grants if one.field != left_out.field]
            languages_given = {one.value for one in others if one.field.endswith(".language")}
            missing = evaluate(spec, _widened(counts, others)).grants
            assert missing == (() if left_out.value in languages_given else (left_out,))


@given(spec=executions, policy=lenient_policies)
def test_who_asks_for_no_more_than_is_allowed_in_one_field_needs_one_grant_less(
    spec: CodeExecutionSpec, policy: ExecutionPolicySpec
) -> None:
    verdict = evaluate(spec, policy)
    for grant in verdict.grants:
        after = evaluate(_lowered(spec, policy_for(spec, policy), grant.field), policy)
        kept = {one for one in verdict.grants if one.field != grant.field}
        # Blocks that are left out take their languages with them.
        gone = {one for one in kept - set(after.grants) if one.field.endswith("].language")}
        assert set(after.grants) == kept - (gone if grant.field == "spec.blocks" else set())
        assert grant.field == "spec.blocks" or after.violations == verdict.violations


def _widened(policy: ExecutionPolicySpec, grants: Sequence[Grant]) -> ExecutionPolicySpec:
    """The policy, with each of these allowed."""
    wider = policy.dump()
    for grant in grants:
        name = grant.field.removeprefix("spec.")
        if name.endswith("].language"):
            wider["languages"] = [*dict.fromkeys([*wider["languages"], grant.value])]
        elif name == "image":
            wider["images"] = [*wider["images"], grant.value]
        elif name == "runtimeClassName":
            wider["runtimeClassNames"] = [*wider["runtimeClassNames"], grant.value]
        elif name in ("blocks", "timeoutSeconds"):
            wider["max" + name[0].upper() + name[1:]] = int(grant.value)
        else:
            wider["maxLimits"][name.removeprefix("limits.")] = grant.value
    return ExecutionPolicySpec.model_validate(wider)


def _lowered(spec: CodeExecutionSpec, policy: ExecutionPolicySpec, field: str) -> CodeExecutionSpec:
    """The request, with this field as the policy allows it."""
    name = field.removeprefix("spec.")
    if name.startswith("blocks["):
        index = int(name[len("blocks[") : name.index("]")])
        allowed = spec.blocks[index].model_copy(update={"language": policy.languages[0]})
        return spec.model_copy(update={"blocks": (*spec.blocks[:index], allowed, *spec.blocks[index + 1 :])})
    if name.startswith("limits."):
        attribute = {"ephemeralStorage": "ephemeral_storage"}.get(name[len("limits.") :], name[len("limits.") :])
        highest = getattr(policy.max_limits, attribute)
        return spec.model_copy(update={"limits": spec.limits.model_copy(update={attribute: highest})})
    return spec.model_copy(
        update={
            "image": {"image": policy.images[0]},
            "runtimeClassName": {"runtime_class_name": None},
            "timeoutSeconds": {"timeout_seconds": policy.max_timeout_seconds},
            "blocks": {"blocks": spec.blocks[: policy.max_blocks]},
        }[name]
    )


def _joined(one: Approvable, other: Approvable) -> Approvable:
    """What either of them makes approvable."""

    def higher(left: SomeLimits, right: SomeLimits) -> SomeLimits:
        sizes = {
            name: max((size for size in pair if size), key=_size, default=None)
            for name in ("cpu", "memory", "ephemeral_storage")
            for pair in [(getattr(left, name), getattr(right, name))]
        }
        return SomeLimits(**sizes, pids=_most(left.pids, right.pids))

    return Approvable(
        images=(*one.images, *other.images),
        languages=(*one.languages, *other.languages),
        runtime_class_names=(*one.runtime_class_names, *other.runtime_class_names),
        max_timeout_seconds=_most(one.max_timeout_seconds, other.max_timeout_seconds),
        max_blocks=_most(one.max_blocks, other.max_blocks),
        max_limits=higher(one.max_limits, other.max_limits),
    )


def _most(*numbers: int | None) -> int | None:
    return max((one for one in numbers if one is not None), default=None)


def _fields(spec: Request, policy: ExecutionPolicySpec) -> set[str]:
    """All that the policy does not allow by itself."""
    verdict = evaluate(spec, policy)
    return {one.field for one in (*verdict.violations, *verdict.beyond)}


def _raised(limits: Limits, output_bytes: int, quantity: str) -> Limits:
    return limits.model_copy(
        update={
            "cpu": max(limits.cpu, quantity, key=_size),
            "memory": max(limits.memory, quantity, key=_size),
            "ephemeral_storage": max(limits.ephemeral_storage, quantity, key=_size),
            "pids": min(limits.pids * 2, MAX_PIDS),
            "output_bytes": max(limits.output_bytes, output_bytes),
        }
    )


def _size(quantity: str) -> int:
    return QUANTITIES.index(quantity)
