"""The status of an ExecutionPolicy: who writes it, what kubectl makes of it, and policies that are older than it."""

import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from chart.install import wait_until_served
from chart.reviews import Account, an_account_for_each_role
from cluster_tools import SANDBOX, Admin, a_name, wait_for
from factories import IMAGE

from codeexec_api.names import API_VERSION, GROUP, POLICY_KIND, VERSION
from codeexec_api.schema import custom_resource_definitions

POLICY = ("executionpolicy", "default")
CRD = custom_resource_definitions()["executionpolicies.yaml"]


def a_policy(namespace: str, **spec: Any) -> dict[str, Any]:
    meta = {"name": "default", "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": POLICY_KIND, "metadata": meta, "spec": {"images": [IMAGE], **spec}}


def a_status(ready: bool, message: str) -> dict[str, Any]:
    moment = datetime.now(UTC).isoformat()
    condition = {"type": "Ready", "status": str(ready), "reason": "Tried", "message": message}
    condition |= {"lastTransitionTime": moment, "observedGeneration": 1}
    return {"status": {"observedGeneration": 1, "conditions": [condition]}}


@pytest.fixture
def policy(admin: Admin) -> Iterator[dict[str, Any]]:
    yield admin.create(a_policy(SANDBOX))
    admin.delete(*POLICY, wait=True)


@pytest.fixture(scope="module")
def accounts(admin: Admin) -> Iterator[dict[str, Account]]:
    with an_account_for_each_role(admin) as accounts:
        yield accounts


def test_the_operator_writes_it_and_nobody_else_does(admin, kubeconfig_of, accounts, policy):
    forged = a_status(True, "forged")
    for role, account in accounts.items():
        user = Admin(kubeconfig_of(*account))
        refusal = user.try_patch(*POLICY, forged, subresource="status", dry_run=True)
        assert (refusal is None) == (role == "operator"), role
        if refusal:
            assert refusal.code == 403, role


def test_who_writes_the_policy_does_not_write_its_status(admin, policy):
    admin.patch(*POLICY, {"spec": {"maxBlocks": 1}, **a_status(True, "forged")})
    changed = admin.get(*POLICY)
    assert changed["metadata"]["generation"] == policy["metadata"]["generation"] + 1, "control: the spec was changed"
    assert "conditions" not in changed.get("status", {})
    admin.patch(*POLICY, a_status(True, "all is well"), subresource="status")
    assert admin.get(*POLICY)["metadata"]["generation"] == changed["metadata"]["generation"], "a status is no change"


def test_kubectl_shows_it_and_waits_for_it(admin, policy):
    waiting = ("wait", "--namespace", SANDBOX, "--for=condition=Ready", "executionpolicy/default", "--timeout=0s")
    assert admin.try_kubectl(*waiting).returncode, "nobody has looked at it yet"
    admin.patch(*POLICY, a_status(False, "spec.newRule: found true"), subresource="status")
    assert admin.try_kubectl(*waiting).returncode
    shown = ("get", "executionpolicies", "--namespace", SANDBOX)
    header, row = admin.kubectl(*shown).splitlines()
    assert header.split()[-2:] == ["READY", "AGE"]
    assert row.split()[-2] == "False"
    assert admin.kubectl(*shown, "-o", "wide").splitlines()[1].endswith("spec.newRule: found true")
    admin.patch(*POLICY, a_status(True, "in force"), subresource="status")
    admin.kubectl(*waiting)


def test_a_policy_that_is_older_than_the_status_is_served_as_before(admin):
    """With a group of its own: the CRD of the last release, which is then upgraded."""
    group = f"{a_name('old')}.example.org"
    new = copy.deepcopy(CRD)
    new["metadata"]["name"] = new["metadata"]["name"].replace(GROUP, group)
    new["spec"]["group"] = group
    new["spec"]["names"] = {**new["spec"]["names"], "shortNames": [], "categories": []}
    old = copy.deepcopy(new)
    [version] = old["spec"]["versions"]
    del version["subresources"], version["schema"]["openAPIV3Schema"]["properties"]["status"]
    admin.apply(old)
    name = new["metadata"]["name"]
    kind = (name, "default", "--namespace", SANDBOX)

    def read() -> Any:
        return json.loads(admin.kubectl("get", *kind, "-o", "json"))

    def status_is_taken() -> bool:
        patch = ("--subresource=status", "--type=merge", "--patch", json.dumps(a_status(True, "in force")))
        return admin.try_kubectl("patch", *kind, *patch).returncode == 0

    try:
        wait_until_served(admin, [old])
        policy = {**a_policy(SANDBOX), "apiVersion": f"{group}/{VERSION}"}
        admin.kubectl("create", "-f", "-", stdin=json.dumps(policy))
        assert not status_is_taken(), "control: there is none yet"
        before = read()
        admin.apply(new)
        wait_for("the new CRD to count", status_is_taken)
        assert read()["spec"] == before["spec"]
        assert read()["status"]["conditions"][0]["message"] == "in force"
    finally:
        admin.delete("customresourcedefinition", name)
