"""Two things that must agree: models and schema, languages and contract, our executor and AutoGen's."""

import inspect
from typing import Any, get_args

import pytest
import yaml
from autogen_core.code_executor import CodeExecutor, CodeResult
from cluster_tools import ROOT

from codeexec_api import (
    Block,
    CodeExecutionSpec,
    CodeSessionSpec,
    ExecutionPolicySpec,
    PayloadRef,
    Source,
    evaluate,
)
from codeexec_api.languages import LANGUAGES
from codeexec_api.names import MAX_EXECUTION_NAME, PAYLOAD_SECRET_TYPE
from codeexec_api.output_store import MAX_OBJECT_BYTES
from codeexec_api.phases import Phase, SessionPhase
from codeexec_api.schema import custom_resource_definitions
from codeexec_api.v1alpha1 import bounds
from codeexec_api.v1alpha1.fields import LanguageName
from codeexec_api.v1alpha1.limits import SomeLimits
from codeexec_api.v1alpha1.policy import Approvable
from codeexec_operator.adapters.api_server import ANSWER_SECONDS
from codeexec_operator.adapters.operation import UNTOLD_SECONDS
from codeexec_operator.core.output_parts import PART_BYTES, SHORT_PARTS
from codeexec_operator.core.timing import Timing
from executor_client import KubernetesCodeExecutor, KubernetesCodeResult
from executor_client.client.execution import OPERATOR_SECONDS
from executor_client.client.waiting import WORD_SECONDS

NESTED = {"limits", "maxLimits", "requests", "withApproval", "artifacts", "source", "payloadRef", "executionRef"}


def schema_of(crd: str) -> Any:
    return custom_resource_definitions()[crd]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_languages_of_the_contract_are_those_that_can_be_run() -> None:
    assert get_args(LanguageName) == tuple(LANGUAGES)


def test_limits_in_the_schema_are_the_constants() -> None:
    schema = schema_of("codeexecutions.yaml")
    spec, status = schema["properties"]["spec"]["properties"], schema["properties"]["status"]["properties"]
    assert spec["blocks"]["maxItems"] == status["blocks"]["maxItems"] == bounds.MAX_BLOCKS
    assert spec["files"]["maxItems"] == bounds.MAX_FILES
    assert spec["limits"]["properties"]["outputBytes"]["maximum"] == bounds.MAX_STORED_BYTES
    assert spec["blocks"]["items"]["properties"]["sizeBytes"]["maximum"] == bounds.MAX_CODE_BYTES
    assert spec["files"]["items"]["properties"]["sizeBytes"]["maximum"] == bounds.MAX_PAYLOAD_BYTES
    assert spec["payloadRef"]["properties"]["parts"]["maximum"] == bounds.MAX_PAYLOAD_PARTS
    assert status["artifacts"]["maxItems"] == bounds.MAX_ARTIFACTS
    assert status["outputRefs"]["maxItems"] == bounds.MAX_OUTPUT_PARTS
    assert status["outputStore"]["properties"]["parts"]["maxItems"] == bounds.MAX_STORED_PARTS
    [root] = schema["x-kubernetes-validations"]
    assert f"<= {MAX_EXECUTION_NAME} " in root["rule"]
    assert status["phase"]["enum"] == [phase.value for phase in Phase]


def test_limits_in_the_schema_of_sessions_are_the_constants() -> None:
    schema = schema_of("codesessions.yaml")
    spec = schema["properties"]["spec"]["properties"]
    for field in ("idleTimeoutSeconds", "maxLifetimeSeconds"):
        assert spec[field]["maximum"] == bounds.MAX_SESSION_SECONDS
    [root] = schema["x-kubernetes-validations"]
    assert f"<= {MAX_EXECUTION_NAME} " in root["rule"]
    phases = schema["properties"]["status"]["properties"]["phase"]["enum"]
    assert phases == [phase.value for phase in SessionPhase]


def test_a_part_of_a_payload_fits_into_a_secret_and_inline_output_into_the_record() -> None:
    assert bounds.MAX_PART_BYTES < 2**20
    assert bounds.MAX_CODE_BYTES <= bounds.MAX_PART_BYTES
    assert 2 * bounds.MAX_INLINE_BYTES < 1.5 * 2**20


def test_all_that_an_execution_may_give_out_fits_into_its_config_maps() -> None:
    most = 2 * bounds.MAX_OUTPUT_BYTES + bounds.MAX_FETCH_BYTES
    assert most / bounds.MAX_OUTPUT_PARTS < PART_BYTES < 2**20


def test_all_that_an_execution_may_give_out_fits_into_the_objects_of_a_store_also_where_parts_are_short() -> None:
    full_parts = bounds.MAX_STORED_PARTS - SHORT_PARTS
    assert 3 * bounds.MAX_STORED_BYTES / full_parts < PART_BYTES < MAX_OBJECT_BYTES


def test_what_a_client_asks_for_by_default_the_default_policy_allows() -> None:
    """Sessions and executions without limits of their own: nobody has to write a policy to begin."""
    policy = ExecutionPolicySpec(images=("box@sha256:" + "0" * 64,))
    source = Source(agent="tester")
    block = Block(language="python", sha256="0" * 64, size_bytes=1)
    alone = CodeExecutionSpec(source=source, blocks=(block,), payload_ref=PayloadRef(name="run-1"))
    for spec in (alone, CodeSessionSpec(source=source), CodeSessionSpec(source=source, stateful=True)):
        assert evaluate(spec, policy).allowed


def test_the_contract_names_the_type_of_payloads() -> None:
    payload = schema_of("codeexecutions.yaml")["properties"]["spec"]["properties"]["payloadRef"]
    assert PAYLOAD_SECRET_TYPE in payload["properties"]["name"]["description"]


def test_the_executor_is_complete() -> None:
    assert not KubernetesCodeExecutor.__abstractmethods__
    assert {"execute_code_blocks", "start", "stop", "restart"} <= CodeExecutor.__abstractmethods__


@pytest.mark.parametrize("name", sorted(CodeExecutor.__abstractmethods__))
def test_parameters_are_named_as_autogen_passes_them(name: str) -> None:
    ours = inspect.signature(getattr(KubernetesCodeExecutor, name))
    theirs = inspect.signature(getattr(CodeExecutor, name))
    assert list(ours.parameters) == list(theirs.parameters)
    assert inspect.iscoroutinefunction(getattr(KubernetesCodeExecutor, name))


def test_results_can_be_changed_as_autogens_agent_does() -> None:
    result = KubernetesCodeResult(exit_code=0, output="")
    result.output = "changed"
    assert isinstance(result, CodeResult)
    assert result.output == "changed"


def test_settings_are_passed_by_name_only() -> None:
    parameters = inspect.signature(KubernetesCodeExecutor).parameters.values()
    assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("kind", "crd", "left_out"),
    [
        ("CodeExecution", "codeexecutions.yaml", {"cancelled", "sealedPayload", "sessionRef"}),
        ("CodeSession", "codesessions.yaml", {"ended"}),
        ("SandboxPool", "sandboxpools.yaml", set()),
        ("ExecutionApproval", "executionapprovals.yaml", {"revoked", "revokedBy"}),
        ("ExecutionPolicy", "executionpolicies.yaml", set()),
    ],
)
def test_the_full_example_has_every_field(kind: str, crd: str, left_out: set[str]) -> None:
    documents = yaml.safe_load_all((ROOT / "crds" / "examples" / f"{kind.lower()}-full.yaml").read_text())
    [example] = [one["spec"] for one in documents if one["kind"] == kind]
    schema = schema_of(crd)["properties"]["spec"]["properties"]
    assert set(schema) - set(example) == left_out
    for field in set(example) & NESTED:
        assert set(example[field]) == set(schema[field]["properties"]), field
    for field in set(example) & {"agentRules", "grants", "codeRules"}:
        assert set(example[field][0]) == set(schema[field]["items"]["properties"]), field


def test_every_grant_that_an_execution_can_need_fits_into_its_record_and_into_an_approval() -> None:
    """One for the language of each block, each permit, mount, module and unreadable code, and every other field."""
    listed = {"languages": bounds.MAX_BLOCKS, "egress": bounds.MAX_PERMITS, "mounts": bounds.MAX_MOUNTS}
    others = len(Approvable.model_fields) - len({*listed, "max_limits"})
    most = sum(listed.values()) + others + len(SomeLimits.model_fields) + bounds.MAX_IMPORTS + 1
    assert most == bounds.MAX_GRANTS
    status = schema_of("codeexecutions.yaml")["properties"]["status"]["properties"]["approval"]["properties"]
    approval = schema_of("executionapprovals.yaml")["properties"]["spec"]["properties"]
    assert status["grants"]["maxItems"] == approval["grants"]["maxItems"] == most


def test_a_client_waits_for_longer_than_a_takeover_lasts() -> None:
    """After a crash of the leader the Lease has to run out, and the next one has to look at all that came meanwhile."""
    lease = yaml.safe_load((ROOT / "charts/codeexec/values.yaml").read_text())["operator"]["leaseSeconds"]
    assert 3 * 2 * lease <= OPERATOR_SECONDS


@pytest.mark.parametrize("notice", ["queue_notice", "early_notice", "start_notice"])
def test_nobody_waits_longer_than_the_client_says_without_a_word(notice: str) -> None:
    """What is left is for the write, and for the way to the client."""
    assert getattr(Timing(), notice) + 0.5 <= WORD_SECONDS


def test_what_no_watch_tells_of_is_found_before_a_client_gives_up() -> None:
    """A look lasts as long as the API server takes to answer it; then somebody has to take up what was found."""
    assert UNTOLD_SECONDS + ANSWER_SECONDS < OPERATOR_SECONDS
    timing = Timing()
    assert timing.look_again + ANSWER_SECONDS + timing.late_start < timing.start_timeout
