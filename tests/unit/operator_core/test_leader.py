"""A leader that is stopped gives its Lease back, whatever has become of its last renewal."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import kopf
import pytest
from kubernetes.aio.client.exceptions import ApiException
from polling import until

from codeexec_operator.adapters.leader import Leader
from codeexec_operator.core.leadership import LeaseRecord, LeaseTiming
from codeexec_operator.core.shard import Shard
from codeexec_operator.handlers import events


class Leases:
    """The API server: writes are conditional, and the answer to a renewal may never come."""

    def __init__(self, others: Mapping[str, LeaseRecord] | None = None) -> None:
        self.record: LeaseRecord | None = None
        self.others = others or {}
        self.answers_renewals = True
        self.renewed = asyncio.Event()

    async def get_leadership(self, _namespace: str, name: str) -> LeaseRecord | None:
        return self.others.get(name, self.record)

    async def write_leadership(self, _namespace: str, _name: str, record: LeaseRecord) -> LeaseRecord:
        if self.record and record.version != self.record.version:
            raise ApiException(status=409)
        self.record = replace(record, version=str(int(record.version or 0) + 1))
        if record.holder and not self.answers_renewals:
            self.renewed.set()
            await asyncio.Event().wait()
        return self.record


def _lost(why: str) -> NoReturn:
    raise AssertionError(why)


async def test_the_lease_is_given_back_although_a_renewal_was_stored_whose_answer_did_not_come() -> None:
    leases: Any = Leases()
    leader = Leader(leases, "system", "operator", timing=LeaseTiming(duration=2), shard=Shard(0, 1), lost=_lost)
    await leader.lead()
    leases.answers_renewals = False
    async with asyncio.timeout(60):
        await leases.renewed.wait()
        await leader.release()
    assert (leases.record.holder, leases.record.duration) == ("", 1)


async def test_the_lease_of_another_is_left_alone() -> None:
    leases: Any = Leases()
    leader = Leader(leases, "system", "operator", timing=LeaseTiming(duration=2), shard=Shard(0, 1), lost=_lost)
    await leader.lead()
    taken = leases.record = replace(leases.record, holder="another", version="7")
    await leader.release()
    assert leases.record == taken


HELD_OTHERWISE = LeaseRecord("another", 1, 15, "", "", version="1", shards="1")
"""The Lease of another shard, which a replica holds that counts one shard only."""


@pytest.mark.parametrize("answered", [True, False], ids=["it waits for others", "it has no answer yet"])
async def test_a_replica_that_is_stopped_before_it_leads_gives_its_lease_back(answered: bool) -> None:
    shard = Shard(0, 2)
    leases: Any = Leases({name: HELD_OTHERWISE for name in shard.others("operator")})
    leases.answers_renewals = answered
    leader = Leader(leases, "system", "operator", timing=LeaseTiming(duration=15), shard=shard, lost=_lost)
    memo = kopf.Memo(leader=leader, stack=AsyncExitStack(), stop=asyncio.Event(), settings=None, operation=None)
    starts = asyncio.create_task(events.start(kopf.OperatorSettings(), memo))
    await until(lambda: leases.record and leases.record.holder and (leader.epoch or leases.renewed.is_set()))
    leases.answers_renewals = True
    starts.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(starts, return_exceptions=True)
    assert (leases.record.holder, leases.record.duration) == ("", 1)


class Connected(Leases):
    """The same, over connections that can be closed. What it has as configuration is nothing that anybody foresees."""

    def __init__(self) -> None:
        super().__init__()
        self.open = True

    async def close(self) -> None:
        self.open = False

    async def get_leadership(self, _namespace: str, name: str) -> LeaseRecord | None:
        if not self.open:
            raise RuntimeError("Session is closed")
        return await super().get_leadership(_namespace, name)

    def ask_first(self, _: object) -> None:
        pass

    async def get_configuration(self, *_: str) -> Mapping[str, str]:
        raise RuntimeError("unexpected")


async def test_a_replica_whose_start_has_failed_in_an_unexpected_way_begins_anew(monkeypatch) -> None:
    """kopf calls `start` again. All connections of the attempt before are closed."""
    begun = list[Connected]()

    async def stand_by(memo: kopf.Memo, _: object) -> None:
        memo.cluster = memo.outputs = cluster = Connected()
        memo.telemetry = memo.prober = None
        memo.stack.push_async_callback(cluster.close)
        shard, timing = Shard(0, 1), LeaseTiming(duration=15)
        memo.leader = Leader(cluster, "system", "operator", timing=timing, shard=shard, lost=_lost)  # type: ignore[arg-type]
        begun.append(cluster)

    monkeypatch.setattr(events, "_stand_by", stand_by)
    memo = kopf.Memo(stop=asyncio.Event(), settings=SimpleNamespace(config_map=("system", "codeexec")))
    for attempt in (1, 2):
        with pytest.raises(RuntimeError, match="unexpected"):
            async with asyncio.timeout(20):
                await events.start(kopf.OperatorSettings(), memo)
        assert len(begun) == attempt
        record = begun[-1].record
        assert record
        assert (record.holder, begun[-1].open) == ("", False), "control: the Lease was given back"
