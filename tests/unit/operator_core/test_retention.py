"""What nobody will come for: payloads without an execution, and output whose time is over."""

from typing import Any

import pytest
from factories import NOW, SECRET_UID, UID, a_secret, seconds

from codeexec_api.names import EXECUTION_LABEL, EXPIRES_ANNOTATION
from codeexec_operator.core.retention import abandoned_leases, expired_outputs, orphaned_payloads, owners


def aged(age: float) -> dict[str, Any]:
    secret = a_secret()
    secret["metadata"]["creationTimestamp"] = (NOW - seconds(age)).isoformat().replace("+00:00", "Z")
    return secret


@pytest.mark.parametrize(
    ("secret", "awaited", "orphaned"),
    [
        (aged(0), set(), False),
        (aged(60), set(), False),
        (aged(61), set(), True),
        (aged(61), {"run-2"}, True),
        (aged(86_400), {"run-2", "run-1"}, False),
    ],
    ids=["new", "at the limit", "old", "old, while another is awaited", "old, but awaited"],
)
def test_old_payloads_that_nobody_awaits(secret: dict[str, Any], awaited: set[str], orphaned: bool) -> None:
    found = [(one.name, one.uid, one.execution) for one in orphaned_payloads([secret], awaited, NOW)]
    assert found == ([("run-1", SECRET_UID, "run-1")] if orphaned else [])


def an_output(annotations: dict[str, str] | None) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": "run-1-0f8fad5b-0", "uid": SECRET_UID}
    return {"metadata": meta if annotations is None else meta | {"annotations": annotations}}


@pytest.mark.parametrize(
    ("annotations", "expired"),
    [
        ({EXPIRES_ANNOTATION: (NOW + seconds(1)).isoformat()}, False),
        ({EXPIRES_ANNOTATION: NOW.isoformat()}, True),
        ({EXPIRES_ANNOTATION: "2026-11-21T11:59:59Z"}, True),
        ({EXPIRES_ANNOTATION: "2026-11-21T13:00:00+02:00"}, True),
        ({EXPIRES_ANNOTATION: "2026-11-21T11:00:00"}, False),
        ({EXPIRES_ANNOTATION: "yesterday"}, False),
        ({}, False),
        (None, False),
    ],
    ids=["later", "now", "a second ago", "another zone", "no zone", "no time", "none", "no annotations"],
)
def test_outputs_go_when_their_time_is_over(annotations: dict[str, str] | None, expired: bool) -> None:
    expected = [("run-1-0f8fad5b-0", SECRET_UID)] if expired else []
    assert expired_outputs([an_output(annotations)], NOW) == expected


WRITTEN = 1000
"""Resource version of a Lease in which a client may say any time."""


@pytest.mark.parametrize(
    ("name", "seen", "abandoned"),
    [
        ("codeexec-client-1", 0, False),
        ("codeexec-client-1", WRITTEN - 1, False),
        ("codeexec-client-1", WRITTEN, True),
        ("codeexec-client-1", 10 * WRITTEN, True),
        ("another", WRITTEN, False),
    ],
    ids=["first look", "written since", "not written since", "of long ago", "no client's"],
)
@pytest.mark.parametrize("renewed", ["9999-12-31T23:59:59.999999Z", "2001-01-01T00:00:00.000000Z", ""])
def test_leases_that_nobody_writes_go_whatever_time_they_tell(
    name: str, seen: int, abandoned: bool, renewed: str
) -> None:
    """A client's clock may be wrong, and its Lease may say any time."""
    meta = {"name": name, "uid": SECRET_UID, "resourceVersion": str(WRITTEN), "creationTimestamp": renewed}
    lease = {"metadata": meta, "spec": {"renewTime": renewed}}
    assert abandoned_leases([lease], seen) == ([(name, SECRET_UID)] if abandoned else [])


def test_the_execution_that_a_network_policy_was_made_for() -> None:
    meta = {"name": "run-1-egress", "uid": SECRET_UID, "labels": {EXECUTION_LABEL: "run-1"}}
    controller, other = {"uid": UID, "controller": True}, {"uid": "another"}
    made = {"metadata": meta | {"ownerReferences": [other, controller]}}
    assert owners([made, {"metadata": meta}]) == [("run-1-egress", SECRET_UID, "run-1", UID)]
