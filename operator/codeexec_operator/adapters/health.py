"""The health endpoints of the operator: /livez and /readyz, for the kubelet's probes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

KNOWN_SECONDS: Final = 2
"""How long an answer of `ready` counts. Every pod can reach the port, because a NetworkPolicy can't select kubelets."""


async def serve_health(port: int, ready: Callable[[], Awaitable[None]]) -> web.AppRunner:
    """Serve /livez, which answers while the event loop turns, and /readyz, which answers 503 when `ready` raises.

    Returns:
        The runner of the server; its `cleanup()` ends it.
    """
    known = once_in_a_while(ready, KNOWN_SECONDS)

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_: web.Request) -> web.Response:
        try:
            await known()
        except Exception as error:  # whatever it is, the answer to the probe is no
            return web.Response(status=503, text=f"{type(error).__name__}\n")
        return web.Response(text="ok")

    return await serve(port, web.get("/livez", livez), web.get("/readyz", readyz))


async def serve(port: int, *routes: web.RouteDef) -> web.AppRunner:
    """Serve these. Raises OSError if the port is in use."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner


def once_in_a_while(
    ask: Callable[[], Awaitable[None]], seconds: float, clock: Callable[[], float] = time.monotonic
) -> Callable[[], Awaitable[None]]:
    """The same question, asked once at a time and no sooner than after so many seconds: others get that answer."""
    asked: asyncio.Future[None] | None = None
    until = 0.0

    async def known() -> None:
        nonlocal asked, until
        if asked is None or (asked.done() and clock() >= until):
            asked, until = asyncio.ensure_future(ask()), clock() + seconds
        await asyncio.shield(asked)  # who hangs up ends nobody else's wait

    return known
