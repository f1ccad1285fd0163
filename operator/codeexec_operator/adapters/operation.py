"""All that the operator does besides telling how it is: started as a whole, and stopped as a whole."""

import asyncio
from importlib.metadata import version
from typing import Self

from codeexec_api.policy import cluster_policy
from codeexec_operator.adapters.announcer import Announcer
from codeexec_operator.adapters.audit import AuditLog
from codeexec_operator.adapters.cluster import Cluster
from codeexec_operator.adapters.code_reader import CodeReader
from codeexec_operator.adapters.controller import Controller
from codeexec_operator.adapters.default_pool import make_default_pools
from codeexec_operator.adapters.finished import hear_of_finished
from codeexec_operator.adapters.lookout import Lookout
from codeexec_operator.adapters.payloads import Payloads
from codeexec_operator.adapters.policies import Policies
from codeexec_operator.adapters.sealing import SealingKeys
from codeexec_operator.adapters.sweeper import sweep
from codeexec_operator.adapters.telemetry import Telemetry
from codeexec_operator.adapters.worker import Context
from codeexec_operator.core.startup import Timing
from codeexec_operator.settings import Settings


class Operation:
    """The work of an operator that leads. One that stands by makes none of these."""

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster
        self._tasks: list[asyncio.Task[None]] = []
        release = version("codeexec")
        self._lookout = Lookout(
            cluster, pod_ips=settings.pod_ips, canary_port=settings.canary_port, never_permit=settings.never_permit
        )
        self._policies = Policies(cluster, settings.default_policy(), cluster_policy(settings.policy_config_map))
        self._payloads = Payloads(cluster)
        self._keys = SealingKeys(cluster, *settings.sealing_secret, settings.namespaces)
        self._telemetry = Telemetry(settings, release)
        self._audit = AuditLog(settings.namespaces, release, self._telemetry.metrics)
        self._announcer = Announcer(cluster, self._telemetry.metrics)
        context = Context(
            cluster=cluster,
            lookout=self._lookout,
            policies=self._policies,
            payloads=self._payloads,
            sealing=self._keys,
            reader=CodeReader(),
            timing=Timing(),
            version=release,
            telemetry=self._telemetry,
            audit=self._audit,
            announcer=self._announcer,
        )
        self.controller = Controller(context)

    @classmethod
    async def start(cls, settings: Settings, cluster: Cluster) -> Self:
        """Begin to work.

        Raises:
            AuditFailure: the first lines of the audit log can't be written.
            ApiException: the Secret of the sealing keys isn't there or may not be changed.
            OSError: a port is in use.
        """
        operation = cls(settings, cluster)
        await operation._open()
        return operation

    async def _open(self) -> None:
        cluster, namespaces, controller = self._cluster, self._settings.namespaces, self.controller
        self._audit.open()
        await self._keys.open()
        await self._lookout.open()
        await self._telemetry.open(controller.census)
        jobs = [
            self._lookout.run(),
            self._audit.run(),
            hear_of_finished(cluster, namespaces, self._audit),
            self._announcer.run(),
            make_default_pools(cluster, namespaces, self._settings.default_pool()),
            self._policies.run(controller.policy_changed),
            *(self._payloads.run(one, controller.on_payload) for one in namespaces),
            self._keys.run(controller.awaited_keys),
            sweep(cluster, namespaces, controller.awaited_payloads),
        ]
        self._tasks = [asyncio.create_task(job) for job in jobs]

    async def stop(self) -> None:
        """End all work; what is written afterwards is written by whoever leads then."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._lookout.close()
        await self.controller.stop()
        self._audit.close()
        await self._telemetry.close()

    async def ready(self) -> None:
        """Raises what hinders the operator from working."""
        self._audit.check()
        await self._cluster.ready(self._settings.namespaces[0])
