"""What has to be the same on `FakeCluster` and on a real cluster: cases, each of them run against both.

A case is a coroutine that uses the client as users do, asserts what matters, and returns all that could be seen. Its
script says what comes of its code; on a real cluster the code itself does. Names, times and UIDs are left out of what
is seen, and nothing else.
"""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

from waits import SECONDS

from codeexec_api import (
    CodeExecution,
    CodeExecutionSpec,
    CodeSession,
    Condition,
    ConditionType,
    ExecutionPolicySpec,
    Limits,
    PayloadRef,
    Phase,
    Reason,
)
from executor_client import (
    CodeExecError,
    CodeExecutionClient,
    Execution,
    ExecutionResult,
    OutputChunk,
    PreparedBlock,
    Request,
    Session,
    SourceBlock,
    WorkspaceFile,
    prepare,
)
from executor_client.client.request import DEFAULT_NAMESPACE
from executor_client.testing import FAKE_IMAGE, FakeBlock, FakeCluster, FakeOutcome

Script = Callable[[FakeBlock], FakeOutcome]


class Stage(Protocol):
    """Where a case is played."""

    client: CodeExecutionClient

    async def lose_pod(self, name: str) -> None:
        """Delete the pod of this execution or session."""

    async def wait_for_end(self, session: str, seconds: float) -> None:
        """Let the time pass after which this session ends by itself."""

    def no_pod_starts(self, reason: Reason, message: str) -> None:
        """Tell the fake what a cluster finds out by itself, about in these words."""

    def somebody_else(self) -> CodeExecutionClient:
        """The client of who may decide what waits for approval."""


class FakeStage:
    def __init__(
        self,
        script: Mapping[str, FakeOutcome | Script],
        policy: Mapping[str, Any] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        def run(block: FakeBlock) -> FakeOutcome:
            outcome = script[block.code]
            return outcome if isinstance(outcome, FakeOutcome) else outcome(block)

        governing = ExecutionPolicySpec.model_validate({"images": (FAKE_IMAGE,), **policy}) if policy else None
        self.fake = FakeCluster(namespace=namespace, run=run, policy=governing)
        self.client = self.fake.client()

    async def lose_pod(self, name: str) -> None:
        self.fake.lose_pod(name)

    async def wait_for_end(self, session: str, seconds: float) -> None:
        self.fake.advance(seconds)

    def no_pod_starts(self, reason: Reason, message: str) -> None:
        self.fake.fail_to_start(reason, message)

    def somebody_else(self) -> CodeExecutionClient:
        return self.fake.client("somebody-else")


@dataclass(frozen=True)
class Case:
    name: str
    play: Callable[[Stage], Awaitable[Any]]
    script: Mapping[str, FakeOutcome | Script]
    policy: Mapping[str, Any]
    """What the namespace's own policy says, besides its image; empty: the default one counts."""


CASES: list[Case] = []


def case(
    script: Mapping[str, FakeOutcome | Script] | None = None, policy: Mapping[str, Any] | None = None
) -> Callable[[Callable[[Stage], Awaitable[Any]]], Any]:
    def add(play: Callable[[Stage], Awaitable[Any]]) -> Any:
        CASES.append(Case(play.__name__, play, script or {}, policy or {}))
        return play

    return add


# --- what can be seen -----------------------------------------------------------------------------------------------


def anonymous(text: str) -> str:
    """Without what differs from call to call, and from cluster to cluster."""
    text = re.sub(r"(run|session)-[0-9a-f]{12}(-[0-9a-f]{8}(-[0-9]+){0,2})?", r"\1-N", text)
    text = re.sub(r"(?<!\S)[^\s,]{1,280}@sha256:[0-9a-f]{64}", "IMAGE", text)
    text = re.sub(r"denied by \S+: ", "denied by SOMEBODY: ", text)
    text = re.sub(r"\(Helm value policy[^)]*\)", "(Helm value policy)", text)
    return re.sub(r"IMAGE(, IMAGE)+", "IMAGE", text)


def visible(result: ExecutionResult) -> dict[str, Any]:
    """A result, without names, times and UIDs."""
    return {
        "phase": result.phase.value,
        "reason": result.reason,
        "message": anonymous(result.message),
        "exit code": result.exit_code,
        "output": anonymous(result.output),
        "stdout": result.stdout,
        "stderr": result.stderr,
        "truncated": result.truncated,
        "blocks": [(one.exit_code, one.reason, one.stdout_bytes, one.stderr_bytes) for one in result.blocks],
        "has pod": bool(result.pod_name),
        "digest": result.code_digest,
        "artifacts": result.artifacts,
        "omitted": result.artifacts_omitted,
        "files": dict(result.files),
        "in session": result.session is not None,
    }


def visible_conditions(conditions: Sequence[Condition]) -> list[tuple[str, str, str | None, int | None]]:
    """Without those that only a wait brings."""
    kept = (one for one in conditions if one.type not in (ConditionType.DELAYED, ConditionType.QUEUED))
    return [(one.type, one.status, one.reason, one.observed_generation) for one in kept]


def visible_record(record: CodeExecution) -> dict[str, Any]:
    """A record, without names, times, UIDs and what the cluster is made of."""
    status = record.status
    return {
        "generations": (record.metadata.generation, status.observed_generation),
        "phase": status.phase.value,
        "reason": status.reason,
        "message": anonymous(status.message),
        "conditions": visible_conditions(status.conditions),
        "times": (record.metadata.creation_timestamp is not None, bool(status.started_at), bool(status.finished_at)),
        "exit code": status.exit_code,
        "streams": [
            one and (len(one.text), one.sha256, one.kept_bytes, one.total_bytes, one.truncated, one.referenced)
            for one in (status.stdout, status.stderr)
        ],
        "order": [(run.stream, run.characters) for run in status.output_order],
        "refs": [anonymous(ref.name) for ref in status.output_refs],
        "artifacts": [one.dump() for one in status.artifacts],
        "summary": (status.summary.languages, status.summary.digest, bool(status.summary.duration)),
        "egress": status.egress_proof and status.egress_proof.verdict.value,
        "pod": (anonymous(status.pod_name), bool(status.node_name), bool(status.image), bool(status.image_id)),
        "version": status.operator_version,
        "code": [one.dump() for one in status.code_findings],
        "grants": [str(one) for one in status.approval.grants] if status.approval else None,
        "cancelled": record.spec.cancelled,
    }


def visible_session(session: CodeSession) -> dict[str, Any]:
    """The record of a session. How often it was used is written now and then, so it counts at its end only."""
    status = session.status
    ended = status.phase.terminal
    return {
        "generations": (session.metadata.generation, status.observed_generation),
        "phase": status.phase.value,
        "reason": status.reason,
        "message": anonymous(status.message),
        "conditions": visible_conditions(status.conditions),
        "times": (bool(status.started_at), bool(status.last_used_at), bool(status.ended_at)),
        "executions": status.executions if ended else None,
        "egress": status.egress_proof and status.egress_proof.verdict.value,
        "pod": (anonymous(status.pod_name), bool(status.node_name), bool(status.image), bool(status.image_id)),
        "version": status.operator_version,
        "ended": session.spec.ended,
    }


async def visible_error(doing: Awaitable[Any]) -> tuple[str, str]:
    """Type and text of the error that this ends with."""
    try:
        await doing
    except (CodeExecError, ValueError) as error:
        return type(error).__name__, anonymous(str(error))
    raise AssertionError("no error")


# --- what cases are made of -----------------------------------------------------------------------------------------

LIMITS = Limits(cpu="200m")
REQUEST = Request(agent="honest", timeout_seconds=300, limits=LIMITS)


def blocks(*sources: tuple[str, str]) -> tuple[PreparedBlock, ...]:
    return prepare([SourceBlock(language, code) for language, code in sources]).blocks


def request(**changes: Any) -> Request:
    return replace(REQUEST, **changes)


def limits(**changes: Any) -> Limits:
    return LIMITS.model_copy(update=changes)


async def run(stage: Stage, *sources: tuple[str, str], **options: Any) -> ExecutionResult:
    return await stage.client.execute(blocks(*sources), options.pop("request", REQUEST), **options)


async def both(stage: Stage, result: ExecutionResult) -> tuple[Any, Any]:
    """A result and its record."""
    return visible(result), visible_record(await stage.client.get(result.name))


async def submit(stage: Stage, session: Session, code: str) -> Execution:
    return await stage.client.submit(blocks(("sh", code)), REQUEST, session=session.name)


async def phase(stage: Stage, execution: Execution, awaited: Phase) -> None:
    """Wait until the record is in this phase."""
    transport = await stage.client.connect()
    current = await transport.get(execution.name)
    async with asyncio.timeout(SECONDS), aclosing(transport.changes(current)) as changes:
        while current.status.phase is not awaited:
            current = await anext(changes)


async def printed(stage: Stage, execution: Execution) -> None:
    """Wait until its code has printed something."""
    async with aclosing(stage.client.attach(execution.name).output()) as output:
        await anext(output)


def writes(files: Mapping[str, bytes]) -> Script:
    """Code that writes these files, and says nothing."""

    def script(block: FakeBlock) -> FakeOutcome:
        block.files.update(files)
        return FakeOutcome()

    return script


LATE = 10
LONG = 30
"""Seconds after which code or a session ends: enough for code to say something before, on a node with much to do."""

# --- what code says and how it ends ---------------------------------------------------------------------------------

WRITE = """
import array, fcntl, os, termios, time
def write(stream, text):
    os.write(stream, text.encode())
    left = array.array("i", [1])
    while left[0]:  # until it was read, so that what comes next in the other stream is read later
        fcntl.ioctl(stream, termios.FIONREAD, left)
        time.sleep(0.01)
"""
APART = f"{WRITE}\nfor stream, text in ((1, 'a\\n'), (2, 'b\\n'), (1, 'c\\n')): write(stream, text)"


@case({APART: FakeOutcome(pieces=(("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n")))})
async def streams_are_apart_and_in_order(stage: Stage) -> Any:
    result = await run(stage, ("python", APART))
    assert (result.stdout, result.stderr, result.output) == ("a\nc\n", "b\n", "a\nb\nc\n")
    return await both(stage, result)


FAILS = "echo two; exit 3"


@case({"print('one')": FakeOutcome(stdout="one\n"), FAILS: FakeOutcome(stdout="two\n", exit_code=3)})
async def the_first_failure_ends_it(stage: Stage) -> Any:
    result = await run(stage, ("python", "print('one')"), ("bash", FAILS), ("sh", "echo three"))
    assert (result.exit_code, result.output, len(result.blocks)) == (3, "one\ntwo\n", 2)
    return await both(stage, result)


@case({"true": FakeOutcome()})
async def code_without_output(stage: Stage) -> Any:
    return await both(stage, await run(stage, ("sh", "true")))


@case({"kill -KILL $$": FakeOutcome(exit_code=137), "exit 124": FakeOutcome(exit_code=124)})
async def exit_codes_are_the_code_s_own(stage: Stage) -> Any:
    killed, ended = await run(stage, ("bash", "kill -KILL $$")), await run(stage, ("bash", "exit 124"))
    assert (killed.exit_code, ended.exit_code, ended.reason) == (137, 124, "NonZeroExit")
    return visible(killed), visible(ended)


ODD = r"printf 'a\000b\377\033[0m\342\202'"


@case({ODD: FakeOutcome(stdout=b"a\x00b\xff\x1b[0m\xe2\x82")})
async def odd_bytes(stage: Stage) -> Any:
    result = await run(stage, ("bash", ODD))
    assert result.stdout == "a\x00b\ufffd\x1b[0m\ufffd"
    return await both(stage, result)


MUCH = "head -c 5000 /dev/zero | tr '\\0' x"


@case({MUCH: FakeOutcome(stdout="x" * 5000)})
async def output_beyond_its_limit_is_marked(stage: Stage) -> Any:
    result = await run(stage, ("sh", MUCH), request=request(limits=limits(output_bytes=2048)))
    assert result.truncated
    assert result.stdout == "x" * 2048
    return await both(stage, result)


LARGE = f"{WRITE}\nfor _ in range(10): write(1, 'y' * 40_000)\nwrite(2, 'end\\n')"


@case({LARGE: FakeOutcome(stdout="y" * 400_000, stderr="end\n")})
async def large_output_is_complete(stage: Stage) -> Any:
    result = await run(stage, ("python", LARGE))
    assert (len(result.stdout), result.stderr, result.truncated) == (400_000, "end\n", False)
    return await both(stage, result)


SLOW = "printf before; sleep 60"


@case({SLOW: FakeOutcome(stdout="before", takes=60)})
async def time_outs_keep_output(stage: Stage) -> Any:
    result = await run(stage, ("sh", SLOW), ("sh", "echo never"), request=request(timeout_seconds=LATE))
    assert (result.exit_code, result.stdout, result.phase) == (124, "before", Phase.TIMED_OUT)
    return await both(stage, result)


HUNGRY = "print('begins', flush=True)\nx = bytearray(400_000_000)"


@case({HUNGRY: FakeOutcome(stdout="begins\n", out_of_memory=True)})
async def out_of_memory(stage: Stage) -> Any:
    result = await run(stage, ("python", HUNGRY), request=request(limits=limits(memory="128Mi")))
    assert (result.exit_code, result.phase, result.stdout) == (137, Phase.OUT_OF_MEMORY, "begins\n")
    return await both(stage, result)


@case()
async def a_language_that_the_image_lacks(stage: Stage) -> Any:
    result = await run(stage, ("javascript", "console.log(1)"))
    assert result.exit_code == 1
    assert "the sandbox image has no node" in result.stderr
    return await both(stage, result)


# --- cancellation ---------------------------------------------------------------------------------------------------

ENDLESS = "echo first; sleep 600"


@case({ENDLESS: FakeOutcome(stdout="first\n", never_ends=True)})
async def cancelling_keeps_earlier_output(stage: Stage) -> Any:
    cancelled, chunks = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def on_output(chunk: OutputChunk) -> None:
        chunks.append(chunk)
        loop.call_soon_threadsafe(cancelled.set)

    result = await run(stage, ("sh", ENDLESS), cancelled=cancelled, on_output=on_output)
    assert chunks == [OutputChunk("stdout", "first\n")]
    assert (result.phase, result.stdout) == (Phase.CANCELLED, "first\n")
    return await both(stage, result)


@case({"true": FakeOutcome()})
async def cancelling_what_has_ended_changes_nothing(stage: Stage) -> Any:
    result = await run(stage, ("sh", "true"))
    await stage.client.cancel(result.name)
    await stage.client.cancel(result.name)
    return visible_record(await stage.client.get(result.name))


@case({ENDLESS: FakeOutcome(stdout="first\n", never_ends=True)})
async def a_handle_gives_live_output_and_cancels(stage: Stage) -> Any:
    execution = await stage.client.submit(blocks(("sh", ENDLESS)), REQUEST)
    chunks = []
    async with aclosing(stage.client.attach(execution.name).output()) as output:
        async for chunk in output:
            chunks.append(chunk)
            await execution.cancel()
    assert chunks == [OutputChunk("stdout", "first\n")]
    return visible(await execution.result())


# --- refusals -------------------------------------------------------------------------------------------------------


@case()
async def the_policy_lists_all_that_it_refuses(stage: Stage) -> Any:
    asked = request(timeout_seconds=3601, limits=limits(memory="64Gi", pids=30_000))
    result = await run(stage, ("sh", "true"), request=asked)
    assert (result.phase, result.exit_code) == (Phase.DENIED, 1)
    assert "timeout=3601 is not allowed by the policy" in result.message
    return await both(stage, result)


@case()
async def an_image_that_is_not_allowed(stage: Stage) -> Any:
    result = await run(stage, ("sh", "true"), request=request(image=f"other.example/image@sha256:{1:064x}"))
    return await both(stage, result)


@case()
async def ways_out_and_mounts_that_the_policy_does_not_name(stage: Stage) -> Any:
    asked = request(egress=("192.0.2.7:443", "pods{app=db}:5432"), mounts=("pvc:data:/mnt/data",))
    result = await run(stage, ("sh", "true"), request=asked)
    assert (result.phase, result.reason) == (Phase.DENIED, "PolicyViolation")
    assert "spec.egress[1]: pods{app=db}:5432/TCP is not allowed" in result.message
    return await both(stage, result)


CODE_RULES = {
    "codeRules": [
        {"action": "Deny", "imports": ["ctypes"]},
        {"action": "NeedApproval", "imports": ["socket", "os.path"]},
        {"action": "Note", "imports": ["os"]},
    ]
}
NOTED, HARMLESS = "import os\nprint(os.sep)", "print('import ctypes')"


@case({NOTED: FakeOutcome(stdout="/\n"), HARMLESS: FakeOutcome(stdout="import ctypes\n")}, policy=CODE_RULES)
async def code_that_is_noted_runs(stage: Stage) -> Any:
    result = await run(stage, ("python", NOTED), ("python", HARMLESS))
    assert (result.exit_code, result.output) == (0, "/\nimport ctypes\n")
    record = await stage.client.get(result.name)
    assert [one.dump() for one in record.status.code_findings] == [
        {"found": "import os", "action": "Note", "places": ["spec.blocks[0]"], "count": 1}
    ]
    return await both(stage, result)


@case(policy=CODE_RULES)
async def code_that_is_denied_does_not(stage: Stage) -> Any:
    seen = []
    for code in ("import os, ctypes.util as x", "__import__('ctypes')", "!ls", "print 'two'"):
        result = await run(stage, ("sh", "true"), ("python", code), ("python", code))
        assert (result.phase, result.exit_code, result.blocks) == (Phase.DENIED, 1, ())
        seen.append(await both(stage, result))
    files = await run(stage, ("sh", "true"), files=[WorkspaceFile("pkg/a.py", b"from ctypes import *")])
    assert files.message.startswith("spec.files[0]: import ctypes is not allowed by the policy")
    return [*seen, await both(stage, files)]


@case(policy=CODE_RULES)
async def code_that_needs_approval_waits(stage: Stage) -> Any:
    execution = await stage.client.submit(blocks(("python", "import socket"), ("python", "import os.path")), REQUEST)
    await phase(stage, execution, Phase.AWAITING_APPROVAL)
    record = await stage.client.get(execution.name)
    await execution.cancel()
    assert [str(one) for one in record.status.approval.grants] == [  # type: ignore[union-attr]
        "spec.blocks[1]=import os.path",
        "spec.blocks[0]=import socket",
    ]
    waiting = visible_record(record)
    return waiting | {"message": re.sub("--uid [^`]+", "--uid UID", waiting["message"])}


ASKS = "import socket\nprint('approved')"


@case({ASKS: FakeOutcome(stdout="approved\n")}, policy=CODE_RULES)
async def code_that_somebody_else_approves_runs(stage: Stage) -> Any:
    execution = await stage.client.submit(blocks(("python", ASKS)), REQUEST)
    await phase(stage, execution, Phase.AWAITING_APPROVAL)
    waiting = await stage.client.get(execution.name)
    await visible_error(stage.client.approve(waiting))  # the fake knows no roles, so it refuses for another reason
    async with stage.somebody_else() as approver:
        await approver.approve(waiting, reason="it is fine")
        result = await execution.result()
        twice = await visible_error(approver.approve(await approver.get(execution.name)))
    assert (result.exit_code, result.stdout, twice[0]) == (0, "approved\n", "NothingToDecide")
    return twice, await both(stage, result)


@case(policy=CODE_RULES)
async def code_that_somebody_else_denies_does_not(stage: Stage) -> Any:
    execution = await stage.client.submit(blocks(("python", ASKS)), REQUEST)
    await phase(stage, execution, Phase.AWAITING_APPROVAL)
    async with stage.somebody_else() as approver:
        await approver.deny(await approver.get(execution.name), reason="too much is asked for")
        result = await execution.result()
    assert (result.phase, result.reason, result.blocks) == (Phase.DENIED, "ApprovalDenied", ())
    return await both(stage, result)


@case()
async def nothing_to_do_outside_a_session(stage: Stage) -> Any:
    return await visible_error(stage.client.execute((), REQUEST))


@case()
async def a_payload_that_was_not_announced(stage: Stage) -> Any:
    """Beneath the client, which can't do this."""
    transport, name = await stage.client.connect(), f"run-{secrets.token_hex(6)}"
    announced = blocks(("sh", "echo announced"))
    spec = CodeExecutionSpec(
        blocks=tuple(block.announce() for block in announced),
        payload_ref=PayloadRef(name=name),
        source=REQUEST.source,
    )
    await transport.create(name, spec, {"block-0": b"echo other"})
    result = await stage.client.attach(name).result()
    assert result.reason == "PayloadMismatch"
    return await both(stage, result)


@case()
async def names_that_there_are_not(stage: Stage) -> Any:
    nobody, none = f"run-{0:012x}", f"session-{0:012x}"
    errors = [
        await visible_error(doing)
        for doing in (
            stage.client.get(nobody),
            stage.client.cancel(nobody),
            stage.client.attach(nobody).result(),
            stage.client.get_session(none),
            stage.client.end_session(none),
            stage.client.join_session(none, REQUEST),
        )
    ]
    return [kind for kind, _ in errors]


# --- files ----------------------------------------------------------------------------------------------------------

MAKES = "mkdir d; printf abc > d/made.txt; cp in.txt out.csv; printf x >> in.txt"


def makes(block: FakeBlock) -> FakeOutcome:
    block.files["d/made.txt"] = b"abc"
    block.files["out.csv"] = block.files["in.txt"]
    block.files["in.txt"] += b"x"
    return FakeOutcome()


@case({MAKES: makes})
async def files_that_code_makes_are_named(stage: Stage) -> Any:
    result = await run(stage, ("sh", MAKES), files=[WorkspaceFile("in.txt", b"1,2\n")])
    assert {"d/made.txt", "out.csv"} <= {one.path for one in result.artifacts}
    return await both(stage, result)


@case({MAKES: makes})
async def files_are_fetched_by_pattern(stage: Stage) -> Any:
    files = [WorkspaceFile("in.txt", b"1,2\n")]
    result = await run(stage, ("sh", MAKES), files=files, fetch=["*.txt", "no.such"], list_files="None")
    assert result.files == {"d/made.txt": b"abc", "in.txt": b"1,2\nx"}
    read = await stage.client.read_artifact(await stage.client.get(result.name), "in.txt")
    missing = await visible_error(stage.client.read_artifact(await stage.client.get(result.name), "out.csv"))
    return await both(stage, result), read, missing


@case({MAKES: makes})
async def all_files_are_listed(stage: Stage) -> Any:
    result = await run(stage, ("sh", MAKES), files=[WorkspaceFile("in.txt", b"")], list_files="All")
    return visible(result)


EMPTY = "touch empty; echo said"


def empty(block: FakeBlock) -> FakeOutcome:
    block.files["empty"] = b""
    return FakeOutcome(stdout="said\n")


@case({EMPTY: empty})
async def an_empty_file_is_fetched(stage: Stage) -> Any:
    result = await run(stage, ("sh", EMPTY), fetch=["empty"])
    assert (result.files, result.stdout) == ({"empty": b""}, "said\n")
    return await both(stage, result)


NAMED = "# filename: pkg/tool.py\nx = 1"


@case({NAMED: FakeOutcome(), "cat pkg/tool.py": FakeOutcome(stdout=NAMED)})
async def blocks_are_files_of_the_workspace(stage: Stage) -> Any:
    result = await run(stage, ("python", NAMED), ("sh", "cat pkg/tool.py"), list_files="All")
    assert result.stdout == NAMED
    return visible(result)


UNUSABLE = "printf a > 'a\\b'; printf b > good"


@case({UNUSABLE: writes({"a\\b": b"a", "good": b"b"})})
async def files_with_unusable_names_are_counted(stage: Stage) -> Any:
    result = await run(stage, ("sh", UNUSABLE))
    assert ([one.path for one in result.artifacts], result.artifacts_omitted) == (["good"], 1)
    return visible(result)


# --- sessions -------------------------------------------------------------------------------------------------------

LEAVES, LOOKS = "printf left > note", "cat note 2>/dev/null || echo nothing"


def looks(block: FakeBlock) -> FakeOutcome:
    return FakeOutcome(stdout=block.files.get("note", b"nothing\n"))


@case({LEAVES: writes({"note": b"left"}), LOOKS: looks})
async def files_last_as_long_as_their_session(stage: Stage) -> Any:
    async with await stage.client.open_session(REQUEST) as one:
        left = await one.execute(blocks(("sh", LEAVES)))
        found = await one.execute(blocks(("sh", LOOKS)))
        elsewhere = await run(stage, ("sh", LOOKS))
    assert (found.stdout, elsewhere.stdout) == ("left", "nothing\n")
    await stage.wait_for_end(one.name, 0)  # it was asked for when the block above was left
    return await both(stage, left), await both(stage, found), visible_session(await one.record())


@case({LEAVES: writes({"note": b"left"})})
async def files_go_up_and_down(stage: Stage) -> Any:
    large = bytes(range(256)) * 6000  # two Secrets up, several ConfigMaps down
    async with await stage.client.open_session(REQUEST) as session:
        await session.upload({"large.bin": large, "d/small": b"small", "none": b""})
        await session.execute(blocks(("sh", LEAVES)))
        down = await session.download(["large.bin", "d/*", "no.such"])
        listed = await session.list_files()
    assert down == {"large.bin": large, "d/small": b"small"}
    assert {"large.bin", "d/small", "none", "note"} <= {one.path for one in listed}
    return listed


@case({LEAVES: writes({"note": b"left"}), LOOKS: looks})
async def files_that_can_t_be_put(stage: Stage) -> Any:
    async with await stage.client.open_session(REQUEST) as session:
        await session.execute(blocks(("sh", LEAVES)))
        below = await visible_error(session.upload({"first": b"1", "note/below": b"2"}))
        await session.upload({"d/file": b"3"})
        above = await visible_error(session.upload({"d": b"4"}))
        block = await session.execute(blocks(("python", "# filename: note/tool.py")))
        found = await session.execute(blocks(("sh", LOOKS)), list_files="All")
    assert below[0] == above[0] == "FileTransferError"
    assert (block.exit_code, found.stdout) == (126, "left")
    return below, above, visible(block), visible(found)


@case({"sleep 1": FakeOutcome(takes=1), "echo 2": FakeOutcome(stdout="2\n")})
async def one_at_a_time_in_order_of_arrival(stage: Stage) -> Any:
    async with await stage.client.open_session(REQUEST) as session:
        executions = [await submit(stage, session, code) for code in ("sleep 1", "echo 2", "sleep 1", "echo 2")]
        results = [await execution.result() for execution in executions]
        records = [await stage.client.get(execution.name) for execution in executions]
    spans = [(record.status.started_at, record.status.finished_at) for record in records]
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))
    return [visible(result) for result in results]


@case({LEAVES: writes({"note": b"left"}), SLOW: FakeOutcome(stdout="before", takes=60), LOOKS: looks})
async def a_session_outlives_a_time_out(stage: Stage) -> Any:
    async with await stage.client.open_session(request(timeout_seconds=LATE)) as session:
        await session.execute(blocks(("sh", LEAVES)))
        slow = await session.execute(blocks(("sh", SLOW)))
        found = await session.execute(blocks(("sh", LOOKS)))
    assert (slow.exit_code, slow.stdout, found.stdout) == (124, "before", "left")
    return visible(slow), visible(found)


@case({ENDLESS: FakeOutcome(stdout="first\n", never_ends=True), "echo 2": FakeOutcome(stdout="2\n")})
async def what_waits_can_be_cancelled_and_so_can_what_runs(stage: Stage) -> Any:
    async with await stage.client.open_session(REQUEST, wait=True) as session:
        endless = await submit(stage, session, ENDLESS)
        await printed(stage, endless)
        waiting, last = await submit(stage, session, "echo 2"), await submit(stage, session, "echo 2")
        await phase(stage, waiting, Phase.STARTING)
        await phase(stage, last, Phase.STARTING)
        queued = (await stage.client.get(last.name)).status.reason
        await waiting.cancel()
        given_up = await waiting.result()
        await endless.cancel()
        stopped, done = await endless.result(), await last.result()
    assert (given_up.phase, stopped.phase, done.phase) == (Phase.CANCELLED, Phase.CANCELLED, Phase.SUCCEEDED)
    assert (given_up.blocks, stopped.stdout, done.stdout) == ((), "first\n", "2\n")
    return queued, [await both(stage, result) for result in (given_up, stopped, done)]


@case({ENDLESS: FakeOutcome(stdout="first\n", never_ends=True)}, policy=CODE_RULES)
async def what_was_approved_can_be_denied_while_it_waits_for_its_turn(stage: Stage) -> Any:
    async with await stage.client.open_session(REQUEST, wait=True) as session:
        endless = await submit(stage, session, ENDLESS)
        await printed(stage, endless)
        waiting = await stage.client.submit(blocks(("python", ASKS)), REQUEST, session=session.name)
        await phase(stage, waiting, Phase.AWAITING_APPROVAL)
        async with stage.somebody_else() as approver:
            await approver.approve(await approver.get(waiting.name))
            await phase(stage, waiting, Phase.STARTING)
            await approver.deny(await approver.get(waiting.name), reason="too much is asked for")
            denied = await waiting.result()
        await endless.cancel()
        await endless.result()
    assert (denied.phase, denied.reason, denied.blocks) == (Phase.DENIED, "ApprovalDenied", ())
    return await both(stage, denied)


@case({ENDLESS: FakeOutcome(stdout="first\n", never_ends=True)})
async def a_session_that_is_ended(stage: Stage) -> Any:
    session = await stage.client.open_session(REQUEST, wait=True)
    ready = visible_session(await session.record())
    running, waiting = await submit(stage, session, ENDLESS), await submit(stage, session, "echo 2")
    await printed(stage, running)
    await phase(stage, waiting, Phase.STARTING)
    await session.end()
    await session.end()
    stopped, refused = await running.result(), await visible_error(waiting.result())
    late = await visible_error(session.execute(blocks(("sh", "true"))))
    assert stopped.phase is Phase.CANCELLED
    assert refused[0] == late[0] == "SessionEnded"
    records = [visible_record(await stage.client.get(one.name)) for one in (running, waiting)]
    await stage.wait_for_end(session.name, 0)  # it was asked for, and refuses all else
    return ready, visible_session(await session.record()), visible(stopped), refused, late, records


@case()
async def a_session_that_never_was(stage: Stage) -> Any:
    error = await visible_error(run(stage, ("sh", "true"), session=f"session-{1:012x}"))
    assert error[0] == "SessionEnded"
    return error


@case()
async def a_session_with_other_limits(stage: Stage) -> Any:
    async with await stage.client.open_session(REQUEST, wait=True) as session:
        other = request(limits=limits(memory="300Mi"))
        result = await run(stage, ("sh", "true"), request=other, session=session.name)
    assert result.reason == "SessionMismatch"
    return await both(stage, result)


@case()
async def a_session_that_the_policy_refuses(stage: Stage) -> Any:
    error = await visible_error(stage.client.open_session(REQUEST, idle_timeout_seconds=100_000, wait=True))
    assert error[0] == "SessionDenied"
    return error


NO_CLASS = "no-such-class"


@case(policy={"runtimeClassName": NO_CLASS})
async def a_session_whose_pod_can_t_start(stage: Stage) -> Any:
    """Nobody has refused what was to run in it: the reason is that of the session."""
    stage.no_pod_starts(Reason.RUNTIME_CLASS_NOT_FOUND, f"RuntimeClass {NO_CLASS!r} not found")
    session = await stage.client.open_session(REQUEST)
    waiting = await submit(stage, session, "true")
    errors = [await visible_error(doing) for doing in (waiting.result(), session.execute(blocks(("sh", "true"))))]
    for kind, message in errors:
        assert kind == "ExecutionNotStarted"
        assert re.search(rf"RuntimeClassNotFound: session 'session-N' could not start: .*{NO_CLASS}", message)
    record = visible_record(await stage.client.get(waiting.name))
    assert (record["phase"], record["reason"]) == ("Failed", "RuntimeClassNotFound")
    return record | {"message": ""}, visible_session(await session.record()) | {"message": ""}


@case({"true": FakeOutcome()})
async def a_session_that_is_left_alone_ends(stage: Stage) -> Any:
    session = await stage.client.open_session(REQUEST, idle_timeout_seconds=LATE)
    await session.execute(blocks(("sh", "true")))  # is in its queue by the time it is ready
    await stage.wait_for_end(session.name, LATE)
    late = await visible_error(session.execute(blocks(("sh", "true"))))
    record = await session.record()
    assert (late[0], record.status.reason) == ("SessionEnded", "IdleTimeout")
    return late, visible_session(record)


@case({ENDLESS: FakeOutcome(stdout="first\n", never_ends=True)})
async def a_session_that_is_too_old_ends(stage: Stage) -> Any:
    session = await stage.client.open_session(REQUEST, max_lifetime_seconds=LONG, wait=True)
    running = await submit(stage, session, ENDLESS)
    await printed(stage, running)
    await stage.wait_for_end(session.name, LONG)
    result = await running.result()
    assert result.phase is Phase.TIMED_OUT
    return await both(stage, result), visible_session(await session.record())


@case({ENDLESS: FakeOutcome(stdout="first\n", never_ends=True)})
async def a_session_whose_pod_is_lost(stage: Stage) -> Any:
    session = await stage.client.open_session(REQUEST, wait=True)
    running = await submit(stage, session, ENDLESS)
    await phase(stage, running, Phase.RUNNING)
    await stage.lose_pod(session.name)
    error = await visible_error(running.result())
    assert error[0] == "ExecutionLost"
    record = visible_record(await stage.client.get(running.name))
    await stage.wait_for_end(session.name, 0)  # its end is written by somebody else than that of the execution
    return error, {**record, "streams": None, "order": None}, visible_session(await session.record())


@case({ENDLESS: FakeOutcome(stdout="first\n", never_ends=True)})
async def a_pod_that_is_lost(stage: Stage) -> Any:
    running = await stage.client.submit(blocks(("sh", ENDLESS)), REQUEST)
    await phase(stage, running, Phase.RUNNING)
    await stage.lose_pod(running.name)
    error = await visible_error(running.result())
    assert error[0] == "ExecutionLost"
    return error


@case({"true": FakeOutcome()})
async def records_are_listed(stage: Stage) -> Any:
    async with await stage.client.open_session(REQUEST) as session:
        result = await session.execute(blocks(("sh", "true")))
        assert result.name in [one.metadata.name for one in await stage.client.list_executions()]
        assert session.name in [one.metadata.name for one in await stage.client.list_sessions()]
        joined = await stage.client.join_session(session.name, REQUEST)
        return visible(await joined.execute(blocks(("sh", "true"))))
