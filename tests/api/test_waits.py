"""The tests' own client: waits see each version, survive a server that fails, and say why they were in vain."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from api_calls import Call, Match
from api_server import NotFound, Refusal, Unreachable
from cluster_tools import SANDBOX, Admin, a_name, a_secret, a_session, wait_for
from fault_proxy import FaultProxy
from faults import Answer, Cut, Lose, Stall, WatchError


@pytest.fixture
def proxy(kubeconfig: str) -> Iterator[FaultProxy]:
    with FaultProxy(kubeconfig) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: FaultProxy, tmp_path: Path) -> Admin:
    """The administrator, by way of the proxy."""
    return Admin(str(proxy.write_kubeconfig(tmp_path / "kubeconfig")))


@pytest.fixture
def record(admin: Admin) -> Iterator[str]:
    """A new CodeExecution without a status."""
    name = a_name("waited")
    admin.submit(name, "print(1)")
    yield name
    admin.delete("cex", name)


def become(admin: Admin, name: str, *phases: str, kind: str = "cex") -> None:
    for phase in phases:
        status = {"phase": phase, "reason": "Tested", "message": "by a test"}
        admin.patch(kind, name, {"status": status}, SANDBOX, "status")


@pytest.fixture
def meanwhile(proxy: FaultProxy) -> Iterator[Callable[..., threading.Thread]]:
    """Does something as soon as a watch of records is open. Who does something else afterwards joins the thread."""
    threads: list[threading.Thread] = []

    def begin(do: Callable[..., None], *arguments: object) -> threading.Thread:
        watch = Match("watch", "codeexecutions")
        before = len(proxy.seen(watch))

        def run() -> None:
            wait_for("a watch to be open", lambda: any(one.status == 200 for one in proxy.seen(watch)[before:]))
            do(*arguments)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return threads[-1]

    yield begin
    for thread in threads:
        thread.join(60)


def test_a_phase_that_passes_is_seen(admin, behind, record, meanwhile):
    """As no poll does: nobody knows when it looks."""
    meanwhile(become, admin, record, "Pending", "Starting", "Running", "Succeeded")
    assert behind.wait_for_phase(record, "Starting")["status"]["phase"] == "Starting"


def test_a_wait_for_what_cannot_come_any_more_ends_at_once_and_names_it(admin, behind, record, meanwhile):
    meanwhile(become, admin, record, "Starting", "Failed")
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"to become Running, but it ended as Failed \(Tested\): by a test"):
        behind.wait_for_phase(record, "Running", seconds=200)
    assert time.monotonic() - began < 100


@pytest.fixture
def session(admin: Admin) -> Iterator[str]:
    """A new CodeSession without a status."""
    name = a_name("waited")
    admin.create(a_session(name, requestedBy=admin.me))
    yield name
    admin.delete("codesession", name)


@pytest.mark.parametrize("phase", ["Denied", "Ended", "Failed", "Lost"])
def test_a_wait_for_a_session_ends_when_the_session_has_ended(admin, session, phase):
    become(admin, session, "Starting", phase, kind="codesession")
    in_phase = lambda one: one.get("status", {}).get("phase") == phase  # noqa: E731
    assert admin.wait_until("its end", "codesession", session, in_phase, 0.3)
    with pytest.raises(AssertionError, match=rf"waited for it to be ready, but it ended as {phase} \(Tested\)"):
        admin.wait_until("it to be ready", "codesession", session, lambda _: False, seconds=0.3)


def test_a_wait_for_any_of_the_versions_ends_when_there_can_be_no_other(admin, record, session):
    for kind, name, phase in (("cex", record, "Lost"), ("codesession", session, "Ended")):
        with admin.following(kind, name) as followed:
            become(admin, name, "Starting", phase, kind=kind)
            starts = lambda one: one.get("status", {}).get("phase") == "Starting"  # noqa: E731
            assert followed.wait_until("its start", starts)
            with pytest.raises(AssertionError, match=rf"waited for more, but it ended as {phase} \(Tested\)"):
                followed.wait_until("more", lambda _: False, seconds=0.3)


def test_a_wait_for_a_record_that_is_deleted_ends_at_once(admin, behind, record, meanwhile):
    meanwhile(admin.delete, "cex", record)
    with pytest.raises(AssertionError, match="but it was deleted as new"):
        behind.wait_for_phase(record, "Running", seconds=60)


def test_a_wait_in_vain_tells_the_last_version(admin, record):
    become(admin, record, "Pending")
    with pytest.raises(AssertionError, match=f'in vain for {record} to become Running.*"phase": "Pending"'):
        admin.wait_for_phase(record, "Running", seconds=0.3)


def test_a_wait_for_what_is_not_there_says_so(admin):
    with pytest.raises(AssertionError, match=r"waited 0\.3 s in vain for it; there was no such object"):
        admin.wait_until("it", "configmap", "nothing", bool, 0.3)


def test_phases_can_be_asked_for_afterwards(admin):
    name = a_name("followed")
    with admin.following("codeexecution", name) as followed:
        assert followed.phases == []
        admin.submit(name, "print(1)")
        become(admin, name, "Pending", "Starting", "Running", "Succeeded")
        assert followed.wait_for_phase("Running")["status"]["phase"] == "Running"
        assert followed.wait_for_phase("Starting")["status"]["phase"] == "Starting"
        assert followed.phases == ["Pending", "Starting", "Running", "Succeeded"]
        with pytest.raises(AssertionError, match="but it ended as Succeeded"):
            followed.wait_for_phase("TimedOut")
        admin.delete("cex", name, wait=True)
        assert followed.phases == ["Pending", "Starting", "Running", "Succeeded"]


def test_following_has_the_versions_that_were_there_before(admin, record):
    become(admin, record, "Pending")
    with admin.following("codeexecution", record) as followed:
        become(admin, record, "Starting")
        assert followed.phases == ["Pending", "Starting"]


@pytest.mark.parametrize(
    ("match", "fault"),
    [
        (Match("list", "codeexecutions"), Answer(500)),
        (Match("list", "codeexecutions"), Answer(503)),
        (Match("list", "codeexecutions"), Answer(429, retry_after=1)),
        (Match("list", "codeexecutions"), Cut()),
        (Match("list", "codeexecutions"), Lose("504")),
        (Match("watch", "codeexecutions"), Answer(410)),
        (Match("watch", "codeexecutions"), Answer(504)),
        (Match("watch", "codeexecutions"), WatchError(410)),
        (Match("watch", "codeexecutions"), Cut()),
        (Match("watch", "codeexecutions"), Cut(after=1)),
    ],
    ids=lambda value: f"{value.verb}" if isinstance(value, Match) else repr(value),
)
def test_a_wait_outlives_a_server_that_fails_twice(admin, proxy, behind, record, meanwhile, match, fault):
    meanwhile(become, admin, record, "Pending", "Running", "Succeeded")
    with proxy.fault(match, fault, times=2) as rule:
        assert behind.wait_for_phase(record, "Succeeded", seconds=30)
    assert rule.met == 2 or fault == Cut(after=1)


def test_a_version_that_the_server_has_forgotten_is_not_asked_for_again(admin, proxy, behind, record):
    """What there is now is looked at instead."""
    forgotten: list[str] = []

    def is_forgotten(call: Call) -> bool:
        version = call.query["resourceVersion"]
        if not forgotten:
            forgotten.append(version)
            become(admin, record, "Pending", "Running", "Succeeded")
        return version in forgotten

    with proxy.fault(Match("watch", "codeexecutions", where=is_forgotten), WatchError(410)) as rule:
        assert behind.wait_for_phase(record, "Succeeded", seconds=30)
    assert rule.met == 1


def test_who_needs_each_version_is_told_that_some_are_lost(admin, proxy, behind, record):
    with behind.following("codeexecution", record) as followed:
        become(admin, record, "Pending")
        with (
            proxy.fault(Match("watch", "codeexecutions"), WatchError(410)),
            pytest.raises(AssertionError, match=r"versions of codeexecution since [0-9]+ are lost"),
        ):
            followed.wait_for_phase("Pending")


def test_a_watch_that_falls_silent_is_replaced(admin, proxy, behind, record, meanwhile, monkeypatch):
    monkeypatch.setattr("kube.LONGEST_WATCH_SECONDS", 1)
    meanwhile(become, admin, record, "Pending", "Running", "Succeeded")
    with proxy.fault(Match("watch", "codeexecutions"), Stall(after=1), times=1) as rule:
        assert behind.wait_for_phase(record, "Succeeded", seconds=30)
    assert rule.met == 1


def test_a_read_gives_up_when_its_time_is_over(proxy, behind, record):
    with proxy.fault(Match("list", "codeexecutions"), Answer(503)), pytest.raises(Refusal, match="503"):
        behind.wait_for_phase(record, "Succeeded", seconds=1)


def test_a_read_that_is_refused_is_not_tried_again(proxy, behind, record):
    with proxy.fault(Match("get", "codeexecutions"), Answer(403)) as rule, pytest.raises(Refusal, match="403"):
        behind.execution(record)
    assert rule.met == 1


@pytest.mark.parametrize("fault", [Lose(), Lose("504"), Answer(500), Cut()], ids=repr)
def test_a_write_whose_fate_is_unknown_is_not_done_again(proxy, behind, fault):
    thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": a_name("once"), "namespace": SANDBOX}}
    with proxy.fault(Match("create", "configmaps"), fault) as rule, pytest.raises((Refusal, Unreachable)):
        behind.create(thing)
    assert rule.met == 1


def test_a_write_that_the_server_had_no_room_for_is_done_again(admin, proxy, behind):
    thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": a_name("busy"), "namespace": SANDBOX}}
    with proxy.fault(Match("create", "configmaps"), Answer(429, retry_after=1), times=1) as rule:
        behind.create(thing)
    assert rule.met == 1
    assert admin.exists("configmap", thing["metadata"]["name"])
    admin.delete("configmap", thing["metadata"]["name"])


def test_all_objects_of_a_kind_are_looked_at_together(admin):
    """Not one after the other, as they are listed: two would be there before the third is looked at."""
    label = {"labels": {"together": a_name("x")}, "namespace": SANDBOX}
    selector = "together=" + label["labels"]["together"]
    names = [a_name("one") for _ in range(3)]
    admin.create(*({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **label}} for name in names))
    sizes: list[int] = []

    def two_are_left(found: list[object]) -> bool:
        sizes.append(len(found))
        if len(found) == 3:
            admin.delete("configmap", names[0])
        return len(found) == 2

    admin.wait_until_all("two to be left", "configmap", two_are_left, labels=selector)
    assert sizes == [3, 2]
    for name in names:
        admin.delete("configmap", name, wait=True)
    assert admin.wait_until_all("none to be left", "configmap", lambda found: not found, labels=selector) == []


def test_kinds_are_those_of_kubectl(admin):
    for name in ("cex", "codeexecution", "codeexecutions", "CodeExecution", "codeexecutions.codeexec.dev"):
        assert admin.resource(name).plural == "codeexecutions"
    assert admin.resource("netpol").path("one") == "/apis/networking.k8s.io/v1/namespaces/one/networkpolicies"
    assert admin.resource("ns").path("one", "two") == "/api/v1/namespaces/two"
    with pytest.raises(AssertionError, match="serves no nonsense"):
        admin.resource("nonsense")


def test_what_is_not_there_is_none_or_an_error_of_its_own(admin):
    assert admin.find("pod", "nothing") is None
    with pytest.raises(NotFound, match='pods "nothing" not found'):
        admin.get("pod", "nothing")
    admin.delete("pod", "nothing")
    assert admin.try_delete("pod", "nothing").code == 404


def test_an_unknown_field_is_refused(admin):
    thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": SANDBOX}, "dats": {}}
    assert 'unknown field "dats"' in admin.try_create(thing).message
    assert ".dats: field not declared in schema" in admin.try_apply(thing).message


def test_an_execution_of_an_agent_is_found_once_it_runs(admin, behind, meanwhile):
    agent, name, other = a_name("agent"), a_name("runs"), a_name("other")
    admin.submit(other, "print(1)")
    admin.submit(name, "print(1)", source={"agent": agent})
    become(admin, other, "Running")
    passing = meanwhile(become, admin, name, "Starting", "Running", "Succeeded")
    assert behind.running_execution(agent) == name
    passing.join()
    become(admin, name, "Running")
    assert admin.running_execution(agent) == name
    become(admin, name, "Starting")
    meanwhile(become, admin, name, "Lost")
    with pytest.raises(AssertionError, match=r"but it never did.*Lost"):
        behind.running_execution(agent)


RACE = 'Operation cannot be fulfilled on resourcequotas "codeexec": the object has been modified'


def test_what_lost_a_race_for_the_quota_is_created(proxy, behind):
    """The API server counts with optimistic locks: one of two that it counts at the same time is refused."""
    name = a_name("counted")
    with proxy.fault(Match("create", "secrets"), Answer(409, message=RACE), times=3) as rule:
        behind.create(a_secret(name, {"block-0": b"1"}))
    assert rule.met == 3
    assert behind.exists("secret", name)


def test_another_conflict_is_a_refusal(proxy, behind):
    with proxy.fault(Match("create", "secrets"), Answer(409, message="another")) as rule:
        refusal = behind.try_create(a_secret(a_name("refused"), {"block-0": b"1"}))
    assert rule.met == 1
    assert refusal is not None
    assert refusal.code == 409
