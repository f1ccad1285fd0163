"""Which replica leads: the decision by table, and by any order of what can happen to replicas and their requests."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codeexec_operator.core.leadership import Candidate, LeaseRecord, LeaseTiming

CLOCK = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = 31_536_000
"""From 2025 to 2026."""
ME, OTHER = "me", "other"
HELD = LeaseRecord(OTHER, 7, 15, "a", "r", "1")
OURS = replace(HELD, holder=ME)
OLDER = replace(OURS, renewed="before", version="0")
"""After etcd was restored from a backup."""


def test_the_proportions_are_those_of_client_go() -> None:
    timing = LeaseTiming()
    assert (timing.duration, timing.renew_deadline, timing.renew_every, timing.look_every) == (15, 10, 2, 1)
    assert LeaseTiming(30).renew_deadline == 20
    assert 3 * timing.answer < timing.renew_deadline, "one request that is lost costs no leader its Lease"


@pytest.mark.parametrize(
    ("record", "take_at"),
    [
        (None, 0),
        (replace(HELD, holder=""), 0),
        (OURS, 0),
        (HELD, 100 + 15),
        (replace(HELD, duration=60), 100 + 60),
    ],
    ids=["there is none", "given back", "our own write, whose answer was lost", "held", "the holder asks for longer"],
)
def test_when_the_lease_may_be_taken(record: LeaseRecord | None, take_at: float) -> None:
    seen = Candidate(ME, LeaseTiming()).saw(record, 100)
    assert max(0, seen.take_at()) == take_at


def test_a_lease_that_is_renewed_is_never_free() -> None:
    candidate = Candidate(ME, LeaseTiming())
    for now in range(0, 100, 14):
        candidate = candidate.saw(replace(HELD, renewed=str(now), version=str(now)), now)
        assert candidate.take_at() == now + 15
    assert candidate.saw(candidate.record, 110).take_at() == candidate.take_at(), "it has not changed since"


@pytest.mark.parametrize("offset", [timedelta(), timedelta(minutes=5), timedelta(minutes=-5)])
def test_no_clock_that_another_replica_believes_in_counts(offset: timedelta) -> None:
    told = (CLOCK + offset).isoformat()
    assert Candidate(ME, LeaseTiming()).saw(replace(HELD, renewed=told, acquired=told), 100).take_at() == 115


@pytest.mark.parametrize(
    ("before", "clock", "epoch"),
    [
        (HELD, CLOCK, SECONDS),
        (replace(HELD, epoch=SECONDS), CLOCK, SECONDS + 1),
        (None, CLOCK, SECONDS),
        (replace(HELD, epoch=SECONDS + 9), CLOCK - timedelta(minutes=5), SECONDS + 10),
    ],
    ids=["counts of less than the seconds", "goes on", "the Lease was deleted", "of a clock that is behind"],
)
def test_the_epoch_grows(before: LeaseRecord | None, clock: datetime, epoch: int) -> None:
    taken = Candidate(ME, LeaseTiming()).saw(before, 0).taken(clock, above=0)
    assert (taken.holder, taken.epoch, taken.duration) == (ME, epoch, 15)
    assert taken.version == (before.version if before else "")


@pytest.mark.parametrize(
    "later", [None, replace(HELD, epoch=1, version="0")], ids=["the Lease was deleted", "it comes from a backup"]
)
def test_the_epoch_grows_from_the_highest_that_was_seen_whatever_the_clock_says(later: LeaseRecord | None) -> None:
    seen = Candidate(ME, LeaseTiming()).saw(replace(HELD, epoch=SECONDS + 300), 0)
    for candidate in (seen, seen.wrote(replace(OURS, epoch=SECONDS + 300), 0, 0)):
        assert candidate.saw(later, 1).taken(CLOCK, above=0).epoch == SECONDS + 301
        assert candidate.saw(later, 1).taken(CLOCK, above=SECONDS + 400).epoch == SECONDS + 401


def test_a_leader_counts_from_before_it_asked() -> None:
    leader = Candidate(ME, LeaseTiming()).wrote(OURS, sent_at=100, now=103)
    assert leader.epoch == 7
    assert leader.leads(109.9)
    assert not leader.leads(110)
    assert leader.wrote(replace(OURS, epoch=1), 100, 100).leads(100), "as long as it is the first"


@pytest.mark.parametrize(
    "seen",
    [None, HELD, replace(OURS, holder=""), replace(OURS, epoch=8), OLDER],
    ids=["gone", "held", "free", "another epoch", "older than it was"],
)
def test_a_leader_that_sees_another_record_leads_no_more(seen: LeaseRecord | None) -> None:
    leader = Candidate(ME, LeaseTiming()).wrote(OURS, 100, 100)
    after = leader.saw(seen, 101)
    assert (after.epoch, after.leads(101), after.renewed(CLOCK)) == (0, False, None)
    own = seen is not None and seen.holder == ME
    assert (after.given_back(CLOCK) is not None) == own, "nobody else can lead by it"


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (None, "the Lease was deleted"),
        (HELD, "the Lease is held by 'other'"),
        (OLDER, "the Lease is older than it was, as when etcd was restored from a backup"),
    ],
)
def test_a_leader_tells_why_it_leads_no_more(seen: LeaseRecord | None, why: str) -> None:
    assert Candidate(ME, LeaseTiming()).wrote(OURS, 100, 100).saw(seen, 101).loss() == why


def test_a_leader_whose_renewal_was_stored_without_an_answer_goes_on() -> None:
    leader = Candidate(ME, LeaseTiming()).wrote(OURS, 100, 100).saw(replace(OURS, version="2"), 105)
    assert leader.leads(109.9)
    assert not leader.leads(110), "that is no confirmation of when it was sent"
    renewed = leader.renewed(CLOCK)
    assert renewed
    assert (renewed.epoch, renewed.version) == (7, "2")


def test_what_is_given_back_is_free_at_once_and_keeps_its_epoch() -> None:
    leader = Candidate(ME, LeaseTiming()).wrote(OURS, 100, 100)
    back = leader.given_back(CLOCK)
    assert back == replace(OURS, holder="", duration=1, renewed="2026-01-01T00:00:00.000000Z")
    assert not leader.wrote(back, 101, 101).leads(101)
    assert Candidate(OTHER, LeaseTiming()).saw(back, 0).take_at() < 0


def test_the_record_is_that_of_the_api_server_and_may_be_empty() -> None:
    raw = HELD.dump()
    assert raw["metadata"]["resourceVersion"] == "1", "a write is refused if the Lease has changed"
    assert LeaseRecord.parse(raw) == HELD
    assert "resourceVersion" not in replace(HELD, version="").dump()["metadata"], "to create it"
    assert LeaseRecord.parse({"metadata": {"resourceVersion": "3"}}) == LeaseRecord("", 0, 15, "", "", "3")


def test_a_record_is_older_than_one_of_a_later_version() -> None:
    ninth, tenth = replace(OURS, version="9"), replace(OURS, version="10")
    assert [ninth.older_than(other) for other in (None, OLDER, ninth, tenth)] == [False, False, False, True]


# --- any order of events ---


@dataclass
class Server:
    """One Lease, with resource versions."""

    record: LeaseRecord | None = None
    writes: int = 0
    epochs: list[tuple[int, str]] = field(default_factory=list)

    def write(self, record: LeaseRecord) -> LeaseRecord | None:
        if record.version != (self.record.version if self.record else ""):
            return None
        self.writes += 1
        if record.holder and (self.record is None or self.record.epoch != record.epoch):
            self.epochs.append((record.epoch, record.holder))
        self.record = replace(record, version=str(self.writes))
        return self.record


@dataclass
class Replica:
    """A candidate whose clocks are wrong: the time of day by minutes, the monotonic one by anything."""

    name: str
    monotonic: float
    day: timedelta
    candidate: Candidate = field(init=False)
    starts: int = 0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.starts += 1
        self.candidate = Candidate(f"{self.name}_{self.starts}", LeaseTiming())

    def leads(self, now: float) -> bool:
        return self.candidate.leads(now + self.monotonic)


STEP = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["look", "look", "renew", "release", "restart"]),
    st.floats(0, 8),
    st.sampled_from(["ok", "ok", "ok", "lost", "answer lost", "slow"]),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    offsets=st.tuples(*[st.tuples(st.floats(0, 1e6), st.integers(-300, 300))] * 3),
    steps=st.lists(STEP, min_size=20, max_size=60),
)
def test_never_do_two_lead_and_no_epoch_is_given_twice(offsets, steps) -> None:
    server = Server()
    replicas = [
        Replica(str(index), monotonic, timedelta(seconds=day)) for index, (monotonic, day) in enumerate(offsets)
    ]
    now, leaders = 0.0, 0
    for index, what, pause, network in steps:
        now += pause
        replica = replicas[index]
        if what == "restart":
            replica.restart()
        elif network != "lost":
            now = take_part(server, replica, what, now, network)
        leading = [one for one in replicas if one.leads(now)]
        assert len(leading) <= 1
        leaders += len(leading)
        if leading:
            assert server.record
            assert leading[0].candidate.epoch == server.record.epoch
    epochs = [epoch for epoch, _ in server.epochs]
    assert epochs == sorted(set(epochs))


def take_part(server: Server, replica: Replica, what: str, now: float, network: str) -> float:
    """One step of a replica; the time after it. An answer that is slow takes 3 s, and the write is stored before."""
    day = CLOCK + timedelta(seconds=now) + replica.day
    candidate = replica.candidate
    if what == "look" and not candidate.epoch:
        candidate = candidate.saw(server.record, now + replica.monotonic)
        wanted = candidate.taken(day, above=0) if now + replica.monotonic >= candidate.take_at() else None
    elif what == "release" and candidate.leads(now + replica.monotonic):
        wanted = candidate.given_back(day)
        # It acts no more, whatever becomes of the write.
        candidate = replace(candidate, acts_until=float("-inf"), epoch=0)
    elif candidate.leads(now + replica.monotonic):
        wanted = candidate.renewed(day)
    else:
        wanted = None
    sent_at = now
    stored = server.write(wanted) if wanted else None
    now += 3 if network == "slow" else 0
    if stored and network != "answer lost" and (candidate.epoch or what == "look"):
        candidate = candidate.wrote(stored, sent_at + replica.monotonic, now + replica.monotonic)
    elif wanted and not stored:
        candidate = candidate.saw(server.record, now + replica.monotonic)
    replica.candidate = candidate
    return now


@pytest.mark.parametrize(
    ("record", "obstructs"),
    [
        (None, False),
        (replace(HELD, shards="2"), False),
        (HELD, True),
        (replace(HELD, shards="many"), True),
        (replace(HELD, holder=""), False),
    ],
    ids=["there is none", "the same number", "another number", "somebody has changed it", "given back"],
)
def test_a_lease_of_another_number_of_shards_obstructs_until_it_is_free(
    record: LeaseRecord | None, obstructs: bool
) -> None:
    seen = Candidate(ME, LeaseTiming(), shards=2).saw(record, 100)
    assert seen.obstructs(114.9) is obstructs
    assert not seen.obstructs(115), "its holder has gone silent"


def test_the_number_of_shards_is_written_and_read() -> None:
    candidate = Candidate(ME, LeaseTiming(), shards=3)
    taken = candidate.taken(CLOCK, above=SECONDS + 7)
    assert candidate.saw(HELD, 0).taken(CLOCK, above=SECONDS + 7).epoch == taken.epoch, "above that of all shards"
    stored = taken.dump()
    stored["metadata"]["resourceVersion"] = "1"
    assert LeaseRecord.parse(stored) == replace(taken, version="1")
    assert (taken.shards, taken.epoch) == ("3", SECONDS + 8)
    del stored["metadata"]["annotations"]
    assert LeaseRecord.parse(stored).shards == "1", "of a version without shards"
