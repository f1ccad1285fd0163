"""Connections to the API server, each closed at once when it is not needed any more."""

import asyncio
import functools
import os
import ssl
import weakref
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject, RESTResponse
from multidict import CIMultiDict

from executor_client.exceptions import ClusterUnreachable
from executor_client.transport.credentials import Credentials, Identity, tls_context
from executor_client.transport.protocol import CLOSED

REQUEST_SECONDS: Final = 15
"""How long a request may take that says nothing else, and until an answer begins that comes piece by piece."""
_KEEP_SECONDS: Final = 50
"""How long a connection is kept that nobody uses: less than API servers (90) and most load balancers (60) do."""


class _Connection(ResponseHandler):
    def __init__(self, loop: asyncio.AbstractEventLoop, transports: weakref.WeakSet[asyncio.BaseTransport]) -> None:
        super().__init__(loop)
        self._transports = transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transports.add(transport)
        super().connection_made(transport)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        answer = self._payload
        super().abort()
        if answer is not None and not answer.is_eof():  # aiohttp lets go of it, and who reads it would wait for ever
            answer.set_exception(aiohttp.ClientConnectionError("the connection was closed"))


class Connector(aiohttp.TCPConnector):
    """Closes a connection without waiting for the other side.

    asyncio and aiohttp end TLS in order: a connection stays open until the other side has agreed, for up to 30 seconds.
    Nothing closes that connection when the session ends.

    Args:
        limit: of connections; 0 for none.
        context: for TLS; True for that of the system.
    """

    def __init__(self, limit: int, context: ssl.SSLContext | bool) -> None:
        self._process = os.getpid()
        super().__init__(limit=limit, ssl=context, keepalive_timeout=_KEEP_SECONDS)
        self._transports: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        make: type[ResponseHandler] = _Connection
        self._factory = functools.partial(make, self._loop, transports=self._transports)  # type: ignore[call-arg]

    def __del__(self, *arguments: Any) -> None:
        if os.getpid() == self._process:  # the parent of a forked process goes on with them
            super().__del__(*arguments)

    async def close(self, *, abort_ssl: bool = True) -> None:
        """Close all connections, also those that asyncio is ending because nobody waited for them any more."""
        await super().close(abort_ssl=abort_ssl)
        for transport in list(self._transports):
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()


class Connections(RESTClientObject):
    """What `kubernetes.aio` sends its requests through.

    Each request shows the identity that counts when it is sent. If the API server refuses that one, the request is
    made once more with a newer one, if there is a newer one.

    Args:
        configuration: of the connection, without credentials.
        credentials: who makes the requests; None for nobody.
    """

    def __init__(self, configuration: Configuration, credentials: Credentials | None = None) -> None:
        super().__init__(configuration)
        self._credentials = credentials
        self._closed = False
        self._former: aiohttp.ClientSession | None = None
        if credentials:
            self._use(credentials.identity)

    async def request(
        self,
        method: str,
        url: str,
        headers: dict[str, str] | None = None,
        body: Any = None,
        post_params: Any = None,
        _request_timeout: Any = None,
    ) -> RESTResponse:
        """Send a request; see `RESTClientObject.request`."""

        async def send(identity: Identity | None) -> RESTResponse:
            if identity and identity.tls != self._tls:
                await self._renew(identity)
            sent = CIMultiDict(headers or {})
            sent.extend(identity.headers if identity else ())
            if self._closed:  # also while the identity was renewed
                raise ClusterUnreachable(CLOSED)
            try:
                async with asyncio.timeout(seconds):  # with what a Retry-After says
                    answer: RESTResponse = await super(Connections, self).request(  # type: ignore[no-untyped-call]
                        method, url, sent, body, post_params, limits
                    )
            except RuntimeError:
                if self._closed:  # while the request waited for its turn
                    raise ClusterUnreachable(CLOSED) from None
                raise
            except TimeoutError:
                raise TimeoutError(f"within {seconds:g} s") from None
            return answer

        limits = _request_timeout or REQUEST_SECONDS
        seconds = limits if isinstance(limits, int | float) else REQUEST_SECONDS
        identity = await self._credentials.current() if self._credentials else None
        response = await send(identity)
        if response.status == 401 and self._credentials and identity:
            newer = await self._credentials.after(identity)
            if newer:
                response.response.release()
                response = await send(newer)
        return response

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        try:
            await super().close()
        finally:
            if self._former:
                await self._former.close()

    def _use(self, identity: Identity) -> None:
        self.ssl_context = tls_context(self.configuration, identity)
        self._tls = identity.tls

    async def _renew(self, identity: Identity) -> None:
        """Make new connections from now on. Those that there are end with their requests."""
        former, self._former = self._former, self.pool_manager
        self._use(identity)
        self.pool_manager = None
        if former:
            await former.close()

    def _create_connector(self) -> aiohttp.TCPConnector:
        return Connector(self.maxsize, self.ssl_context)
