"""A caller that goes away before an answer is complete leaves no connection behind, also over TLS."""

import asyncio
import gc
import ssl
import threading
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiohttp.client_proto import ResponseHandler
from certificates import Authority
from kubernetes.aio import client

from codeexec_api import CodeExecution
from executor_client.transport.cluster import Transport
from executor_client.transport.kube_api import KubeApi


class Server:
    """Takes one request, answers when it may, and then says nothing more: it doesn't end TLS in order either."""

    def __init__(self, folder: Path) -> None:
        self.asked, self.may_answer, self.over = threading.Event(), threading.Event(), threading.Event()
        self.listens = True
        """False: after the handshake it does nothing at all."""
        ours = self

        class Handler(BaseHTTPRequestHandler):
            def handle(self) -> None:
                if ours.listens:
                    super().handle()
                ours.over.wait()

            def do_GET(self) -> None:
                ours.asked.set()
                ours.may_answer.wait()
                self.send_response(200)
                with suppress(OSError):  # the caller may have gone away: that is what these tests are about
                    self.end_headers()
                ours.over.wait()

            do_POST = do_DELETE = do_GET  # noqa: N815 the names that http.server looks for

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*Authority(folder).issue("server", "server", addresses=("127.0.0.1",)))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.configuration = client.Configuration(host=f"https://127.0.0.1:{self._server.server_address[1]}")
        self.configuration.ssl_ca_cert = str(folder / "ca.crt")

    def end(self) -> None:
        self.may_answer.set()
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    one = Server(tmp_path)
    yield one
    one.end()


def log(transport: Transport) -> AsyncGenerator[Any, None]:
    return transport.follow_log("pod", None)


def watch(transport: Transport) -> AsyncGenerator[Any, None]:
    metadata = {"name": "run", "namespace": "sandboxes", "resourceVersion": "1"}
    spec = {"source": {"agent": "a"}, "blocks": [{"language": "sh", "sha256": "0" * 64, "sizeBytes": 0}]}
    return transport.changes(CodeExecution.parse({"metadata": metadata, "spec": spec}))


def complaints(work: Coroutine[Any, Any, None]) -> list[str]:
    """What Python says of what is still open when the loop of this work has ended."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        asyncio.run(work)
        gc.collect()
    return [str(one.message) for one in said if one.category is ResourceWarning]


@pytest.mark.parametrize("begin", [log, watch])
def test_nothing_of_it_is_open_when_the_loop_ends(
    server: Server, begin: Callable[[Transport], AsyncGenerator[Any, None]]
) -> None:
    async def go_away() -> None:
        transport = Transport(KubeApi(server.configuration, "sandboxes"))
        async with aclosing(begin(transport)) as answer:
            reading = asyncio.ensure_future(anext(answer))
            await asyncio.to_thread(server.asked.wait)
            reading.cancel()
            server.may_answer.set()
            with suppress(asyncio.CancelledError):
                await reading
        await transport.close()

    assert complaints(go_away()) == []


@pytest.mark.parametrize("ask", [Transport.check, Transport.whoami, lambda one: one.delete_lease("one")])
def test_a_request_that_ends_without_its_answer_leaves_nothing_open(
    server: Server, ask: Callable[[Transport], Coroutine[Any, Any, Any]]
) -> None:
    async def go_away() -> None:
        transport = Transport(KubeApi(server.configuration, "sandboxes"))
        asking = asyncio.ensure_future(ask(transport))
        await asyncio.to_thread(server.asked.wait)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await transport.close()

    assert complaints(go_away()) == []


def test_a_caller_that_goes_away_as_soon_as_there_is_a_connection_leaves_nothing_open(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio ends that connection itself, and aiohttp never knows it."""
    made, server.listens = ResponseHandler.connection_made, False

    async def go_away() -> None:
        transport = Transport(KubeApi(server.configuration, "sandboxes"))
        asking = asyncio.ensure_future(transport.check())

        def connected(self: ResponseHandler, one: asyncio.BaseTransport) -> None:
            made(self, one)
            asyncio.get_running_loop().call_soon(asking.cancel)

        monkeypatch.setattr(ResponseHandler, "connection_made", connected)
        with suppress(asyncio.CancelledError):
            await asking
        await transport.close()

    assert complaints(go_away()) == []
