"""What the workers of an operator share, where a test plays the API server."""

from types import SimpleNamespace
from typing import Any

from factories import CLUSTER_VIEW, a_policy

from codeexec_operator.adapters.audit import AuditLog
from codeexec_operator.adapters.code_reader import CodeReader
from codeexec_operator.adapters.fair_semaphore import FairSemaphore
from codeexec_operator.adapters.metrics import Metrics
from codeexec_operator.adapters.output_room import OutputRoom
from codeexec_operator.adapters.pacer import Pacer
from codeexec_operator.adapters.placement import Register
from codeexec_operator.adapters.recorder import Recorder
from codeexec_operator.adapters.rooms import Rooms
from codeexec_operator.core.observed import Room
from codeexec_operator.core.output_place import CONFIG_MAPS
from codeexec_operator.core.timing import Timing


def a_register(*, session: Any = None, pool: Any = None) -> Register:
    """Where whoever asks finds this session and this pool, or none."""
    return Register(lambda *_: session, lambda _: None, lambda *_: pool, Rooms(lambda _: Room(), lambda _: None))


def a_context(
    cluster: Any, *, policy: Any = None, view: Any = CLUSTER_VIEW, telemetry: Any = None, audit: Any = None, **rest: Any
) -> Any:
    """The `Context` of an operator with this doorway to the API server; `rest` are other parts than the usual."""
    policy = policy or a_policy()
    metrics = SimpleNamespace(retried=lambda _: None, unexpected=lambda: None)
    telemetry = telemetry or SimpleNamespace(
        execution_over=lambda *_: None, session_over=lambda _: None, metrics=metrics
    )
    audit = audit or AuditLog("1", Metrics("1"), lambda _: None)
    nobody: Any = SimpleNamespace(written=lambda *_: None)

    async def of(namespace: str) -> Any:
        return policy

    parts = {
        "prober": SimpleNamespace(view=view, view_from=lambda *_: view),
        "policies": SimpleNamespace(
            default=policy, source=lambda _: "", known=lambda _: policy, of=of, just_changed=False
        ),
        "payloads": SimpleNamespace(seen=lambda *_: True, take=lambda *_: {"metadata": {}}),
        "reader": CodeReader(),
        "output": OutputRoom(),
        "outputs": SimpleNamespace(place=CONFIG_MAPS),
        "turns": FairSemaphore(1),
        "pacer": Pacer(),
        "timing": Timing(),
        "epoch": 1,
        "sealing": SimpleNamespace(ring=()),
        "recorder": Recorder(cluster, audit, nobody, "1"),
    }
    return SimpleNamespace(cluster=cluster, telemetry=telemetry, audit=audit, **parts | rest)
