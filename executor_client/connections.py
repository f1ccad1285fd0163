"""Connections to the API server, each closed at once when it is not needed any more."""

import functools
import ssl

import aiohttp
from aiohttp.client_proto import ResponseHandler
from kubernetes.aio.client.rest import RESTClientObject


class _Connection(ResponseHandler):
    def close(self) -> None:
        self.abort()


class _Connector(aiohttp.TCPConnector):
    """Closes a connection without waiting for the other side.

    aiohttp ends TLS in order: a connection stays open until the other side has agreed, for up to 30 seconds, and
    nothing in aiohttp closes that connection when its session ends.
    """

    def __init__(self, limit: int, context: ssl.SSLContext) -> None:
        super().__init__(limit=limit, ssl=context)
        kind: type[ResponseHandler] = _Connection
        self._factory = functools.partial(kind, loop=self._loop)


class Connections(RESTClientObject):
    """What `kubernetes.aio` sends its requests through."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        return _Connector(self.maxsize, self.ssl_context)
