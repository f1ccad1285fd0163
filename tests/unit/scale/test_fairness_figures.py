"""What `make bench-fairness` compares: two floods of the same objects, which differ in the operator only."""

from collections import Counter

import flooding
from fairness import NOISY, QUIET, SHARD, UNSERVED, Call, Cpu, moments

from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL


def test_the_operator_serves_the_neighbour_and_one_of_the_two_floods() -> None:
    assert [name for name in (NOISY, QUIET, UNSERVED) if SHARD.serves(name)] == [NOISY, QUIET]


def test_a_session_comes_after_each_ten_executions_of_a_flood() -> None:
    order = flooding.in_turns(10_000, 1_000)
    assert Counter(order[:110]) == {EXECUTION_PLURAL: 100, SESSION_PLURAL: 10}
    assert Counter(order) == {EXECUTION_PLURAL: 10_000, SESSION_PLURAL: 1_000}
    assert order[9:12] == [EXECUTION_PLURAL, SESSION_PLURAL, EXECUTION_PLURAL]


def test_the_cpu_of_ended_children_is_counted_apart() -> None:
    before = Cpu.parse("7 (a) b) S 1 7 7 0 -1 4194560 2 3 0 0 100 20 3000 400 20 0", ticks=100)
    after = Cpu.parse("7 (a) b) S 1 7 7 0 -1 4194560 2 3 0 0 120 30 3040 420 20 0", ticks=100)
    assert (before, after) == (Cpu(1.2, 34.0), Cpu(1.5, 34.6))
    assert after.share(before, 1.0) == "30 % (ended children 60 %)"
    assert after.share(Cpu(1.0, 34.6), 1.0) == "50 %"


def test_the_moments_of_a_call_are_seconds_since_the_flood_began() -> None:
    record = {
        "metadata": {"creationTimestamp": "1970-01-01T00:01:41Z"},
        "status": {"startedAt": "1970-01-01T00:01:42.250000Z", "finishedAt": "1970-01-01T00:01:42.500000Z"},
    }
    told = moments(Call(1900.4, "call-1", 103.0), record, begun=100.0)
    assert told == "1900 ms: created 1.00 s, started 2.25 s, finished 2.50 s, told 3.00 s"
