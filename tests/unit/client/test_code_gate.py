"""Rules for code, seen from the client: what the command line says before and after, and what the fake does."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from click.testing import CliRunner, Result
from factories import a_raw_block, a_raw_file, a_raw_spec

from codeexec_api import ExecutionPolicySpec
from codeexec_api.names import PAYLOAD_SECRET_TYPE
from executor_client import KubernetesCodeExecutor
from executor_client.cli import main
from executor_client.testing import FAKE_IMAGE, FakeCluster, FakeOutcome

pytestmark = pytest.mark.usefixtures("reading_takes_its_time")

CODE, FILE = b"import os\n", b"from socket import socket\n"


def govern(**actions: str) -> ExecutionPolicySpec:
    rules = [{"action": action, "imports": modules.split()} for action, modules in actions.items()]
    return ExecutionPolicySpec.model_validate({"images": [FAKE_IMAGE], "codeRules": rules})


class TestExplain:
    """`codeexec policy explain`."""

    @pytest.fixture
    def request_file(self, tmp_path: Path) -> Path:
        spec = a_raw_spec(blocks=[a_raw_block(CODE)], files=[a_raw_file("net.py", FILE), a_raw_file("data.csv")])
        file = tmp_path / "request.yaml"
        file.write_text(yaml.safe_dump({"kind": "CodeExecution", "spec": spec}))
        return file

    def explain(self, policy: ExecutionPolicySpec, file: Path, *options: str | Path) -> Result:
        governing = file.parent / "policy.yaml"
        governing.write_text(yaml.safe_dump(policy.dump()))
        words = ["policy", "explain", str(file), "--policy", str(governing), *map(str, options)]
        return CliRunner().invoke(main, words)

    def code_of(self, file: Path) -> list[str]:
        words = []
        for name, content in (("block", CODE), ("net.py", FILE)):
            (file.parent / name).write_bytes(content)
            words += ["--code", str(file.parent / name)]
        return words

    @pytest.mark.parametrize(("action", "exit_code"), [("Note", 0), ("NeedApproval", 3), ("Deny", 4)])
    def test_it_says_what_rules_have_against_the_code(self, request_file: Path, action: str, exit_code: int) -> None:
        policy = govern(**{action: "os socket"})
        done = self.explain(policy, request_file, *self.code_of(request_file))
        assert done.exit_code == exit_code, done.output
        lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
        said = {"Note": "and noted", "NeedApproval": "with approval", "Deny": "never"}[action]
        assert any(line.startswith(f"{said} spec.blocks[0] import os") for line in lines)
        assert any(line.startswith(f"{said} spec.files[0] import socket") for line in lines)

    def test_it_reads_the_payload_in_the_same_file(self, request_file: Path) -> None:
        data = {"block-0": base64.b64encode(CODE).decode(), "file-0": base64.b64encode(FILE).decode()}
        secret = {"kind": "Secret", "type": PAYLOAD_SECRET_TYPE, "data": data}
        request_file.write_text(f"{yaml.safe_dump(secret)}---\n{request_file.read_text()}")
        done = self.explain(govern(NeedApproval="os", Note="socket"), request_file, "-o", "json")
        told = json.loads(done.stdout)
        assert told["grants"] == [{"field": "spec.blocks[0]", "value": "import os"}]
        assert [(one["found"], one["action"]) for one in told["codeFindings"]] == [
            ("import os", "NeedApproval"),
            ("import socket", "Note"),
        ]

    def test_without_the_code_it_says_that_nobody_has_looked(self, request_file: Path) -> None:
        done = self.explain(govern(Deny="os"), request_file, *self.code_of(request_file)[:2])
        assert done.exit_code == 0
        assert "codeRules were not checked: pass the code of spec.files[0] with --code" in done.stdout
        done = self.explain(govern(Deny="os"), request_file, "-o", "json")
        assert json.loads(done.stdout)["codeFindings"] is None

    def test_without_rules_it_says_nothing_of_code(self, request_file: Path) -> None:
        done = self.explain(ExecutionPolicySpec(images=(FAKE_IMAGE,)), request_file)
        assert (done.exit_code, "codeRules" in done.stdout) == (0, False)

    def test_other_bytes_are_refused(self, request_file: Path) -> None:
        other = request_file.parent / "other.py"
        other.write_bytes(b"import os")  # without the end of the line
        done = self.explain(govern(Deny="os"), request_file, "--code", other)
        assert done.exit_code == 1
        assert f"it has sha256 {hashlib.sha256(b'import os').hexdigest()}, and no block or file" in done.stderr


class TestTheFake:
    """`FakeCluster` with rules for code."""

    async def run(self, fake: FakeCluster, code: str, **options: Any) -> Any:
        async with KubernetesCodeExecutor(client=fake.client(), agent="tester", **options) as executor:
            return await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())

    @pytest.mark.parametrize("session", ["per-call", "per-executor"])
    async def test_deny(self, session: str) -> None:
        fake = FakeCluster(policy=govern(Deny="os"), run=lambda _: FakeOutcome(stdout="ran\n"))
        assert (await self.run(fake, "print(1)", session=session)).output == "ran\n", "control"
        result = await self.run(fake, "import os", session=session)
        assert (result.exit_code, result.reason) == (1, "PolicyViolation")
        assert "spec.blocks[0]: import os is not allowed by the policy" in result.output

    async def test_an_approval_lets_exactly_that_run(self) -> None:
        fake = FakeCluster(policy=govern(NeedApproval="os socket"), run=lambda _: FakeOutcome(stdout="ran\n"))
        async with KubernetesCodeExecutor(client=fake.client(), agent="tester", approval="return") as executor:
            left = await executor.execute_code_blocks([CodeBlock("import os", "python")], CancellationToken())
            async with fake.client("anna") as approver:
                waiting = await approver.get(left.execution or "")
                assert [str(one) for one in waiting.status.approval.grants] == ["spec.blocks[0]=import os"]  # type: ignore[union-attr]
                await approver.approve(waiting)
            result = await executor.result_of(left.execution or "")
        assert (result.exit_code, result.output) == (0, "ran\n")
        [record] = fake.executions
        assert [(one.found, one.action.value) for one in record.status.code_findings] == [("import os", "NeedApproval")]

    def test_the_record_and_the_log_say_what_was_found(self) -> None:
        fake = FakeCluster(policy=govern(Note="os"), run=lambda _: FakeOutcome())

        def codeexec(*words: str) -> Result:
            return CliRunner().invoke(main, words, input="import os", obj=lambda ref: fake.client())

        assert codeexec("run", "-").exit_code == 0
        assert '"codeFindings":["Note: import os"]' in "".join(fake.audit_log)
        [record] = fake.executions
        shown = [line.split() for line in codeexec("get", record.metadata.name).stdout.splitlines()]
        assert ["import", "os", "Note", "spec.blocks[0]"] in shown
