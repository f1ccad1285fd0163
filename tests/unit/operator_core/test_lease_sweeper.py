"""Leases of clients that are gone, on a played API server: what is asked for, and what is held."""

import weakref
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from codeexec_operator.adapters.sweeper import LeaseSweeper

NAMESPACE = "codeexec-sandbox"


class Lease(dict[str, Any]):
    """One that can be seen to be forgotten."""


class Played:
    """An API server with Leases, by name, each with the version of its last write."""

    def __init__(self, leases: Mapping[str, int], version: int, page: int = 2) -> None:
        self.leases, self.version, self._page = dict(leases), version, page
        self.refuses = 0
        self.held: list[weakref.ref[Lease]] = []
        self.most = 0

    async def list_leases(self, namespace: str) -> AsyncGenerator[Any, None]:
        assert namespace == NAMESPACE
        names = sorted(self.leases)
        for start in range(0, max(len(names), 1), self._page):
            self.most = max(self.most, sum(one() is not None for one in self.held))
            page = [self._lease(name) for name in names[start : start + self._page]]
            self.held += map(weakref.ref, page)
            yield {"metadata": {"resourceVersion": str(self.version)}, "items": page or None}
            del page

    def _lease(self, name: str) -> Lease:
        return Lease(metadata={"name": name, "uid": f"uid-{name}", "resourceVersion": str(self.leases[name])})

    async def delete_lease(self, namespace: str, name: str, uid: str) -> None:
        assert (namespace, uid) == (NAMESPACE, f"uid-{name}")
        self.refuses -= 1
        if not self.refuses:
            raise TimeoutError
        del self.leases[name]

    @property
    def names(self) -> set[str]:
        return {name.removeprefix("codeexec-client-") for name in self.leases}


def played(version: int, **leases: int) -> tuple[Played, LeaseSweeper]:
    made = Played({f"codeexec-client-{name}": written for name, written in leases.items()}, version)
    return made, LeaseSweeper(made, NAMESPACE)  # type: ignore[arg-type]


async def test_a_lease_goes_if_nobody_has_written_it_between_two_looks() -> None:
    api, sweeper = played(100, gone=1, alive=2, also_gone=100)
    await sweeper.look()
    assert api.names == {"gone", "alive", "also_gone"}, "whose are renewed is not known yet"
    api.version = 200
    api.leases |= {"codeexec-client-alive": 150, "codeexec-client-new": 160}
    await sweeper.look()
    assert api.names == {"alive", "new"}
    await sweeper.look()
    assert api.names == set(), "nobody has written them since"
    await sweeper.look()


async def test_a_look_that_failed_does_not_count() -> None:
    api, sweeper = played(100, one=1, two=2)
    await sweeper.look()
    api.version, api.refuses = 200, 2
    api.leases["codeexec-client-three"] = 150
    with pytest.raises(TimeoutError):
        await sweeper.look()
    assert api.names == {"two", "three"}
    await sweeper.look()
    assert api.names == {"three"}, "it was written after the look that succeeded"


async def test_after_a_restore_of_etcd_nothing_of_before_counts() -> None:
    api, sweeper = played(1000, alive=900)
    await sweeper.look()
    api.version, api.leases["codeexec-client-alive"] = 500, 490
    await sweeper.look()
    assert api.names == {"alive"}
    await sweeper.look()
    assert api.names == set()


async def test_no_more_than_a_page_of_leases_is_held() -> None:
    api, sweeper = played(1000, **{f"lease{number}": number for number in range(40)})
    await sweeper.look()
    await sweeper.look()
    assert api.names == set()
    assert api.most == 2
