"""Waiting requests need as many names as there are requests, and all parts of their payloads are kept."""

from typing import Any

import pytest
from factories import NOW, SECRET_UID, an_execution, seconds
from played_cluster import PlayedCluster
from played_context import a_context

from codeexec_api.names import payload_name
from codeexec_api.v1alpha1.bounds import MAX_PAYLOAD_PARTS
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.core.intake import Bounds, Intake
from codeexec_operator.core.retention import orphaned_payloads

BOX = "codeexec-sandbox"
TICKETS = 5000


def a_secret_of(name: str) -> dict[str, Any]:
    made = (NOW - seconds(86_400)).isoformat()
    return {"metadata": {"name": name, "uid": SECRET_UID, "creationTimestamp": made}}


@pytest.fixture
async def awaited() -> Any:
    """Names for very many requests, none of which is taken up."""
    controller = Controller(a_context(PlayedCluster(an_execution())))
    controller._reception._intake = Intake(Bounds(pending=0))
    raw = an_execution().model_dump(mode="json", by_alias=True)
    for number in range(TICKETS):
        meta = raw["metadata"] | {"name": f"run-{number}", "uid": f"uid-{number}"}
        spec = raw["spec"] | {"payloadRef": {"name": f"{'p' * 240}-{number:04}", "parts": MAX_PAYLOAD_PARTS}}
        controller.on_execution(raw | {"metadata": meta, "spec": spec}, deleted=False)
    assert len(list(controller._reception.waiting(BOX))) == TICKETS, "control: all wait"
    yield controller.awaited_payloads(BOX)
    await controller.stop()


def test_each_request_needs_one_name(awaited: set[str]) -> None:
    assert len(awaited) <= TICKETS


def test_all_parts_of_a_payload_are_awaited(awaited: set[str]) -> None:
    names = [payload_name(f"{'p' * 240}-4999", part) for part in range(MAX_PAYLOAD_PARTS)]
    assert names[1].endswith("-4999-1"), "control: the second part"
    assert names[-1].endswith("-4999-15"), "control: the last of 16"
    assert not list(orphaned_payloads([a_secret_of(name) for name in names], awaited, NOW))


@pytest.mark.parametrize("end", ["-16", "-0", "-01", "-", "-x", "1", "-1-1"])
def test_what_is_no_part_is_not_awaited(end: str) -> None:
    name = f"code{end}"
    [orphan] = orphaned_payloads([a_secret_of(name)], {"code"}, NOW)
    assert (orphan.name, orphan.uid, orphan.execution) == (name, SECRET_UID, "")


def test_a_payload_whose_own_name_ends_like_a_part_is_awaited() -> None:
    assert not list(orphaned_payloads([a_secret_of("code-1"), a_secret_of("code-1-2")], {"code-1"}, NOW))
