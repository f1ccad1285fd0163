"""The fault proxy does what each fault says, and nothing to the calls that no rule is for."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import yaml
from aiohttp import web
from api_calls import Call, Match, call_of
from fault_proxy import FaultProxy
from faults import Answer, Cut, Delay, Hold, Lose, Stall, WatchError

PODS = "/api/v1/namespaces/a/pods"
SHORT = aiohttp.ClientTimeout(total=0.4)
pytestmark = pytest.mark.suspect
GONE = (aiohttp.ClientError, ConnectionError)


class Server:
    """An API server, as far as these tests go: it counts what it is asked to do."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.was_asked = asyncio.Event()
        self.watches = 0
        self.watching = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def any(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        self.was_asked.set()
        if request.query.get("watch"):
            return await self._watch(request)
        if request.path.endswith("/attach"):
            return await self._attach(request)
        return web.json_response({"body": (await request.read()).decode(), "by": request.headers.get("Authorization")})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        self.watches += 1
        try:
            for number in range(3):
                await response.write(json.dumps({"type": "ADDED", "object": number}).encode() + b"\n")
            self.watching.set()
            await self.goes_on.wait()
            await response.write(b'{"type": "ADDED", "object": 3}\n')
            await asyncio.Future()
        finally:
            self.watches -= 1
        return response

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        async for message in socket:
            await socket.send_bytes(b"said " + message.data)
        return socket


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.any)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def proxy(server, tmp_path):
    async with serving(server) as url:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        proxy = await asyncio.to_thread(FaultProxy(path).__enter__)
        yield proxy
        await asyncio.to_thread(proxy.__exit__)


@pytest.fixture
async def http(proxy):
    async with aiohttp.ClientSession(proxy.url) as session:
        yield session


async def events_of(response: aiohttp.ClientResponse, count: int) -> list[int]:
    return [json.loads(await response.content.readline())["object"] for _ in range(count)]


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/namespaces/a/pods", ("list", "pods", "a", "", "")),
        ("GET", "/api/v1/namespaces/a/pods?watch=true", ("watch", "pods", "a", "", "")),
        ("GET", "/api/v1/nodes/n", ("get", "nodes", "", "n", "")),
        ("GET", "/api/v1/namespaces/a", ("get", "namespaces", "", "a", "")),
        ("GET", "/api/v1/namespaces/a/pods/p/attach", ("connect", "pods", "a", "p", "attach")),
        ("POST", "/apis/codeexec.dev/v1/namespaces/a/cex", ("create", "cex", "a", "", "")),
        ("PATCH", "/apis/codeexec.dev/v1/namespaces/a/cex/e/status", ("patch", "cex", "a", "e", "status")),
        ("PUT", "/api/v1/namespaces/a/pods/p", ("update", "pods", "a", "p", "")),
        ("DELETE", "/api/v1/namespaces/a/pods/p", ("delete", "pods", "a", "p", "")),
        ("DELETE", "/api/v1/namespaces/a/pods", ("deletecollection", "pods", "a", "", "")),
        ("GET", "/version", ("get", "", "", "", "")),
    ],
)
def test_a_call_has_the_verb_and_the_resource_that_rbac_has(method, path, expected):
    path, _, query = path.partition("?")
    call = call_of(method, path, dict(one.split("=") for one in query.split("&") if one), b"")
    assert (call.verb, call.resource, call.namespace, call.name, call.subresource) == expected


@pytest.mark.parametrize(
    ("match", "meant"),
    [
        (Match(), True),
        (Match("get,patch", "cex"), True),
        (Match("get"), False),
        (Match(subresource=""), False),
        (Match(subresource="status", name="e", namespace="a"), True),
        (Match(namespace="b"), False),
        (Match(where=lambda call: call.phase == "Running"), True),
        (Match(where=lambda call: call.phase == "Pending"), False),
    ],
)
def test_a_match_looks_at_what_it_names_and_at_nothing_else(match, meant):
    body = json.dumps({"status": {"phase": "Running"}}).encode()
    assert match(Call("patch", "cex", "a", "e", "status", body=body)) is meant


async def test_what_no_rule_is_for_passes_unchanged(proxy, http, server):
    with proxy.fault(Match("delete", "pods"), Answer(500)) as rule:
        async with http.post(PODS, data=b"{}", headers={"Authorization": "Bearer secret"}) as response:
            assert (response.status, await response.json()) == (200, {"body": "{}", "by": "Bearer secret"})
    assert (server.asked, rule.met) == ([f"POST {PODS}"], 0)
    assert [(one.call.verb, one.status) for one in proxy.seen()] == [("create", 200)]


@pytest.mark.parametrize("status", [403, 409, 410, 429, 500, 502, 503, 504])
async def test_an_answer_comes_as_kubernetes_sends_it_and_only_so_often(proxy, http, server, status):
    with proxy.fault(Match("list", "pods"), Answer(status, retry_after=2), times=2) as rule:
        for _ in range(2):
            async with http.get(PODS) as response:
                body = await response.json()
                assert (response.status, body["kind"], body["code"]) == (status, "Status", status)
                assert response.headers["Retry-After"] == "2"
        async with http.get(PODS) as response:
            assert response.status == 200
    assert rule.met == 2
    assert server.asked == [f"GET {PODS}"]


async def test_a_delay_holds_the_call_back_and_then_lets_it_through(proxy, http, server):
    with proxy.fault(Match("get"), Delay(60)), pytest.raises(TimeoutError):
        await http.get(f"{PODS}/p", timeout=SHORT)
    assert server.asked == []
    with proxy.fault(Match("get"), Delay(0.01)):
        async with http.get(f"{PODS}/p") as response:
            assert response.status == 200


async def test_a_call_is_held_until_the_test_lets_it_go_whoever_else_has_gone_before(proxy, http, server):
    hold = Hold()

    async def get(name: str) -> int:
        async with http.get(f"{PODS}/{name}") as response:
            return response.status

    with proxy.fault(Match("get"), hold) as rule:
        going = asyncio.create_task(get("who-goes"))
        await rule.hit(1)
        going.cancel()
        await asyncio.wait([going])
        held = [asyncio.create_task(get(name)) for name in ("0", "1")]
        await rule.hit(3)
        assert server.asked == []
        hold.release()
        hold.release()
        assert [await one for one in held] == [200, 200]
        assert await get("later") == 200
    assert sorted(server.asked) == [f"GET {PODS}/{name}" for name in ("0", "1", "later")]


async def test_a_stall_keeps_the_connection_and_answers_nothing(proxy, http, server):
    with proxy.fault(Match("create"), Stall()), pytest.raises(TimeoutError):
        await http.post(PODS, data=b"{}", timeout=SHORT)
    assert server.asked == []


async def test_a_cut_resets_the_connection_before_the_call_is_passed_on(proxy, http, server):
    with proxy.fault(Match("create"), Cut()), pytest.raises(GONE):
        await http.post(PODS, data=b"{}")
    assert server.asked == []


@pytest.mark.parametrize("how", ["cut", "stall", "504"])
async def test_a_lost_answer_is_of_a_call_that_was_carried_out(proxy, http, server, how):
    with proxy.fault(Match("create"), Lose(how)):
        if how == "504":
            async with http.post(PODS, data=b"{}") as response:
                assert response.status == 504
        elif how == "cut":
            with pytest.raises(GONE):
                await http.post(PODS, data=b"{}")
        else:
            waiting = asyncio.create_task(http.post(PODS, data=b"{}"))
            await server.was_asked.wait()
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            waiting.cancel()
    assert server.asked == [f"POST {PODS}"]
    assert [one.status for one in proxy.seen()] == [504 if how == "504" else 0]


async def test_a_watch_says_error_with_a_code(proxy, http):
    with proxy.fault(Match("watch"), WatchError(410)):
        async with http.get(PODS, params={"watch": "true"}) as response:
            event = json.loads(await response.content.readline())
            assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
            assert await response.content.readline() == b""


async def test_a_watch_goes_silent_after_some_events(proxy, http):
    with proxy.fault(Match("watch"), Stall(after=2)):
        async with http.get(PODS, params={"watch": "true"}) as response:
            assert await events_of(response, 2) == [0, 1]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await response.content.readline()


async def test_a_watch_is_cut_after_some_events(proxy, http):
    with proxy.fault(Match("watch"), Cut(after=1)):
        async with http.get(PODS, params={"watch": "true"}) as response:
            assert await events_of(response, 1) == [0]
            with pytest.raises(GONE):
                await response.content.readline()


async def test_watches_that_are_open_are_found_cut_and_silenced(proxy, http, server):
    everything, watch = Match("watch", "pods"), {"params": {"watch": "true"}}
    async with http.get(PODS, **watch) as one, http.get(PODS, **watch) as other:
        for response in (one, other):
            assert await events_of(response, 3) == [0, 1, 2]
        assert (proxy.open_streams(everything), proxy.open_streams(Match("watch", "nodes"))) == (2, 0)
        assert proxy.cut_open(everything) == 2
        for response in (one, other):
            with pytest.raises(GONE):
                async with asyncio.timeout(60):
                    await response.content.readline()
    async with http.get(PODS, **watch) as one, http.get(PODS, **watch) as other:
        for response in (one, other):
            assert await events_of(response, 3) == [0, 1, 2]
        assert proxy.silence_open(everything) == 2
        server.goes_on.set()
        for response in (one, other):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await response.content.readline()
    async with http.get(PODS, **watch) as third:  # the control: it was not open then
        assert await events_of(third, 4) == [0, 1, 2, 3]


async def attach(http: aiohttp.ClientSession):
    return await http.ws_connect(f"{PODS}/p/attach", protocols=("v4.channel.k8s.io",))


async def test_an_attach_passes_both_ways(proxy, http):
    async with await attach(http) as socket:
        await socket.send_bytes(b"one")
        assert (socket.protocol, await socket.receive_bytes()) == ("v4.channel.k8s.io", b"said one")
        assert proxy.open_streams(Match("connect", subresource="attach")) == 1


async def test_an_attach_that_is_refused_says_so(proxy, http):
    with proxy.fault(Match("connect"), Answer(403)), pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await attach(http)
    assert refused.value.status == 403


async def test_an_attach_goes_silent_with_its_socket_open(proxy, http):
    with proxy.fault(Match("connect"), Stall(after=1)):
        async with await attach(http) as socket:
            await socket.send_bytes(b"one")
            assert await socket.receive_bytes() == b"said one"
            await socket.send_bytes(b"two")
            with pytest.raises(TimeoutError):
                await socket.receive(timeout=0.3)
            proxy.cut_open(Match("connect"))


async def test_an_attach_that_is_open_is_silenced(proxy, http):
    async with await attach(http) as socket:
        await socket.send_bytes(b"one")
        assert await socket.receive_bytes() == b"said one"
        assert proxy.silence_open(Match("connect")) == 1
        await socket.send_bytes(b"two")
        with pytest.raises(TimeoutError):
            await socket.receive(timeout=0.3)
        proxy.cut_open(Match("connect"))


async def test_an_attach_is_cut(proxy, http):
    async with await attach(http) as socket:
        await socket.send_bytes(b"one")
        await socket.receive_bytes()
        assert proxy.cut_open(Match("connect")) == 1
        assert (await socket.receive(timeout=60)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)


async def test_a_rule_is_waited_for_until_its_fault_has_hit(proxy, http):
    with proxy.fault(Match("get"), Answer(503)) as rule:
        waiting = asyncio.create_task(rule.hit(2, seconds=60))
        for _ in range(2):
            assert not waiting.done()
            async with http.get(f"{PODS}/p") as response:
                await response.read()
        await waiting
        with pytest.raises(AssertionError, match=r"in vain for 3 calls .*: 2 came"):
            await rule.hit(3, seconds=0.1)


async def test_the_rule_that_was_made_last_counts_first(proxy, http):
    with proxy.fault(Match("get"), Answer(500)), proxy.fault(Match("get"), Answer(429), times=1):
        for status in (429, 500):
            async with http.get(f"{PODS}/p") as response:
                assert response.status == status


async def test_its_kubeconfig_leads_to_it(proxy, tmp_path):
    config = yaml.safe_load(proxy.write_kubeconfig(tmp_path / "made").read_text())
    assert config["clusters"][0]["cluster"] == {"server": proxy.url}
    assert config["users"][0]["user"] == {"token": "secret"}
