"""A namespace, or its ConfigMap with the sealing key, is deleted and made anew while the operator runs."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from factories import a_policy
from hurried_loop import HurriedLoop
from polling import settled

from codeexec_api import SandboxPoolSpec
from codeexec_operator.adapters.operation import Operation
from codeexec_operator.adapters.supervision import JobFailure
from codeexec_operator.adapters.telemetry import Telemetry
from codeexec_operator.adapters.tenants import Tenant
from codeexec_operator.core.configuration import Configuration
from codeexec_operator.core.keyring import Keyring
from codeexec_operator.core.output_place import CONFIG_MAPS
from codeexec_operator.settings import Settings


class Stage:
    """An API server with one namespace, where nothing runs, and an operator that serves it."""

    def __init__(self) -> None:
        self.keys, self.uid, self.told = Keyring(), "first", list[str]()
        self.watch_ends = asyncio.Event()
        settings = Settings(
            config_map=("system", "codeexec"),
            sealing_secret=("system", "codeexec-sealing"),
            canary_service=("system", "canary"),
            leader_lease=("system", "operator"),
        )
        self.operation = Operation(
            settings,
            Configuration(frozenset({"box"}), a_policy(), SandboxPoolSpec()),
            self,  # type: ignore[arg-type]
            outputs=SimpleNamespace(place=CONFIG_MAPS),  # type: ignore[arg-type]
            prober=SimpleNamespace(trust=lambda _: None),  # type: ignore[arg-type]
            telemetry=Telemetry(settings, "1"),
            epoch=1,
            watch=self._watch,
            watch_configuration=SimpleNamespace(),  # type: ignore[arg-type]
        )
        self.operation._context.audit._write = lambda _: None
        self.tenant = Tenant("box", lambda: self.told.append("unexpected"))

    async def _watch(self, *_: object) -> None:
        await self.watch_ends.wait()
        raise JobFailure("the API server answered 403")

    def measure_writes(self, patched: object) -> None:
        pass

    async def ready(self, namespace: str) -> None:
        pass

    async def get_policy(self, namespace: str) -> None:
        pass

    async def in_phase(self, *_: object) -> AsyncIterator[Any]:
        for record in ():
            yield record

    async def get_keys(self, namespace: str, name: str) -> tuple[str, str]:
        return self.keys.dump(), "1"

    async def write_keys(self, namespace: str, name: str, text: str, version: str) -> None:
        self.keys = Keyring.load(text)

    async def publish_key(self, namespace: str, data: dict[str, str]) -> str:
        self.told.append("key")
        return self.uid

    async def ensure_pool(self, namespace: str, name: str, spec: SandboxPoolSpec) -> None:
        self.told.append("pool")


async def told_in_ten_minutes(uid: str) -> list[str]:
    stage = Stage()
    await stage.operation._context.sealing.renew(None)
    stage.operation._add_key(stage.tenant)
    await asyncio.sleep(60)
    stage.uid = uid
    await asyncio.sleep(600)
    await stage.tenant.jobs.stop()
    return stage.told


@pytest.mark.parametrize(("uid", "told"), [("first", ["key", "key"]), ("second", ["key", "key", "pool"])])
def test_a_config_map_that_is_made_anew_gets_the_key_within_ten_minutes(uid: str, told: list[str]) -> None:
    """And the namespace its pool. A person who deletes the pool of a namespace that stays does not want the pool."""
    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        assert runner.run(told_in_ten_minutes(uid)) == told


async def test_no_more_than_one_job_tells_the_key() -> None:
    stage = Stage()
    for _ in range(3):
        stage.operation._add_key(stage.tenant)
        await settled()
    assert len([task for task in asyncio.all_tasks() if task.get_name() == "box: sealing key"]) == 1
    await stage.tenant.jobs.stop()
