"""The policy's verdict: total, complete and monotone."""

import pytest
from factories import IMAGE, OTHER_IMAGE, a_policy, a_raw_block, a_spec
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import CodeExecutionSpec, ExecutionPolicySpec, evaluate
from codeexec_api.v1alpha1 import MAX_BLOCKS, MAX_OUTPUT_BYTES, MAX_PIDS

QUANTITIES = ["1m", "250m", "0.5", "1", "64Mi", "1Gi", "2G"]
LANGUAGES = ["python", "bash", "sh"]
quantities = st.sampled_from(QUANTITIES)
output_bytes = st.integers(1024, MAX_OUTPUT_BYTES)
timeouts = st.integers(1, 86_400)
pids = st.integers(1, MAX_PIDS)
runtime_classes = st.sampled_from([None, "gvisor", "kata"])

specs = st.builds(
    lambda languages, limits, **rest: a_spec(
        blocks=[a_raw_block(language=language) for language in languages], limits=limits, **rest
    ),
    languages=st.lists(st.sampled_from(LANGUAGES), min_size=1, max_size=8),
    limits=st.fixed_dictionaries(
        {
            "cpu": quantities,
            "memory": quantities,
            "ephemeralStorage": quantities,
            "pids": pids,
            "outputBytes": output_bytes,
        }
    ),
    timeoutSeconds=timeouts,
    runtimeClassName=runtime_classes,
    image=st.sampled_from([None, IMAGE, OTHER_IMAGE]),
)
policies = st.builds(
    a_policy,
    images=st.sampled_from([[IMAGE], [OTHER_IMAGE], [IMAGE, OTHER_IMAGE]]),
    languages=st.lists(st.sampled_from(LANGUAGES), min_size=1, unique=True),
    maxBlocks=st.integers(1, MAX_BLOCKS),
    maxTimeoutSeconds=timeouts,
    maxLimits=st.fixed_dictionaries(
        {
            "cpu": quantities,
            "memory": quantities,
            "ephemeralStorage": quantities,
            "pids": pids,
            "outputBytes": output_bytes,
        }
    ),
    runtimeClassName=runtime_classes,
    runtimeClassNames=st.lists(st.sampled_from(["gvisor", "kata"]), unique=True),
)

# Each asks for one thing that `strict` does not allow: the field that is named, and what is asked.
ONE_TOO_MUCH = {
    "spec.image": {"image": OTHER_IMAGE},
    "spec.blocks[0].language": {"blocks": [a_raw_block(language="sh")]},
    "spec.blocks": {"blocks": [a_raw_block()] * 3},
    "spec.timeoutSeconds": {"timeoutSeconds": 31},
    "spec.limits.outputBytes": {"limits": {"outputBytes": 4097}},
    "spec.runtimeClassName": {"runtimeClassName": "kata"},
    "spec.limits.pids": {"limits": {"pids": 257, "outputBytes": 4096}},
    "spec.limits.cpu": {"limits": {"cpu": "501m", "outputBytes": 4096}},
    "spec.limits.memory": {"limits": {"memory": "257Mi", "outputBytes": 4096}},
    "spec.limits.ephemeralStorage": {"limits": {"ephemeralStorage": "1Gi", "outputBytes": 4096}},
}


def strict() -> ExecutionPolicySpec:
    return a_policy(
        languages=["python", "bash"],
        maxBlocks=2,
        maxTimeoutSeconds=30,
        maxLimits={"cpu": "500m", "memory": "256Mi", "ephemeralStorage": "128Mi", "pids": 256, "outputBytes": 4096},
        runtimeClassNames=["gvisor"],
    )


def asking(**changes: object) -> CodeExecutionSpec:
    return a_spec(**{"timeoutSeconds": 30, "limits": {"outputBytes": 4096}, **changes})


def test_what_is_exactly_at_the_limit_is_allowed() -> None:
    verdict = evaluate(asking(), strict())
    assert verdict.allowed
    assert verdict.message == "allowed by the policy"


@pytest.mark.parametrize("field", ONE_TOO_MUCH)
def test_a_violation_names_field_found_and_allowed(field: str) -> None:
    verdict = evaluate(asking(**ONE_TOO_MUCH[field]), strict())
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


def test_the_first_image_of_the_policy_is_the_default() -> None:
    policy = a_policy(images=[OTHER_IMAGE, IMAGE])
    assert evaluate(a_spec(), policy).image == OTHER_IMAGE
    assert evaluate(a_spec(image=IMAGE), policy).image == IMAGE


@given(spec=specs, policy=policies)
def test_total_and_consistent(spec: CodeExecutionSpec, policy: ExecutionPolicySpec) -> None:
    verdict = evaluate(spec, policy)
    assert verdict.allowed == (not verdict.violations)
    assert len({violation.field for violation in verdict.violations}) == len(verdict.violations)
    assert not verdict.allowed or verdict.image in policy.images


@given(spec=specs, policy=policies, more=timeouts, more_output=output_bytes, quantity=quantities)
def test_asking_for_more_never_makes_a_denied_thing_allowed(
    spec: CodeExecutionSpec, policy: ExecutionPolicySpec, more: int, more_output: int, quantity: str
) -> None:
    before = {violation.field for violation in evaluate(spec, policy).violations}
    limits = spec.limits.model_copy(
        update={
            "cpu": max(spec.limits.cpu, quantity, key=_size),
            "memory": max(spec.limits.memory, quantity, key=_size),
            "ephemeral_storage": max(spec.limits.ephemeral_storage, quantity, key=_size),
            "pids": min(spec.limits.pids * 2, MAX_PIDS),
            "output_bytes": max(spec.limits.output_bytes, more_output),
        }
    )
    greedier = spec.model_copy(
        update={
            "timeout_seconds": max(spec.timeout_seconds, more),
            "limits": limits,
            "blocks": (*spec.blocks, spec.blocks[0]),
        }
    )
    after = {violation.field for violation in evaluate(greedier, policy).violations}
    assert before <= after


@given(spec=specs, policy=policies)
def test_a_policy_that_allows_more_never_denies_more(spec: CodeExecutionSpec, policy: ExecutionPolicySpec) -> None:
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
        runtimeClassNames=["gvisor", "kata"],
    )
    before = {violation.field for violation in evaluate(spec, policy).violations}
    assert {violation.field for violation in evaluate(spec, wider).violations} <= before


def test_the_class_of_the_policy_can_not_be_left_by_naming_none() -> None:
    policy = a_policy(runtimeClassName="gvisor", runtimeClassNames=["kata"])
    assert evaluate(a_spec(), policy).runtime_class_name == "gvisor"
    assert evaluate(a_spec(runtimeClassName="kata"), policy).runtime_class_name == "kata"
    assert evaluate(a_spec(), a_policy()).runtime_class_name is None


def _size(quantity: str) -> int:
    return QUANTITIES.index(quantity)
