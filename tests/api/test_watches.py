"""A watch that kopf gives up without a word: the operator would be deaf for one kind, and nobody would know."""

import asyncio
import gc
import warnings
from contextlib import closing
from typing import Any

import kopf
import pytest
from cluster_tools import SANDBOX, a_name
from kopf._cogs.aiokits.aiotasks import Scheduler

from codeexec_operator.adapters.supervision import JobFailure
from codeexec_operator.handlers import watching

SILENT_SECONDS = 1.0


async def test_a_watch_that_was_cancelled_by_its_own_timeout_is_a_failure(
    admin, kubeconfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that a watch may be silent runs out while it passes an object on, which never ends here."""
    heard = asyncio.Event()
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)

    @kopf.on.event("v1", "configmaps", registry=registry)
    async def hear(name: str, **_: Any) -> None:
        if name.startswith("watched"):
            heard.set()

    settings = watching.settings()
    settings.watching.inactivity_timeout = SILENT_SECONDS
    job = asyncio.create_task(watching.watch(registry, settings, SANDBOX, asyncio.Event(), ("configmaps",)))
    try:
        make_one(admin)
        async with asyncio.timeout(60):
            await heard.wait()

        async def slowly(_: Scheduler, coro: Any, **options: Any) -> None:
            with closing(coro):
                await asyncio.Event().wait()

        monkeypatch.setattr(Scheduler, "spawn", slowly)
        make_one(admin)
        with pytest.raises(JobFailure, match="the watch has ended"):
            async with asyncio.timeout(60):
                await job
    finally:
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        with warnings.catch_warnings(action="ignore"):  # kopf leaves a generator and its connection behind
            await asyncio.get_running_loop().shutdown_asyncgens()
            gc.collect()
    assert not [one for one in asyncio.all_tasks() if one.get_name().startswith("watcher for ")]


def make_one(admin) -> None:
    meta = {"name": a_name("watched"), "namespace": SANDBOX}
    admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
