"""The one way to the API server: every request that the operator makes itself passes through this file.

(kopf's own requests are lists and watches of the kinds of codeexec.dev and of pods.) A request is a verb of HTTP, a
path and a dictionary. It is made once: a worker decides anew before it makes a request again, after the pause that
`adapters.retries` gives it. Only a creation that lacks rights is asked for again here, for some seconds: an API server
that has just started doesn't know the Roles yet.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any, Final, Literal
from urllib.parse import quote

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from codeexec_operator.adapters import narrow_json
from codeexec_operator.adapters.fair_semaphore import FairSemaphore
from codeexec_operator.core.observed_pod import Fault

NETWORK_ERRORS: Final = (aiohttp.ClientError, OSError, TimeoutError)
"""What is raised if no answer of the API server came, or only a part of an answer."""
REQUEST_ERRORS: Final = (ApiException, *NETWORK_ERRORS)
"""What a request may raise that another try may heal."""
ANSWER_SECONDS: Final = 15
"""How long the whole answer to a request may take, with the wait for a turn."""
CONNECT_SECONDS: Final = 5
"""How long it may take until there is a connection."""
ONLY_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""What to accept, so that the API server leaves out what the objects hold (Kubernetes API concepts)."""
ONLY_ITS_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""The same, for one object."""
ONLY_COLUMNS: Final = "application/json;as=Table;g=meta.k8s.io;v=v1"
"""The same, for what `kubectl get` prints."""
FOR_GOOD: Final = (400, 403, 413, 422)
"""Answers that another try would get again, unless Kubernetes hasn't counted yet what a quota is for."""

_STARTING_SECONDS: Final = 10
"""How long a refusal may be due to an API server or a namespace that is new, and lacks what comes a moment later."""
_STARTING_PAUSE: Final = 0.5
_JSON: Final = "application/json"
_MERGE_PATCH: Final = "application/merge-patch+json"
_ATTACH: Final = "v4.channel.k8s.io"
_REQUESTS: Final = 100
"""Requests that are under way at the same time; further requests wait for their turn, up to ANSWER_SECONDS."""
_REQUESTS_OF_ONE: Final = 25
"""Of these, requests about one namespace. Four namespaces can hold all of them, so what can't wait asks `at_once`."""
_WATCH_SECONDS: Final = 300
_METADATA: Final = 100
"""Objects whose metadata is listed at a time: 14 MiB of JSON, if all of it is as large as admission lets it be.

Of each these are 4 KiB of annotations and 16 KiB of managedFields, which the API server writes with six bytes for each
`<`, and 12 KiB of labels. No more than kopf lists at a time, so a second page is needed only where kopf needs one.
"""
_KEPT: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_LONGEST_EVENT: Final = 2 * 1024 * 1024
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
"""A peer that is gone without a word is noticed within 30 s, whether it is sent something meanwhile or not."""

Verb = Literal["GET", "POST", "PATCH", "DELETE"]


@dataclass(frozen=True)
class Resource:
    """A kind of objects, as the paths of the API name it."""

    api: str
    """`api/v1`, or `apis/` with group and version."""
    plural: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Of all objects, of those of a namespace, or of one of them."""
        within = ("namespaces", namespace) if namespace else ()
        parts = (*within, self.plural, name, subresource)
        return "/".join(("", self.api, *(quote(part, safe="") for part in parts if part)))


class ApiServer:
    """Requests with the operator's own service account.

    Requests share a bounded pool of connections. Watches and websockets last, so they have connections of their own:
    however many namespaces and pods there are, no request waits for their connections. Namespaces take turns, so no
    request waits behind all those of another namespace. The Lease by which this process leads waits for no turn at all.
    """

    def __init__(self, configuration: client.Configuration) -> None:
        self._host = configuration.host
        self._credentials = client.ApiClient(configuration)
        self._route: dict[str, Any] = {"proxy": configuration.proxy, "server_hostname": configuration.tls_server_name}
        self._requests, self._streams = self._session(_REQUESTS), self._session(0)
        self._turns = FairSemaphore(_REQUESTS, _REQUESTS_OF_ONE)
        self.date = datetime.min.replace(tzinfo=UTC)
        """The time by the API server's clock, as the last answer told it."""
        self.may_send: Callable[[], object] = lambda: None
        """Called before each request; it must not return if the request may not be sent."""
        self.patched: Callable[[float], object] = lambda _: None
        """Called with the seconds that each PATCH took."""

    @classmethod
    async def connect(cls) -> "ApiServer":
        """With the service account of the pod; outside a cluster, with the kubeconfig.

        Raises:
            kubernetes.aio.config.ConfigException: there is neither.
        """
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)
        return cls(configuration)

    def _session(self, connections: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=connections, ssl=self._credentials.rest_client.ssl_context, socket_factory=keepalive_socket
        )
        return aiohttp.ClientSession(
            connector=connector,
            headers={"User-Agent": f"codeexec-operator/{version('codeexec')}"},
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS),
            trust_env=False,  # else proxies and their passwords are looked for with each request
            read_bufsize=_LONGEST_EVENT,
        )

    async def close(self) -> None:
        """Close all connections."""
        for one in (self._requests, self._streams, self._credentials):
            await one.close()

    async def request(
        self,
        verb: Verb,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str | int] | None = None,
        accept: str = _JSON,
        at_once: bool = False,
    ) -> Any:
        """Make one request, and return the JSON of the answer. A PATCH is a merge patch.

        Args:
            verb: of HTTP.
            path: of the object or the list.
            body: what is sent as JSON.
            query: what the path is followed by.
            accept: the form of the answer.
            at_once: the request waits neither for a turn nor for one of the connections that requests share.

        Raises:
            ApiException: the API server refused; `status`, `body` and `headers` are those of its answer.
            aiohttp.ClientError: no answer came, or no JSON.
            OSError: there is no connection.
            TimeoutError: the answer did not come in time.
        """
        session = self._streams if at_once else self._requests
        turn = nullcontext() if at_once else self._turns.slot(_namespace(path))
        async with asyncio.timeout(ANSWER_SECONDS), turn:
            headers = await self._headers(accept)
            if body is not None:
                headers["Content-Type"] = _MERGE_PATCH if verb == "PATCH" else _JSON
            data = None if body is None else json.dumps(body).encode()
            how = {"params": query, "data": data, "headers": headers, "allow_redirects": False, **self._route}
            begun = time.monotonic()
            try:
                async with session.request(verb, self._host + path, **how) as answer:
                    self.date = parsedate_to_datetime(answer.headers["Date"]) if "Date" in answer.headers else self.date
                    body_read = await _checked(answer)
            finally:
                if verb == "PATCH":  # an answer that doesn't come in time, or 429, tells most of all
                    self.patched(time.monotonic() - begun)
            return _parse(body_read)

    async def pages(
        self, path: str, limit: int | None, *, query: Mapping[str, str] | None = None, accept: str = _JSON
    ) -> AsyncGenerator[Any, None]:
        """A list, one page of at most `limit` objects after the other; None: all of them at once."""
        asked: dict[str, str | int] = {**(query or {}), **({"limit": limit} if limit else {})}
        while True:
            try:
                page = await self.request("GET", path, query=asked, accept=accept)
            except ApiException as error:
                token = _another_token(error) if "continue" in asked else ""
                if not token:
                    raise
                asked["continue"] = token
                continue
            yield page
            token = page["metadata"].get("continue")
            if not token:
                return
            asked["continue"] = token

    async def metadata(
        self, path: str, query: Mapping[str, str] | None = None, *, also: Collection[str] = ()
    ) -> list[Mapping[str, Any]]:
        """Names, versions and times of creation of all objects of a list: whoever writes one can fill the rest.

        Of the rest there is only what `also` names: labels, annotations, or `ownerReferences`.
        """
        pages = self.pages(path, _METADATA, query=query, accept=ONLY_METADATA)
        return [_lean(item["metadata"], also) async for page in pages for item in page["items"] or ()]

    async def list(
        self, path: str, limit: int | None, *, query: Mapping[str, str] | None = None
    ) -> list[Mapping[str, Any]]:
        """All objects of a list; it is read page by page."""
        pages = self.pages(path, limit, query=query)
        return [item async for page in pages for item in page["items"] or ()]  # null where there is none

    async def named(self, path: str, name: str) -> Mapping[str, Any] | None:
        """The object of a list that has this name; None if there is none. It needs no right to get objects."""
        return next(iter(await self.list(path, 1, query={"fieldSelector": f"metadata.name={name}"})), None)

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[tuple[str, Any, int], None]:
        """What becomes of these objects from now on, until the server ends the watch.

        Yields the kind of each change, the object, and how large the event is as it came.

        Raises:
            ValueError: the server sent what is no event.
        """
        listed = await self.request("GET", path, query={**query, "limit": 1}, accept=ONLY_METADATA)
        asked = {"resourceVersion": listed["metadata"]["resourceVersion"], "timeoutSeconds": _WATCH_SECONDS}
        async with self._streams.request(
            "GET",
            self._host + path,
            params={**query, **asked, "watch": "true"},
            headers=await self._headers(_JSON),
            timeout=aiohttp.ClientTimeout(total=_WATCH_SECONDS + ANSWER_SECONDS, sock_connect=CONNECT_SECONDS),
            allow_redirects=False,
            **self._route,
        ) as response:
            if response.status != 200:
                await _checked(response)
            while line := await response.content.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiException(status=event["object"].get("code"), reason=event["object"].get("message"))
                yield event["type"], event["object"], len(line)

    @asynccontextmanager
    async def attach(self, path: str, query: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A websocket to a container. Pings are for whoever reads: aiohttp's own heartbeat hears no answer meanwhile.

        The API server passes what is sent to the kubelet as it is. The container runtime's end answers the pings.
        """
        async with self._streams.ws_connect(
            self._host + path,
            params=query,
            headers=await self._headers("*/*"),
            protocols=(_ATTACH,),
            autoping=False,
            **self._route,
        ) as websocket:
            yield websocket

    async def _headers(self, accept: str) -> dict[str, str]:
        """With the token, which is read again when it is old."""
        self.may_send()
        headers = {"Accept": accept}
        await self._credentials.update_params_for_auth(headers, None, ["BearerToken"], "", "", None)
        return headers


def _lean(meta: Mapping[str, Any], also: Collection[str]) -> Mapping[str, Any]:
    kept = {name: meta[name] for name in meta.keys() & {*_KEPT, *also}}
    for part in ("labels", "annotations"):
        kept[part] = {name: value for name, value in (meta.get(part) or {}).items() if name in also}
    return {"metadata": {name: value for name, value in kept.items() if value}}


def _namespace(path: str) -> str:
    """The namespace that a path names; empty for what is in none."""
    return path.partition("/namespaces/")[2].partition("/")[0]


def _another_token(error: ApiException) -> str:
    """After some minutes the API server can't continue a list as it began. It sends a token for what is there now."""
    try:
        return str(json.loads(str(error.body))["metadata"]["continue"]) if error.status == 410 else ""
    except (ValueError, KeyError, TypeError):
        return ""


def keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """For aiohttp: a peer that is gone without a word is noticed."""
    made = socket.socket(*address[:3])
    for option in _KEEPALIVE:
        made.setsockopt(*option)
    return made


async def _checked(response: aiohttp.ClientResponse) -> bytes:
    """The body of an answer that is no refusal."""
    body = await response.read()
    if not 200 <= response.status <= 299:
        error = ApiException(status=response.status, reason=response.reason, body=body.decode(errors="replace"))
        error.headers = response.headers
        raise error
    return body


def _parse(body: bytes) -> Any:
    try:
        return narrow_json.parse(body)
    except ValueError as error:  # from something between here and the API server
        raise aiohttp.ClientPayloadError("the answer is no JSON") from error


async def found(request: Awaitable[Any]) -> Any:
    """What was asked for, or None if it isn't there."""
    try:
        return await request
    except ApiException as error:
        if error.status == 404:
            return None
        raise


async def unless_there(request: Awaitable[Any]) -> None:
    """Create an object, if none of its name is there. Any other conflict is a race for the quota, and raised."""
    try:
        await request
    except ApiException as error:
        if error.status != 409 or "AlreadyExists" not in str(error.body):
            raise


async def delete(
    api: ApiServer, resource: Resource, namespace: str, name: str, *, uid: str = "", grace: int | None = None
) -> bool:
    """Delete one object, only that with this UID if one is given. False if it was gone already."""
    if not name:
        raise ValueError("without a name this would delete all of them")
    options: dict[str, Any] = {} if grace is None else {"gracePeriodSeconds": grace}
    try:
        await api.request(
            "DELETE",
            resource.path(namespace, name),
            options | ({"preconditions": {"uid": uid}} if uid else {}),
            accept=ONLY_ITS_METADATA,
        )
    except ApiException as error:
        if error.status not in (404, 409):  # 409: the UID is another object's
            raise
        return False
    return True


async def create(api: ApiServer, path: str, body: Mapping[str, Any], fault: Callable[[str], Fault]) -> Fault | None:
    """Create an object, if none of its name is there. `fault` makes a refusal for good of the API server's words."""
    give_up = time.monotonic() + _STARTING_SECONDS
    while True:
        try:
            await unless_there(api.request("POST", path, body, accept=ONLY_ITS_METADATA))
        except ApiException as error:
            if _may_pass(error) and time.monotonic() < give_up:
                await asyncio.sleep(_STARTING_PAUSE)
                continue
            if error.status in FOR_GOOD and "status unknown for quota" not in str(error.body):
                return fault(message_of(error))
            raise
        return None


def _may_pass(error: ApiException) -> bool:
    """The API server doesn't know the Roles yet, or the namespace has no service account yet; in Kubernetes' words."""
    missing = ("cannot create resource", "error looking up service account")
    return error.status == 403 and any(words in message_of(error) for words in missing)


def message_of(error: ApiException) -> str:
    """What the API server says: the message of its Status object."""
    body = str(error.body or error.reason)
    try:
        status = json.loads(body)
    except ValueError:
        return body
    return str(status.get("message") or body) if isinstance(status, dict) else body
