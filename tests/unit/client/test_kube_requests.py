"""How requests are made, whatever they ask for: their limits, their credentials, and what comes back."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from codeexec_api import CodeExecution
from executor_client import ClusterUnreachable, CodeExecError
from executor_client.transport import connections
from executor_client.transport.credentials import Credentials, Identity, Reading
from executor_client.transport.kube_api import KubeApi


class Answers:
    """A server that answers what it is told to, and counts how often it is asked."""

    def __init__(self, *answers: tuple[int, str | None]) -> None:
        self._answers = list(answers)
        self.asked = 0

    @asynccontextmanager
    async def serve(self, credentials: Credentials | None = None) -> AsyncIterator[KubeApi]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        async with TestServer(app) as server:
            configuration = client.Configuration(host=str(server.make_url("")).rstrip("/"))
            configuration.client_go_retries = True
            api = KubeApi(configuration, "sandboxes", credentials)
            try:
                yield api
            finally:
                await api.close()

    async def _answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        status, after = self._answers.pop(0) if self._answers else (200, None)
        return web.json_response({}, status=status, headers={"Retry-After": after} if after else {})


class TestRetryAfter:
    async def test_it_is_waited_for_no_longer_than_a_request_may_take(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
        async with Answers((503, "3600")).serve() as api:
            with pytest.raises(ClusterUnreachable, match=r"no answer .* \(TimeoutError: within 0.3 s\)"):
                await api.get_object(CodeExecution, "one")

    async def test_it_is_waited_for(self) -> None:
        answers = Answers((503, "0"), (429, "0"))
        async with answers.serve() as api:
            assert await api.get_object(CodeExecution, "one") == {}
        assert answers.asked == 3


@pytest.mark.parametrize("connected", [False, True], ids=["a new connection", "an open connection"])
async def test_a_client_that_is_closed_while_credentials_are_read_makes_no_request(connected: bool) -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()
    expired = datetime(2020, 1, 1, tzinfo=UTC)

    async def read() -> Reading:
        reading.set()
        await go_on.wait()
        return Reading(client.Configuration(), Identity("Bearer new"), ())

    credentials = Credentials(read, Reading(client.Configuration(), Identity("Bearer old"), ()))
    answers = Answers()
    async with answers.serve(credentials) as api:
        if connected:
            await api.get_object(CodeExecution, "one")
        credentials.identity = Identity("Bearer old", expires_at=expired)
        asking = asyncio.create_task(api.get_object(CodeExecution, "one"))
        await reading.wait()
        await api.close()
        go_on.set()
        with pytest.raises(ClusterUnreachable, match="the client was closed"):
            await asking
    assert answers.asked == connected


async def test_an_answer_that_is_no_json_is_an_error_of_ours() -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<html>log in</html>")

    app = web.Application()
    app.router.add_get("/{path:.*}", page)
    async with TestServer(app) as server:
        api = KubeApi(client.Configuration(host=str(server.make_url("")).rstrip("/")), "sandboxes")
        with pytest.raises(CodeExecError, match="the answer is no JSON: '<html>log in</html>'"):
            await api.get_object(CodeExecution, "one")
        await api.close()


def test_a_call_loads_no_generated_methods() -> None:
    code = """
import asyncio, sys
from executor_client.transport.cluster import Transport
from executor_client.transport.kube_api import KubeApi
from kubernetes.aio import client

async def main():
    transport = Transport(KubeApi(client.Configuration(host="http://127.0.0.1:1"), "sandboxes"))
    try:
        await transport.check()
    except Exception as error:
        print(type(error).__name__)
    await transport.close()

asyncio.run(main())
print(sorted(name for name in sys.modules if name.startswith("kubernetes.aio.client.api.")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["ClusterUnreachable", "[]"]
