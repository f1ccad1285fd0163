"""Two things that must agree: models and schema, languages and contract, our executor and AutoGen's."""

import inspect
from typing import Any, get_args

import pytest
from autogen_core.code_executor import CodeExecutor, CodeResult

from codeexec_api import v1alpha1
from codeexec_api.languages import LANGUAGES
from codeexec_api.names import MAX_EXECUTION_NAME, PAYLOAD_SECRET_TYPE
from codeexec_api.phases import Phase
from codeexec_api.schema import custom_resource_definitions
from executor_client import KubernetesCodeExecutor, KubernetesCodeResult


def schema_of(crd: str) -> Any:
    return custom_resource_definitions()[crd]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_languages_of_the_contract_are_those_that_can_be_run() -> None:
    assert get_args(v1alpha1.LanguageName) == tuple(LANGUAGES)


def test_limits_in_the_schema_are_the_constants() -> None:
    schema = schema_of("codeexecutions.yaml")
    spec, status = schema["properties"]["spec"]["properties"], schema["properties"]["status"]["properties"]
    assert spec["blocks"]["maxItems"] == status["blocks"]["maxItems"] == v1alpha1.MAX_BLOCKS
    assert spec["files"]["maxItems"] == v1alpha1.MAX_FILES
    assert spec["limits"]["properties"]["outputBytes"]["maximum"] == v1alpha1.MAX_OUTPUT_BYTES
    assert spec["blocks"]["items"]["properties"]["sizeBytes"]["maximum"] == v1alpha1.MAX_PAYLOAD_BYTES
    [root] = schema["x-kubernetes-validations"]
    assert f"<= {MAX_EXECUTION_NAME} " in root["rule"]
    assert status["phase"]["enum"] == [phase.value for phase in Phase]


def test_the_payload_fits_into_a_secret_and_the_output_into_the_record() -> None:
    assert v1alpha1.MAX_PAYLOAD_BYTES < 2**20
    assert 2 * v1alpha1.MAX_OUTPUT_BYTES < 1.5 * 2**20


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
