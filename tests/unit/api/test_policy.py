"""The policy's verdict: total, complete and monotone."""

from collections.abc import Callable
from typing import Any

import pytest
from factories import IMAGE, OTHER_IMAGE, a_policy, a_raw_block, a_spec
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import CodeExecutionSpec, CodeSessionSpec, ExecutionPolicySpec, Limits, evaluate
from codeexec_api.v1alpha1 import MAX_BLOCKS, MAX_OUTPUT_BYTES, MAX_PIDS, MAX_SESSION_SECONDS

QUANTITIES = ["1m", "250m", "0.5", "1", "64Mi", "1Gi", "2G"]
LANGUAGES = ["python", "bash", "sh", "javascript", "pwsh"]
quantities = st.sampled_from(QUANTITIES)
output_bytes = st.integers(1024, MAX_OUTPUT_BYTES)
timeouts = st.integers(1, 86_400)
pids = st.integers(1, MAX_PIDS)
runtime_classes = st.sampled_from([None, "gvisor", "kata"])
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
)
sessions = st.builds(
    a_session_spec,
    limits=limits,
    idleTimeoutSeconds=session_seconds,
    maxLifetimeSeconds=session_seconds,
    runtimeClassName=runtime_classes,
    image=images,
    stateful=st.booleans(),
)
requests = executions | sessions
Request = CodeExecutionSpec | CodeSessionSpec
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
    runtimeClassNames=st.lists(st.sampled_from(["gvisor", "kata"]), unique=True),
)

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


def strict() -> ExecutionPolicySpec:
    return a_policy(
        languages=["python", "bash"],
        maxBlocks=2,
        maxTimeoutSeconds=30,
        maxLimits={"cpu": "500m", "memory": "256Mi", "ephemeralStorage": "256Mi", "pids": 256, "outputBytes": 4096},
        runtimeClassNames=["gvisor"],
        maxSessionIdleSeconds=300,
        maxSessionLifetimeSeconds=3600,
    )


def asking(**changes: object) -> CodeExecutionSpec:
    return a_spec(**{"timeoutSeconds": 30, "limits": {"outputBytes": 4096}, **changes})


def asking_for_a_session(**changes: object) -> CodeSessionSpec:
    most = {"idleTimeoutSeconds": 300, "maxLifetimeSeconds": 3600, "limits": {"outputBytes": 4096}}
    return a_session_spec(**{**most, **changes})


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
    assert "ExecutionPolicy 'default'" in verdict.message


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
    assert verdict.allowed == (not verdict.violations)
    assert len({violation.field for violation in verdict.violations}) == len(verdict.violations)
    assert not verdict.allowed or verdict.image in policy.images


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
        runtimeClassNames=["gvisor", "kata"],
    )
    assert _fields(spec, wider) <= _fields(spec, policy)


@given(spec=sessions, policy=policies)
def test_a_session_gets_no_pod_that_an_execution_would_not_get(
    spec: CodeSessionSpec, policy: ExecutionPolicySpec
) -> None:
    alone = a_spec().model_copy(
        update={name: getattr(spec, name) for name in ("limits", "image", "runtime_class_name")}
    )
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


def _fields(spec: Request, policy: ExecutionPolicySpec) -> set[str]:
    return {violation.field for violation in evaluate(spec, policy).violations}


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
