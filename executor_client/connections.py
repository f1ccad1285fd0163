"""Connections to the API server, each closed at once when it is not needed any more."""

import asyncio
import functools
import ssl
import weakref

import aiohttp
from aiohttp.client_proto import ResponseHandler
from kubernetes.aio.client.rest import RESTClientObject


class _Connection(ResponseHandler):
    def __init__(self, loop: asyncio.AbstractEventLoop, transports: weakref.WeakSet[asyncio.BaseTransport]) -> None:
        super().__init__(loop)
        self._transports = transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transports.add(transport)
        super().connection_made(transport)

    def close(self) -> None:
        self.abort()


class Connector(aiohttp.TCPConnector):
    """Closes a connection without waiting for the other side.

    asyncio and aiohttp end TLS in order: a connection stays open until the other side has agreed, for up to 30 seconds.
    Nothing closes that connection when the session ends.

    Args:
        limit: of connections; 0 for none.
        context: for TLS; True for that of the system.
    """

    def __init__(self, limit: int, context: ssl.SSLContext | bool) -> None:
        super().__init__(limit=limit, ssl=context)
        self._transports: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        make: type[ResponseHandler] = _Connection
        self._factory = functools.partial(make, self._loop, transports=self._transports)  # type: ignore[call-arg]

    async def close(self, *, abort_ssl: bool = True) -> None:
        """Close all connections, also those that asyncio is ending because nobody waited for them any more."""
        await super().close(abort_ssl=abort_ssl)
        for transport in list(self._transports):
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()


class Connections(RESTClientObject):
    """What `kubernetes.aio` sends its requests through."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        return Connector(self.maxsize, self.ssl_context)
