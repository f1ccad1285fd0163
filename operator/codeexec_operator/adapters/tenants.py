"""The namespaces that are served: each with jobs of its own, which fail, wait and end without the others."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from codeexec_operator.adapters.supervision import Supervisor, Tell, end

logger = logging.getLogger(__name__)

_NOT_YET: Final = "not watched yet"


class Tenant:
    """One namespace. Its jobs say what keeps it from being served."""

    def __init__(self, namespace: str, unexpected: Callable[[], None]) -> None:
        self.namespace = namespace
        self.jobs = Supervisor(unexpected, prefix=f"{namespace}: ")
        self.key_uid = ""
        """UID of the ConfigMap with the sealing key; empty: not known yet. Another one is there if the namespace was
        deleted and made anew."""
        self._problems: dict[str, str] = {"watch": _NOT_YET}
        self._reported = False

    @property
    def served(self) -> bool:
        """True if all that is needed for it can be done."""
        return not self._problems

    def tell(self, job: str) -> Tell:
        """For a job without which the namespace isn't served: what it has failed with, or that it is well."""

        def told(problem: str | None) -> None:
            if problem:
                self._problems[job] = problem
            else:
                self._problems.pop(job, None)
            self._report(problem)

        return told

    def _report(self, problem: str | None) -> None:
        if problem and not self._reported:
            logger.error(
                "%s: not served (%s); trying again. If that goes on, see whether the namespace and the operator's Role "
                "and RoleBinding in it are there. Other namespaces are served as before",
                self.namespace,
                problem,
            )
            self._reported = True
        elif self.served and self._reported:
            logger.warning("%s: served again", self.namespace)
            self._reported = False


class Tenants:
    """Takes namespaces in and lets them go while the operator runs.

    Args:
        begin: adds the jobs of a namespace.
        release: ends what is left of a namespace that isn't served any more; may take as long as code runs there.
        unexpected: called when a job has failed in a way that nobody has foreseen.
    """

    def __init__(
        self, begin: Callable[[Tenant], None], release: Callable[[str], Awaitable[None]], unexpected: Callable[[], None]
    ) -> None:
        self._begin, self._release, self._unexpected = begin, release, unexpected
        self._tenants: dict[str, Tenant] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}

    def served(self) -> dict[str, bool]:
        """Each namespace that is to be served, and whether it is."""
        return {name: tenant.served for name, tenant in self._tenants.items()}

    def each(self, do: Callable[[Tenant], None]) -> None:
        """Do something for each namespace that is to be served."""
        for tenant in self._tenants.values():
            do(tenant)

    async def serve(self, namespaces: Collection[str]) -> None:
        """Serve these and no others."""
        for name in self._tenants.keys() - set(namespaces):
            tenant = self._tenants.pop(name)
            await tenant.jobs.stop()
            logger.warning("%s: not served any more: what runs there is left to end, and nothing else starts", name)
            self._leaving[name] = asyncio.create_task(self._let_go(name))
        for name in sorted(set(namespaces) - self._tenants.keys()):
            await self._stay(name)
            self._tenants[name] = tenant = Tenant(name, self._unexpected)
            logger.info("%s: served from now on", name)
            self._begin(tenant)

    async def stop(self) -> None:
        """End all jobs."""
        for name in list(self._leaving):
            await self._stay(name)
        await asyncio.gather(*(tenant.jobs.stop() for tenant in self._tenants.values()))
        self._tenants.clear()

    async def _let_go(self, name: str) -> None:
        try:
            await self._release(name)
            logger.info("%s: nothing of it is left here", name)
        except Exception:
            self._unexpected()
            logger.exception("%s: unexpected, while it was let go of", name)
        self._leaving.pop(name, None)

    async def _stay(self, name: str) -> None:
        """Leave off letting it go."""
        if task := self._leaving.pop(name, None):
            await end(task)
