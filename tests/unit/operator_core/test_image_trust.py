"""No pod names an image that no trusted key signed, whatever asks for it, and no code goes into one that does."""

from dataclasses import replace
from typing import Any

import pytest
from factories import (
    A_SIGNING_KEY,
    ANOTHER_SIGNING_KEY,
    CLUSTER_VIEW,
    IMAGE,
    NOW,
    OTHER_IMAGE,
    PAYLOAD,
    SESSION_REF,
    a_policy,
    a_session,
    a_view,
    an_execution,
)
from image_release.signing import CYCLONEDX, statement

from codeexec_api import ExecutionPolicySpec, Phase, Reason, SandboxPool, SessionPhase
from codeexec_api.image_signatures import parse_keys
from codeexec_api.policy import inheriting
from codeexec_operator.core.actions import AskPool, CreateMember, CreatePod, Plan, StartCode
from codeexec_operator.core.image_trust import unverified
from codeexec_operator.core.observed import Observed, ObservedSession, PolicyProblem
from codeexec_operator.core.observed_pool import ObservedPool
from codeexec_operator.core.pod_template import Template, template_of
from codeexec_operator.core.pool import decide_pool
from codeexec_operator.core.reconcile import decide
from codeexec_operator.core.session import decide_session
from codeexec_operator.core.timing import Timing

TIMING = Timing()
KEYS = parse_keys(A_SIGNING_KEY.public_pem)
GUARDED = replace(CLUSTER_VIEW, image_keys=KEYS)
SIGNATURE = A_SIGNING_KEY.sign(statement(IMAGE))
SIGNED = a_policy(imageSignatures=[SIGNATURE])
FOREIGN = a_policy(imageSignatures=[ANOTHER_SIGNING_KEY.sign(statement(IMAGE))])


def outcome(plan: Plan) -> tuple[Any, str]:
    return getattr(plan.status, "phase", None), getattr(plan.status, "reason", "")


def makes_pod(plan: Plan) -> bool:
    return any(isinstance(one, CreatePod) for one in plan.actions)


def asked(policy: ExecutionPolicySpec, **known: Any) -> Plan:
    seen = Observed(an_execution(), policy, NOW, payload=PAYLOAD, cluster_view=GUARDED, pool_asked=True)
    return decide(replace(seen, **known), NOW, TIMING)


@pytest.mark.parametrize(
    ("signatures", "said"),
    [
        ([], "imageSignatures has no signature of this digest."),
        ([A_SIGNING_KEY.sign(statement(OTHER_IMAGE))], "imageSignatures has no signature of this digest."),
        ([ANOTHER_SIGNING_KEY.sign(statement(OTHER_IMAGE))], "imageSignatures has no signature of this digest."),
        (
            [ANOTHER_SIGNING_KEY.sign(statement(IMAGE))],
            f"its signature is by another key, SHA256:{ANOTHER_SIGNING_KEY.hint}.",
        ),
        (["{}"], "no signature of this digest; an entry is not a Sigstore bundle (version 0.3)"),
        (
            [A_SIGNING_KEY.sign(statement(IMAGE, CYCLONEDX, {}))],
            "no signature of this digest; an entry is not a signatur",
        ),
    ],
)
def test_the_refusal_says_what_is_wrong_and_what_to_do(signatures: list[str], said: str) -> None:
    policy = a_policy(imageSignatures=signatures)
    ending = unverified(IMAGE, policy, KEYS, "the ExecutionPolicy 'default' in namespace 'n'")
    assert ending
    assert ending.reason is Reason.IMAGE_NOT_VERIFIED
    assert ending.message.startswith(f"image {IMAGE} is not verified: ")
    assert said in ending.message
    assert f"Trusted keys: {KEYS[0]} (chart value sandbox.imageVerification.publicKeys)" in ending.message
    assert "imageSignatures of the ExecutionPolicy 'default' in namespace 'n'" in ending.message


def test_the_repository_does_not_count_but_the_digest() -> None:
    """The content is what is signed. Which repositories it may come from, admission says."""
    moved = IMAGE.replace("registry.example", "mirror.example")
    assert unverified(moved, SIGNED, KEYS) is None
    assert unverified(IMAGE.replace("a" * 64, "c" * 64), SIGNED, KEYS)


def test_an_image_without_a_digest_is_not_verified_by_an_entry_without_one() -> None:
    ending = unverified("registry.example/sandbox:1", a_policy(imageSignatures=["{}"]), KEYS)
    assert ending
    assert "imageSignatures has no signature of this digest; an entry is not a Sigstore bundle" in ending.message


def test_without_keys_every_image_will_do_and_a_policy_that_is_none_is_told_of_elsewhere() -> None:
    assert unverified(IMAGE, a_policy(), ()) is None
    assert unverified(IMAGE, PolicyProblem("no policy"), KEYS) is None


def test_one_good_signature_among_others_is_enough() -> None:
    assert unverified(IMAGE, a_policy(imageSignatures=["{}", *FOREIGN.image_signatures, SIGNATURE]), KEYS) is None


def test_the_default_policys_signatures_count_in_a_namespace_with_its_own_policy() -> None:
    assert unverified(IMAGE, inheriting(a_policy(), SIGNED), KEYS) is None
    assert unverified(IMAGE, inheriting(FOREIGN, SIGNED), KEYS) is None
    assert unverified(IMAGE, inheriting(a_policy(), FOREIGN), KEYS)


@pytest.mark.parametrize("policy", [a_policy(), FOREIGN])
def test_an_execution_gets_no_pod_of_an_image_that_is_not_verified(policy: ExecutionPolicySpec) -> None:
    refused = asked(policy)
    assert outcome(refused) == (Phase.DENIED, "ImageNotVerified")
    assert not makes_pod(refused)
    assert makes_pod(asked(SIGNED))
    assert makes_pod(asked(policy, cluster_view=CLUSTER_VIEW)), "positive control: no keys"


def test_nobody_is_asked_to_approve_it() -> None:
    policy = a_policy(withApproval={"images": [OTHER_IMAGE]}, imageSignatures=[SIGNATURE])
    execution = an_execution(image=OTHER_IMAGE)
    assert outcome(asked(policy, execution=execution)) == (Phase.DENIED, "ImageNotVerified")
    both = policy.model_copy(update={"image_signatures": (A_SIGNING_KEY.sign(statement(OTHER_IMAGE)),)})
    assert outcome(asked(both, execution=execution))[0] is Phase.AWAITING_APPROVAL


def test_a_pod_that_another_operator_has_recorded_is_not_made_either() -> None:
    """After a restart with other keys, or a policy that has lost its signature."""
    status = {"image": IMAGE, "pod_name": "run-1-1"}
    execution = an_execution(phase=Phase.STARTING).model_copy()
    execution = execution.model_copy(update={"status": execution.status.model_copy(update=status)})
    refused = asked(FOREIGN, execution=execution)
    assert outcome(refused) == (Phase.DENIED, "ImageNotVerified")
    assert not makes_pod(refused)
    assert makes_pod(asked(SIGNED, execution=execution)), "positive control"


def test_who_waits_for_a_pool_is_told_when_the_signature_is_gone() -> None:
    execution = an_execution(phase=Phase.STARTING)
    execution = execution.model_copy(update={"status": execution.status.model_copy(update={"pod_name": ""})})
    assert outcome(asked(FOREIGN, execution=execution)) == (Phase.DENIED, "ImageNotVerified")
    control = asked(SIGNED, execution=execution, pool_asked=False)
    assert any(isinstance(one, AskPool) for one in control.actions), "positive control"


def test_no_code_goes_into_a_session_whose_image_is_trusted_no_more() -> None:
    view = a_view(status={"image": OTHER_IMAGE})
    execution = an_execution(phase=Phase.STARTING, **SESSION_REF)

    def decided(*images: str) -> Plan:
        policy = a_policy(imageSignatures=[A_SIGNING_KEY.sign(statement(image)) for image in images])
        seen = Observed(execution, policy, NOW, payload=PAYLOAD, cluster_view=GUARDED, session=view)
        return decide(seen, NOW, TIMING)

    assert outcome(decided(IMAGE)) == (Phase.DENIED, "ImageNotVerified")
    assert any(isinstance(one, StartCode) for one in decided(OTHER_IMAGE).actions), "positive control"


@pytest.mark.parametrize("phase", [SessionPhase.PENDING, SessionPhase.STARTING])
def test_a_session_gets_no_pod_of_it(phase: SessionPhase) -> None:
    session = a_session(phase=phase, status={"image": IMAGE, "pod_name": "work-1-1"})

    def decided(policy: ExecutionPolicySpec) -> Plan:
        seen = ObservedSession(session, policy, NOW, policy_read=True, pool_asked=True, cluster_view=GUARDED)
        return decide_session(seen, NOW, TIMING)

    refused = decided(FOREIGN)
    assert outcome(refused) == (SessionPhase.DENIED, "ImageNotVerified")
    assert not makes_pod(refused)
    assert makes_pod(decided(SIGNED)), "positive control"


def test_a_pool_makes_no_pods_of_it_and_says_why() -> None:
    meta = {"name": "default", "namespace": "n", "uid": "1", "resourceVersion": "7", "generation": 3}
    pool = SandboxPool.model_validate({"metadata": meta, "spec": {"replicas": 1}})
    seen = ObservedPool(pool, FOREIGN, cluster_view=GUARDED, members={}, allowance=5, names=("default-00000000000a",))
    plan = decide_pool(seen, NOW, TIMING)
    assert not plan.actions
    [ready] = [one for one in getattr(plan.status, "conditions") if one.type == "Ready"]  # noqa: B009
    assert (ready.status, ready.reason) == ("False", "ImageNotVerified")
    signed = replace(seen, policy=SIGNED)
    assert isinstance(template_of(signed), Template)
    assert any(isinstance(one, CreateMember) for one in decide_pool(signed, NOW, TIMING).actions), "positive control"


def test_code_that_was_never_begun_is_not_handed_over_again_into_an_image_that_no_trusted_key_signed() -> None:
    execution = an_execution(phase=Phase.RUNNING)
    seen = Observed(execution, FOREIGN, NOW, payload=PAYLOAD, cluster_view=GUARDED, missing="NeverBegun")
    refused = decide(seen, NOW, TIMING)
    assert outcome(refused) == (Phase.LOST, "OperatorRestarted")
    again = decide(replace(seen, policy=SIGNED), NOW, TIMING)
    assert any(isinstance(one, StartCode) for one in again.actions), "control"
