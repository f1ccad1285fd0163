"""The chart renders to valid objects over every file in `ci/`."""

import subprocess
from pathlib import Path

import pytest
import yaml
from chart.helm import CHART, CI_VALUES, KUBE_VERSION, manifest, render, run, schemas, tool

from codeexec_api import ExecutionPolicySpec

every_values_file = pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.stem)


def test_the_four_values_files_are_there() -> None:
    assert [path.stem for path in CI_VALUES] == [
        "default-values",
        "full-values",
        "multi-namespace-values",
        "strict-values",
    ]


def _keys(values: dict, prefix: str = "") -> set[str]:
    nested = {name: value for name, value in values.items() if isinstance(value, dict) and value}
    deeper = (_keys(value, f"{prefix}{name}.") for name, value in nested.items())
    return {prefix + name for name in values}.union(*deeper)


def test_the_full_file_sets_every_value() -> None:
    known = _keys(yaml.safe_load((CHART / "values.yaml").read_text()))
    assert known <= _keys(yaml.safe_load((CHART / "ci" / "full-values.yaml").read_text()))


@every_values_file
def test_lint_finds_nothing(values: Path) -> None:
    done = run(tool("helm"), "lint", "--strict", "--kube-version", KUBE_VERSION, CHART, "--values", values)
    assert done.returncode == 0, done.stdout + done.stderr


def _kubeconform(*options: str, stdin: str) -> subprocess.CompletedProcess[str]:
    """With the schemas of Kubernetes, and those of the kinds of others that the chart makes objects of."""
    name = "{{.ResourceKind}}{{.KindSuffix}}.json"
    locations = [f"-schema-location={folder}/{name}" for folder in (schemas(), Path(__file__).parent / "schemas")]
    return run(tool("kubeconform"), "-strict", *options, *locations, stdin=stdin)


@every_values_file
def test_objects_have_the_fields_that_kubernetes_knows(values: Path) -> None:
    done = _kubeconform("-summary", stdin=manifest(values=values))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Skipped: 0" in done.stdout


@pytest.mark.parametrize(("field", "typo"), [("replicas: 3", "replica: 3"), ("interval: 15s", "intervals: 15s")])
def test_kubeconform_refuses_an_unknown_field(field: str, typo: str) -> None:
    good = manifest(values=CHART / "ci" / "full-values.yaml")
    assert field in good
    done = _kubeconform(stdin=good.replace(field, typo))
    assert done.returncode != 0
    assert typo.split(":")[0] in done.stdout


@every_values_file
def test_no_object_is_rendered_twice(values: Path) -> None:
    keys = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in render(values=values)]
    assert len(keys) == len(set(keys))


@every_values_file
def test_the_policy_is_one_that_the_operator_accepts(values: Path) -> None:
    config_maps = [one.get("data", {}) for one in render(values=values) if one["kind"] == "ConfigMap"]
    [policy] = [data["policy.yaml"] for data in config_maps if "policy.yaml" in data]
    ExecutionPolicySpec.model_validate(yaml.safe_load(policy))


def test_helm_unittest_suites_pass() -> None:
    done = run(tool("helm-unittest"), "--strict", "--color=false", CHART)
    assert done.returncode == 0, done.stdout + done.stderr
