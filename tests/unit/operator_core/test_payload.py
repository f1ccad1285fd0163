"""The payload is held against the spec; what doesn't match is never run."""

import base64
import hashlib
import itertools
from datetime import datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from factories import (
    CODE,
    NOW,
    SECRET_UID,
    SECRETS,
    SESSION_REF,
    UID,
    a_part,
    a_raw_block,
    a_raw_file,
    a_secret,
    a_session,
    an_execution,
    seconds,
)
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import CodeExecution, Phase, PodLimits, Reason, SandboxPoolSpec, sealing
from codeexec_api.names import EXECUTION_LABEL, review_name
from codeexec_operator.core.keyring import Keyring, SealingKey
from codeexec_operator.core.payload import (
    Awaited,
    HeldPayload,
    Payload,
    PayloadProblem,
    build_messages,
    build_report_request,
    build_warm_up,
    code_size,
    hold,
    is_new,
    may_wait,
    open_payload,
    verify_payload,
)

FETCH = 1234
FIRST = ("run-1", "uid-0")
SECOND = ("run-1-1", "uid-1")
SEALED = {"payloadRef": None, "sealedPayload": {"keyName": "key-1", "data": "YQ=="}}
REVIEW = review_name("run-1", UID)


def test_what_was_announced_is_accepted_in_order() -> None:
    execution = an_execution(
        blocks=[a_raw_block(b"one"), a_raw_block(b"two")], files=[a_raw_file("a", b"A"), a_raw_file("b", b"B")]
    )
    payload = verify_payload(execution, [a_secret([b"one", b"two"], [b"A", b"B"])])
    assert isinstance(payload, Payload)
    assert (payload.secrets, payload.blocks, payload.files) == (SECRETS, (b"one", b"two"), (b"A", b"B"))


def test_the_size_is_that_of_all_blocks_and_files() -> None:
    blocks = [a_raw_block(b"1"), a_raw_block(b"22")]
    assert code_size(an_execution(blocks=blocks).spec) == 3
    assert code_size(an_execution(blocks=blocks, files=[a_raw_file("a", b"4444")]).spec) == 7


def test_a_missing_secret_is_named() -> None:
    problem = verify_payload(an_execution(), [None])
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_MISSING
    assert "'run-1'" in problem.message
    assert "codeexec-sandbox" in problem.message


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "Opaque"},
        {"type": "kubernetes.io/service-account-token"},
        {"metadata": {"name": "run-1", "uid": SECRET_UID}},
        {"metadata": {"name": "run-1", "uid": SECRET_UID, "labels": None}},
        {"metadata": {"name": "run-1", "uid": SECRET_UID, "labels": {EXECUTION_LABEL: "run-2"}}},
    ],
)
def test_a_foreign_secret_is_refused_and_never_deleted(changes: dict[str, Any]) -> None:
    problem = verify_payload(an_execution(), [a_secret(**changes)])
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_FOREIGN
    assert problem.secrets == ()


@pytest.mark.parametrize(
    ("blocks", "files", "field"),
    [
        ([b"one", b"twO"], [b"A"], "spec.blocks[1]"),
        ([b"two", b"one"], [b"A"], "spec.blocks[0]"),
        ([b"one"], [b"A"], "spec.blocks[1]"),
        ([b"one", b"two"], [b"B"], "spec.files[0]"),
        ([b"one", b"two"], [], "spec.files[0]"),
    ],
)
def test_a_mismatch_names_the_field_and_the_secret_goes(blocks: list[bytes], files: list[bytes], field: str) -> None:
    execution = an_execution(blocks=[a_raw_block(b"one"), a_raw_block(b"two")], files=[a_raw_file("a", b"A")])
    problem = verify_payload(execution, [a_secret(blocks, files)])
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_MISMATCH
    assert problem.message.startswith(f"{field}: ")
    assert problem.secrets == SECRETS


def test_a_wrong_size_is_a_mismatch() -> None:
    problem = verify_payload(an_execution(blocks=[a_raw_block(sizeBytes=8)]), [a_secret()])
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_MISMATCH


@pytest.mark.parametrize(
    "data", [None, {}, {"block-0": "not base64!"}, {"block-0": "YQ"}, {"block-0": "cHJpbnQo!MSkK"}]
)
def test_content_that_can_not_be_read_is_a_mismatch(data: Any) -> None:
    problem = verify_payload(an_execution(), [a_secret(data=data)])
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_MISMATCH
    assert "holds nothing" in problem.message


def test_no_code_in_messages_or_representations() -> None:
    marker = b"print('PLANTED')"
    execution = an_execution()
    problem = verify_payload(execution, [a_secret([marker])])
    payload = verify_payload(an_execution(blocks=[a_raw_block(marker)]), [a_secret([marker])])
    assert isinstance(payload, Payload)
    assert "PLANTED" not in repr(problem) + repr(payload)


def in_parts(parts: int, **spec: Any) -> Any:
    return an_execution(payloadRef={"name": "run-1", "parts": parts}, **spec)


@given(content=st.binary(max_size=40), cuts=st.lists(st.integers(0, 40), max_size=3))
def test_pieces_of_a_file_are_joined_in_the_order_of_the_parts(content: bytes, cuts: list[int]) -> None:
    marks = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    pieces = [content[start:end] for start, end in itertools.pairwise(marks)]
    parts = [a_part({"file-0": piece}, uid=f"uid-{index}") for index, piece in enumerate(pieces)]
    parts[-1]["data"] |= a_secret()["data"]
    payload = verify_payload(in_parts(len(parts), files=[a_raw_file("a", content)]), parts)
    assert isinstance(payload, Payload)
    assert (payload.blocks, payload.files) == ((CODE,), (content,))
    assert payload.secrets[:1] == (FIRST,)
    assert len(payload.secrets) == len(parts)


def test_parts_in_another_order_are_a_mismatch() -> None:
    execution = in_parts(2, blocks=[], files=[a_raw_file("a", b"12")], **SESSION_REF)
    problem = verify_payload(execution, [a_part({"file-0": b"2"}, uid="uid-0"), a_part({"file-0": b"1"}, uid="uid-1")])
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_MISMATCH
    assert problem.secrets == (FIRST, SECOND)


def test_a_missing_part_is_named_and_those_that_are_ours_go() -> None:
    problem = verify_payload(in_parts(3), [a_part({}, uid="uid-0"), None, a_part({}, uid="uid-2")])
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_MISSING
    assert "'run-1-1'" in problem.message
    assert problem.secrets == (FIRST, ("run-1-2", "uid-2"))


@pytest.mark.parametrize(
    "changes",
    [{"type": "Opaque"}, {"metadata": {"name": "run-1-1", "uid": "x", "labels": {EXECUTION_LABEL: "run-2"}}}],
    ids=["another type", "another execution's"],
)
def test_a_foreign_part_is_refused_and_left_alone(changes: dict[str, Any]) -> None:
    problem = verify_payload(in_parts(2), [a_part({}, uid="uid-0"), a_secret(**changes)])
    assert isinstance(problem, PayloadProblem)
    assert problem.reason is Reason.PAYLOAD_FOREIGN
    assert problem.secrets == (FIRST,)


def test_an_empty_file_has_to_be_there_too() -> None:
    execution = an_execution(files=[a_raw_file("empty", b"")])
    payload = verify_payload(execution, [a_secret([CODE], [b""])])
    assert isinstance(payload, Payload)
    assert payload.files == (b"",)
    assert isinstance(verify_payload(execution, [a_secret([CODE])]), PayloadProblem)


def test_files_of_a_session_that_are_listed_take_no_secret() -> None:
    assert verify_payload(an_execution(blocks=[], payloadRef=None, **SESSION_REF), []) == Payload()


class TestSealed:
    """The same, where it came in the record itself."""

    KEYS = Keyring((SealingKey("old", b"\1" * 32, NOW), SealingKey("new", b"\2" * 32, NOW)))

    def opened(self, content: Any, *, key: str = "new", sealed_for: str = "run-1", **spec: Any) -> Any:
        found = self.KEYS.find(key) or SealingKey(key, b"\3" * 32, NOW)
        published = sealing.publish(key, found.private)
        sealed = sealing.seal(content, published, "codeexec-sandbox", sealed_for)
        return self.open(an_execution(payloadRef=None, sealedPayload=sealed.dump(), **spec))

    def open(self, execution: CodeExecution) -> Payload | PayloadProblem:
        assert execution.spec.sealed_payload
        return open_payload(execution, execution.spec.sealed_payload, self.KEYS)

    def problem(self, *arguments: Any, **options: Any) -> PayloadProblem:
        """There is no Secret that anybody would have to delete."""
        found = self.opened(*arguments, **options)
        assert isinstance(found, PayloadProblem)
        assert found.secrets == ()
        assert "PLANTED" not in repr(found)
        return found

    @pytest.mark.parametrize("key", ["old", "new"])
    def test_what_was_announced_is_accepted_in_order(self, key: str) -> None:
        payload = self.opened(
            {"file-1": b"\x00\xff", "block-1": b"two", "file-0": b"", "block-0": b"one", "block-2": b"not announced"},
            key=key,
            blocks=[a_raw_block(b"one"), a_raw_block(b"two")],
            files=[a_raw_file("a", b""), a_raw_file("b", b"\x00\xff")],
        )
        assert isinstance(payload, Payload)
        assert (payload.blocks, payload.files, payload.secrets) == ((b"one", b"two"), (b"", b"\x00\xff"), ())
        assert "one" not in repr(payload)

    def test_a_key_that_is_gone(self) -> None:
        problem = self.problem({"block-0": CODE}, key="lost")
        assert problem.reason is Reason.PAYLOAD_UNREADABLE
        assert problem.message.startswith("spec.sealedPayload.keyName: ")
        assert "'lost'" in problem.message
        assert "Create the execution again" in problem.message

    def test_what_was_sealed_for_another_execution(self) -> None:
        problem = self.problem({"block-0": CODE}, sealed_for="run-2")
        assert problem.reason is Reason.PAYLOAD_UNREADABLE
        assert problem.message.startswith("spec.sealedPayload.data: ")
        assert "Create the execution with the client, or with spec.payloadRef" in problem.message

    def test_what_was_sealed_with_another_key_than_it_says(self) -> None:
        sealed = sealing.seal({"block-0": CODE}, sealing.publish("new", b"\1" * 32), "codeexec-sandbox", "run-1")
        problem = self.open(an_execution(payloadRef=None, sealedPayload=sealed.dump()))
        assert isinstance(problem, PayloadProblem)
        assert problem.reason is Reason.PAYLOAD_UNREADABLE

    @pytest.mark.parametrize(
        ("content", "field"),
        [
            ({"block-0": b"print('PLANTED')", "file-0": b"A"}, "spec.blocks[0]"),
            ({"block-0": CODE, "file-0": b"B"}, "spec.files[0]"),
            ({"block-0": CODE}, "spec.files[0]"),
            ({}, "spec.blocks[0]"),
        ],
    )
    def test_other_content_than_was_announced(self, content: dict[str, bytes], field: str) -> None:
        problem = self.problem(content, files=[a_raw_file("a", b"A")])
        assert problem.reason is Reason.PAYLOAD_MISMATCH
        assert problem.message.startswith(f"{field}: ")

    @pytest.mark.parametrize(
        ("plain", "reason"),
        [
            ('{"block-0": "no base64!"}', Reason.PAYLOAD_MISMATCH),
            ('{"block-0": "é"}', Reason.PAYLOAD_MISMATCH),
            (r'{"block-0": "\ud800"}', Reason.PAYLOAD_MISMATCH),
            ('{"block-0": null}', Reason.PAYLOAD_UNREADABLE),
            ("[" * 20_000, Reason.PAYLOAD_UNREADABLE),
        ],
        ids=["no base64", "no ASCII", "no text", "nothing", "too deep"],
    )
    def test_what_no_client_of_ours_has_sealed(self, plain: str, reason: Reason) -> None:
        """No API server has looked at it, and an error here would be one that the operator tries again for ever."""
        public = X25519PrivateKey.from_private_bytes(b"\2" * 32).public_key()
        data = sealing._SUITE.encrypt(plain.encode(), public, info=sealing._bound_to("codeexec-sandbox", "run-1"))
        sealed = {"keyName": "new", "data": base64.b64encode(data).decode()}
        problem = self.open(an_execution(payloadRef=None, sealedPayload=sealed))
        assert isinstance(problem, PayloadProblem)
        assert problem.reason is reason


@pytest.mark.parametrize(
    ("payload", "waits", "held"),
    [
        (Payload((CODE,), (), SECRETS), False, False),
        (Payload((CODE,), (), SECRETS), True, True),
        (Payload((CODE,), (b"x" * (1_000_000 - len(CODE)),), SECRETS), False, False),
        (Payload((CODE,), (b"x" * (1_000_001 - len(CODE)),), SECRETS), False, True),
        (Payload(), True, False),
    ],
    ids=["small", "waits for its session", "not quite large", "large", "nothing"],
)
def test_what_is_large_or_waits_is_not_kept_in_memory(payload: Payload, waits: bool, held: bool) -> None:
    assert hold(payload, waits=waits) == (HeldPayload(SECRETS) if held else payload)


@pytest.mark.parametrize(
    ("execution", "waits"),
    [
        (an_execution(phase=Phase.STARTING, status={"pool_name": "small", "pod_name": ""}), True),
        (an_execution(phase=Phase.STARTING, status={"pool_name": "small", "pod_name": "small-1"}), False),
        (an_execution(phase=Phase.STARTING, status={"pool_name": "", "pod_name": ""}), False),
        (an_execution(phase=Phase.AWAITING_APPROVAL), True),
        (an_execution(phase=Phase.STARTING, sessionRef={"name": "work"}), True),
    ],
    ids=["in a pool's queue", "has a pod of a pool", "gets its own pod", "waits for a human", "waits for its session"],
)
def test_who_may_wait_for_long(execution: CodeExecution, waits: bool) -> None:
    assert may_wait(execution) is waits


@pytest.mark.parametrize(
    ("created", "new"), [(NOW, True), (NOW - seconds(2.9), True), (NOW - seconds(3), False), (None, False)]
)
def test_a_payload_may_come_a_little_later_than_its_execution(created: datetime | None, new: bool) -> None:
    execution = an_execution()
    metadata = execution.metadata.model_copy(update={"creation_timestamp": created})
    assert is_new(execution.model_copy(update={"metadata": metadata}), NOW) is new


@pytest.mark.parametrize(
    ("phase", "spec", "handed_over", "awaited"),
    [
        (Phase.STARTING, {}, False, Awaited(payload="run-1")),
        (Phase.STARTING, SEALED, False, Awaited(key="key-1")),
        (Phase.AWAITING_APPROVAL, SEALED, False, Awaited(review=REVIEW, key="key-1")),
        (Phase.RUNNING, {}, True, Awaited()),
        (Phase.RUNNING, SEALED, True, Awaited()),
        (Phase.RUNNING, {}, False, Awaited(payload="run-1")),
        (Phase.DENIED, {}, False, Awaited()),
    ],
)
def test_nothing_is_deleted_that_an_execution_may_still_need(
    phase: Phase, spec: dict[str, Any], handed_over: bool, awaited: Awaited
) -> None:
    assert Awaited.by(an_execution(phase=phase, **spec), handed_over=handed_over) == awaited


def test_the_job_is_what_the_runner_needs() -> None:
    execution = an_execution(
        blocks=[a_raw_block(filename="pkg/main.py"), a_raw_block(b"ls\n", language="bash")],
        files=[a_raw_file("in/data", b"\x00\xff")],
        timeoutSeconds=7,
        limits={"outputBytes": 2048, "memory": "1Mi", "pids": 9},
    )
    payload = verify_payload(execution, [a_secret([CODE, b"ls\n"], [b"\x00\xff"])])
    assert isinstance(payload, Payload)
    assert build_messages(execution, payload, stateful=False, fetch_bytes=FETCH) == (
        {"put": "in/data", "data": base64.b64encode(b"\x00\xff").decode(), "append": False},
        {
            "id": UID,
            "session": False,
            "stateful": False,
            "blocks": [
                {
                    "path": "pkg/main.py",
                    "command": ["python3"],
                    "language": "python",
                    "code": "print(1)\n",
                    "sha256": hashlib.sha256(b"print(1)\n").hexdigest(),
                },
                {
                    "path": f"tmp_code_{hashlib.sha256(b'ls' + bytes([10])).hexdigest()}.sh",
                    "command": ["bash"],
                    "language": "bash",
                    "code": "ls\n",
                    "sha256": hashlib.sha256(b"ls\n").hexdigest(),
                },
            ],
            "timeoutSeconds": 7,
            "outputBytes": 2048,
            "fetchBytes": FETCH,
            "memoryBytes": 2**20,
            "pids": 9,
            "artifacts": {"list": "Changed", "fetch": []},
        },
    )


def test_a_job_of_a_session_says_so_and_what_files_are_wanted() -> None:
    wanted = {"list": "All", "fetch": ["*.csv"]}
    execution = an_execution(blocks=[], payloadRef=None, artifacts=wanted, **SESSION_REF)
    [job] = build_messages(execution, Payload(), stateful=True, fetch_bytes=FETCH)
    assert (job["session"], job["stateful"], job["blocks"], job["artifacts"]) == (True, True, [], wanted)


@pytest.mark.parametrize("size", [0, 1, 192 * 1024, 192 * 1024 + 1, 500_000])
def test_a_file_goes_in_pieces_that_together_are_the_file(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    execution = an_execution(files=[a_raw_file("first", b"1"), a_raw_file("a", content)])
    first, *puts, job = build_messages(
        execution, Payload((CODE,), (b"1", content), SECRETS), stateful=False, fetch_bytes=FETCH
    )
    assert first["put"] == "first"
    assert [put["append"] for put in puts] == [index > 0 for index in range(len(puts))]
    assert {put["put"] for put in puts} == {"a"}
    assert b"".join(base64.b64decode(put["data"]) for put in puts) == content
    assert all(len(put["data"]) <= 256 * 1024 for put in puts)
    assert "blocks" in job


@pytest.mark.parametrize("stateful", [True, False])
def test_the_runner_of_a_stateful_session_starts_a_kernel_before_it_reports(stateful: bool) -> None:
    limits = {"memory": "1Mi", "pids": 9}
    asked = build_report_request(a_session(stateful=stateful, limits=limits))
    assert asked == {"report": True, "kernel": stateful, "memoryBytes": 2**20, "pids": 9}
    assert not build_report_request(an_execution())["kernel"]


@pytest.mark.parametrize("stateful", [False, True])
def test_a_pod_that_waits_in_a_pool_has_a_kernel_if_the_pool_is_for_stateful_sessions(stateful: bool) -> None:
    pool = SandboxPoolSpec(limits=PodLimits.model_validate({"memory": "1Mi", "pids": 9}), stateful=stateful)
    assert build_warm_up(pool) == {"report": True, "kernel": stateful, "memoryBytes": 2**20, "pids": 9}


def test_a_block_that_is_not_text_is_an_error() -> None:
    execution = an_execution(blocks=[a_raw_block(b"\xff")])
    with pytest.raises(UnicodeDecodeError):
        build_messages(execution, Payload((b"\xff",), (), SECRETS), stateful=False, fetch_bytes=FETCH)


@pytest.mark.parametrize("payload", [Payload(), Payload((CODE,)), Payload((CODE,), (b"A", b"B")), Payload((), (b"A",))])
def test_what_is_not_all_that_was_announced_is_not_sent_in_part(payload: Payload) -> None:
    with pytest.raises(ValueError, match="zip"):
        build_messages(an_execution(files=[a_raw_file("a", b"A")]), payload, stateful=False, fetch_bytes=FETCH)
