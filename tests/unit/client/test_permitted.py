"""Permits and mounts as callers ask for them: the client, AutoGen's executor, the command line. No cluster."""

import asyncio
import json
from typing import Any

import pytest
import yaml
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from click.testing import CliRunner, Result
from factories import a_raw_mount, a_raw_spec

from codeexec_api import ExecutionPolicySpec, Phase
from codeexec_api.permits import parse_mount, parse_permit
from executor_client import ApprovalWait, KubernetesCodeExecutor, Request, SourceBlock, prepare
from executor_client.cli import main
from executor_client.testing import FAKE_IMAGE, FakeCluster, FakeOutcome

PERMIT, MOUNT = "10.1.2.3/32:443/TCP", "pvc:data:/mnt/data"
POLICY = ExecutionPolicySpec.model_validate(
    {
        "images": [FAKE_IMAGE],
        "egress": [{"cidr": "10.1.0.0/16", "port": 443}],
        "mounts": [{"persistentVolumeClaim": {"claimName": "data"}}],
        "withApproval": {"egress": [{"cidr": "0.0.0.0/0", "port": 443}]},
    }
)
BLOCKS = prepare([SourceBlock("python", "print(1)")]).blocks


@pytest.fixture
def fake() -> FakeCluster:
    return FakeCluster(policy=POLICY, run=lambda _: FakeOutcome(stdout="ran\n"))


def codeexec(fake: FakeCluster, *arguments: str, user: str = "fake-agent") -> Result:
    return CliRunner().invoke(main, arguments, obj=lambda ref: fake.client(user))


class TestClient:
    @pytest.mark.parametrize("given", [((PERMIT,), (MOUNT,)), ((parse_permit(PERMIT),), (parse_mount(MOUNT),))])
    async def test_asks_for_what_is_given_as_text_or_object(self, given: Any, fake: FakeCluster) -> None:
        result = await fake.client().execute(BLOCKS, Request(agent="tester", egress=given[0], mounts=given[1]))
        [record] = fake.executions
        assert ([str(one) for one in record.spec.egress or ()], [str(one) for one in record.spec.mounts or ()]) == (
            [PERMIT],
            [MOUNT],
        )
        assert result.exit_code == 0

    async def test_asks_for_nothing_by_itself(self, fake: FakeCluster) -> None:
        await fake.client().execute(BLOCKS, Request(agent="tester"))
        [record] = fake.executions
        assert (record.spec.egress, record.spec.mounts) == (None, None)

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ({"egress": ("pypi.org:443",)}, "can't name hosts"),
            ({"egress": ("10.1.2.3/8:443",)}, "host bits"),
            ({"egress": ("169.254.169.254:80",)}, "link-local"),
            ({"mounts": ("/etc:/mnt/etc",)}, "is not a mount"),
            ({"mounts": ("pvc:data:/etc",)}, "is not a mount"),
        ],
    )
    def test_refuses_what_can_not_be_before_anything_is_sent(self, asked: Any, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            Request(agent="tester", **asked)

    @pytest.mark.parametrize("asked", [{"egress": (PERMIT,)}, {"mounts": (MOUNT,)}])
    async def test_a_session_has_neither(self, asked: Any, fake: FakeCluster) -> None:
        client, request = fake.client(), Request(agent="tester", **asked)
        with pytest.raises(ValueError, match="need a pod of their own"):
            await client.open_session(request)
        session = await client.open_session(Request(agent="tester"))
        with pytest.raises(ValueError, match="need a pod of their own"):
            await client.join_session(session.name, request)
        for call in (client.execute, client.submit):
            with pytest.raises(ValueError, match="need a pod of their own"):
                await call(BLOCKS, request, session=session.name)
        assert fake.executions == []


class TestExecutor:
    @pytest.mark.parametrize("asked", [{"egress": [PERMIT]}, {"mounts": [MOUNT]}])
    def test_needs_a_pod_for_each_call(self, asked: Any) -> None:
        with pytest.raises(
            ValueError, match="pass session='per-call', because a call with egress or mounts needs its own pod"
        ):
            KubernetesCodeExecutor(**asked)
        KubernetesCodeExecutor(session="per-call", **asked)

    async def test_asks_for_them_with_each_call_but_not_to_load_functions(self, fake: FakeCluster) -> None:
        def double(number: int) -> int:
            return 2 * number

        executor = KubernetesCodeExecutor(
            client=fake.client(), session="per-call", egress=[PERMIT], mounts=[MOUNT], functions=[double]
        )
        result = await executor.execute_code_blocks([CodeBlock("print(1)", "python")], CancellationToken())
        assert result.exit_code == 0
        check, call = fake.executions
        assert (check.spec.egress, check.spec.mounts) == (None, None)
        assert [str(one) for one in (*(call.spec.egress or ()), *(call.spec.mounts or ()))] == [PERMIT, MOUNT]

    def test_keeps_them_in_its_configuration(self) -> None:
        executor = KubernetesCodeExecutor(session="per-call", egress=[PERMIT], mounts=[MOUNT])
        component = json.loads(json.dumps(executor.dump_component().model_dump()))
        again = KubernetesCodeExecutor.load_component(component)
        assert again.dump_component() == executor.dump_component()
        assert (component["config"]["egress"], component["config"]["mounts"]) == ([PERMIT], [MOUNT])


class TestFake:
    async def test_says_what_was_opened_and_that_all_else_is_closed(self, fake: FakeCluster) -> None:
        await fake.client().execute(BLOCKS, Request(agent="tester", egress=(PERMIT,)))
        [record] = fake.executions
        status = record.status
        assert [one.permit for one in status.egress] == [PERMIT]
        assert status.egress_proof
        assert status.egress_proof.verdict == "Restricted"
        assert {"NetworkPolicy", "LandlockPorts"} <= set(status.layers)
        [shown] = [one for one in status.conditions if one.type == "EgressClosed"]
        assert (shown.status, shown.reason) == ("True", "Restricted")
        assert f"permitted: {PERMIT}" in shown.message
        assert "warning" not in status.message

    async def test_denies_what_the_policy_does_not_name(self, fake: FakeCluster) -> None:
        result = await fake.client().execute(BLOCKS, Request(agent="tester", egress=("10.2.0.1:80",), mounts=(MOUNT,)))
        assert (result.phase, result.reason) == (Phase.DENIED, "PolicyViolation")
        assert "spec.egress[0]: 10.2.0.1/32:80/TCP is not allowed" in result.output
        assert fake.executions[0].status.egress == ()

    def test_waits_for_a_human_where_the_policy_says_so(self, fake: FakeCluster) -> None:
        asked = Request(agent="tester", egress=("192.0.2.7:443",), approval=ApprovalWait("return"))
        waiting = asyncio.run(fake.client().execute(BLOCKS, asked))
        assert waiting.phase is Phase.AWAITING_APPROVAL
        listed = codeexec(fake, "approvals", user="anna")
        assert "spec.egress[0]=192.0.2.7/32:443/TCP" in listed.stdout
        shown = codeexec(fake, "approvals", waiting.name, user="anna")
        assert "Egress:" in shown.stdout
        assert codeexec(fake, "approve", waiting.name, user="anna").exit_code == 0
        assert fake.executions[0].status.phase is Phase.SUCCEEDED
        assert [one.permit for one in fake.executions[0].status.egress] == ["192.0.2.7/32:443/TCP"]


class TestCommandLine:
    def test_runs_with_them(self, fake: FakeCluster) -> None:
        result = codeexec(fake, "run", "-c", "print(1)", "--egress", "10.1.2.3:443", "--mount", MOUNT)
        assert result.exit_code == 0, result.output
        [record] = fake.executions
        assert [str(one) for one in (*(record.spec.egress or ()), *(record.spec.mounts or ()))] == [PERMIT, MOUNT]
        shown = codeexec(fake, "get", record.metadata.name).stdout
        assert f"Egress:        {PERMIT}" in shown
        assert f"Mounts:        {MOUNT}" in shown
        assert "EGRESS RESTRICTED" in shown

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--egress", "pypi.org:443"], "can't name hosts"),
            (["--mount", "data"], "is not a mount"),
            (["--egress", PERMIT, "--new-session"], "can't be used in a session"),
            (["--mount", MOUNT, "--session", "work"], "can't be used in a session"),
        ],
    )
    def test_says_what_can_not_be(self, arguments: list[str], said: str, fake: FakeCluster) -> None:
        result = codeexec(fake, "run", "-c", "print(1)", *arguments)
        assert result.exit_code == 2
        assert said in " ".join(result.output.split())
        assert fake.executions == []

    def test_explains_what_the_policy_says_of_them(self, fake: FakeCluster, tmp_path: Any) -> None:
        spec = a_raw_spec(
            egress=[
                {"cidr": "10.1.2.3/32", "port": 443},
                {"cidr": "192.0.2.7/32", "port": 443},
                {"host": "a.b", "port": 1},
            ],
            mounts=[a_raw_mount()],
        )
        file = tmp_path / "request.yaml"
        file.write_text(yaml.safe_dump({"kind": "CodeExecution", "spec": spec}))
        result = codeexec(fake, "policy", "explain", str(file))
        assert result.exit_code == 4
        lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
        assert f"Egress: {PERMIT}, 192.0.2.7/32:443/TCP, a.b:1/TCP" in lines
        assert f"Mounts: {MOUNT}" in lines
        assert any(line.startswith("with approval spec.egress[1] 192.0.2.7/32:443/TCP") for line in lines)
        assert any(line.startswith("never spec.egress[2] a.b:1/TCP none: a NetworkPolicy can't name") for line in lines)
        assert not any("spec.egress[0]" in line for line in lines)
