"""Which shard serves a namespace."""

from hypothesis import given
from hypothesis import strategies as st

from codeexec_operator.core.shard import MOST, Shard


@given(namespace=st.text(min_size=1), count=st.integers(1, MOST))
def test_one_and_only_one_shard_serves_a_namespace(namespace: str, count: int) -> None:
    assert [Shard(index, count).serves(namespace) for index in range(count)].count(True) == 1


def test_the_namespaces_are_spread() -> None:
    names = [f"team-{number}" for number in range(1000)]
    shares = [sum(Shard(index, 4).serves(name) for name in names) for index in range(4)]
    assert sum(shares) == 1000
    assert min(shares) > 200


def test_each_has_a_lease_and_knows_all_others_that_there_may_be() -> None:
    assert Shard().lease("operator") == "operator"
    assert Shard(3, 4).lease("operator") == "operator-3"
    others = Shard(1, 2).others("operator")
    assert others[:2] == ["operator", "operator-2"]
    assert len({*others, "operator-1"}) == MOST
