"""The API server, or the way to it, fails the client: its caller gets the result, or an error with a name in time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from api_calls import Match
from cluster_fixtures import rules_of
from cluster_tools import SANDBOX, Admin, a_name, wait_for
from component_stage import in_thread
from faults import Answer, Cut, Delay, Empty, Lose, Stall, WatchError

from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL
from executor_client import (
    ClusterRef,
    ClusterUnreachable,
    CodeExecError,
    CodeExecutionClient,
    Execution,
    InvalidExecution,
    NotInstalled,
    NotPermitted,
    OutputChunk,
    PreparedBlock,
)
from executor_client.transport import connections, outage, watch

HELLO = (PreparedBlock("python", b'print("hello")'),)
CREATE, WATCH, GET = (Match(verb, EXECUTION_PLURAL) for verb in ("create", "watch", "get"))
WHO, LIST = Match("create", "selfsubjectreviews"), Match("list", EXECUTION_PLURAL)
KEY = Match("get", "configmaps", name="codeexec-sealing-key")
LOG = Match("get", "pods", subresource="log")
SESSION = Match("get", SESSION_PLURAL)
OUTPUT = Match("get", "configmaps", where=lambda call: "sealing" not in call.name)
BIG = (PreparedBlock("python", b"fill(900_000)"),)


@pytest.fixture
def through(stage, make_client):
    """A client whose calls go through the client's proxy."""
    return make_client(through=stage.client_proxy)


def waiting_at(gate: str) -> tuple[PreparedBlock, ...]:
    return (PreparedBlock("python", f'print("begun")\nwait("{gate}")\nprint("done")'.encode()),)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Answer(403), NotPermitted, "codeexec-agent"),
        (Answer(409), CodeExecError, "409"),
        (Answer(410), CodeExecError, "410"),
        (Answer(429, retry_after=1), CodeExecError, "429"),
        (Answer(500), CodeExecError, "500"),
        (Answer(502), CodeExecError, "502"),
        (Answer(503), CodeExecError, "503"),
        (Answer(504), CodeExecError, "504"),
        (Answer(422), InvalidExecution, "422"),
        (Answer(404, reason="NotFound"), NotInstalled, "CRDs are missing"),
        (Cut(), ClusterUnreachable, "no answer"),
    ],
    ids=str,
)
@pytest.mark.parametrize("call", [WHO, LIST, CREATE], ids=lambda call: f"{call.verb}-{call.resource}")
async def test_a_call_before_the_code_that_fails_is_an_error_with_a_name_and_nothing_runs(
    operator, stage, through, asking, agent, call, fault, error, words, monkeypatch
):
    monkeypatch.setattr(outage, "OUTAGE_SECONDS", 1)
    # The HTTP library makes a GET again by itself, once, where a connection turned out to be closed: so not once only.
    with stage.client_proxy.fault(call, fault) as rule, pytest.raises(error, match=words):
        await through.execute(HELLO, asking())
    assert rule.met >= 1
    assert stage.records(agent=agent) == []
    assert (await through.execute(HELLO, asking())).output == "hello\n"


@pytest.mark.parametrize("fault", [Answer(502), Answer(503), Cut()], ids=str)
@pytest.mark.parametrize("call", [WHO, LIST], ids=lambda call: f"{call.verb}-{call.resource}")
async def test_an_outage_before_the_code_costs_time_only(operator, stage, through, asking, agent, call, fault):
    await through.list_sessions()  # the client knows that there is an API server, and asks who it is with the next call
    with stage.client_proxy.fault(call, fault, times=3) as rule:
        assert (await through.execute(HELLO, asking())).output == "hello\n"
    assert rule.met == 3
    stage.ran_once(stage.record(agent))


async def test_an_api_server_that_has_never_answered_is_an_error_at_once(stage, through, asking):
    """The control of the test above: it is the wrong address, or the cluster is not running."""
    with stage.client_proxy.fault(Match(), Cut()) as rule, pytest.raises(ClusterUnreachable):
        async with asyncio.timeout(25):  # less than an outage is lasted out for
            await through.execute(HELLO, asking())
    asked = Counter((call.verb, call.resource) for call in rule.calls)
    assert max(asked.values()) <= 2, "the HTTP library makes a GET again by itself, once"


async def test_a_busy_api_server_is_asked_again_after_the_time_that_it_says(operator, stage, through, asking, agent):
    before = len(stage.client_proxy.seen(LIST))
    with stage.client_proxy.fault(LIST, Answer(429, retry_after=2), times=2) as rule:
        assert (await through.execute(HELLO, asking())).output == "hello\n"
    assert rule.met == 2
    asked = [one.at for one in stage.client_proxy.seen(LIST)[before:]]
    assert [later - earlier >= 2 for earlier, later in pairwise(asked[:3])] == [True, True]
    stage.ran_once(stage.record(agent))


async def test_a_race_for_the_quota_is_run_again(operator, stage, through, asking, agent):
    race = Answer(409, message='Operation cannot be fulfilled on resourcequotas "codeexec": the object was modified')
    with stage.client_proxy.fault(CREATE, race, times=3) as rule:
        assert (await through.execute(HELLO, asking())).output == "hello\n"
    assert rule.met == 3
    stage.ran_once(stage.record(agent))


async def test_a_create_that_is_never_answered_is_an_error_after_a_while(
    operator, stage, through, asking, agent, monkeypatch
):
    await through.check()
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 3)
    monkeypatch.setattr(outage, "OUTAGE_SECONDS", 10)
    with stage.client_proxy.fault(CREATE, Stall()) as rule, pytest.raises(ClusterUnreachable):
        async with asyncio.timeout(40):
            await through.execute(HELLO, asking())
    assert rule.met
    assert stage.records(agent=agent) == []


async def test_slow_answers_cost_time_only(operator, stage, through, asking, agent):
    with stage.client_proxy.fault(Match(), Delay(0.5)):
        assert (await through.execute(HELLO, asking())).output == "hello\n"
    stage.ran_once(stage.record(agent))


@pytest.mark.parametrize("fault", [Answer(403), Answer(500), Answer(503)], ids=str)
async def test_without_the_sealing_key_code_goes_by_a_secret(operator, stage, through, asking, agent, fault):
    with stage.client_proxy.fault(KEY, fault) as rule:
        assert (await through.execute(HELLO, asking())).output == "hello\n"
    assert rule.met == 1
    assert "sealedPayload" not in stage.record(agent)["spec"]


@pytest.mark.parametrize("how", ["cut", "504", "stall"])
@pytest.mark.parametrize("times", [1, None], ids=["once", "each time"])
async def test_a_create_whose_answer_is_lost_costs_the_caller_nothing(
    operator, stage, through, asking, agent, monkeypatch, how, times
):
    await through.check()  # what a cluster that never answered is asked is not asked again
    if how == "stall":
        monkeypatch.setattr(connections, "REQUEST_SECONDS", 8)  # for all other calls, too, on a busy machine
    if times is None:
        monkeypatch.setattr(outage, "OUTAGE_SECONDS", 10)
    with stage.client_proxy.fault(CREATE, Lose(how), times=times):
        assert (await through.execute(HELLO, asking())).output == "hello\n"
    stage.ran_once(stage.record(agent))


async def test_where_nobody_can_tell_whether_it_was_created_that_is_an_error_and_the_code_is_told_to_stop(
    operator, stage, through, asking, agent, monkeypatch
):
    monkeypatch.setattr(outage, "OUTAGE_SECONDS", 5)
    with (
        stage.client_proxy.fault(CREATE, Lose("504")),
        stage.client_proxy.fault(GET, Answer(503)),
        pytest.raises(CodeExecError, match="504"),
    ):
        await through.execute(waiting_at(agent), asking())
    assert (await asyncio.to_thread(stage.ended, agent))["status"]["phase"] == "Cancelled"


async def test_a_session_whose_creation_is_not_answered_is_there(operator, stage, through, asking):
    create = Match("create", SESSION_PLURAL)
    with stage.client_proxy.fault(create, Lose("504"), times=1) as rule:
        async with await through.open_session(asking(), wait=True) as session:
            assert (await session.execute(HELLO)).output == "hello\n"
    await rule.hit()


@pytest.mark.parametrize(
    "fault",
    [
        Answer(403),
        Answer(410),
        Answer(429, retry_after=1),
        Answer(500),
        Answer(502),
        Answer(503),
        Answer(504),
        Cut(),
        WatchError(410),
        WatchError(500),
    ],
    ids=str,
)
async def test_a_watch_that_breaks_while_code_runs_is_resumed(
    operator, stage, through, asking, agent, one_watch, fault
):
    running = asyncio.create_task(through.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    with stage.client_proxy.fault(WATCH, fault, times=1) as rule:
        assert stage.client_proxy.cut_open(WATCH) == 1
        await rule.hit()
    stage.script.open(agent)
    assert (await running).output == "begun\ndone\n"
    stage.ran_once(stage.record(agent))
    assert all("resourceVersion" in one.call.query for one in stage.client_proxy.seen(WATCH)), "not all of it again"


async def test_a_watch_that_is_forbidden_while_code_runs_is_an_error_and_stops_the_code(
    operator, stage, through, asking, agent
):
    running = asyncio.create_task(through.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    with stage.client_proxy.fault(WATCH, Answer(403)):
        stage.client_proxy.cut_open(WATCH)
        with pytest.raises(NotPermitted):
            await running
    assert (await asyncio.to_thread(stage.ended, agent))["status"]["phase"] == "Cancelled"


async def test_a_watch_that_is_cut_again_and_again_misses_nothing(operator, stage, through, asking, agent):
    with stage.client_proxy.fault(WATCH, Cut(after=1)) as rule:
        assert (await through.execute(HELLO, asking())).output == "hello\n"
    assert rule.met >= 2
    stage.ran_once(stage.record(agent))


@pytest.mark.parametrize("fault", [Stall(), Stall(after=0)], ids=str)
async def test_a_result_behind_a_silent_watch_is_found_and_the_client_can_be_closed(
    operator, stage, through, asking, agent, fault
):
    with stage.client_proxy.fault(WATCH, fault) as rule:
        submitted = await through.submit(HELLO, asking())
        stage.ran_once(await asyncio.to_thread(stage.ended, agent))  # the client looks only once
        async with asyncio.timeout(60):
            assert (await submitted.result()).output == "hello\n"
        assert rule.met, "it was waited for on a watch"
        async with asyncio.timeout(60):
            await through.close()


async def test_an_execution_that_is_deleted_while_its_watch_is_too_old_is_lost(
    operator, stage, through, asking, agent, admin
):
    running = asyncio.create_task(through.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    with stage.client_proxy.fault(WATCH, Answer(503)) as rule:
        stage.client_proxy.cut_open(WATCH)
        await rule.hit()
        name = stage.record(agent)["metadata"]["name"]
        await asyncio.to_thread(admin.delete, EXECUTION_PLURAL, name, wait=True)
        with stage.client_proxy.fault(WATCH, WatchError(410), times=1) as old:
            await old.hit()
    try:
        with pytest.raises(CodeExecError, match="deleted"):
            async with asyncio.timeout(60):
                await asyncio.shield(running)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_where_no_watch_gives_anything_the_result_is_found(operator, stage, through, asking, agent, one_watch):
    """A proxy that buffers ends each watch at once."""
    running = asyncio.create_task(through.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    with stage.client_proxy.fault(WATCH, Empty()) as rule:
        stage.client_proxy.cut_open(WATCH)
        await rule.hit(3)
        met = [one.at for one in stage.client_proxy.seen(WATCH) if any(one.call is call for call in rule.calls[:3])]
        paused = [later - earlier for earlier, later in pairwise(met)]
        assert all(took > least - 0.01 for took, least in zip(paused, (0.5, 1), strict=True)), paused  # half by chance
        stage.script.open(agent)
        assert (await running).output == "begun\ndone\n"
        assert rule.met <= 8


async def test_a_watch_that_has_gone_silent_is_opened_again(operator, stage, through, asking, agent, monkeypatch):
    """A laptop that slept, or a NAT that forgot the connection: nothing says that it is dead."""
    monkeypatch.setattr(watch, "_SILENT_SECONDS", 2)
    running = asyncio.create_task(through.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    with stage.client_proxy.fault(WATCH, Delay(0)) as again:
        silenced = lambda: stage.client_proxy.silence_open(WATCH)  # noqa: E731 - one that says nothing is reopened, too
        await asyncio.to_thread(wait_for, "a watch to be open", silenced)
        await again.hit(again.met + 1)
    stage.script.open(agent)
    assert (await running).output == "begun\ndone\n"


@pytest.mark.parametrize("fault", [Answer(404), Answer(500), Cut(), Cut(after=1)], ids=str)
async def test_output_that_cant_be_followed_comes_from_the_record_once(operator, stage, through, asking, agent, fault):
    seen = []
    with stage.client_proxy.fault(LOG, fault, times=2) as rule:
        running = asyncio.create_task(through.execute(waiting_at(agent), asking(), on_output=seen.append))
        await rule.hit()
        stage.script.open(agent)
        result = await running
    assert "".join(chunk.text for chunk in seen) == result.output == "begun\ndone\n"


async def test_output_is_followed_while_code_runs(operator, stage, through, asking, agent):
    """The control of the test above: with a log, what was printed is there before the code has ended."""
    seen = []
    running = asyncio.create_task(through.execute(waiting_at(agent), asking(), on_output=seen.append))
    await asyncio.to_thread(wait_for, "the first line", lambda: seen)
    assert [chunk.text for chunk in seen] == ["begun\n"]
    stage.script.open(agent)
    assert (await running).output == "begun\ndone\n"


@pytest.fixture
async def without_logs(stage, admin, kubeconfig_of) -> AsyncIterator[CodeExecutionClient]:
    """A client with all rights of an agent but one: the logs of pods."""
    name = a_name("no-logs")
    rules = admin.get("role", "codeexec-agent")["rules"]
    others = [rule for rule in rules if "pods/log" not in rule["resources"]]
    assert len(others) == len(rules) - 1
    metadata = {"name": name, "namespace": SANDBOX}
    rbac = "rbac.authorization.k8s.io"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    role = {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": others}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": SANDBOX}
    refers = {"roleRef": {"apiGroup": rbac, "kind": "Role", "name": name}, "subjects": [subject]}
    binding = {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": metadata, **refers}
    await in_thread(admin.apply, account, role, binding)
    path = kubeconfig_of(SANDBOX, name)
    user = Admin(path)
    await in_thread(wait_for, "the binding to count", lambda: all(rule in rules_of(user) for rule in others))
    client = CodeExecutionClient(ClusterRef(SANDBOX, path))
    yield client
    await client.close()
    for kind in ("serviceaccount", "role", "rolebinding"):
        await in_thread(admin.delete, kind, name)


async def test_without_a_log_all_of_it_comes_at_the_end(operator, stage, without_logs, client, asking, agent):
    execution = await without_logs.submit(waiting_at(agent), asking())
    heard = asyncio.create_task(all_of(execution))
    control = await anext(client.attach(execution.name).output())
    assert (control.text, heard.done()) == ("begun\n", False), "with a log, what was printed is there"
    stage.script.open(agent)
    assert await heard == ["begun\ndone\n"], "not in two pieces, as it was printed"
    assert (await execution.result()).stdout == "begun\ndone\n"


async def all_of(execution: Execution) -> list[str]:
    return [chunk.text async for chunk in execution.output()]


@pytest.mark.suspect
async def test_a_callback_that_raises_stops_the_code(operator, stage, client, asking, agent):
    def on_output(_chunk: OutputChunk) -> None:
        raise ZeroDivisionError("of the callback")

    with pytest.raises(ZeroDivisionError, match="of the callback"):
        await client.execute(waiting_at(agent), asking(), on_output=on_output)
    record = await in_thread(stage.ended, agent)
    assert (record["status"]["phase"], record["status"]["stdout"]["text"]) == ("Cancelled", "begun\n")


async def test_a_log_that_breaks_off_is_read_again_and_nothing_comes_twice(operator, stage, through, asking, agent):
    seen = []
    running = asyncio.create_task(through.execute(waiting_at(agent), asking(), on_output=seen.append))
    await asyncio.to_thread(wait_for, "the first line", lambda: seen)
    with stage.client_proxy.fault(LOG, Delay(0)) as again:
        assert stage.client_proxy.cut_open(LOG) == 1
        await again.hit()
    await asyncio.to_thread(wait_for, "the log to be open again", lambda: stage.client_proxy.open_streams(LOG))
    stage.script.open(agent)
    assert (await running).output == "begun\ndone\n"
    assert "".join(chunk.text for chunk in seen) == "begun\ndone\n"


@pytest.mark.parametrize("fault", [Answer(500), Cut()], ids=str)
async def test_large_output_that_cant_be_read_is_an_error_and_can_be_read_later(
    operator, stage, through, asking, agent, fault, monkeypatch
):
    monkeypatch.setattr(outage, "OUTAGE_SECONDS", 1)
    execution = await through.submit(BIG, asking())
    with stage.client_proxy.fault(OUTPUT, fault) as rule:
        with pytest.raises(CodeExecError):
            await execution.result()
        assert rule.met >= 1
    assert len((await through.attach(execution.name).result()).output) == 900_000


@pytest.mark.parametrize("followed", [False, True], ids=["the result", "output as it comes"])
@pytest.mark.parametrize("fault", [Answer(503), Cut()], ids=str)
async def test_an_outage_while_large_output_is_read_costs_time_only(operator, stage, through, asking, fault, followed):
    seen = []
    with stage.client_proxy.fault(OUTPUT, fault, times=2) as rule:
        result = await through.execute(BIG, asking(), on_output=seen.append if followed else None)
    assert rule.met == 2
    assert len(result.output) == 900_000
    assert not followed or "".join(one.text for one in seen) == result.output


@pytest.mark.parametrize(("fault", "times"), [(Answer(503), 2), (Cut(), 3)], ids=str)
async def test_an_outage_while_a_session_is_waited_for_costs_time_only(operator, stage, through, asking, fault, times):
    with stage.client_proxy.fault(SESSION, fault, times=times) as rule:
        async with await through.open_session(asking(), wait=True) as session:
            assert rule.met == times
            assert (await session.execute(HELLO)).output == "hello\n"


async def test_a_refusal_while_a_session_is_waited_for_is_an_error_at_once(operator, stage, through, asking):
    """The control of the test above."""
    with stage.client_proxy.fault(SESSION, Answer(403)) as rule, pytest.raises(NotPermitted):
        await through.open_session(asking(), wait=True)
    assert rule.met == 1


async def test_an_outage_when_an_execution_is_attached_to_costs_time_only(operator, stage, through, asking, agent):
    execution = await through.submit(waiting_at(agent), asking())
    await stage.script.reached(agent)
    with stage.client_proxy.fault(GET, Answer(503), times=2) as rule:
        waiting = asyncio.create_task(through.attach(execution.name).result())
        await rule.hit(2)
        stage.script.open(agent)
        assert (await waiting).output == "begun\ndone\n"


async def test_an_outage_of_some_seconds_while_code_runs_costs_nothing(operator, stage, through, asking, agent):
    running = asyncio.create_task(through.execute(waiting_at(agent), asking()))
    await stage.script.reached(agent, running)
    with stage.client_proxy.fault(Match(), Cut()) as rule:
        stage.client_proxy.cut_open(Match())
        await rule.hit(4)
        stage.script.open(agent)
        await asyncio.to_thread(stage.ended, agent)
    assert (await running).output == "begun\ndone\n"


async def test_a_cancellation_whose_answer_is_lost_is_a_cancellation(operator, stage, through, asking, agent):
    execution = await through.submit(waiting_at(agent), asking())
    await stage.script.reached(agent)
    with stage.client_proxy.fault(Match("patch", EXECUTION_PLURAL), Lose("504")), pytest.raises(CodeExecError):
        await execution.cancel()
    assert (await execution.finished()).status.phase.value == "Cancelled"
