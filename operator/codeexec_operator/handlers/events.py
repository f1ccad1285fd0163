"""What kopf starts, stops and watches: the process, its configuration, and the namespaces that are served.

Each namespace, and the configuration, is watched by a kopf operator of its own, within the one process. One that fails
ends alone and is started again. Its handlers are for raw events: these need no finalizers and no annotations on the
objects, so kopf writes nothing by itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import kopf

from codeexec_api import CodeExecution, CodeSession
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
from codeexec_operator.adapters.api_server import REQUEST_ERRORS
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.egress_prober import EgressProber
from codeexec_operator.adapters.health import serve_health
from codeexec_operator.adapters.leader import Leader
from codeexec_operator.adapters.operation import Operation
from codeexec_operator.adapters.output_store import OutputStore
from codeexec_operator.adapters.outputs import Outputs, StoreFailure
from codeexec_operator.adapters.records import UNFINISHED
from codeexec_operator.adapters.supervision import JobFailure, explain
from codeexec_operator.adapters.telemetry import Telemetry
from codeexec_operator.core.configuration import ConfigurationError, parse_configuration
from codeexec_operator.core.leadership import LeaseTiming
from codeexec_operator.core.shard import Shard
from codeexec_operator.handlers import watching
from codeexec_operator.settings import Settings

PROCESS: Final = kopf.OperatorRegistry()
NAMESPACE: Final = kopf.OperatorRegistry()
CONFIGURATION: Final = kopf.OperatorRegistry()
_WATCHED: Final = (EXECUTION_PLURAL, SESSION_PLURAL, APPROVAL_PLURAL, POLICY_PLURAL, POOL_PLURAL, "pods")
"""In each namespace."""
kopf.on.login(registry=PROCESS)(kopf.login_via_client)
for _registry in (NAMESPACE, CONFIGURATION):
    kopf.on.login(registry=_registry)(watching.login)


@kopf.on.startup(registry=PROCESS, backoff=1)
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Stand by until this replica leads, then begin to work."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    watching.keep_signals(memo.stop)
    if "stack" not in memo:
        memo.stack, memo.operation = AsyncExitStack(), None
    try:
        await _lead(memo)
    except kopf.TemporaryError:
        raise
    except BaseException:  # kopf cleans up only what has started, and may try again: over other connections
        memo.pop("leader", None)
        await memo.stack.aclose()
        raise


async def _lead(memo: kopf.Memo) -> None:
    ours: Settings = memo.settings
    if "leader" not in memo:
        await _stand_by(memo, ours)
    if not memo.leader.epoch:
        memo.stack.push_async_callback(memo.leader.release)  # it may be stopped with a Lease, before it leads
        await memo.leader.lead()
        for writes in (memo.cluster, memo.outputs):
            writes.ask_first(memo.leader.check)
    try:
        operation = Operation(
            ours,
            parse_configuration(await memo.cluster.get_configuration(*ours.config_map)),
            memo.cluster,
            outputs=memo.outputs,
            prober=memo.prober,
            telemetry=memo.telemetry,
            epoch=memo.leader.epoch,
            watch=partial(_watch_namespace, memo.stop),
            watch_configuration=partial(_watch_configuration, memo.stop, ours.config_map),
        )
        await operation.open()
    except (ConfigurationError, JobFailure, LookupError, *REQUEST_ERRORS) as error:
        place = "/".join(ours.config_map)
        why = f"the ConfigMap {place}: {error}" if isinstance(error, ConfigurationError) else explain(error)
        raise kopf.TemporaryError(f"nothing is served yet: {why}; trying again", delay=1) from error
    memo.operation = operation
    memo.stack.push_async_callback(operation.stop)


async def _stand_by(memo: kopf.Memo, ours: Settings) -> None:
    """Serve all that a replica serves which does not lead: health, metrics and the canary."""
    memo.cluster = await Cluster.connect()
    memo.stack.push_async_callback(memo.cluster.close)
    memo.outputs = _outputs(memo.cluster, ours)
    memo.telemetry = Telemetry(ours, version("codeexec"))
    await memo.telemetry.open()
    memo.stack.push_async_callback(memo.telemetry.close)
    memo.prober = EgressProber(
        memo.cluster, canary_service=ours.canary_service, canary_port=ours.canary_port, never_permit=ours.never_permit
    )
    await memo.prober.open()
    memo.stack.push_async_callback(memo.prober.close)
    shard = Shard(ours.shard, ours.shards)
    memo.leader = Leader(memo.cluster, *ours.leader_lease, timing=LeaseTiming(ours.lease_seconds), shard=shard)
    health = await serve_health(ours.health_port, partial(_ready, memo))
    memo.stack.push_async_callback(health.cleanup)


def _outputs(cluster: Cluster, ours: Settings) -> Outputs:
    try:
        return OutputStore.open(ours.output_store) if ours.output_store else cluster
    except StoreFailure as error:
        raise kopf.PermanentError(str(error)) from error


async def _ready(memo: kopf.Memo) -> None:
    """Raises what hinders this replica from working, or from taking over."""
    if memo.operation:
        await memo.operation.ready()
    elif memo.leader.epoch:
        raise JobFailure("not started yet")
    else:
        await memo.cluster.get_configuration(*memo.settings.config_map)


@kopf.on.cleanup(registry=PROCESS)
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """End all work, give the Lease back and close all connections."""
    await memo.stack.aclose()


# --- a kopf operator for each namespace ---


async def _watch_namespace(stop: asyncio.Event, operation: Operation, namespace: str) -> None:
    settings = watching.settings()
    for plural, selector in UNFINISHED.items():  # what one of the others ends with comes as its deletion
        settings.watching.field_selectors[GROUP, VERSION, plural] = selector
    await watching.watch(NAMESPACE, settings, namespace, stop, _WATCHED, controller=operation.controller)


async def _watch_configuration(stop: asyncio.Event, config_map: tuple[str, str], operation: Operation) -> None:
    namespace, name = config_map
    settings = watching.settings()
    settings.watching.field_selectors["v1", "configmaps"] = f"metadata.name={name}"
    await watching.watch(CONFIGURATION, settings, namespace, stop, ("configmaps",), operation=operation)


# --- what they are told ---


@kopf.on.event("v1", "configmaps", registry=CONFIGURATION)
async def on_configuration(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """The operator's own ConfigMap was listed, created, changed or deleted."""
    memo.operation.configuration_changed(None if event["type"] == "DELETED" else event["object"].get("data") or {})


def _pass_on(
    take: Callable[..., None], kind: type[CodeExecution | CodeSession] | None
) -> Callable[..., Awaitable[None]]:
    async def handler(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
        """An object was listed, created or changed, or it is deleted, or no longer among those that are watched."""
        raw, deleted = event["object"], event["type"] == "DELETED"
        if kind is None:
            take(memo.controller, raw, deleted=deleted)
        elif deleted or not memo.controller.waits(kind, raw):  # what waits is let go of at once: many may come
            await memo.controller.turn(raw)
            take(memo.controller, raw, deleted=deleted)
        _empty(raw)

    return handler


def _empty(raw: Any) -> None:
    """Leave the name of an object that was passed on: kopf holds it for a while longer, and some are large."""
    for part in raw.keys() - {"apiVersion", "kind", "metadata"}:
        del raw[part]
    for part in ("annotations", "labels", "managedFields"):
        raw["metadata"].pop(part, None)


for _plural, _take, _kind in (
    (EXECUTION_PLURAL, Controller.on_execution, CodeExecution),
    (SESSION_PLURAL, Controller.on_session, CodeSession),
    (APPROVAL_PLURAL, Controller.on_approval, None),
    (POLICY_PLURAL, Controller.on_policy, None),
    (POOL_PLURAL, Controller.on_pool, None),
):
    kopf.on.event(GROUP, VERSION, _plural, id=_plural, registry=NAMESPACE)(_pass_on(_take, _kind))


def _is_sandbox(labels: Mapping[str, str], **_: Any) -> bool:
    return any(label in labels for label in (EXECUTION_LABEL, SESSION_LABEL, POOL_LABEL))


@kopf.on.event("v1", "pods", when=_is_sandbox, registry=NAMESPACE)
async def on_pod(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A sandbox pod was listed, created, changed or deleted."""
    await memo.controller.turn(event["object"])
    await memo.controller.on_pod(event["object"], deleted=event["type"] == "DELETED")
