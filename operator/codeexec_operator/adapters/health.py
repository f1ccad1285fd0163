"""The health endpoints of the operator: /livez and /readyz, for the kubelet's probes."""

from collections.abc import Awaitable, Callable

from aiohttp import web


async def serve_health(port: int, ready: Callable[[], Awaitable[None]]) -> web.AppRunner:
    """Serve /livez, which answers while the event loop turns, and /readyz, which answers 503 when `ready` raises.

    Returns:
        The runner of the server; its `cleanup()` ends it.
    """

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_: web.Request) -> web.Response:
        try:
            await ready()
        except Exception as error:  # whatever it is, the answer to the probe is no
            return web.Response(status=503, text=f"{type(error).__name__}\n")
        return web.Response(text="ok")

    app = web.Application()
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner
