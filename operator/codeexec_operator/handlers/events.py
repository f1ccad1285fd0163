"""What kopf watches: CodeExecutions, CodeSessions and their pods. Raw events only.

Raw event handlers need no finalizers and no annotations on the objects, so kopf writes nothing by itself.
"""

import asyncio
from importlib.metadata import version
from typing import Any

import kopf

from codeexec_api.names import EXECUTION_LABEL, EXECUTION_PLURAL, GROUP, SESSION_LABEL, SESSION_PLURAL, VERSION
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.health import serve_health
from codeexec_operator.adapters.lookout import Lookout
from codeexec_operator.adapters.sweeper import sweep
from codeexec_operator.adapters.worker import Context
from codeexec_operator.core.startup import Timing
from codeexec_operator.settings import Settings


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Connect, and serve the health endpoints."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = 300
    settings.watching.chunk_size = 50  # records are many, and some are large: a list comes in pages
    ours: Settings = memo.settings
    cluster = await Cluster.connect()
    lookout = Lookout(cluster, pod_ips=ours.pod_ips, canary_port=ours.canary_port)
    context = Context(cluster, lookout, ours.default_policy(), Timing(), version("codeexec"))
    memo.controller = Controller(context)
    await lookout.open()
    memo.lookout = lookout
    memo.background = [
        asyncio.create_task(lookout.run()),
        asyncio.create_task(sweep(cluster, ours.namespaces, memo.controller.awaited_payloads)),
    ]
    memo.health = await serve_health(ours.health_port, lambda: cluster.ready(ours.namespaces[0]))


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """End all work and close all connections."""
    for task in memo.background:
        task.cancel()
    await memo.lookout.close()
    await memo.controller.stop()
    await memo.health.cleanup()


@kopf.on.event(GROUP, VERSION, EXECUTION_PLURAL)
async def on_execution(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A CodeExecution was listed, created, changed or deleted."""
    memo.controller.on_execution(event["object"], deleted=event["type"] == "DELETED")


@kopf.on.event(GROUP, VERSION, SESSION_PLURAL)
async def on_session(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A CodeSession was listed, created, changed or deleted."""
    memo.controller.on_session(event["object"], deleted=event["type"] == "DELETED")


@kopf.on.event("v1", "pods", labels={EXECUTION_LABEL: kopf.PRESENT})
@kopf.on.event("v1", "pods", labels={SESSION_LABEL: kopf.PRESENT})
async def on_pod(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A sandbox pod was listed, created, changed or deleted."""
    await memo.controller.on_pod(event["object"], deleted=event["type"] == "DELETED")
