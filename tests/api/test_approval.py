"""Who may ask and who may decide: what the API server keeps from those who may not, whatever they try."""

from collections.abc import Callable
from typing import Any

import pytest
from cluster_tools import SANDBOX, Admin, a_name, a_secret, a_session, an_approval, an_execution

from codeexec_api.names import review_name

BLOCK = {"language": "python", "sha256": "0" * 64, "sizeBytes": 1}
GRANTS = [{"field": "spec.limits.memory", "value": "128Mi"}]
OWNER = {"apiVersion": "v1", "kind": "Secret", "name": "other", "uid": "00000000-0000-0000-0000-000000000000"}


@pytest.fixture(scope="module")
def agent(make_user: Callable[..., Admin]) -> Admin:
    return make_user("agent")


@pytest.fixture
def waiting(admin, agent) -> dict[str, Any]:
    """The record of an execution of the agent's, as an operator writes it when it waits for approval."""
    made = agent.create(an_execution(a_name("waiting"), [BLOCK], requestedBy=agent.me))
    status = {"phase": "AwaitingApproval", "approval": {"grants": GRANTS}}
    return admin.patch("cex", made["metadata"]["name"], {"status": status}, subresource="status")


def objection(user: Admin, thing: dict[str, Any], *, dry_run: bool = True) -> str:
    """What the API server says; empty if it accepts."""
    return str(user.try_create(thing, dry_run=dry_run) or "")


def objection_to_change(user: Admin, kind: str, name: str, change: dict[str, Any], subresource: str = "") -> str:
    return str(user.try_patch(kind, name, change, subresource=subresource) or "")


# --- who asks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["the approver", "system:admin", None])
@pytest.mark.parametrize("kind", ["execution", "session"])
def test_nobody_requests_in_the_name_of_another(agent, approver, kind, name):
    """So that they could approve it themselves."""
    thing = an_execution(a_name("forged"), [BLOCK]) if kind == "execution" else a_session(a_name("forged"))
    thing["spec"]["requestedBy"] = agent.me
    assert objection(agent, thing) == "", "control"
    thing["spec"]["requestedBy"] = approver.me if name == "the approver" else name
    if name is None:
        del thing["spec"]["requestedBy"]
    assert f"spec.requestedBy must be {agent.me}, your user name" in objection(agent, thing)


def test_who_has_asked_does_not_change(agent, approver, waiting):
    change = {"spec": {"requestedBy": approver.me}}
    assert "spec.requestedBy is immutable" in objection_to_change(agent, "cex", waiting["metadata"]["name"], change)


# --- who decides --------------------------------------------------------------------------------------------------


def test_nobody_decides_in_the_name_of_another(approver, make_user, waiting):
    other = make_user("approver")
    approval = an_approval(waiting, approver.me)
    assert f"spec.approver must be {other.me}, your user name" in objection(other, approval)
    assert objection(approver, approval, dry_run=False) == "", "control"
    made = approval["metadata"]["name"]
    change = {"spec": {"approver": other.me}}
    assert "spec.approver is immutable" in objection_to_change(other, "xapp", made, change)
    claimed = {"spec": {"revoked": True, "revokedBy": approver.me}}
    assert f"spec.revokedBy must be {other.me}" in objection_to_change(other, "xapp", made, claimed)
    honest = {"spec": {"revoked": True, "revokedBy": other.me}}
    assert objection_to_change(other, "xapp", made, honest) == "", "control"


def test_nobody_approves_their_own_request(admin, make_user, approver):
    """Not even who has both roles."""
    both = make_user("agent", "approver")
    made = both.create(an_execution(a_name("own"), [BLOCK], requestedBy=both.me))
    status = {"phase": "AwaitingApproval", "approval": {"grants": GRANTS}}
    record = admin.patch("cex", made["metadata"]["name"], {"status": status}, subresource="status")
    assert "nobody approves their own request" in objection(both, an_approval(record, both.me))
    assert objection(approver, an_approval(record, approver.me)) == "", "control: somebody else may"


def test_an_agent_decides_nothing(admin, agent, approver, waiting):
    name = waiting["metadata"]["name"]
    assert "Forbidden" in objection(agent, an_approval(waiting, agent.me))
    forged = {"status": {"phase": "Approved", "approval": {"decision": "Approve", "grants": GRANTS}}}
    for user in (agent, approver):
        assert "Forbidden" in objection_to_change(user, "cex", name, forged, "status")
    assert objection_to_change(agent, "cex", name, forged) == "", "the API server drops a status that comes this way"
    assert admin.execution(name)["status"] == waiting["status"]
    assert objection_to_change(admin, "cex", name, forged, "status") == "", "control"


def test_what_was_decided_stays_on_record(admin, agent, approver, waiting):
    name = approver.create(an_approval(waiting, approver.me))["metadata"]["name"]
    for user in (agent, approver):
        assert user.try_delete("xapp", name).reason == "Forbidden"
    assert admin.try_delete("xapp", name) is None, "control"


# --- what is decided ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"grants": [*GRANTS, {"field": "spec.limits.cpu", "value": "2"}]},
        {"expiresAt": "2099-01-01T00:00:00Z"},
        {"decision": "Deny"},
        {"reason": "x"},
        {"executionRef": {"name": "other", "uid": "0" * 8, "requestedBy": "somebody"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_decision_does_not_change(approver, waiting, change):
    name = approver.create(an_approval(waiting, approver.me))["metadata"]["name"]
    [field] = change
    assert f"spec.{field} is immutable" in objection_to_change(approver, "xapp", name, {"spec": change})
    assert objection_to_change(approver, "xapp", name, {}) == "", "control"


def test_a_decision_is_found_by_its_label(admin, approver, waiting):
    wrong = "must be spec.executionRef.name"
    approval = an_approval(waiting, approver.me)
    elsewhere = approval["metadata"] | {"labels": {"codeexec.dev/execution": "other"}}
    assert wrong in objection(approver, approval | {"metadata": elsewhere})
    assert wrong in objection(approver, approval | {"metadata": elsewhere | {"labels": {}}})
    name = approver.create(approval)["metadata"]["name"]
    assert wrong in objection_to_change(admin, "xapp", name, {"metadata": {"labels": elsewhere["labels"]}})


@pytest.mark.parametrize("field", ["grants", "expiresAt"])
def test_an_approval_says_what_it_grants_and_until_when(approver, waiting, field):
    approval = an_approval(waiting, approver.me)
    assert objection(approver, approval) == "", "control"
    del approval["spec"][field]
    assert field in objection(approver, approval)


def test_a_new_decision_is_not_revoked(approver, waiting):
    approval = an_approval(waiting, approver.me, revoked=True, revokedBy=approver.me)
    assert "spec.revoked must be false in a new decision" in objection(approver, approval)


def test_a_revocation_can_not_be_taken_back(approver, waiting):
    name = approver.create(an_approval(waiting, approver.me))["metadata"]["name"]
    revoked = {"spec": {"revoked": True, "revokedBy": approver.me}}
    assert objection_to_change(approver, "xapp", name, revoked) == "", "control"
    back = objection_to_change(approver, "xapp", name, {"spec": {"revoked": False, "revokedBy": None}})
    assert "spec.revoked can't be taken back: decide anew instead" in back


def test_nobody_puts_code_where_an_approver_looks_for_it(admin, agent, waiting):
    """Nor a payload that the garbage collector takes away, so that another can stand in its place."""
    name, uid = waiting["metadata"]["name"], waiting["metadata"]["uid"]
    harmless = a_secret(review_name(name, uid), {"block-0": b"print('harmless')"}, name)
    assert "metadata.name must not end with -review" in objection(agent, harmless)
    payload = a_secret(a_name("payload"), {"block-0": b"x"}, name)
    assert objection(agent, payload) == "", "control: a payload as such"
    payload["metadata"]["ownerReferences"] = [OWNER]
    assert "metadata.ownerReferences must be empty" in objection(agent, payload)
    assert payload["metadata"]["namespace"] == SANDBOX
