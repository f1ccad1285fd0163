"""What is known of approvals, while they are watched and listed at the same time."""

from types import SimpleNamespace
from typing import Any

import pytest
from factories import NOW, UID, an_execution
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import ExecutionApproval
from codeexec_operator.adapters.approvals import Approvals


def an_approval(name: str, version: int) -> dict[str, Any]:
    spec = {"executionRef": {"name": "run-1", "uid": UID, "requestedBy": "agent"}, "decision": "Approve"}
    meta = {"name": name, "namespace": "box", "uid": name, "resourceVersion": str(version), "creationTimestamp": NOW}
    return {"metadata": meta, "spec": spec | {"approver": "me"}}


class Stage:
    """An API server that lists these approvals; something may happen while it does."""

    def __init__(self, *listed: dict[str, Any]) -> None:
        self.listed, self.error = list(listed), False
        cluster = SimpleNamespace(list_approvals=self.list_approvals)
        meta = an_execution().metadata
        worker: Any = SimpleNamespace(context=SimpleNamespace(cluster=cluster), meta=meta, wake=lambda: None)
        self.approvals = Approvals(worker)
        self.meanwhile: tuple[dict[str, Any], bool] | None = None

    async def list_approvals(self, namespace: str, execution: str) -> list[dict[str, Any]]:
        if self.meanwhile:
            raw, deleted = self.meanwhile
            self.approvals.observe(ExecutionApproval.parse(raw), deleted=deleted)
        if self.error:
            raise ApiException(status=503)
        return self.listed

    @property
    def known(self) -> list[str] | None:
        known = self.approvals.known
        return None if known is None else sorted(one.metadata.name for one in known)


async def test_nothing_is_known_before_they_were_listed() -> None:
    stage = Stage(an_approval("a", 1))
    stage.approvals.observe(ExecutionApproval.parse(an_approval("b", 2)), deleted=False)
    assert stage.known is None
    await stage.approvals.read()
    assert stage.known == ["a"], "the other was not listed, so it is gone"


async def test_a_list_that_fails_takes_nothing_away() -> None:
    stage = Stage(an_approval("a", 1))
    await stage.approvals.read()
    stage.error = True
    with pytest.raises(ApiException):
        await stage.approvals.read()
    assert stage.known == ["a"]


@pytest.mark.parametrize(("version", "deleted", "known"), [(9, True, []), (9, False, ["a"]), (1, True, ["a"])])
async def test_what_is_heard_of_meanwhile_is_newer(version: int, deleted: bool, known: list[str]) -> None:
    stage = Stage(an_approval("a", 5))
    stage.meanwhile = an_approval("a", version), deleted
    await stage.approvals.read()
    assert stage.known == known
