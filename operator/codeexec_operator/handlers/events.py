"""What kopf watches: all kinds of codeexec.dev, and pods. Raw events only.

Raw event handlers need no finalizers and no annotations on the objects, so kopf writes nothing by itself.
"""

import asyncio
from collections.abc import Mapping
from importlib.metadata import version
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
from codeexec_api.policy import cluster_policy
from codeexec_operator.adapters.announcer import Announcer
from codeexec_operator.adapters.audit import AuditLog
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.code_reader import CodeReader
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.default_pool import make_default_pools
from codeexec_operator.adapters.finished import hear_of_finished
from codeexec_operator.adapters.health import serve_health
from codeexec_operator.adapters.lookout import Lookout
from codeexec_operator.adapters.payloads import Payloads
from codeexec_operator.adapters.policies import Policies
from codeexec_operator.adapters.sealing import SealingKeys
from codeexec_operator.adapters.sweeper import sweep
from codeexec_operator.adapters.telemetry import Telemetry
from codeexec_operator.adapters.worker import Context
from codeexec_operator.core.startup import Timing
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
    cluster = await Cluster.connect()
    lookout = Lookout(
        cluster,
        pod_ips=ours.pod_ips,
        canary_port=ours.canary_port,
        never_permit=ours.never_permit,
        image_keys=ours.image_keys(),
    )
    policies = Policies(cluster, ours.default_policy(), cluster_policy(ours.policy_config_map))
    payloads = Payloads(cluster)
    keys = SealingKeys(cluster, *ours.sealing_secret, ours.namespaces)
    memo.telemetry = Telemetry(ours, version("codeexec"))
    metrics = memo.telemetry.metrics
    memo.audit, announcer = AuditLog(ours.namespaces, version("codeexec"), metrics), Announcer(cluster, metrics)
    context = Context(
        cluster=cluster,
        lookout=lookout,
        policies=policies,
        payloads=payloads,
        sealing=keys,
        reader=CodeReader(),
        timing=Timing(),
        version=version("codeexec"),
        telemetry=memo.telemetry,
        audit=memo.audit,
        announcer=announcer,
    )
    memo.audit.open()
    memo.controller = Controller(context)
    await keys.open()
    await lookout.open()
    await memo.telemetry.open(memo.controller.census)
    memo.lookout = lookout
    memo.background = [
        asyncio.create_task(lookout.run()),
        asyncio.create_task(memo.audit.run()),
        asyncio.create_task(hear_of_finished(cluster, ours.namespaces, memo.audit)),
        asyncio.create_task(announcer.run()),
        asyncio.create_task(make_default_pools(cluster, ours.namespaces, ours.default_pool())),
        asyncio.create_task(policies.run(memo.controller.policy_changed)),
        *(asyncio.create_task(payloads.run(one, memo.controller.on_payload)) for one in ours.namespaces),
        asyncio.create_task(keys.run(memo.controller.awaited_keys)),
        asyncio.create_task(sweep(cluster, ours.namespaces, memo.controller.awaited_payloads)),
    ]

    async def ready() -> None:
        memo.audit.check()
        await cluster.ready(ours.namespaces[0])

    memo.health = await serve_health(ours.health_port, ready)


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """End all work and close all connections."""
    for task in memo.background:
        task.cancel()
    await memo.lookout.close()
    await memo.controller.stop()
    memo.audit.close()
    await memo.telemetry.close()
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
