"""The operator's `Cluster` on an API server that a test plays by a function, over real connections."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from kubernetes.aio.client import Configuration

from codeexec_operator.adapters.api_server import ApiServer
from codeexec_operator.adapters.cluster import Cluster


@asynccontextmanager
async def answered_by(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[Cluster]:
    """A cluster whose requests get what `answer` returns."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    cluster = Cluster(ApiServer(Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")))
    yield cluster
    await cluster.close()
    await runner.cleanup()
