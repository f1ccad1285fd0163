"""The pure parts of the doorway to the API server, and which way code takes; the rest is tried on a real one."""

import asyncio
import base64
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from factories import AGENT, UID, a_spec
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecution, CodeExecutionSpec, sealing
from codeexec_api.v1alpha1.bounds import MAX_SEALED_BYTES
from executor_client import (
    ClusterUnreachable,
    CodeExecError,
    CodeExecutionClient,
    NotFound,
    NotPermitted,
    OutputUnavailable,
)
from executor_client.cli.finished_records import FinishedRecords
from executor_client.cli.operator_log import OperatorLog
from executor_client.model.words import from_the_command_line
from executor_client.transport import creation, log_lines, outage
from executor_client.transport.api_errors import message as message_of
from executor_client.transport.api_errors import missing as missing_in
from executor_client.transport.api_errors import translate
from executor_client.transport.cluster import Transport
from executor_client.transport.connections import REQUEST_SECONDS, Connections
from executor_client.transport.creation import created_once, past_quota_races
from executor_client.transport.kube_api import LONG_SECONDS, KubeApi
from executor_client.transport.log_lines import lines_of
from executor_client.transport.outage import OUTAGE_SECONDS, Outage, Retries, lasting


class Pieces:
    """A body that arrives in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([], []),
        ([b"one\ntwo\n"], [b"one", b"two"]),
        ([b"o", b"ne", b"\nt", b"wo", b"\n\n"], [b"one", b"two", b""]),
        ([b"one\nnot ended"], [b"one"]),
        ([b"x" * 11, b"x\nshort\n"], [b"short"]),
        ([b"x" * 6, b"y" * 6, b"z" * 6, b"\nshort\n", b"x" * 11, b"\nlast\n"], [b"short", b"last"]),
    ],
)
async def test_lines_of_a_log(pieces: list[bytes], lines: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "_MAX_LINE_BYTES", 10)
    content: Any = Pieces(*pieces)
    assert [line async for line in lines_of(content)] == lines


@pytest.mark.parametrize(
    ("body", "missing", "message"),
    [
        ({"details": {"name": "x", "kind": "codeexecutions"}, "message": "gone"}, "codeexecutions", "gone"),
        ({"details": {"name": "x", "kind": "namespaces"}, "message": "gone"}, "", "gone"),
        ({"details": {}, "message": "no such kind"}, "", "no such kind"),
        ([1], "", "[1]"),
    ],
)
def test_what_a_refusal_says(body: Any, missing: str, message: str) -> None:
    assert (missing_in(json.dumps(body)), message_of(json.dumps(body))) == (missing, message)


def test_a_refusal_that_is_no_json() -> None:
    assert (missing_in("404 page not found"), message_of("404 page not found")) == ("", "404 page not found")


class Creating:
    """A request that is refused so often."""

    def __init__(
        self, refusals: int, reason: str = 'Operation cannot be fulfilled on resourcequotas "codeexec"'
    ) -> None:
        self.refusals, self.calls = refusals, 0
        self._error = ApiException(status=409, reason="Conflict")
        self._error.body = reason

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.refusals:
            raise self._error
        return "created"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "_RACE_SECONDS", (0.0, 0.0))


@pytest.mark.usefixtures("at_once")
class TestQuotaRaces:
    @pytest.mark.parametrize("refusals", [0, 1, 2])
    async def test_who_loses_one_tries_again(self, refusals: int) -> None:
        create = Creating(refusals)
        assert await past_quota_races(create) == "created"
        assert create.calls == refusals + 1

    async def test_who_loses_each_time_hears_of_it(self) -> None:
        create = Creating(3)
        with pytest.raises(ApiException, match="resourcequotas"):
            await past_quota_races(create)
        assert create.calls == 3

    async def test_another_conflict_is_none(self) -> None:
        create = Creating(1, "already exists")
        with pytest.raises(ApiException, match="already exists"):
            await past_quota_races(create)
        assert create.calls == 1


KEYS = {name: bytes([number]) * 32 for number, name in enumerate(("k1", "k2"), 1)}
PUBLISHED = {name: sealing.publish(name, private) for name, private in KEYS.items()}
SMALL = {"block-0": b"print('PLANTED')"}
Published = Mapping[str, str] | int | str | None


class ApiServer:
    """What creating an execution asks of one, and what it was asked.

    Args:
        published: the data of the ConfigMap with the key, the status that it is refused with, or "cut".
    """

    def __init__(self, published: Published) -> None:
        self.published = published
        self.asked = 0
        self.asked_who = 0
        self.lists = 0
        self.secrets: list[dict[str, Any]] = []
        self.executions: list[CodeExecution] = []
        self.connection: Transport
        self._over = asyncio.Event()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["ApiServer"]:
        app = web.Application()
        ours = "/apis/codeexec.dev/v1alpha1/namespaces/sandboxes/codeexecutions"
        app.router.add_get(ours, self._list)
        app.router.add_post(ours, self._create)
        app.router.add_post("/apis/authentication.k8s.io/v1/selfsubjectreviews", self._review)
        app.router.add_post("/api/v1/namespaces/sandboxes/secrets", self._create_secret)
        app.router.add_get("/api/v1/namespaces/sandboxes/configmaps/codeexec-sealing-key", self._get_key)
        async with TestServer(app) as server:
            self.connection = Transport(
                KubeApi(client.Configuration(host=str(server.make_url("")).rstrip("/")), "sandboxes")
            )
            try:
                yield self
            finally:
                await self.connection.close()
                self._over.set()

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        events = web.StreamResponse()
        await events.prepare(request)
        await self._over.wait()
        return events

    async def _create(self, request: web.Request) -> web.Response:
        made = await request.json()
        made["metadata"] |= {"uid": UID, "resourceVersion": "2", "generation": 1}
        self.executions.append(CodeExecution.parse(made))
        return web.json_response(made, status=201)

    async def _review(self, request: web.Request) -> web.Response:
        self.asked_who += 1
        return web.json_response(await request.json() | {"status": {"userInfo": {"username": AGENT}}}, status=201)

    async def _create_secret(self, request: web.Request) -> web.Response:
        self.secrets.append(await request.json())
        return web.json_response(self.secrets[-1], status=201)

    async def _get_key(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.published == "cut":
            assert request.transport
            request.transport.close()
        if isinstance(self.published, int):
            return web.json_response({"kind": "Status", "code": self.published}, status=self.published)
        data = {} if not isinstance(self.published, Mapping) else {"data": dict(self.published)}
        return web.json_response({"kind": "ConfigMap", "metadata": {"name": "codeexec-sealing-key"}} | data)

    async def create(self, payload: Mapping[str, bytes] = SMALL, name: str = "run-1") -> CodeExecutionSpec:
        """What a client creates, as it arrives here."""
        await self.connection.create(name, a_spec(payloadRef={"name": name}), payload)
        return self.executions[-1].spec


def opened(spec: CodeExecutionSpec, name: str = "run-1") -> dict[str, bytes]:
    """What the operator gets to see."""
    assert spec.payload_ref is None
    assert spec.sealed_payload
    data = sealing.unseal(spec.sealed_payload, KEYS[spec.sealed_payload.key_name], "sandboxes", name)
    return {key: base64.b64decode(content) for key, content in data.items()}


class TestSealing:
    @pytest.mark.parametrize("payload", [SMALL, {"block-0": b"", "file-0": b"\xff" * MAX_SEALED_BYTES}])
    async def test_small_code_is_sealed_and_there_is_no_secret(self, payload: dict[str, bytes]) -> None:
        async with ApiServer(PUBLISHED["k1"]).serve() as server:
            spec = await server.create(payload)
        assert opened(spec) == payload
        assert spec.blocks == a_spec().blocks
        assert "PLANTED" not in repr(server.executions)
        assert server.secrets == []

    @pytest.mark.parametrize(
        "published", [404, 403, 500, None, {}], ids=["none", "not for us", "out of order", "empty", "empty data"]
    )
    async def test_without_a_key_it_goes_in_a_secret(self, published: Published) -> None:
        async with ApiServer(published).serve() as server:
            for name in ("run-1", "run-2"):
                spec = await server.create(name=name)
                assert spec == a_spec(payloadRef={"name": name}, requestedBy=AGENT)
        assert [one["data"] for one in server.secrets] == [{"block-0": base64.b64encode(SMALL["block-0"]).decode()}] * 2
        assert server.asked == 1, "that there is no key is not asked for each time, either"

    async def test_larger_code_goes_in_a_secret_and_no_key_is_asked_for(self) -> None:
        async with ApiServer(PUBLISHED["k1"]).serve() as server:
            spec = await server.create({"block-0": b"x" * MAX_SEALED_BYTES, "file-0": b"x"})
        assert (spec.payload_ref, spec.sealed_payload) == (a_spec().payload_ref, None)
        assert len(server.secrets) == 1
        assert server.asked == 0

    async def test_without_code_there_is_nothing_to_seal(self) -> None:
        """Files of a session that are only listed."""
        spec = a_spec(blocks=[], payloadRef=None, sessionRef={"name": "work-1"})
        async with ApiServer(PUBLISHED["k1"]).serve() as server:
            await server.connection.create("run-1", spec, {})
        assert [one.spec for one in server.executions] == [spec.model_copy(update={"requested_by": AGENT})]
        assert (server.secrets, server.asked) == ([], 0)

    async def test_what_the_first_call_needs_is_asked_for_by_the_check(self) -> None:
        async with ApiServer(PUBLISHED["k1"]).serve() as server:
            await server.connection.check()
            assert (server.lists, server.asked_who, server.asked) == (1, 1, 1)
            await server.create()
            assert (server.lists, server.asked_who, server.asked) == (2, 1, 1), "the watch begins with a list"
            await server.connection.check()
            assert server.lists == 3, "whether the cluster answers is asked each time"

    async def test_each_says_who_creates_it_and_that_is_asked_for_once(self) -> None:
        async with ApiServer(PUBLISHED["k1"]).serve() as server:
            specs = await asyncio.gather(*(server.create(name=f"run-{number}") for number in range(5)))
        assert {spec.requested_by for spec in specs} == {AGENT}
        assert server.asked_who == 1

    @pytest.mark.parametrize(("before", "after"), [(PUBLISHED["k1"], "k2"), (404, "k2")], ids=["another", "the first"])
    async def test_the_key_is_asked_for_once_a_minute(
        self, before: Published, after: str, later: Callable[[float], None]
    ) -> None:
        async with ApiServer(before).serve() as server:
            names = [f"run-{number}" for number in range(5)]
            early = await asyncio.gather(*(server.create(name=name) for name in names))
            server.published = PUBLISHED[after]
            later(30)  # of the machine's own time as much may pass, too
            late = await server.create(name="late")
            assert server.asked == 1
            later(31)
            new = await server.create(name="new")
            assert server.asked == 2
        assert {spec.sealed_payload and spec.sealed_payload.key_name for spec in (*early, late)} == {
            None if before == 404 else "k1"
        }
        assert opened(new, "new") == SMALL

    async def test_a_key_counts_while_the_api_server_is_away(self, later: Callable[[float], None]) -> None:
        async with ApiServer(PUBLISHED["k1"]).serve() as server:
            payloads = server.connection._payloads
            known = await payloads.sealing_key()
            assert known
            server.published = "cut"
            for seconds in (61, 3600, 39_000):
                later(seconds)
                assert await payloads.sealing_key() == known
            asked = server.asked
            assert asked >= 4, "control: it is asked for each time"
            server.published = PUBLISHED["k2"]
            assert (await payloads.sealing_key() or {})["keyName"] == "k2"
            server.published = "cut"
            later(43_300)
            with pytest.raises(ClusterUnreachable):
                await payloads.sealing_key()

    async def test_without_a_key_an_outage_is_an_error(self, later: Callable[[float], None]) -> None:
        async with ApiServer(404).serve() as server:
            assert await server.connection._payloads.sealing_key() is None
            server.published = "cut"
            later(61)
            with pytest.raises(ClusterUnreachable):
                await server.connection._payloads.sealing_key()

    @pytest.fixture
    def later(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
        """Lets the clock of the loop jump: nothing here has a timeout that is as short."""
        passed = 0.0
        clock = asyncio.BaseEventLoop.time

        def jump(seconds: float) -> None:
            nonlocal passed
            passed += seconds

        monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: clock(loop) + passed)
        return jump

    @pytest.mark.parametrize(
        "published",
        [
            {"keyName": "k1"},
            PUBLISHED["k1"] | {"publicKey": "no base64!"},
            PUBLISHED["k1"] | {"publicKey": base64.b64encode(bytes(32)).decode()},
            PUBLISHED["k1"] | {"keyName": "No Name"},
        ],
        ids=["no key", "no base64", "of no use", "no name"],
    )
    async def test_what_is_no_key_is_said_and_nothing_is_created(self, published: dict[str, str]) -> None:
        async with ApiServer(published).serve() as server:
            with pytest.raises(CodeExecError, match="the ConfigMap codeexec-sealing-key in namespace 'sandboxes'") as e:
                await server.create()
        assert "PLANTED" not in str(e.value)
        assert "delete its data and to restart the operator" in str(e.value)
        assert (server.secrets, server.executions) == ([], [])


def listed_in_vain(status: int) -> CodeExecError:
    """How a list fails that is made instead of a watch."""
    error = CodeExecError(f"could not list CodeExecutions: {status}")
    error.__cause__ = ApiException(status=status)
    return error


class TestOutage:
    """How often a watch is opened again, and for how long."""

    @pytest.fixture
    def now(self) -> list[float]:
        return [100.0]

    @pytest.fixture
    def outage(self, now: list[float]) -> Outage:
        return Outage(lambda: now[0])

    @pytest.mark.parametrize(("chance", "share"), [(min, 0.5), (max, 1)], ids=["shortest", "longest"])
    def test_watches_of_no_use_are_opened_less_and_less_often(
        self, outage: Outage, now: list[float], monkeypatch: pytest.MonkeyPatch, chance: Any, share: float
    ) -> None:
        monkeypatch.setattr(random, "uniform", chance)
        pauses = []
        for _ in range(6):
            outage.opens()
            assert outage.ended()
            pauses.append(outage.pause())
            now[0] += pauses[-1]
        assert pauses == [share * seconds for seconds in (1, 2, 4, 8, 8, 8)]
        outage.opens()
        outage.said = True
        assert not outage.ended()
        assert outage.pause() == share * 0.5

    def test_a_long_watch_that_had_nothing_to_say_is_opened_again_at_once(
        self, outage: Outage, now: list[float]
    ) -> None:
        outage.opens()
        now[0] += 240
        assert not outage.ended()
        assert outage.pause() == 0

    @pytest.mark.parametrize(
        ("error", "seconds"),
        [(ApiException(status=status), 30) for status in (429, 500, 502, 503, 504)]
        + [(ApiException(status=status), 5) for status in (401, 403, 404)]
        + [(ClusterUnreachable("no answer"), 30), (CodeExecError("refused"), 5)]
        + [(listed_in_vain(503), 30), (listed_in_vain(403), 5)],
        ids=str,
    )
    def test_how_long_there_is_hope(self, outage: Outage, now: list[float], error: Exception, seconds: float) -> None:
        outage.opens()
        outage.answered = True
        now[0] += 300  # it was open for long, and the outage begins with its end
        assert outage.passes(error)
        now[0] += seconds
        outage.opens()
        assert outage.passes(error)
        now[0] += 0.1
        assert not outage.passes(error)

    @pytest.mark.parametrize("said", [True, False])
    def test_an_outage_begins_with_the_end_of_a_watch_however_short_that_was(
        self, outage: Outage, now: list[float], said: bool
    ) -> None:
        outage.opens()
        outage.answered, outage.said = True, said
        now[0] += 10  # code may take so long to start
        assert outage.passes(ClusterUnreachable("cut off"))
        outage.opens()
        now[0] += 30
        assert outage.passes(ClusterUnreachable("no answer"))
        now[0] += 0.1
        assert not outage.passes(ClusterUnreachable("no answer"))

    def test_refusals_count_from_the_first_of_them_in_a_row(self, outage: Outage, now: list[float]) -> None:
        """An API server that was away refuses at first, until it knows all rights."""

        def passes(error: Exception, seconds: float) -> bool:
            now[0] += seconds
            outage.opens()
            return outage.passes(error)

        away, refusal = ClusterUnreachable("connection refused"), ApiException(status=403)
        assert passes(away, 0)
        assert passes(refusal, 12)
        assert passes(refusal, 5)
        assert passes(away, 1)
        assert passes(refusal, 1), "it was away once more"
        assert passes(refusal, 5)
        assert not passes(refusal, 0.1)
        assert passes(away, 5)
        assert not passes(refusal, 1), "30 s in all"

    def test_watches_that_are_accepted_and_break_off_at_once_are_one_outage(
        self, outage: Outage, now: list[float]
    ) -> None:
        for _ in range(4):
            outage.opens()
            outage.answered = True
            assert outage.passes(ClusterUnreachable("cut off"))
            now[0] += 10
        outage.opens()
        outage.answered = True
        assert not outage.passes(ClusterUnreachable("cut off"))
        outage.opens()
        outage.answered = outage.said = True
        assert outage.passes(ClusterUnreachable("cut off")), "something came, so this is another one"

    @pytest.mark.parametrize(
        ("error", "stays"),
        [(ApiException(status=status), False) for status in (429, 500, 502, 503, 504)]
        + [(ApiException(status=status), True) for status in (401, 403, 404, 409, 410, 422)]
        + [(ClusterUnreachable("no answer"), False), (CodeExecError("refused"), True)]
        + [(NotFound("it"), True), (OutputUnavailable("it is gone"), True), (NotPermitted("you"), True)]
        + [(listed_in_vain(503), False), (listed_in_vain(403), True)],
        ids=str,
    )
    def test_what_stays_though_it_is_asked_for_again(self, error: Exception, stays: bool) -> None:
        assert lasting(error) is stays

    def test_an_api_server_that_accepts_connections_and_answers_none_is_away(
        self, outage: Outage, now: list[float]
    ) -> None:
        attempts = 0
        passes = True
        while passes and attempts < 10:
            outage.opens()
            now[0] += REQUEST_SECONDS
            passes = outage.passes(ClusterUnreachable("no answer"))
            attempts += 1
        assert (passes, attempts) == (False, 3), "30 s, as for one that refuses connections"


class TestRetries:
    """Requests that are made again while the API server is away."""

    @pytest.fixture
    def retries(self) -> Retries:
        retries = Retries()
        retries.answered = True
        return retries

    @pytest.fixture
    def pauses(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """How long each pause was to last; the clock of the loop jumps instead, and stands still meanwhile."""
        made: list[float] = []
        now = time.monotonic()

        async def pause(_: Retries, seconds: float) -> None:
            made.append(seconds)

        monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda _: now + sum(made))
        monkeypatch.setattr(Retries, "pause", pause)
        monkeypatch.setattr(random, "uniform", max)
        return made

    async def asked(self, retries: Retries, *failures: CodeExecError, seconds: float | None = None) -> int:
        """How often it was asked until it succeeded, or failed for good."""
        asked = 0

        async def ask() -> None:
            nonlocal asked
            asked += 1
            if asked <= len(failures):
                raise failures[asked - 1]

        with suppress(CodeExecError):
            await retries.patiently(ask, seconds)
        return asked

    async def test_an_outage_is_lasted_out_with_ever_longer_pauses(self, retries: Retries, pauses: list[float]) -> None:
        away = [ClusterUnreachable("no answer"), listed_in_vain(503)] * 10
        assert await self.asked(retries, *away[:3]) == 4
        assert pauses == [0.5, 1, 2]
        pauses.clear()
        assert await self.asked(retries, *away) == 8
        assert pauses == [0.5, 1, 2, 4, 8, 8, 6.5]
        assert sum(pauses) == OUTAGE_SECONDS
        pauses.clear()
        assert await self.asked(retries, *away, seconds=4) == 5
        assert sum(pauses) == 4

    async def test_clients_that_failed_together_do_not_come_back_together(
        self, retries: Retries, pauses: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(random, "uniform", min)
        await self.asked(retries, *[ClusterUnreachable("no answer")] * 5)
        assert pauses == [0.25, 0.5, 1, 2, 4]

    async def test_a_refusal_is_raised_at_once(self, retries: Retries, pauses: list[float]) -> None:
        for refusal in (NotFound("it"), NotPermitted("you"), OutputUnavailable("gone"), listed_in_vain(403)):
            assert await self.asked(retries, refusal) == 1
        assert await self.asked(retries, listed_in_vain(503), listed_in_vain(403)) == 2
        assert pauses == [0.5]

    async def test_an_address_that_has_never_answered_is_no_outage(self, retries: Retries, pauses: list[float]) -> None:
        retries.answered = False
        assert await self.asked(retries, ClusterUnreachable("no such host")) == 1
        assert pauses == []

    async def test_close_ends_it_at_once(self, retries: Retries, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outage, "_RECONNECT_SECONDS", 3600)

        async def ask() -> None:
            raise ClusterUnreachable("no answer")

        asking = asyncio.create_task(retries.patiently(ask, 3600))
        await asyncio.sleep(0)
        retries.close()
        async with asyncio.timeout(60):  # the first pause alone would last longer
            with pytest.raises(ClusterUnreachable):
                await asking

    async def test_a_creation_lasts_out_an_outage(self, retries: Retries, pauses: list[float]) -> None:
        found: list[bool] = []
        failures = [ConnectionRefusedError()] * 6

        async def create() -> str:
            if failures:
                raise failures.pop()
            return "created"

        async def find(is_there: bool) -> None:
            found.append(is_there)

        assert await created_once(create, find, retries) == "created"
        assert pauses == [0.5, 1, 2, 4, 8, 8]
        pauses.clear()
        failures = [ConnectionRefusedError()] * 20
        with pytest.raises(ConnectionRefusedError):
            await created_once(create, find, retries)
        assert sum(pauses) == OUTAGE_SECONDS
        assert found == [False]

    async def test_a_creation_is_not_tried_again_on_a_closed_connection(
        self, retries: Retries, pauses: list[float]
    ) -> None:
        asked: list[str] = []

        async def create() -> None:
            asked.append("create")
            retries.close()
            raise ConnectionResetError

        async def find(_: bool) -> None:
            asked.append("find")

        with pytest.raises(ConnectionResetError):
            await created_once(create, find, retries)
        assert (asked, pauses) == (["create", "find"], [])

    async def test_a_cancellation_of_code_outlasts_a_short_outage(self, pauses: list[float]) -> None:
        asked = []

        async def patch(request: web.Request) -> web.Response:
            asked.append(await request.json())
            if len(asked) < 3:
                return web.json_response({"kind": "Status", "code": 503}, status=503)
            return web.json_response({})

        app = web.Application()
        app.router.add_patch("/apis/codeexec.dev/v1alpha1/namespaces/sandboxes/codeexecutions/run-1", patch)
        async with TestServer(app) as server:
            api = KubeApi(client.Configuration(host=str(server.make_url("")).rstrip("/")), "sandboxes")
            transport = Transport(api)
            await CodeExecutionClient._cancel(transport, "run-1")
            await transport.close()
        assert asked == [{"spec": {"cancelled": True}}] * 3
        assert pauses == [0.5, 1]


async def test_a_close_that_is_broken_off_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    api = KubeApi(client.Configuration(host="http://127.0.0.1:1"), "sandboxes")
    transport, asked = Transport(api), asyncio.Event()

    async def hang() -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(transport._shared_watch, "close", hang)
    closing = asyncio.create_task(transport.close())
    await asked.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert api.client.rest_client._closed


def a_rule_is_broken(*causes: dict[str, str]) -> str:
    message = 'ExecutionApproval.codeexec.dev "run-1-0a" is invalid: spec: Invalid value: "object": long'
    return json.dumps({"kind": "Status", "code": 422, "message": message, "details": {"causes": list(causes)}})


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (
            {"field": "spec", "message": 'Invalid value: "object": nobody approves their own request'},
            "nobody approves ",
        ),
        ({"field": "<nil>", "message": 'Invalid value: "object": metadata.name is too long'}, "metadata.name is"),
        ({"field": "spec.blocks", "message": 'Invalid value: "array": there must be one'}, "spec.blocks: there must"),
        ({"field": "spec.image", "message": 'Invalid value: "string": spec.image is a tag'}, "spec.image is a tag"),
        ({"field": "spec.image", "message": "Invalid value: spec.image is a tag"}, "spec.image is a tag"),
        ({"field": "spec.a", "message": "Invalid value: 5: should be 3"}, "spec.a: Invalid value: 5: should be 3"),
        (
            {"field": "spec.limits.cpu", "message": 'Invalid value: "much": it should match ^[0-9]+$'},
            'spec.limits.cpu: Invalid value: "much": it',
        ),
        (
            {"message": "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: spec.requestedBy must be anna"},
            "spec.requestedBy must be anna",
        ),
    ],
)
def test_a_rule_of_the_api_is_told_in_its_own_words(cause: dict[str, str], told: str) -> None:
    error = ApiException(status=422)
    error.body = a_rule_is_broken(cause)
    text = str(translate("create the ExecutionApproval", "sandboxes", error))
    assert text.startswith(f"could not create the ExecutionApproval in namespace 'sandboxes': {told}")
    assert "object" not in text
    assert "422" not in text


def test_all_rules_that_are_broken_are_told() -> None:
    error = ApiException(status=422)
    error.body = a_rule_is_broken({"field": "a", "message": "one"}, {"field": "b", "message": "two"})
    assert str(translate("create it", "sandboxes", error)).endswith(": a: one; b: two")


def test_a_field_that_the_crds_do_not_know_yet_asks_for_newer_crds() -> None:
    error = ApiException(status=400, reason="Bad Request")
    error.body = json.dumps({"message": 'strict decoding error: unknown field "spec.new"'})
    text = str(translate("create the CodeSession", "sandboxes", error))
    assert 'unknown field "spec.new"; the CRDs in this cluster are older than this client: upgrade the codeexec' in text


class TestKubeconfig:
    """Which file was looked for, and what to do: one sentence."""

    @pytest.fixture
    def refusal(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Awaitable[str]]:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("KUBECONFIG", raising=False)

        async def connect(kubeconfig: str | None = None, context: str | None = None) -> str:
            with pytest.raises(ClusterUnreachable) as caught:
                await Transport.connect(kubeconfig=kubeconfig, context=context, namespace="sandboxes")
            return str(caught.value)

        return connect

    async def test_there_is_none(self, refusal, tmp_path, monkeypatch, caplog) -> None:
        remedy = "set KUBECONFIG to the path of your kubeconfig, or pass kubeconfig="
        default = tmp_path / ".kube" / "config"
        assert await refusal() == (
            f"found no kubeconfig: KUBECONFIG is not set, and {default} does not exist; {remedy}"
        )
        assert await refusal("/no/such") == f"found no kubeconfig: /no/such does not exist; {remedy}"
        monkeypatch.setenv("KUBECONFIG", "/one:/two")
        assert await refusal() == f"found no kubeconfig: /one and /two do not exist; {remedy}"
        with from_the_command_line():
            assert (await refusal()).endswith("or pass --kubeconfig")
        assert caplog.text == "", "nothing is said twice"

    @pytest.mark.parametrize(
        ("content", "context", "told"),
        [
            ("", None, "{} is not a kubeconfig: set KUBECONFIG or pass kubeconfig="),
            ("a: [", None, "can't read the kubeconfig {}: while parsing"),
            ("{contexts: []}", None, "the kubeconfig {} has no current context; pass context=, or run `kubectl config"),
            (
                "{contexts: []}",
                "there",
                "the kubeconfig {} has no context 'there'; `kubectl config get-contexts` lists",
            ),
            ("{contexts: [], current-context: x}", None, "can't use the kubeconfig {}: "),
        ],
        ids=["empty", "no YAML", "no current context", "no such context", "another fault"],
    )
    async def test_it_is_of_no_use(self, refusal, tmp_path, content, context, told) -> None:
        file = tmp_path / "kubeconfig"
        file.write_text(content)
        assert (await refusal(str(file), context)).startswith(told.format(file))


EXPIRED = {"kind": "Status", "code": 410, "reason": "Expired", "metadata": {"continue": "from here"}}


@pytest.mark.parametrize("gone", [EXPIRED, {**EXPIRED, "metadata": {}}], ids=["with a token", "without"])
async def test_a_list_that_has_become_too_old_goes_on_where_the_api_server_says(gone: dict[str, Any]) -> None:
    asked = []

    async def page(request: web.Request) -> web.Response:
        asked.append(request.query.get("continue"))
        match asked[-1]:
            case None:
                return web.json_response({"metadata": {"continue": "old"}, "items": [{"number": 1}]})
            case "old":
                return web.json_response(gone, status=410)
        return web.json_response({"metadata": {}, "items": [{"number": 2}]})

    app = web.Application()
    app.router.add_get("/apis/codeexec.dev/v1alpha1/namespaces/sandboxes/codeexecutions", page)
    async with TestServer(app) as server:
        api = KubeApi(client.Configuration(host=str(server.make_url("")).rstrip("/")), "sandboxes")
        found = []
        try:
            async for one in api.list_raw(CodeExecution):
                found.append(one["number"])
        except CodeExecError as error:
            found.append(str(error)[:3])
        finally:
            await api.close()
    if gone is EXPIRED:
        assert (found, asked) == ([1, 2], [None, "old", "from here"])
    else:
        assert (found, asked) == ([1, "cou"], [None, "old"])


async def test_what_may_be_large_has_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def request(*_: Any, **more: Any) -> None:
        asked.append(more.get("_request_timeout"))
        raise TimeoutError

    monkeypatch.setattr(Connections, "request", request)
    configuration = client.Configuration(host="http://127.0.0.1:1")
    records, log = FinishedRecords(configuration, "sandboxes"), OperatorLog(configuration, "codeexec-system")
    for call in (
        anext(records.list_raw(CodeExecution)),
        records.listed("codeexecutions", ()),
        log._pods(),
        log._text("operator", previous=False),
    ):
        with pytest.raises((ClusterUnreachable, TimeoutError)):
            await call
    assert asked == [LONG_SECONDS] * 4
    await asyncio.gather(records.close(), log.close())
