"""When a session ends because its client is gone."""

from datetime import datetime

from factories import NOW, seconds

from codeexec_operator.core.actions import ReadLease
from codeexec_operator.core.client_lease import LeaseView, look_after_client, observe, unread
from codeexec_operator.core.outcome import Ending

LEASE = "codeexec-client-1"


def spec(renewal: int, duration: int = 20) -> dict[str, object]:
    return {"renewTime": f"2000-01-01T00:00:{renewal:02}Z", "leaseDurationSeconds": duration}


def after(lease: LeaseView | None, seconds_later: float, *, used_at: datetime = NOW) -> Ending | ReadLease | datetime:
    return look_after_client(LEASE, lease, used_at, NOW + seconds(seconds_later))


def played(renewed_until: float, **reads: object) -> float:
    """Play reads and renewals second by second; the second in which the session ended."""
    lease: LeaseView | None = None
    for second in range(1, 1000):
        now = NOW + seconds(second)
        said = look_after_client(LEASE, lease, NOW, now)
        if isinstance(said, Ending):
            assert said.reason == "ClientGone"
            return second
        if isinstance(said, ReadLease):
            assert said.name == LEASE
            lease = observe(
                lease, {"renewTime": str(min(second, renewed_until) // 10), "leaseDurationSeconds": 35}, now
            )
        else:
            assert said > now
    return 1000


def test_a_session_ends_within_a_minute_of_its_client_and_not_before() -> None:
    for gone_at in range(0, 300, 7):
        assert gone_at < played(gone_at) <= gone_at + 60, gone_at


def test_a_session_whose_client_renews_its_lease_goes_on() -> None:
    assert played(1000) == 1000


def test_nothing_is_read_while_the_session_is_used() -> None:
    lease = observe(None, spec(1), NOW)
    assert after(lease, 100, used_at=NOW + seconds(96)) == NOW + seconds(101)
    assert after(None, 1) == NOW + seconds(35 / 4)


def test_clocks_of_clients_do_not_matter() -> None:
    """All of these times are long past; what counts is that they change."""
    lease = None
    for renewal in range(40):
        lease = observe(lease, spec(renewal % 60), NOW + seconds(10 * renewal))
        assert not isinstance(after(lease, 10 * renewal), Ending)
    ending = after(observe(lease, spec(39), NOW + seconds(411)), 411)
    assert isinstance(ending, Ending)
    assert ending.message == f"the client is gone: Lease {LEASE} was not renewed for 20 s (spec.clientLease)"


def test_a_lease_that_is_missing_ends_the_session_as_well() -> None:
    lease = observe(observe(None, None, NOW), None, NOW + seconds(35))
    ending = after(lease, 35)
    assert isinstance(ending, Ending)
    assert ending.message == f"the client is gone: there was no Lease {LEASE} for 35 s (spec.clientLease)"


def test_while_the_api_server_does_not_answer_nothing_is_concluded() -> None:
    lease = unread(NOW + seconds(100))
    assert not isinstance(after(lease, 134), Ending)
    again = observe(lease, spec(1), NOW + seconds(134))
    assert not isinstance(after(again, 150), Ending)


def test_a_lease_that_lasts_a_second_is_not_read_four_times_a_second() -> None:
    lease = observe(None, spec(1, duration=1), NOW)
    assert after(lease, 0) == NOW + seconds(2.5)
