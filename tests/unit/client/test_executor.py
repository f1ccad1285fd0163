"""AutoGen's face: construction, configuration, and results in AutoGen's terms. No cluster."""

import asyncio
import json
import re
import socket
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from autogen_ext.tools.code_execution import PythonCodeExecutionTool
from factories import IMAGE

from codeexec_api import Limits, Phase
from codeexec_api.languages import unknown_language
from executor_client import ClusterRef, ClusterUnreachable, CodeExecutionClient, ExecutionResult, KubernetesCodeExecutor
from executor_client.autogen.base import to_autogen
from executor_client.autogen.kubernetes import KubernetesCodeResult
from executor_client.testing import FakeBlock, FakeCluster, FakeOutcome


@pytest.fixture
def no_input_or_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("construction must not touch files or the network")

    for owner, name in ((socket, "socket"), (Path, "open"), (Path, "exists"), (Path, "mkdir")):
        monkeypatch.setattr(owner, name, refuse)


@pytest.mark.usefixtures("no_input_or_output")
def test_construction_does_nothing() -> None:
    executor = KubernetesCodeExecutor(kubeconfig="/no/such/file", work_dir="/no/such/folder", context="none")
    assert executor.timeout == 60
    assert executor.work_dir == Path("/no/such/folder")
    assert executor.functions_module == "functions"


@pytest.mark.parametrize("timeout", [0, -1, 0.5])
def test_a_timeout_below_one_second_is_refused(timeout: Any) -> None:
    with pytest.raises(ValueError, match=r"^Timeout must be greater than or equal to 1\.$"):
        KubernetesCodeExecutor(timeout=timeout)


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"timeout": 86_401}, "timeout is 86401, but must be whole seconds, 1 to 86400"),
        ({"idle_timeout": 0}, "idle_timeout is 0, but must be whole seconds, 1 to 604800"),
        ({"max_lifetime": 604_801}, "max_lifetime is 604801, but must be whole seconds, 1 to 604800"),
        ({"session": "per-day"}, "session is 'per-day', but must be 'per-executor' or 'per-call'"),
        ({"session": "per-call", "stateful": True}, "stateful=True needs session='per-executor'"),
        (
            {"session": "per-call", "sleep_after": 60},
            "sleep_after is 60, but session is 'per-call': leave sleep_after out",
        ),
        ({"sleep_after": 0}, "sleep_after is 0, but must be whole seconds, 1 to 604800"),
        ({"sleep_after": 60, "idle_timeout": 60}, "sleep_after is 60, but must be at least 1 and lower than idle_tim"),
        ({"sleep_after": 60, "stateful": True}, "sleep_after is 60, but a stateful session can't sleep"),
        (
            {"client": CodeExecutionClient(), "namespace": "x"},
            "client was given beside namespace, which it has already: leave these out",
        ),
    ],
)
def test_settings_that_can_not_be_are_refused(settings: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        KubernetesCodeExecutor(**settings)


@pytest.mark.parametrize("name", ["", "my-functions", "1st", "a.b", "../x"])
def test_a_module_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be a valid Python identifier"):
        KubernetesCodeExecutor(functions_module=name)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "timeout": 5,
            "namespace": "agents",
            "kubeconfig": Path("/some/config"),
            "context": "kind",
            "image": IMAGE,
            "work_dir": Path("/some/folder"),
            "functions_module": "helpers",
            "agent": "coder",
            "limits": Limits(cpu="1", memory="1Gi"),
            "session": "per-executor",
            "stateful": True,
            "idle_timeout": 60,
            "max_lifetime": 600,
        },
        {"session": "per-call"},
    ],
)
def test_configuration_survives_json(settings: dict[str, Any]) -> None:
    dumped = KubernetesCodeExecutor(**settings).dump_component()
    assert dumped.provider == "executor_client.KubernetesCodeExecutor"
    again = CodeExecutor.load_component(json.loads(json.dumps(dumped.model_dump())))
    assert isinstance(again, KubernetesCodeExecutor)
    assert again.dump_component() == dumped
    assert again.timeout == settings.get("timeout", 60)


def test_a_dump_names_the_kubeconfig_and_holds_nothing_of_it(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("users: [{name: agent, user: {token: a-secret-token}}]")
    executor = KubernetesCodeExecutor(kubeconfig=str(kubeconfig))
    for dumped in (executor.dump_component(), PythonCodeExecutionTool(executor).dump_component()):
        assert str(kubeconfig) in dumped.model_dump_json()
        assert "a-secret-token" not in dumped.model_dump_json()
    assert "a-secret-token" not in repr(executor) + repr(vars(executor))


def test_a_dump_has_the_cluster_of_the_client_that_the_executor_was_given() -> None:
    cluster = ClusterRef(**{one.name: f"s3://{one.name}" for one in fields(ClusterRef)})
    dumped = KubernetesCodeExecutor(client=CodeExecutionClient(cluster)).dump_component()
    again = CodeExecutor.load_component(json.loads(dumped.model_dump_json()))
    assert again._client.cluster == cluster  # type: ignore[attr-defined]


def test_an_executor_on_a_fake_is_not_dumped_because_the_dump_would_load_onto_a_cluster() -> None:
    executor = KubernetesCodeExecutor(client=FakeCluster().client())
    with pytest.raises(ValueError, match=r"client names no cluster.*pass client=CodeExecutionClient"):
        executor.dump_component()


def test_what_comes_from_a_generator_is_in_the_configuration_and_in_the_request() -> None:
    ways, mounts = ["10.1.2.3/32:443/TCP"], ["pvc:data:/mnt/data"]
    given: dict[str, Any] = {"egress": (one for one in ways), "mounts": (one for one in mounts)}
    executor = KubernetesCodeExecutor(session="per-call", **given)
    again = CodeExecutor.load_component(executor.dump_component())
    for one in (executor, again):
        assert isinstance(one, KubernetesCodeExecutor)
        assert [list(map(str, one._request.egress)), list(map(str, one._request.mounts))] == [ways, mounts]


@pytest.mark.parametrize("name", [one.name for one in fields(ClusterRef)])
def test_a_client_has_a_cluster_of_its_own(name: str) -> None:
    with pytest.raises(ValueError, match=f"client was given beside {name}, which it has already"):
        KubernetesCodeExecutor(client=CodeExecutionClient(), **{name: "x"})


def test_what_can_not_be_written_down_is_not_dumped() -> None:
    executor = KubernetesCodeExecutor(functions=[len], on_output=print, client=CodeExecutionClient())
    dumped = executor.dump_component().model_dump_json()
    assert "print" not in dumped
    assert not re.search(r"session-[0-9a-f]+", dumped)
    assert CodeExecutor.load_component(json.loads(dumped)).functions == []  # type: ignore[attr-defined]


async def test_a_source_or_module_that_code_changes_is_a_changed_file(tmp_path: Path) -> None:
    """Not so what it leaves as it was sent."""

    def function() -> int:
        return 1

    def rewrite(block: FakeBlock) -> FakeOutcome:
        if block.code.endswith("rewrite"):
            block.files.update({"state.py": b"n = 2", "functions.py": b"n = 3"})
        return FakeOutcome()

    client = FakeCluster(run=rewrite).client()
    executor = KubernetesCodeExecutor(client=client, work_dir=tmp_path, session="per-call", functions=[function])
    for code, changed in (
        ("leave", {}),
        ("rewrite", {"functions.py": "n = 3", "state.py": "n = 2"}),
    ):
        block = CodeBlock(f"# filename: state.py\n{code}", "python")
        result = await executor.execute_code_blocks([block], CancellationToken())
        assert [(one.path, one.fetched) for one in result.artifacts] == [(path, True) for path in changed]
        assert {path: (tmp_path / path).read_text() for path in changed} == changed


@pytest.mark.parametrize(
    ("version", "config", "session"),
    [
        (1, {}, "per-call"),
        (1, {"timeout": 5}, "per-call"),
        (1, {"session": "per-executor"}, "per-executor"),
        (2, {}, "per-executor"),
        (None, {}, "per-executor"),
    ],
)
def test_an_old_configuration_keeps_its_meaning(version: int | None, config: dict[str, Any], session: str) -> None:
    loaded = CodeExecutor.load_component(
        {
            "provider": "executor_client.KubernetesCodeExecutor",
            "component_type": "code_executor",
            "component_version": version,
            "config": config,
        }
    )
    dumped = loaded.dump_component()
    assert (dumped.component_version, dumped.config["session"]) == (2, session)
    assert dumped.config["timeout"] == config.get("timeout", 60)


def test_a_dump_of_the_docker_executor_loads_and_says_what_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    config = {"timeout": 5, "auto_remove": True, "bind_dir": None}
    provider = "executor_client.KubernetesCodeExecutor"
    loaded = CodeExecutor.load_component({"provider": provider, "component_version": 1, "config": config})
    assert loaded.dump_component().config["timeout"] == 5
    assert "no effect in a KubernetesCodeExecutor: auto_remove, bind_dir" in caplog.text


@pytest.mark.parametrize(
    "config", [{"timeout": 0}, {"functions_module": "not one"}, {"limits": {"cpu": "none"}}, {"tiemout": 5}]
)
def test_a_wrong_configuration_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"[Tt]imeout|functions_module|cpu|tiemout"):
        CodeExecutor.load_component({"provider": "executor_client.KubernetesCodeExecutor", "config": config})


def test_a_module_name_that_is_none_is_refused_in_the_words_of_the_docker_executor_too() -> None:
    with pytest.raises(
        ValueError, match=r"^Module name must be a valid Python identifier: functions_module is 'no one'$"
    ):
        KubernetesCodeExecutor(functions_module="no one")


async def test_no_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="No code blocks to execute"):
        await KubernetesCodeExecutor().execute_code_blocks([], CancellationToken())


async def test_an_unknown_language_alone_is_a_result_without_a_cluster() -> None:
    executor = KubernetesCodeExecutor(kubeconfig="/no/such/file")
    result = await executor.execute_code_blocks([CodeBlock("puts 1", "ruby")], CancellationToken())
    assert (result.exit_code, result.execution) == (1, None)
    assert result.output == f"{unknown_language('ruby')}\nUnsupported language: ruby", (
        "the Docker executor's words, too"
    )


@pytest.mark.parametrize("name", ["../x.py", "/tmp/codeexec-x.py", "a/../../x.py"])
async def test_a_name_that_leads_out_is_refused_before_anything_is_submitted(tmp_path: Path, name: str) -> None:
    def block(name: str) -> list[CodeBlock]:
        return [CodeBlock(f"# filename: {name}\nprint('ran')", "python")]

    executor = KubernetesCodeExecutor(kubeconfig="/no/such/file")
    assert (tmp_path / "a/x.py").resolve().is_relative_to(tmp_path)
    with pytest.raises(ClusterUnreachable):  # control: a name that stays inside is submitted
        await executor.execute_code_blocks(block("a/x.py"), CancellationToken())
    assert not (tmp_path / name).resolve().is_relative_to(tmp_path), "control: it leads out"
    result = await executor.execute_code_blocks(block(name), CancellationToken())
    assert (result.exit_code, result.execution) == (1, None)
    assert result.output.startswith(f"Filename is not in the workspace: '{name}' has the part ")


async def test_the_source_is_kept_but_not_through_a_link_that_leads_out(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "link").symlink_to(tmp_path)
    executor = KubernetesCodeExecutor(kubeconfig="/no/such/file", work_dir=tmp_path / "work")
    with pytest.raises(ValueError, match="leads out of work_dir"):
        await executor.execute_code_blocks([CodeBlock("# filename: link/x.py\n", "python")], CancellationToken())
    assert not (tmp_path / "x.py").exists()


@pytest.fixture
def a_result() -> Callable[..., ExecutionResult]:
    def make(phase: Phase, exit_code: int, output: str = "out\n") -> ExecutionResult:
        return ExecutionResult(
            name="run-1",
            phase=phase,
            reason="Why",
            message="",
            exit_code=exit_code,
            output=output,
            stdout=output,
            stderr="",
            truncated=False,
            blocks=(),
            pod_name="",
            code_digest="",
        )

    return make


@pytest.mark.parametrize(
    ("phase", "exit_code", "refusal", "expected", "output"),
    [
        (Phase.SUCCEEDED, 0, "", 0, "out\n"),
        (Phase.FAILED, 3, "", 3, "out\n"),
        (Phase.TIMED_OUT, 124, "", 124, "out\n"),
        (Phase.OUT_OF_MEMORY, 137, "", 137, "out\n"),
        (Phase.CANCELLED, 130, "", 1, "out\n"),
        (Phase.DENIED, 1, "", 1, "out\n"),
        (Phase.SUCCEEDED, 0, "unknown language X", 1, "out\n\nunknown language X"),
        (Phase.FAILED, 3, "unknown language X", 3, "out\n"),
    ],
)
def test_exit_code_and_output(
    phase: Phase, exit_code: int, refusal: str, expected: int, output: str, a_result: Callable[..., ExecutionResult]
) -> None:
    result = to_autogen(KubernetesCodeResult, a_result(phase, exit_code), "/workspace/a.py", refusal)
    assert (result.exit_code, result.output) == (expected, output)
    assert (result.execution, result.reason, result.code_file) == ("run-1", "Why", "/workspace/a.py")


async def test_a_token_that_was_cancelled_before_starts_nothing() -> None:
    token = CancellationToken()
    token.cancel()
    executor = KubernetesCodeExecutor(kubeconfig="/nonexistent")  # connecting would fail
    result = await executor.execute_code_blocks([CodeBlock("print(1)", "python")], token)
    assert (result.exit_code, result.output, result.execution) == (1, "Code execution was cancelled.", None)


def test_a_token_may_outlive_the_loop_of_its_call() -> None:
    token = CancellationToken()
    executor = KubernetesCodeExecutor(kubeconfig="/nonexistent")

    async def call() -> None:
        with pytest.raises(ClusterUnreachable):
            await executor.execute_code_blocks([CodeBlock("print(1)", "python")], token)

    asyncio.run(call())
    token.cancel()
