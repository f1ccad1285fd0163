"""Which old sealing keys the operator throws away, where other shards serve a part of the namespaces."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from factories import a_policy
from kubernetes.aio.client.exceptions import ApiException

from codeexec_operator.adapters.operation import Operation
from codeexec_operator.adapters.telemetry import Telemetry
from codeexec_operator.core.configuration import Configuration
from codeexec_operator.core.keyring import Keyring, SealingKey
from codeexec_operator.core.output_place import CONFIG_MAPS
from codeexec_operator.core.shard import Shard
from codeexec_operator.settings import Settings

NAMESPACES = frozenset({"team-0", "team-4", "team-8"})
OF_OTHERS = [namespace for namespace in sorted(NAMESPACES) if Shard(1, 2).serves(namespace)]
FORBIDDEN = ApiException(status=403, reason="Forbidden")


def a_key(name: str, days: float) -> SealingKey:
    return SealingKey(name, bytes(32), datetime.now(UTC) - timedelta(days=days))


class Stage:
    """The first of two shards, and an API server with three keys that are old; unfinished executions need `needed`."""

    def __init__(self, needed: set[str], error: Exception | None = None) -> None:
        self.keys, self.asked, self.error = Keyring((a_key("a", 5), a_key("b", 4), a_key("c", 3))), [], error  # type: ignore[var-annotated]
        self.needed = needed
        settings = Settings(
            config_map=("system", "codeexec"),
            sealing_secret=("system", "codeexec-sealing"),
            canary_service=("system", "canary"),
            leader_lease=("system", "operator"),
            shards=2,
        )
        nobody: Any = SimpleNamespace()
        self.operation = Operation(
            settings,
            Configuration(NAMESPACES, a_policy(), None),
            self,  # type: ignore[arg-type]
            outputs=SimpleNamespace(place=CONFIG_MAPS),  # type: ignore[arg-type]
            prober=SimpleNamespace(trust=lambda _: None),  # type: ignore[arg-type]
            telemetry=Telemetry(settings, "1"),
            epoch=1,
            watch=nobody,
            watch_configuration=nobody,
        )

    def measure_writes(self, patched: object) -> None:
        pass

    async def keys_of_unfinished(self, namespace: str) -> set[str]:
        self.asked.append(namespace)
        if self.error and namespace == OF_OTHERS[-1]:
            raise self.error
        return self.needed

    async def get_keys(self, namespace: str, name: str) -> tuple[str, str]:
        return self.keys.dump(), "1"

    async def write_keys(self, namespace: str, name: str, text: str, version: str) -> None:
        self.keys = Keyring.load(text)

    async def renew(self) -> list[str]:
        await self.operation._renew_keys()
        *old, new = (key.name for key in self.keys.keys)
        assert new not in "abc", "there is another one to seal with"
        return old


async def test_keys_go_that_no_namespace_of_any_shard_needs() -> None:
    stage = Stage({"b"})
    assert await stage.renew() == ["b", "c"], "the last was followed only now"
    assert stage.asked == OF_OTHERS


@pytest.mark.parametrize("error", [FORBIDDEN, TimeoutError()], ids=["403", "timeout"])
async def test_a_namespace_that_can_not_be_asked_keeps_no_key_from_being_made_and_none_is_deleted(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    assert await Stage({"b"}, error).renew() == ["a", "b", "c"]
    assert f"which of them {OF_OTHERS[-1]} needs is unknown" in caplog.text
