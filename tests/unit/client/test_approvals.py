"""A human decides: what callers, approvers and the command line make of it. The cluster is the one in memory."""

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from click.testing import CliRunner
from patient import lasts_out_outages

from codeexec_api import CodeExecution, ExecutionPolicySpec, Limits
from executor_client import (
    ApprovalRequest,
    ApprovalWait,
    ClusterUnreachable,
    CodeExecutionClient,
    ExecutionLost,
    InvalidExecution,
    KubernetesCodeExecutor,
    NothingToDecide,
    Request,
    SourceBlock,
    WorkspaceFile,
    prepare,
)
from executor_client.cli import main
from executor_client.client import execution
from executor_client.testing import FAKE_IMAGE, FakeBlock, FakeCluster, FakeOutcome
from executor_client.testing.transport import FakeTransport

POLICY = ExecutionPolicySpec.model_validate(
    {"images": [FAKE_IMAGE], "maxLimits": {"memory": "256Mi"}, "withApproval": {"maxLimits": {"memory": "1Gi"}}}
)
MORE = Limits(memory="512Mi")
ASKS = "spec.limits.memory=512Mi"
BLOCKS = prepare([SourceBlock("python", "print(1)")]).blocks


@pytest.fixture
def fake() -> FakeCluster:
    return FakeCluster(policy=POLICY, run=lambda _: FakeOutcome(stdout="ran\n"))


@pytest.fixture
def human(fake) -> CodeExecutionClient:
    return fake.client("anna")


def that_plots() -> FakeCluster:
    """A cluster where code makes a plot, and needs approval to run for more than a minute."""
    policy = POLICY.dump() | {"maxTimeoutSeconds": 60, "withApproval": {"maxTimeoutSeconds": 90}}

    def plot(block: FakeBlock) -> FakeOutcome:
        block.files["plot.png"] = b"png"
        return FakeOutcome()

    return FakeCluster(policy=ExecutionPolicySpec.model_validate(policy), run=plot)


def request(approval: ApprovalWait | None = None) -> Request:
    return Request(agent="tester", limits=MORE, approval=approval or ApprovalWait())


async def waiting(human: CodeExecutionClient):
    """The one execution that waits for a decision, as soon as there is one."""
    async with asyncio.timeout(60):
        while True:
            if found := await human.list_waiting():
                [one] = found
                return one
            await asyncio.sleep(0)


async def left_waiting(fake: FakeCluster) -> str:
    result = await fake.client().execute(BLOCKS, request(ApprovalWait("return")))
    return result.name


class TestCalls:
    async def test_a_call_waits_until_it_is_approved(self, fake, human) -> None:
        asked = []
        call = asyncio.create_task(fake.client().execute(BLOCKS, request(ApprovalWait(notify=asked.append))))
        execution = await waiting(human)
        assert not call.done()
        await human.approve(execution, reason="fine")
        result = await call
        assert (result.exit_code, result.output) == (0, "ran\n")
        [told] = asked
        assert told.uid == (await human.get(result.name)).metadata.uid
        assert (told.execution, told.requested_by, [str(one) for one in told.grants]) == (
            result.name,
            "fake-agent",
            [ASKS],
        )
        approval = (await human.get(result.name)).status.approval
        assert approval
        assert (approval.decision, approval.approver, approval.reason) == ("Approve", "anna", "fine")

    async def test_a_call_that_returns_at_once_says_what_is_waited_for(self, fake, human) -> None:
        client = fake.client()
        left = await client.execute(BLOCKS, request(ApprovalWait("return")))
        assert (left.exit_code, left.reason) == (1, "ApprovalRequired")
        uid = (await human.get(left.name)).metadata.uid
        assert left.output == (
            f"Not run yet: a human has to approve {ASKS}: `kubectl codeexec approve {left.name} "
            f"-n codeexec-sandbox --uid {uid}`. spec.limits.memory: 512Mi is not allowed by the policy (allowed: at "
            "most 256Mi; with approval: at most 1Gi). It runs as soon as it is approved."
        )
        await human.approve(await human.get(left.name))
        assert (await client.attach(left.name).result()).output == "ran\n"

    async def test_patience_ends_and_the_execution_is_cancelled(self, fake, human) -> None:
        result = await fake.client().execute(BLOCKS, request(ApprovalWait(seconds=0.01)))
        assert (result.exit_code, result.reason) == (1, "ApprovalTimeout")
        assert result.output == (
            f"Denied: nobody approved {ASKS} within 0.01 s, so the execution was cancelled. Nothing was run"
        )
        assert (await human.get(result.name)).status.phase == "Cancelled"

    async def test_the_cancellation_of_what_nobody_approves_lasts_out_a_failed_request(self, fake, monkeypatch) -> None:
        lasts_out_outages(monkeypatch)
        cancel, failures = FakeTransport.cancel, iter([ClusterUnreachable("503")])

        async def fail_once(self: FakeTransport, name: str) -> None:
            for failure in failures:
                raise failure
            await cancel(self, name)

        monkeypatch.setattr(FakeTransport, "cancel", fail_once)
        async with asyncio.timeout(execution.OPERATOR_SECONDS / 2):
            result = await fake.client().execute(BLOCKS, request(ApprovalWait(seconds=0.01)))
        assert result.output.startswith("Denied: nobody approved")

    async def test_what_nobody_approves_and_nobody_can_cancel_is_told_of_with_both_waits(
        self, fake, monkeypatch
    ) -> None:
        async def fail(*_: object) -> None:
            raise ClusterUnreachable("503")

        monkeypatch.setattr(execution, "OPERATOR_SECONDS", 0.1)
        monkeypatch.setattr(FakeTransport, "cancel", fail)
        with pytest.raises(ExecutionLost, match=r"was not approved within 0.01 s, nor ended 0.1 s later; see"):
            await fake.client().execute(BLOCKS, request(ApprovalWait(seconds=0.01)))

    async def test_a_wait_that_is_abandoned_takes_no_limit_from_another_wait_on_the_handle(
        self, fake, monkeypatch
    ) -> None:
        changes, watches = FakeTransport.changes, asyncio.Semaphore(0)

        def watched(*arguments: Any) -> AsyncGenerator[CodeExecution, None]:
            watches.release()
            return changes(*arguments)

        monkeypatch.setattr(FakeTransport, "changes", watched)
        asked: list[ApprovalRequest] = []
        handle = await fake.client().submit(BLOCKS, request(ApprovalWait(seconds=0.5, notify=asked.append)))
        result = asyncio.create_task(handle.result())
        await watches.acquire()
        output = asyncio.create_task(anext(handle.output()))
        await watches.acquire()
        output.cancel()
        async with asyncio.timeout(execution.OPERATOR_SECONDS / 2):
            assert (await result).reason == (await handle.result()).reason == "ApprovalTimeout"
        assert len(asked) == 1

    async def test_the_policy_ends_the_wait_of_a_call_that_has_no_limit(self, fake, human) -> None:
        call = asyncio.create_task(fake.client().execute(BLOCKS, request()))
        await waiting(human)
        fake.advance(POLICY.approval_timeout_seconds)
        result = await call
        assert (result.exit_code, result.phase, result.reason) == (1, "Expired", "ApprovalTimeout")
        assert result.output.startswith("Expired: nobody approved or denied it within")

    async def test_a_denial_is_a_result_with_its_reason(self, fake, human) -> None:
        call = asyncio.create_task(fake.client().execute(BLOCKS, request()))
        await human.deny(await waiting(human), reason="use less")
        result = await call
        assert (result.exit_code, result.reason) == (1, "ApprovalDenied")
        assert result.output == "Denied: denied by anna: use less. Nothing was run"

    async def test_what_notify_raises_stops_the_code_and_is_raised(self, fake, human) -> None:
        def fails(_) -> None:
            raise RuntimeError("no chat")

        with pytest.raises(RuntimeError, match="no chat"):
            await fake.client().execute(BLOCKS, request(ApprovalWait(notify=fails)))
        assert [one.status.phase for one in fake.executions] == ["Cancelled"]

    async def test_output_streams_after_the_approval(self, fake, human) -> None:
        chunks = []
        call = asyncio.create_task(fake.client().execute(BLOCKS, request(), on_output=chunks.append))
        await human.approve(await waiting(human))
        await call
        assert "".join(one.text for one in chunks) == "ran\n"

    @pytest.mark.parametrize(("options", "field"), [({"mode": "ask"}, "mode"), ({"seconds": 0}, "seconds")])
    def test_wrong_settings_are_refused(self, options, field) -> None:
        with pytest.raises(ValueError, match=f"^{field} is"):
            ApprovalWait(**options)


class TestExecutor:
    async def test_it_waits_by_default(self, fake, human) -> None:
        executor = KubernetesCodeExecutor(client=fake.client(), limits=MORE, session="per-call")
        call = asyncio.create_task(executor.execute_code_blocks([CodeBlock("1", "python")], CancellationToken()))
        await human.approve(await waiting(human))
        assert (await call).output == "ran\n"

    async def test_it_returns_at_once_if_told_so_and_has_the_result_later(self, fake, human) -> None:
        executor = KubernetesCodeExecutor(client=fake.client(), limits=MORE, session="per-call", approval="return")
        left = await executor.execute_code_blocks([CodeBlock("1", "python")], CancellationToken())
        assert (left.exit_code, left.reason) == (1, "ApprovalRequired")
        await human.approve(await human.get(left.execution))
        result = await executor.result_of(left.execution)
        assert (result.exit_code, result.output, result.execution) == (0, "ran\n", left.execution)

    @pytest.mark.parametrize("session", ["per-call", "per-executor"])
    async def test_what_code_has_made_after_the_approval_is_in_the_folder_with_its_result(
        self, session, tmp_path
    ) -> None:
        cluster = that_plots()
        human = cluster.client("anna")
        executor = KubernetesCodeExecutor(
            client=cluster.client(), timeout=90, session=session, approval="return", work_dir=tmp_path
        )
        left = await executor.execute_code_blocks([CodeBlock("1", "python")], CancellationToken())
        await human.approve(await human.get(left.execution))
        result = await executor.result_of(left.execution)
        assert [(one.path, one.fetched) for one in result.artifacts] == [("plot.png", True)]
        assert (tmp_path / "plot.png").read_bytes() == b"png"

    async def test_files_of_a_session_that_is_over_are_not_said_to_be_in_the_folder(self, tmp_path, caplog) -> None:
        cluster = that_plots()
        human = cluster.client("anna")
        executor = KubernetesCodeExecutor(client=cluster.client(), timeout=90, approval="return", work_dir=tmp_path)
        left = await executor.execute_code_blocks([CodeBlock("1", "python")], CancellationToken())
        await human.approve(await human.get(left.execution))
        await executor.restart()
        result = await executor.result_of(left.execution)
        assert [(one.path, one.fetched) for one in result.artifacts] == [("plot.png", False)]
        assert f"files of execution {left.execution} are not copied into work_dir: its session" in caplog.text

    async def test_cancelling_the_token_ends_the_wait(self, fake, human) -> None:
        executor, token = (
            KubernetesCodeExecutor(client=fake.client(), limits=MORE, session="per-call"),
            CancellationToken(),
        )
        call = asyncio.create_task(executor.execute_code_blocks([CodeBlock("1", "python")], token))
        await waiting(human)
        token.cancel()
        assert (await call).output == "Code execution was cancelled."

    def test_the_settings_are_in_its_configuration_and_the_hook_is_not(self, fake) -> None:
        executor = KubernetesCodeExecutor(approval="return", approval_timeout=5, on_approval_request=print)
        config = executor.dump_component().config
        assert (config["approval"], config["approval_timeout"]) == ("return", 5)
        assert "on_approval_request" not in config

    def test_functions_are_checked_first_so_it_has_to_wait(self) -> None:
        with pytest.raises(ValueError, match="functions need approval='wait'"):
            KubernetesCodeExecutor(functions=[len], approval="return")

    @pytest.mark.parametrize("options", [{"approval": "never"}, {"approval_timeout": 0}])
    def test_wrong_settings_are_refused(self, options) -> None:
        with pytest.raises(ValueError, match=f"^{next(iter(options))} is"):
            KubernetesCodeExecutor(**options)


class TestDeciding:
    async def test_nobody_approves_their_own_request(self, fake, human) -> None:
        name = await left_waiting(fake)
        agent = fake.client()
        with pytest.raises(InvalidExecution, match="nobody approves their own request"):
            await agent.approve(await agent.get(name))
        assert (await human.get(name)).status.phase == "AwaitingApproval"

    async def test_an_approval_is_for_the_record_that_was_looked_at(self, fake, human) -> None:
        """Whatever has become of the name since."""
        seen = await human.get(await left_waiting(fake))
        older = seen.model_copy(update={"metadata": seen.metadata.model_copy(update={"uid": "0" * 8})})
        await human.approve(older)
        record = await human.get(seen.metadata.name)
        assert record.status.phase == "AwaitingApproval"
        assert record.status.approval
        assert [one.reason for one in record.status.approval.unused] == ["OtherExecution"]

    async def test_an_approval_that_is_over_counts_for_nothing(self, fake, human) -> None:
        seen = await human.get(await left_waiting(fake))
        fake.advance(60)
        await human.approve(seen, valid=timedelta(days=-9000))
        record = await human.get(seen.metadata.name)
        assert record.status.approval
        assert [one.reason for one in record.status.approval.unused] == ["Expired"]

    async def test_what_is_over_can_not_be_decided(self, fake, human) -> None:
        name = await left_waiting(fake)
        await human.deny(await human.get(name))
        denied = await human.get(name)
        for decide in (human.approve, human.deny, human.revoke, human.read_code):
            with pytest.raises(NothingToDecide, match=r"its phase is Denied \(ApprovalDenied\)"):
                await decide(denied)

    async def test_the_code_is_read_while_it_waits(self, fake, human) -> None:
        code = await human.read_code(await human.get(await left_waiting(fake)))
        assert (code.blocks, code.files) == ((b"print(1)",), {})

    async def test_the_files_are_read_too_because_code_may_load_them(self, fake, human) -> None:
        files = [WorkspaceFile("json.py", b"print('harm')")]
        left = await fake.client().execute(BLOCKS, request(ApprovalWait("return")), files=files)
        code = await human.read_code(await human.get(left.name))
        assert code.files == {"json.py": b"print('harm')"}

    @pytest.mark.parametrize(
        ("decide", "end", "words"),
        [
            ("revoke", ("Denied", "ApprovalRevoked"), "of anna was revoked by anna. Nothing was run"),
            ("deny", ("Denied", "ApprovalDenied"), "denied by anna: no. It had been approved before. Nothing was run"),
            ("wait", ("Expired", "ApprovalExpired"), "expired before the code could start. Nothing was run"),
            ("wait for the same moment", ("Expired", "ApprovalExpired"), "expired before the code could start"),
        ],
    )
    async def test_an_approval_lapses_while_its_execution_waits_for_its_turn(
        self, decide: str, end: tuple[str, str], words: str
    ) -> None:
        policy = POLICY.dump() | {"maxTimeoutSeconds": 60, "withApproval": {"maxTimeoutSeconds": 90}}
        fake = FakeCluster(
            policy=ExecutionPolicySpec.model_validate(policy),
            run=lambda block: FakeOutcome(never_ends="busy" in block.code),
        )
        human, agent = fake.client("anna"), fake.client()
        session = await agent.open_session(Request(agent="tester"))
        busy = prepare([SourceBlock("python", "busy")]).blocks
        first = await agent.submit(busy, Request(agent="tester", timeout_seconds=60), session=session.name)
        handle = await agent.submit(BLOCKS, Request(agent="tester", timeout_seconds=90), session=session.name)
        valid = timedelta(seconds=60 if decide == "wait for the same moment" else 30)
        approval = await human.approve(await human.get(handle.name), valid=valid)
        assert approval.spec.expires_at == fake.now + valid
        queued = await human.get(handle.name)
        assert queued.status.phase == "Starting"
        if decide == "revoke":
            await human.revoke(queued)
        elif decide == "deny":
            await human.deny(queued, reason="no")
        else:
            fake.advance(valid.total_seconds())
        await first.cancel()
        result, ended = await handle.result(), (await human.get(handle.name)).status
        assert (result.phase, result.reason) == end
        assert words in result.message
        conditions = {one.type: one.status for one in ended.conditions}
        assert (conditions["Approved"], conditions["Started"]) == ("False", "False")
        assert ended.started_at is None

    async def test_an_approval_counts_by_the_clock_of_the_fake_and_not_by_the_true_time(self) -> None:
        fake = FakeCluster(policy=POLICY, run=lambda _: FakeOutcome(), now=datetime(9000, 1, 1, tzinfo=UTC))
        name, human = await left_waiting(fake), fake.client("anna")
        await human.approve(await human.get(name))
        assert (await human.get(name)).status.phase == "Succeeded"


class TestCommands:
    def codeexec(self, fake: FakeCluster, *arguments: str, user: str = "anna"):
        return CliRunner().invoke(main, arguments, obj=lambda _: fake.client(user))

    def test_what_waits_is_listed_and_shown_with_its_code(self, fake) -> None:
        name = asyncio.run(left_waiting(fake))
        row = self.codeexec(fake, "approvals").stdout.splitlines()[1].split()
        assert row[:5] == [name, "tester", "fake-agent", ASKS, "python"]
        shown = self.codeexec(fake, "approvals", name).stdout
        assert "fake-agent" in shown
        assert "spec.limits.memory   512Mi" in shown
        assert "print(1)" in shown
        listed = json.loads(self.codeexec(fake, "approvals", "-o", "json").stdout)
        assert [one["metadata"]["name"] for one in listed["items"]] == [name]

    def test_the_code_can_not_control_the_terminal_of_who_looks_at_it(self, fake) -> None:
        blocks = prepare([SourceBlock("python", "print(1)\x1b[2J")]).blocks
        name = asyncio.run(fake.client().execute(blocks, request(ApprovalWait("return")))).name
        shown = self.codeexec(fake, "approvals", name).stdout
        assert "\x1b" not in shown
        assert "\\x1b[2J" in shown

    def test_files_are_shown_and_bytes_that_are_no_text_are_not(self, fake) -> None:
        files = [WorkspaceFile("json.py", b"print('harm')"), WorkspaceFile("data", b"\xff")]
        call = fake.client().execute(BLOCKS, request(ApprovalWait("return")), files=files)
        shown = self.codeexec(fake, "approvals", asyncio.run(call).name).stdout
        assert "\n--- file 0, 13 B, 1 line, sha256 " in shown
        assert "\nname | json.py\n   1 | print('harm')\n" in shown
        assert "\nname | data\n(not shown: this is not text)\n" in shown

    def test_approve_lets_it_run_and_deny_does_not(self, fake) -> None:
        first, second = asyncio.run(left_waiting(fake)), asyncio.run(left_waiting(fake))
        done = self.codeexec(fake, "approve", first, "--reason", "fine")
        assert (done.exit_code, done.stdout) == (0, f"{first} is approved: {ASKS}\n")
        done = self.codeexec(fake, "deny", second, "--reason", "no")
        assert (done.exit_code, done.stdout) == (0, f"{second} is denied\n")
        assert [one.status.phase for one in fake.executions] == ["Succeeded", "Denied"]
        again = self.codeexec(fake, "approve", first)
        assert again.exit_code == 1
        assert f"execution {first} does not wait for a decision: its phase is Succeeded" in again.stderr

    def test_approve_refuses_another_execution_of_the_same_name(self, fake) -> None:
        name = asyncio.run(left_waiting(fake))
        done = self.codeexec(fake, "approve", name, "--uid", "0000")
        assert done.exit_code == 1
        assert "it is another execution of the same name" in done.stderr
        assert fake.executions[0].status.phase == "AwaitingApproval"

    @pytest.mark.parametrize(
        ("memory", "decision", "exit_code"),
        [("256Mi", "Allowed", 0), ("512Mi", "NeedsApproval", 3), ("2Gi", "Denied", 4)],
    )
    def test_policy_explain_says_what_the_policy_says(self, fake, tmp_path, memory, decision, exit_code) -> None:
        block = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
        spec = {"blocks": [block], "source": {"agent": "me"}, "limits": {"memory": memory}}
        file = tmp_path / "execution.yaml"
        file.write_text(yaml.safe_dump_all([{"kind": "Secret"}, {"kind": "CodeExecution", "spec": spec}]))
        done = self.codeexec(fake, "policy", "explain", str(file))
        assert (done.exit_code, done.stdout.split()[1]) == (exit_code, decision)
        assert ("spec.limits.memory" in done.stdout) == (exit_code > 0)
        policy = tmp_path / "policy.yaml"
        policy.write_text(yaml.safe_dump(POLICY.dump()))
        told = json.loads(
            self.codeexec(fake, "policy", "explain", str(file), "--policy", str(policy), "-o", "json").stdout
        )
        assert told["decision"] == decision
        assert told["grants"] == ([{"field": "spec.limits.memory", "value": memory}] if exit_code == 3 else [])

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{}", "must contain exactly one CodeExecution, CodeSession or SandboxPool, but contains 0"),
            ("kind: CodeExecution\nspec: {}", "blocks: Field required"),
            ("a: [", "can't read"),
        ],
    )
    def test_policy_explain_says_what_is_wrong_with_a_file(self, fake, tmp_path, content, message) -> None:
        file = tmp_path / "execution.yaml"
        file.write_text(content)
        done = self.codeexec(fake, "policy", "explain", str(file))
        assert done.exit_code == 1
        assert message in done.stderr
