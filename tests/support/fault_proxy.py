"""Stands between a client and the API server, and does on demand what an API server or a network does on a bad day.

A fault is for the calls that a `Match` names, by verb and resource, and each rule counts the calls that it has met:

    with proxy.fault(Match("patch", "codeexecutions", subresource="status"), Lose(), times=1) as rule:
        ...
        rule.wait()

The proxy speaks plain HTTP to its client, on loopback, and TLS to the API server. A bearer token is passed on. A client
certificate can't be: the proxy shows that of the kubeconfig it was made from, if there is one. It runs in a thread of
its own, because it outlives the event loop of a test.
"""

import asyncio
import json
import ssl
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import aiohttp
import yaml
from aiohttp import web
from api_calls import Call, Match, call_of
from faults import Answer, Cut, Delay, Empty, Fault, Hold, Lose, Rule, Stall, WatchError, a_status, answered
from kube_credentials import Upstream, upstream_of, without_tls

from executor_client.transport.connections import Connector

T = TypeVar("T")
_Response = TypeVar("_Response", bound=web.StreamResponse)

_LARGEST_BODY: Final = 4 * 1024 * 1024
_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "upgrade", "host", "content-length", "te", "trailer"}
)


@dataclass
class Seen:
    """A call that came by."""

    call: Call
    at: float
    """When it came, by the monotonic clock."""
    status: int = 0
    """What is answered; 0: nothing, yet or ever. It is here before the caller can have read any of the answer."""


@dataclass(eq=False)
class _Stream:
    """An answer that is on its way."""

    seen: Seen
    request: web.Request
    silent: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def call(self) -> Call:
        return self.seen.call

    def answers(self, response: _Response) -> _Response:
        """Put down what is about to be answered."""
        self.seen.status = response.status
        return response

    def cut(self) -> None:
        if self.request.transport:
            self.request.transport.abort()

    async def passes(self) -> None:
        """Wait for ever once nothing is to come any more; who has gone away ends that."""
        if self.silent.is_set():
            await asyncio.Future[None]()


class FaultProxy:
    """One proxy before one API server.

    Args:
        kubeconfig: of the API server; its certificate authority counts, and its client certificate, if it has one.
    """

    def __init__(self, kubeconfig: str | Path) -> None:
        self._config = yaml.safe_load(Path(kubeconfig).read_text())
        self._upstream = upstream_of(self._config)
        self._rules: list[Rule] = []
        self._streams: set[_Stream] = set()
        self._seen: list[Seen] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def write_kubeconfig(self, path: Path, *, token: str | None = None) -> Path:
        """A kubeconfig that leads here, with this token, or with the credentials of the one it was made from."""
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(without_tls(self._config, self.url, token)))
        return path

    @contextmanager
    def fault(self, match: Match, fault: Fault, times: int | None = None) -> Iterator[Rule]:
        """The calls that are named get this fault, the next `times` of them, until the block ends.

        The rule that was made last counts first.
        """
        rule = Rule(match, fault, times)
        self._rules.insert(0, rule)
        try:
            yield rule
        finally:
            rule.end()
            self._rules.remove(rule)

    def cut_open(self, match: Match) -> int:
        """Reset the connections of the answers that are on their way; how many there were."""
        return self._do(self._each(match, _Stream.cut))

    def silence_open(self, match: Match) -> int:
        """From now on nothing more comes of the answers that are on their way; how many there were."""
        return self._do(self._each(match, lambda stream: stream.silent.set()))

    def open_streams(self, match: Match) -> int:
        """How many answers to such calls are on their way."""
        return self._do(self._each(match, lambda _: None))

    def seen(self, match: Match = Match()) -> list[Seen]:  # noqa: B008 - it is immutable
        """The calls that came by, in their order. None is forgotten: tests count from how many there were."""
        return [one for one in list(self._seen) if match(one.call)]

    async def _each(self, match: Match, do: Callable[[_Stream], None]) -> int:
        found = [stream for stream in self._streams if match(stream.call)]
        for stream in found:
            do(stream)
        return len(found)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _open(self) -> None:
        unlimited = aiohttp.ClientTimeout(total=None, sock_connect=60)
        self._session = aiohttp.ClientSession(
            connector=Connector(0, _context(self._upstream)),
            timeout=unlimited,
            auto_decompress=False,
            trust_env=False,
        )
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        self._port: int = self._runner.addresses[0][1]

    async def _close(self) -> None:
        for stream in list(self._streams):
            stream.cut()
        await self._runner.cleanup()
        await self._session.close()

    # --- one call ---

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        call = call_of(request.method, request.path, request.query, await request.read())
        stream = _Stream(Seen(call, time.monotonic()), request)
        self._seen.append(stream.seen)
        self._streams.add(stream)
        try:
            fault = next((rule.fault for rule in self._rules if rule.takes(call)), None)
            return await self._with(fault, stream)
        except (aiohttp.ClientError, OSError):  # the API server, or who has called, is gone
            return _cut(stream)
        finally:
            self._streams.discard(stream)

    async def _with(self, fault: Fault | None, stream: _Stream) -> web.StreamResponse:
        match fault:
            case Answer():
                return stream.answers(answered(fault))
            case WatchError(code):
                event = {"type": "ERROR", "object": a_status(code, "a fault on purpose")}
                body = json.dumps(event).encode() + b"\n"
                return stream.answers(web.Response(body=body, content_type="application/json"))
            case Empty():
                return stream.answers(web.Response())
            case Delay(seconds):
                await asyncio.sleep(seconds)
            case Hold(released):
                await asyncio.shield(asyncio.wrap_future(released))  # who has called may go before, and others stay
            case Stall(None):
                stream.silent.set()
                await stream.passes()
            case Cut(None):
                return _cut(stream)
            case Lose(how):
                return await self._lose(how, stream)
        after = fault.after if isinstance(fault, Stall | Cut) else None
        silent = isinstance(fault, Stall)
        pieces = _Pieces(stream, after, silent=silent)
        if stream.request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._converse(stream, pieces)
        return await self._pass_on(stream, pieces)

    async def _lose(self, how: str, stream: _Stream) -> web.StreamResponse:
        async with self._ask(stream) as answer:
            await answer.read()
        if how == "504":
            return stream.answers(answered(Answer(504)))
        if how == "stall":
            stream.silent.set()
            await stream.passes()
        return _cut(stream)

    def _ask(self, stream: _Stream) -> Any:
        request = stream.request
        return self._session.request(
            request.method,
            f"{self._upstream.server}{request.raw_path}",
            headers=_end_to_end(request.headers),
            data=stream.call.body or None,
            allow_redirects=False,
        )

    async def _pass_on(self, stream: _Stream, pieces: "_Pieces") -> web.StreamResponse:
        async with self._ask(stream) as answer, _aborting(answer):
            response = stream.answers(web.StreamResponse(status=answer.status, headers=_end_to_end(answer.headers)))
            response.content_length = answer.content_length
            if answer.content_length is None and answer.version == aiohttp.HttpVersion11:
                response.enable_chunked_encoding()
            await response.prepare(stream.request)
            rest = b""
            async for data in answer.content.iter_any():
                *whole, rest = (rest + data).split(b"\n")
                for line in whole if call_streams(stream.call) else ():
                    await pieces.another()
                    await response.write(line + b"\n")
                if not call_streams(stream.call):
                    await response.write(data)
                    rest = b""
            if rest:
                await response.write(rest)
            await stream.passes()
            await response.write_eof()
            return response

    async def _converse(self, stream: _Stream, pieces: "_Pieces") -> web.StreamResponse:
        request = stream.request
        asked = [one.strip() for one in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if one.strip()]
        headers = {
            name: value for name, value in _end_to_end(request.headers).items() if "websocket" not in name.lower()
        }
        url = f"{self._upstream.server}{request.raw_path}"
        try:
            far = await self._session.ws_connect(url, protocols=asked, headers=headers, max_msg_size=0, autoping=False)
        except aiohttp.WSServerHandshakeError as error:
            return stream.answers(answered(Answer(error.status, message=error.message)))
        async with far:
            options: dict[str, Any] = {"max_msg_size": 0, "compress": False, "timeout": 0.1, "autoping": False}
            near = stream.answers(web.WebSocketResponse(protocols=asked, **options))
            await near.prepare(request)

            async def to_client() -> None:
                async for message in far:
                    if message.type is aiohttp.WSMsgType.BINARY:
                        await pieces.another()
                    await _forward(message, near, stream)
                await stream.passes()
                await near.close()

            async def to_server() -> None:
                async for message in near:
                    await _forward(message, far, stream)
                await stream.passes()

            await _first_of(to_client(), to_server())
        return near


async def _forward(
    message: aiohttp.WSMessage, to: aiohttp.ClientWebSocketResponse | web.WebSocketResponse, stream: _Stream
) -> None:
    """Pass a message on, also a ping and its answer: the proxy itself answers none."""
    await stream.passes()
    match message.type:
        case aiohttp.WSMsgType.PING:
            await to.ping(message.data)
        case aiohttp.WSMsgType.PONG:
            await to.pong(message.data)
        case _:
            await to.send_bytes(message.data)


@asynccontextmanager
async def _aborting(answer: aiohttp.ClientResponse) -> AsyncIterator[None]:
    """If the caller goes away, the connection ends at once: TLS would wait for the API server's farewell."""
    transport = answer.connection and answer.connection.transport
    try:
        yield
    except asyncio.CancelledError:
        if transport:
            transport.abort()
        raise


class _Pieces:
    """Counts the pieces of an answer, and ends it after some."""

    def __init__(self, stream: _Stream, after: int | None, *, silent: bool) -> None:
        self._stream, self._left, self._silent = stream, after, silent

    async def another(self) -> None:
        """One more is about to be passed on."""
        if self._left == 0:
            if self._silent:
                self._stream.silent.set()
            else:
                self._stream.cut()
                raise ConnectionResetError("cut on purpose")
        await self._stream.passes()
        self._left = None if self._left is None else self._left - 1


def _cut(stream: _Stream) -> web.Response:
    """Reset the connection; nobody reads what is returned."""
    stream.cut()
    return web.Response(status=502)


def call_streams(call: Call) -> bool:
    """True if the answer comes line by line, for as long as it takes."""
    return call.verb == "watch" or call.subresource == "log"


async def _first_of(*work: Coroutine[Any, Any, None]) -> None:
    """Until one of them has ended; what it raised is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


def _context(upstream: Upstream) -> ssl.SSLContext | bool:
    if upstream.server.startswith("http:"):
        return True
    context = ssl.create_default_context(cadata=upstream.authority)
    if upstream.certificate and upstream.key:
        with tempfile.TemporaryDirectory() as folder:  # the library takes files only
            certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
            certificate.write_bytes(upstream.certificate)
            key.touch(mode=0o600)
            key.write_bytes(upstream.key)
            context.load_cert_chain(certificate, key)
    return context
