"""The chart says the same as the package: version, CRDs, policy fields, defaults and bounds."""

import re
import tomllib
from typing import Any

import pytest
import yaml
from chart.helm import CHART, ROOT, render
from chart.rights import AGENT, cells
from pydantic import BaseModel

from codeexec_api import Boundary, CodeAction, CodeRule, ExecutionPolicySpec, Limits, PodLimits, SandboxPoolSpec
from codeexec_api.languages import LANGUAGES
from codeexec_api.quantities import parse_quantity
from codeexec_api.v1alpha1.bounds import DEFAULT_REQUESTS, MAX_AGENT_RULES, MAX_CODE_RULES
from codeexec_api.v1alpha1.limits import PodRequests, PolicyLimits, SomeLimits
from codeexec_api.v1alpha1.policy import AgentRule, Approvable
from codeexec_operator.core.isolation import promised
from executor_client.cli import diagnosis

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = yaml.safe_load((CHART / "values.schema.json").read_text())
METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text())
CRDS = sorted((CHART / "files" / "crds").glob("*.yaml"))


def test_one_version() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (METADATA["version"], METADATA["appVersion"]) == (package, package)


def test_crds_are_installed_as_they_were_generated() -> None:
    installed = [one for one in render("--set", "crds.keep=false") if one["kind"] == "CustomResourceDefinition"]
    for one in installed:
        assert set(one["metadata"]) == {"name", "labels"}
        del one["metadata"]["labels"]
    assert installed == [yaml.safe_load(path.read_text()) for path in CRDS]


def test_artifact_hub_lists_the_crds() -> None:
    listed = yaml.safe_load(METADATA["annotations"]["artifacthub.io/crds"])
    generated = [yaml.safe_load(path.read_text()) for path in CRDS]
    assert [(one["name"], one["kind"], one["version"]) for one in listed] == [
        (crd["metadata"]["name"], crd["spec"]["names"]["kind"], version["name"])
        for crd in generated
        for version in crd["spec"]["versions"]
    ]


def test_the_chart_has_the_defaults_of_the_model() -> None:
    images = ("box@sha256:" + "0" * 64,)
    policy = {key: value for key, value in VALUES["policy"].items() if key not in ("extraImages", "runtimeClassName")}
    requests = PodRequests.model_validate(DEFAULT_REQUESTS)  # the model leaves them out: they are the operator's
    default = ExecutionPolicySpec(images=images, requests=requests)
    assert ExecutionPolicySpec.model_validate({"images": images, **policy}) == default
    assert set(policy) | {"images"} == set(ExecutionPolicySpec(images=images).dump())


def test_the_chart_chooses_among_the_kernels_that_the_operator_knows() -> None:
    """A virtual machine before gVisor: the last one of the list that there is."""
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    [listed] = re.findall(r"range \$handler := list (.*) }}", helpers)
    kernels = [promised(handler) for handler in yaml.safe_load(f"[{listed.replace(' ', ', ')}]")]
    assert kernels == [Boundary.GVISOR] * 2 + [Boundary.VM] * 4


def test_the_default_pool_is_for_executions_that_ask_for_nothing_special() -> None:
    pool = {key: value for key, value in VALUES["defaultPool"].items() if key != "enabled"}
    spec = SandboxPoolSpec.model_validate(pool)
    assert spec == SandboxPoolSpec()
    asked = Limits()
    assert spec.limits == PodLimits(
        cpu=asked.cpu, memory=asked.memory, ephemeral_storage=asked.ephemeral_storage, pids=asked.pids
    )
    numbers = SCHEMA["properties"]["defaultPool"]["properties"]
    known = SandboxPoolSpec.model_json_schema(by_alias=True)["properties"]
    for name in ("replicas", "maxAgeSeconds"):
        assert (numbers[name]["minimum"], numbers[name]["maximum"]) == (known[name]["minimum"], known[name]["maximum"])


POLICY = SCHEMA["properties"]["policy"]["properties"]
SECTIONS = {
    ExecutionPolicySpec: POLICY,
    PolicyLimits: POLICY["maxLimits"]["properties"],
    PodRequests: POLICY["requests"]["properties"],
    AgentRule: POLICY["agentRules"]["items"]["properties"],
    Approvable: SCHEMA["definitions"]["approvable"]["properties"],
    SomeLimits: SCHEMA["definitions"]["someLimits"]["properties"],
}


def _numbers(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """The integers among the fields of a model, optional ones as well."""
    properties = model.model_json_schema(by_alias=True)["properties"]
    nodes = {name: node.get("anyOf", [node])[0] for name, node in properties.items()}
    return {name: node for name, node in nodes.items() if node.get("type") == "integer"}


@pytest.mark.parametrize("model", [one for one in SECTIONS if one is not PodRequests], ids=lambda model: model.__name__)
def test_numbers_have_the_bounds_of_the_model(model: type[BaseModel]) -> None:
    numbers = _numbers(model)
    assert numbers
    for name, node in numbers.items():
        section = SECTIONS[model][name]
        assert (section["minimum"], section["maximum"]) == (node["minimum"], node["maximum"]), name


@pytest.mark.parametrize("model", [AgentRule, Approvable, PodRequests, SomeLimits], ids=lambda model: model.__name__)
def test_rules_and_what_is_approvable_have_the_fields_of_the_model(model: type[BaseModel]) -> None:
    assert set(SECTIONS[model]) == set(model.model_json_schema(by_alias=True)["properties"])


def test_there_may_be_as_many_rules_as_in_the_model() -> None:
    assert POLICY["agentRules"]["maxItems"] == MAX_AGENT_RULES


def test_rules_for_code_are_those_of_the_model() -> None:
    here, model = SCHEMA["definitions"]["codeRules"], CodeRule.model_json_schema(by_alias=True)
    imports, known = here["items"]["properties"]["imports"], model["properties"]["imports"]
    assert here["maxItems"] == MAX_CODE_RULES == len(CodeAction)
    assert here["items"]["properties"]["action"]["enum"] == list(CodeAction)
    assert {key: known[key] for key in ("minItems", "maxItems", "items")} | {"type": "array"} == imports


def test_languages_are_those_of_the_model() -> None:
    assert SCHEMA["definitions"]["languages"]["items"]["enum"] == list(LANGUAGES)
    named = {"$ref": "#/definitions/languages"}
    assert POLICY["languages"]["allOf"][0] == SECTIONS[AgentRule]["languages"]["allOf"][0] == named
    assert SECTIONS[Approvable]["languages"] == named


def test_nothing_stands_beside_a_reference_where_helm_would_not_see_it() -> None:
    """In draft-07 `$ref` replaces the schema around it."""

    def shadowed(node: object) -> list[object]:
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        here = [node] if isinstance(node, dict) and "$ref" in node and len(node) > 1 else []
        return here + [found for child in children for found in shadowed(child)]

    assert shadowed(SCHEMA) == []


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        *((text, True) for text in ("1", "10", "500m", "0.5", "1.25", "0.001", "256Mi", "1.5Gi", "5000000000", "2Ti")),
        *((text, False) for text in ("0", "0m", "0.0", "-1", "", "1GB", "1 Gi", "1e3", ".5", "5.", "Mi", "1mi")),
    ],
)
def test_quantities_are_those_of_the_model(text: str, accepted: bool) -> None:
    assert bool(re.search(SCHEMA["definitions"]["quantity"]["pattern"], text)) is accepted
    if accepted:
        assert parse_quantity(text) > 0


def _leaves(values: dict[str, Any], prefix: str = "") -> list[str]:
    return [
        leaf
        for name, value in values.items()
        for leaf in (_leaves(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [prefix + name])
    ]


def test_the_readme_has_a_row_for_every_value() -> None:
    readme = (CHART / "README.md").read_text()
    assert re.findall(r"^\| `([\w.-]+)` \|", readme, flags=re.MULTILINE) == _leaves(VALUES)


def test_the_doctor_asks_for_what_an_agent_may() -> None:
    assert {(one.group, one.resource, one.verb) for one in diagnosis.RIGHTS} == cells(AGENT)
