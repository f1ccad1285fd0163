"""The chart renders to valid objects over every file in `ci/`."""

import json
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
@pytest.mark.parametrize(("release", "sandbox"), [("default", "sandbox-x"), ("codeexec-system", "default")])
def test_no_object_is_rendered_twice(values: Path, release: str, sandbox: str) -> None:
    """Also if the namespace `default`, where the API server's addresses are read, is the release's or a sandbox."""
    objects = render("--set", f"sandbox.namespaces={{{sandbox}}}", values=values, namespace=release)
    keys = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    assert len(keys) == len(set(keys))


@every_values_file
def test_names_stay_texts_that_yaml_reads_as_numbers_or_nothing(values: Path) -> None:
    odd = ["123", "no", "null", "1e3"]
    account = {"kind": "ServiceAccount", "name": "404", "namespace": "null"}
    settings = {"sandbox.namespaces": odd, "nameOverride": "123", "agents.subjects": [account]}
    changed = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    arguments = [part for one in changed for part in ("--set-json", one)]
    done = _kubeconform("-summary", stdin=manifest(*arguments, values=values))
    assert done.returncode == 0, done.stdout + done.stderr
    objects = render(*arguments, values=values)
    assert set(odd) <= {one["metadata"].get("namespace", "") for one in objects}, "null would be no namespace"
    bindings = [one for one in objects if one["kind"] == "RoleBinding" and one["metadata"]["namespace"] == "no"]
    assert account in [subject for one in bindings for subject in one["subjects"]]


def test_no_service_has_a_name_that_is_too_long() -> None:
    objects = render("--set", f"fullnameOverride={'x' * 53},metrics.enabled=true")
    names = [one["metadata"]["name"] for one in objects if one["kind"] == "Service"]
    assert len(names) == 2
    assert max(map(len, names)) <= 63


@every_values_file
def test_the_policy_is_one_that_the_operator_accepts(values: Path) -> None:
    config_maps = [one.get("data", {}) for one in render(values=values) if one["kind"] == "ConfigMap"]
    [policy] = [data["policy.yaml"] for data in config_maps if "policy.yaml" in data]
    ExecutionPolicySpec.model_validate(yaml.safe_load(policy))


def test_helm_unittest_suites_pass() -> None:
    done = run(tool("helm-unittest"), "--strict", "--color=false", CHART)
    assert done.returncode == 0, done.stdout + done.stderr
