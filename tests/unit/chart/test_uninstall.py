"""The chart's README names all that `helm uninstall` keeps, and the commands to delete it."""

import re
from typing import Any

import pytest
from chart.helm import CHART, CI_VALUES, render

README = (CHART / "README.md").read_text()
KEEP = "helm.sh/resource-policy"
NAMES = {"part-of": "codeexec", "instance": "codeexec"}
"""Labels that the README's commands select the admission policies by, for a release of this name."""


def _kept(*arguments: str) -> list[dict[str, Any]]:
    objects = [one for values in CI_VALUES for one in render(*arguments, values=values)]
    return [one for one in objects if one["metadata"].get("annotations", {}).get(KEEP) == "keep"]


def _commands() -> str:
    """The last block of commands that deletes: that of "Delete everything"."""
    return re.findall(r"```console\n(.*?)```", README, re.DOTALL)[-1].replace("\\\n", "")


def test_every_kind_that_is_kept_is_in_the_table() -> None:
    kinds = {one["kind"] for one in _kept()}
    table = README[README.index("| removed |") : README.index("### Reinstall")].lower().replace("policies", "policy")
    words = {
        "CustomResourceDefinition": "crds",
        "Namespace": "sandbox namespaces",
        "ValidatingAdmissionPolicyBinding": "bindings",
    }
    assert kinds
    assert [kind for kind in kinds if words.get(kind, kind).lower() not in table] == []


@pytest.mark.parametrize("label", NAMES)
def test_the_commands_select_every_admission_policy_that_is_kept(label: str) -> None:
    kept = [one for one in _kept() if one["kind"].startswith("ValidatingAdmissionPolicy")]
    assert {one["metadata"]["labels"][f"app.kubernetes.io/{label}"] for one in kept} == {NAMES[label]}
    assert f"app.kubernetes.io/{label}={NAMES[label]}" in _commands()


def test_the_commands_delete_every_cluster_wide_object_that_is_kept() -> None:
    deleted = set(re.findall(r"[a-z]+", " ".join(re.findall(r"kubectl delete (\S+)", _commands()))))
    plurals = {re.sub("y$", "ie", one["kind"].lower()) + "s" for one in _kept() if "namespace" not in one["metadata"]}
    assert plurals - {"namespaces"} == deleted - {"namespace"}
    [names] = re.findall(r"\{([a-z,]+)\}\.codeexec\.dev", _commands())
    crds = {one["metadata"]["name"] for one in _kept() if one["kind"] == "CustomResourceDefinition"}
    assert {f"{name}.codeexec.dev" for name in names.split(",")} == crds


def test_the_names_of_admission_policies_are_right() -> None:
    [row] = [line for line in README.splitlines() if "| ValidatingAdmissionPolicies " in line]
    for kind in ("", "Binding"):
        names = {one["metadata"]["name"] for one in render() if one["kind"] == f"ValidatingAdmissionPolicy{kind}"}
        assert {f"`{name}`" for name in names} == set(re.findall(r"`codeexec-[a-z-]+`", row))


def test_nothing_is_kept_if_the_values_say_so() -> None:
    assert _kept("--set", "crds.keep=false") == []
