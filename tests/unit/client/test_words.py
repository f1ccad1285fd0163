"""Messages name what the caller has given by the caller's own names."""

import pytest
from factories import IMAGE, a_spec

from codeexec_api import CodeSessionSpec
from executor_client.model.words import Caller, caller, from_the_command_line, in_words_of, option

REFUSED = "{} is not allowed by the policy (allowed: at most 10)"


@pytest.mark.parametrize(
    ("message", "python", "command_line"),
    [
        (
            "the block ran longer than spec.timeoutSeconds (60 s) and was killed",
            "the block ran longer than timeout=60 and was killed",
            "the block ran longer than --timeout 60 and was killed",
        ),
        (
            "the code needed more memory than spec.limits.memory; files in /workspace count",
            'the code needed more memory than Limits(memory="96Mi"); files in /workspace count',
            "the code needed more memory than --memory 96Mi; files in /workspace count",
        ),
        (
            "the code needed more memory than spec.limits.memory (128Mi).",
            'the code needed more memory than Limits(memory="128Mi").',
            "the code needed more memory than --memory 128Mi.",
        ),
        (REFUSED.format("spec.timeoutSeconds: 11"), REFUSED.format("timeout=11"), REFUSED.format("--timeout 11")),
        (
            REFUSED.format("spec.limits.cpu: 200m"),
            REFUSED.format('Limits(cpu="200m")'),
            REFUSED.format("--cpu 200m"),
        ),
        (
            REFUSED.format("spec.limits.pids: 64"),
            REFUSED.format("Limits(pids=64)"),
            REFUSED.format("spec.limits.pids: 64"),
        ),
        (
            REFUSED.format(f"spec.image: {IMAGE}"),
            REFUSED.format(f'image="{IMAGE}"'),
            REFUSED.format(f"--image {IMAGE}"),
        ),
        (
            "spec.limits.memory: 128Mi is not what the session was made with (allowed: 64Mi)",
            'Limits(memory="128Mi") is not what the session was made with (allowed: 64Mi)',
            "--memory 128Mi is not what the session was made with (allowed: 64Mi)",
        ),
    ],
)
def test_a_field_of_the_spec_is_what_the_caller_has_given(message: str, python: str, command_line: str) -> None:
    spec = a_spec(limits={"memory": "96Mi"})
    assert in_words_of(Caller.PYTHON, message, spec) == python
    assert in_words_of(Caller.COMMAND_LINE, message, spec) == command_line


@pytest.mark.parametrize(
    "message",
    [
        "a human has to approve spec.limits.memory=128Mi",
        "spec.blocks[0].language: bash is not allowed by the policy (allowed: python)",
        "spec.egress[0]: 10.2.0.1/32:80/TCP is not allowed by the policy (allowed: none)",
        "spec.images is not a field",
        "the pod was deleted",
    ],
)
def test_everything_else_stays_as_it_is(message: str) -> None:
    for who in Caller:
        assert in_words_of(who, message, a_spec()) == message


def test_a_value_that_nobody_tells_is_left_open() -> None:
    session = CodeSessionSpec.model_validate({"source": {"agent": "me"}})
    assert in_words_of(Caller.PYTHON, "give another spec.timeoutSeconds", session) == "give another timeout=…"


def test_the_command_line_says_when_it_is_the_caller() -> None:
    assert (caller(), option("kubeconfig")) == (Caller.PYTHON, "kubeconfig=")
    with from_the_command_line():
        assert (caller(), option("kubeconfig")) == (Caller.COMMAND_LINE, "--kubeconfig")
    assert caller() is Caller.PYTHON
