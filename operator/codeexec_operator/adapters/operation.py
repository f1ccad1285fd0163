"""All that the operator does besides telling how it is: started as a whole, and stopped as a whole."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields
from functools import partial
from importlib.metadata import version
from typing import Final

from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import Phase, SessionPhase
from codeexec_api.names import DEFAULT_POOL, EXECUTION_PLURAL, SESSION_PLURAL
from codeexec_api.policy import cluster_policy
from codeexec_operator.adapters.api_server import REQUEST_ERRORS, message_of
from codeexec_operator.adapters.audit import AuditLog
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.code_reader import CodeReader
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.egress_prober import TARGETS_SECONDS, EgressProber
from codeexec_operator.adapters.event_recorder import EventRecorder
from codeexec_operator.adapters.fair_semaphore import FairSemaphore
from codeexec_operator.adapters.output_room import OutputRoom
from codeexec_operator.adapters.outputs import Outputs
from codeexec_operator.adapters.pacer import Pacer
from codeexec_operator.adapters.payloads import Payloads
from codeexec_operator.adapters.policies import Policies
from codeexec_operator.adapters.policy_statuses import PolicyStatuses
from codeexec_operator.adapters.record_retention import RecordKeeper
from codeexec_operator.adapters.recorder import Recorder
from codeexec_operator.adapters.resync import resync
from codeexec_operator.adapters.sealing import SealingKeys
from codeexec_operator.adapters.supervision import Supervisor
from codeexec_operator.adapters.sweeper import LeaseSweeper, sweep
from codeexec_operator.adapters.telemetry import Telemetry
from codeexec_operator.adapters.tenants import Tenant, Tenants
from codeexec_operator.adapters.worker import Context
from codeexec_operator.core.configuration import Configuration, ConfigurationError, parse_configuration
from codeexec_operator.core.retention import LEASE_LOOK
from codeexec_operator.core.shard import Shard
from codeexec_operator.core.timing import Timing
from codeexec_operator.settings import Settings

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 60
"""Between two looks for what is left over."""
UNTOLD_SECONDS: Final = 40
"""Between two looks for what no watch has told. A client waits for 60 s until somebody takes up what it has created."""
_FIRST_LOOK_SECONDS: Final = 20
"""After a start. By then, what was there before has been listed, and nothing is deleted without another look at it."""
_KEYS_SECONDS: Final = 600
_RECORDS_SECONDS: Final = 30
"""After a start the operator has other things to do than to delete records."""
_TRANSFERS: Final = 8
"""Of the files of sessions, at the same time. A list of files takes up to 6 MiB while it is read or written."""
_TRANSFERS_OF_ONE: Final = 4
"""Of these, transfers of one namespace."""

Watch = Callable[["Operation", str], Awaitable[None]]


class Operation:
    """The work of an operator that leads. One that stands by makes none of these.

    Args:
        settings: of this process.
        configuration: what is in force to begin with.
        cluster: the API server.
        outputs: where large output goes.
        prober: serves the canary already.
        telemetry: serves metrics already.
        epoch: of this leader.
        watch: passes on to the controller what happens in a namespace, until that fails.
        watch_configuration: calls `configuration_changed` with each version of the ConfigMap, until that fails.
    """

    def __init__(
        self,
        settings: Settings,
        configuration: Configuration,
        cluster: Cluster,
        *,
        outputs: Outputs,
        prober: EgressProber,
        telemetry: Telemetry,
        epoch: int,
        watch: Watch,
        watch_configuration: Callable[["Operation"], Awaitable[None]],
    ) -> None:
        self._settings, self._configuration, self._cluster = settings, configuration, cluster
        self._shard = Shard(settings.shard, settings.shards)
        self._found: Mapping[str, str] | None = None
        self._changed = asyncio.Event()
        self._watch, self._watch_configuration = watch, watch_configuration
        release, metrics, turns = version("codeexec"), telemetry.metrics, FairSemaphore(1)
        pacer = Pacer()
        cluster.measure_writes(pacer.measured)
        metrics.paced_by(lambda: pacer.limit)
        prober.trust(configuration.image_keys)
        audit = AuditLog(release, metrics)
        self._events = EventRecorder(cluster, metrics)
        self._policy_statuses = PolicyStatuses(cluster)
        self._context = Context(
            cluster=cluster,
            prober=prober,
            output=OutputRoom(),
            outputs=outputs,
            policies=Policies(
                cluster,
                configuration.policy,
                cluster_policy(settings.config_map),
                outputs.place,
                self._policy_statuses.observe,
            ),
            payloads=Payloads(cluster, turns),
            sealing=SealingKeys(cluster, *settings.sealing_secret),
            reader=CodeReader(),
            turns=turns,
            transfers=FairSemaphore(_TRANSFERS, _TRANSFERS_OF_ONE),
            pacer=pacer,
            timing=Timing(),
            epoch=epoch,
            telemetry=telemetry,
            audit=audit,
            recorder=Recorder(cluster, audit, self._events, release),
        )
        self._keeper = RecordKeeper(cluster, self._context.policies, audit)
        self.controller = Controller(self._context)
        self._jobs = Supervisor(metrics.unexpected)
        self._tenants = Tenants(self._begin, self.controller.release, metrics.unexpected)

    async def open(self) -> None:
        """Begin to work, as a whole or not at all.

        Raises:
            ApiException: the Secret of the sealing keys or the Service of the canary isn't there or may not be used.
            JobFailure: the Secret holds something else.
            LookupError: the Service has no address.
        """
        try:
            await self._open()
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> None:
        await self._context.sealing.renew(None)
        await self._context.prober.know()
        self._context.telemetry.metrics.configured(valid=True)
        self._jobs.add("prober", self._context.prober.look, every=TARGETS_SECONDS, after=TARGETS_SECONDS)
        self._jobs.add("events", self._events.run)
        self._jobs.add("sealing keys", self._renew_keys, every=_KEYS_SECONDS, after=_KEYS_SECONDS)
        self._jobs.add("new configuration", self._reconfigure, every=0)
        self._jobs.add("configuration", partial(self._watch_configuration, self), every=0)
        await self._tenants.serve(self._ours())
        self._context.telemetry.metrics.leads(self.controller.census, self._tenants.served)

    async def stop(self) -> None:
        """End all work; what is written afterwards is written by whoever leads then."""
        await self._jobs.stop()
        await self._tenants.stop()
        await self.controller.stop()
        self._context.audit.close()

    async def ready(self) -> None:
        """Raises what keeps the operator from working at all. What keeps it from serving one namespace doesn't."""
        self._context.audit.check()
        await self._cluster.get_configuration(*self._settings.config_map)

    def configuration_changed(self, data: Mapping[str, str] | None) -> None:
        """The ConfigMap was seen, changed or deleted. What isn't valid is reported, and what was in force stays so."""
        self._found = data
        self._changed.set()

    async def _reconfigure(self) -> None:
        """A job of its own: a change is not left half done when the watch that told of it fails."""
        await self._changed.wait()
        self._changed.clear()
        before = self._configuration
        try:
            await self._put_in_force(self._found)
        except Exception:
            self._configuration = before
            self._changed.set()
            raise

    async def _put_in_force(self, data: Mapping[str, str] | None) -> None:
        try:
            if data is None:
                raise ConfigurationError("it was deleted: run `helm upgrade` again")
            new = parse_configuration(data)
        except ConfigurationError as error:
            place = "/".join(self._settings.config_map)
            logger.error("the ConfigMap %s is not valid, and what it said before stays in force: %s", place, error)
            self._context.telemetry.metrics.configured(valid=False)
            return
        self._context.telemetry.metrics.configured(valid=True)
        before, self._configuration = self._configuration, new
        if new == before:
            return
        changed = [field.name for field in fields(new) if getattr(new, field.name) != getattr(before, field.name)]
        logger.warning("the configuration has changed, and is in force from now on: %s", ", ".join(changed))
        self._context.prober.trust(new.image_keys)
        if (new.policy, new.image_keys) != (before.policy, before.image_keys):
            self._context.policies.change(new.policy)
            for namespace in self._ours():
                self.controller.policy_changed(namespace)
        await self._tenants.serve(self._ours())
        if new.pool != before.pool:
            self._tenants.each(self._add_pool)

    def _ours(self) -> list[str]:
        return [namespace for namespace in self._configuration.namespaces if self._shard.serves(namespace)]

    def _begin(self, tenant: Tenant) -> None:
        """The jobs of one namespace."""
        cluster, controller, namespace = self._cluster, self.controller, tenant.namespace
        add = tenant.jobs.add
        add("watch", partial(self._serve, tenant), tell=tenant.tell("watch"), every=0)
        add("policy status", partial(self._policy_statuses.write, namespace), every=0)
        add("payloads", partial(self._context.payloads.watch, namespace, controller.on_payload), every=0.1)
        keep = partial(self._keeper.run, namespace)
        add("old records", keep, every=_LOOK_SECONDS, after=_RECORDS_SECONDS)
        add("chain before", partial(self._tell_of_earlier, namespace))
        self._add_key(tenant)
        again = partial(resync, cluster, namespace, controller, self._context.policies)
        add("look again", again, every=UNTOLD_SECONDS, after=_FIRST_LOOK_SECONDS, tell=tenant.tell("look again"))
        add("sweep", partial(sweep, cluster, namespace, controller), every=_LOOK_SECONDS, after=_FIRST_LOOK_SECONDS)
        leases = LeaseSweeper(cluster, namespace)  # whose first look deletes nothing
        add("leases", leases.look, every=LEASE_LOOK.total_seconds(), after=_FIRST_LOOK_SECONDS / 2)
        self._add_pool(tenant)

    async def _serve(self, tenant: Tenant) -> None:
        """Until it fails. It is asked first, because that costs less than a watch where there are no rights.

        What governs all the rest is known before that is heard of: the policy, and what runs in sessions.
        """
        cluster, namespace = self._cluster, tenant.namespace
        self._context.audit.begin(namespace)
        await cluster.ready(namespace)
        if await self._context.policies.read_again(namespace):
            self.controller.policy_changed(namespace)
        async for session in cluster.in_phase(SESSION_PLURAL, namespace, SessionPhase.READY):
            await self.controller.turn(session)
            self.controller.on_session(session, deleted=False)
        async for execution in cluster.in_phase(EXECUTION_PLURAL, namespace, Phase.RUNNING):
            await self.controller.turn(execution)
            self.controller.on_execution(execution, deleted=False)
        tenant.tell("watch")(None)
        await self._watch(self, namespace)

    def _add_key(self, tenant: Tenant) -> None:
        """Tell the key now, and again: nobody says when its ConfigMap was made anew."""
        tenant.jobs.add("sealing key", partial(self._publish, tenant), every=_KEYS_SECONDS)

    async def _publish(self, tenant: Tenant) -> None:
        before, tenant.key_uid = tenant.key_uid, await self._context.sealing.publish(tenant.namespace)
        if before not in ("", tenant.key_uid):
            self._add_pool(tenant)

    def _add_pool(self, tenant: Tenant) -> None:
        """The pool that it has to begin with. What becomes of it then is its owner's affair."""
        if spec := self._configuration.pool:
            tenant.jobs.add("default pool", partial(self._cluster.ensure_pool, tenant.namespace, DEFAULT_POOL, spec))

    async def _tell_of_earlier(self, namespace: str) -> None:
        """A record that was written last of all may be heard of only now: by the watch."""
        await self._context.audit.hear_of_all(self._cluster, namespace)
        await asyncio.sleep(_FIRST_LOOK_SECONDS)
        self._context.audit.tell_of_earlier(namespace)

    async def _renew_keys(self) -> None:
        if await self._context.sealing.renew(await self._awaited_keys()):
            self._tenants.each(self._add_key)

    async def _awaited_keys(self) -> frozenset[str] | None:
        """One shard throws old keys away; it asks the API server which of them the namespaces of the others need.

        If one of these can't be asked, it may be any of them: a namespace that is gone keeps nobody from a new key.
        """
        if self._shard.index:
            return None
        awaited = set(self.controller.awaited_keys())
        for namespace in sorted(set(self._configuration.namespaces).difference(self._ours())):
            try:
                awaited |= await self._cluster.keys_of_unfinished(namespace)
            except REQUEST_ERRORS as error:
                why = message_of(error) if isinstance(error, ApiException) else type(error).__name__
                logger.warning("no old sealing key is deleted: which of them %s needs is unknown: %s", namespace, why)
                return None
        return frozenset(awaited)
