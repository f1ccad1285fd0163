"""What has not been listed yet is asked for, before anything is done as if it were not there."""

from types import SimpleNamespace
from typing import Any

import pytest
from factories import UID, a_policy, a_session

from codeexec_api import SessionPhase
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.adapters.records import Records
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.adapters.supervision import JobFailure
from codeexec_operator.core.actions import CancelStray
from codeexec_operator.core.observed import Room

KINDS = ("codeexecutions", "codesessions", "sandboxpools", "executionpolicies", "executionapprovals")


class Played:
    """An API server and a runner; these executions are not over, and these kinds are served."""

    def __init__(self, unfinished: tuple[str, ...] = (), kinds: tuple[str, ...] = KINDS) -> None:
        self._unfinished, self._kinds = unfinished, kinds
        self.cancelled: list[str] = []

    async def list_unfinished(self, namespace: str) -> list[dict[str, Any]]:
        return [{"metadata": {"uid": uid}} for uid in self._unfinished]

    async def cancel_stray(self, uid: str) -> None:
        self.cancelled.append(uid)

    async def request(self, verb: str, path: str, **_: Any) -> Any:
        return {"resources": [{"name": kind} for kind in self._kinds]} if path.endswith("v1alpha1") else {}


@pytest.mark.parametrize("listed", [True, False])
async def test_a_job_is_ended_only_if_no_record_claims_it(*, listed: bool) -> None:
    played = Played((UID,) if listed else ("another",))
    policies = SimpleNamespace(default=a_policy(), source=lambda _: "")
    telemetry = SimpleNamespace(metrics=Metrics("1"))
    context: Any = SimpleNamespace(cluster=played, policies=policies, telemetry=telemetry)
    worker = SessionWorker(
        context,
        a_session(phase=SessionPhase.READY),
        lambda _: None,
        Rooms(lambda _: Room(), lambda _: None),
        lambda *_: None,
    )
    worker.task.cancel()
    worker.connection = played  # type: ignore[assignment]
    since = worker._seen.since
    await worker._act(CancelStray(UID))
    assert played.cancelled == ([] if listed else [UID])
    assert (worker._seen.since > since) is listed, "a runner that makes jobs up keeps no idle session"


@pytest.mark.parametrize("missing", KINDS)
async def test_a_namespace_is_not_watched_before_each_kind_is_served(missing: str) -> None:
    api: Any = Played(kinds=tuple(kind for kind in KINDS if kind != missing))
    with pytest.raises(JobFailure, match=f"the CRD {missing}.codeexec.dev is not there"):
        await Records(api).ready("codeexec-sandbox")
    complete: Any = Played()
    await Records(complete).ready("codeexec-sandbox")
