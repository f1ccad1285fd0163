"""What kopf watches: all kinds of codeexec.dev, and pods. Raw events only.

Raw event handlers need no finalizers and no annotations on the objects, so kopf writes nothing by itself.
"""

from collections.abc import Mapping
from typing import Any

import kopf

from codeexec_api.names import (
    APPROVAL_PLURAL,
    EXECUTION_LABEL,
    EXECUTION_PLURAL,
    GROUP,
    POLICY_PLURAL,
    POOL_LABEL,
    POOL_PLURAL,
    SESSION_LABEL,
    SESSION_PLURAL,
    VERSION,
)
from codeexec_api.phases import Phase, SessionPhase
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.health import serve_health
from codeexec_operator.adapters.operation import Operation
from codeexec_operator.settings import Settings


class _NoDifferences(kopf.DiffBaseStorage):
    """For handlers that are told what has changed. There are none here, and kopf copies each object for them."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


@kopf.on.startup(backoff=1)
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Connect, and serve the health endpoints."""
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDifferences()
    settings.queueing.idle_timeout = 1  # until then the last event of each object is held
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.chunk_size = 20  # a list comes in pages
    for plural, phases in ((EXECUTION_PLURAL, Phase), (SESSION_PLURAL, SessionPhase)):
        # Records that are over are many, and some are large. What one of them ends with comes as its deletion.
        over = (f"status.phase!={phase.value}" for phase in phases if phase.terminal)
        settings.watching.field_selectors[GROUP, VERSION, plural] = ",".join(over)
    ours: Settings = memo.settings
    memo.cluster = await Cluster.connect()
    memo.operation = await Operation.start(ours, memo.cluster)
    memo.controller = memo.operation.controller
    memo.health = await serve_health(ours.health_port, memo.operation.ready)


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """End all work and close all connections."""
    await memo.operation.stop()
    await memo.cluster.close()
    await memo.health.cleanup()


@kopf.on.event(GROUP, VERSION, EXECUTION_PLURAL)
async def on_execution(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A CodeExecution that isn't over was listed, created or changed, or one is over or deleted."""
    memo.controller.on_execution(event["object"], deleted=event["type"] == "DELETED")


@kopf.on.event(GROUP, VERSION, APPROVAL_PLURAL)
async def on_approval(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """An ExecutionApproval was listed, created, changed or deleted."""
    memo.controller.on_approval(event["object"], deleted=event["type"] == "DELETED")


@kopf.on.event(GROUP, VERSION, SESSION_PLURAL)
async def on_session(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A CodeSession that isn't over was listed, created or changed, or one is over or deleted."""
    memo.controller.on_session(event["object"], deleted=event["type"] == "DELETED")


@kopf.on.event(GROUP, VERSION, POLICY_PLURAL)
async def on_policy(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """An ExecutionPolicy was listed, created, changed or deleted."""
    memo.controller.on_policy(event["object"], deleted=event["type"] == "DELETED")


@kopf.on.event(GROUP, VERSION, POOL_PLURAL)
async def on_pool(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A SandboxPool was listed, created, changed or deleted."""
    memo.controller.on_pool(event["object"], deleted=event["type"] == "DELETED")


def _is_sandbox(labels: Mapping[str, str], **_: Any) -> bool:
    return any(one in labels for one in (EXECUTION_LABEL, SESSION_LABEL, POOL_LABEL))


@kopf.on.event("v1", "pods", when=_is_sandbox)
async def on_pod(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A sandbox pod was listed, created, changed or deleted."""
    await memo.controller.on_pod(event["object"], deleted=event["type"] == "DELETED")
