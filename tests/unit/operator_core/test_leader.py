"""A leader that is stopped gives its Lease back, whatever has become of its last renewal."""

import asyncio
from dataclasses import replace
from typing import Any, NoReturn

from kubernetes.aio.client.exceptions import ApiException

from codeexec_operator.adapters.leader import Leader
from codeexec_operator.core.leadership import LeaseRecord, LeaseTiming
from codeexec_operator.core.shard import Shard


class Leases:
    """The API server: writes are conditional, and the answer to a renewal may never come."""

    def __init__(self) -> None:
        self.record: LeaseRecord | None = None
        self.answers_renewals = True
        self.renewed = asyncio.Event()

    async def get_leadership(self, _namespace: str, _name: str) -> LeaseRecord | None:
        return self.record

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
