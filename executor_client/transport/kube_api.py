"""The one doorway of the client to the API server.

Every error of the API server or of the network leaves here as one of `exceptions`, with what to do about it.
"""

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Self
from urllib.parse import quote

import aiohttp
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecutionSpec, CodeSessionSpec, ExecutionApprovalSpec, manifest
from codeexec_api.names import CLIENT_LABEL, GROUP, VERSION
from codeexec_api.v1alpha1.base import Object
from executor_client.exceptions import ClusterUnreachable, CodeExecError
from executor_client.runtime.asyncio_tasks import SingleFlight
from executor_client.transport import connections
from executor_client.transport.api_errors import translate
from executor_client.transport.connections import Connections
from executor_client.transport.creation import created_once
from executor_client.transport.credentials import Credentials, Identity
from executor_client.transport.kube_config import find
from executor_client.transport.outage import Retries

_PAGE: Final = 50
"""Objects a page of a list: each may hold half a megabyte of output."""
LONG_SECONDS: Final = 60
"""For what may be large, such as a log."""
OURS: Final = f"/apis/{GROUP}/{VERSION}"
CORE: Final = "/api/v1"


class KubeApi:
    """A connection to one cluster, for one event loop."""

    def __init__(
        self, configuration: client.Configuration, namespace: str, credentials: Credentials | None = None
    ) -> None:
        self.namespace = namespace
        self.host = configuration.host
        self.client = client.ApiClient(configuration)
        self.client.rest_client = Connections(configuration, credentials)
        self.retries: Final = Retries()
        self.id: Final = secrets.token_hex(8)
        """Labels what this connection creates."""
        self._credentials = credentials
        self._asking_who = SingleFlight(self._ask_who)
        self._me: tuple[Identity | None, str] | None = None

    @classmethod
    async def connect(cls, *, kubeconfig: str | None, context: str | None, namespace: str) -> Self:
        """With the kubeconfig that is named; else with the pod's service account; else with the user's kubeconfig.

        Raises:
            ClusterUnreachable: there is no configuration, or it can't be read or used.
        """
        configuration, credentials = await find(kubeconfig, context)
        try:
            return cls(configuration, namespace, credentials)
        except (ssl.SSLError, ValueError) as error:
            raise ClusterUnreachable(
                f"certificate-authority, client-certificate or client-key of the kubeconfig can't be used: {error}. "
                "They must be PEM, and key and certificate must belong together"
            ) from error

    @classmethod
    @asynccontextmanager
    async def opened(cls, *, kubeconfig: str | None, context: str | None, namespace: str) -> AsyncIterator[Self]:
        """A connection, which is closed at the end; see `connect`."""
        api = await cls.connect(kubeconfig=kubeconfig, context=context, namespace=namespace)
        try:
            yield api
        finally:
            await api.close()

    async def close(self) -> None:
        """Close all connections. What is waited for is an error from then on."""
        self.retries.close()
        await self.client.close()
        await asyncio.sleep(0)  # what was dropped is closed in the next turn of the loop, which may be its last

    async def whoami(self) -> str:
        """Name by which the cluster knows who this connection belongs to, as the record has to say.

        Asked once for each credential.

        Raises:
            CodeExecError: see `exceptions`.
        """
        shown = self._credentials.identity if self._credentials else None
        return self._me[1] if self._me and self._me[0] == shown else await self._asking_who()

    async def _ask_who(self) -> str:
        with self.errors("look up this identity"):
            review = await self.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body={})
        shown = self._credentials.identity if self._credentials else None
        self._me = shown, str(review["status"]["userInfo"]["username"])
        return self._me[1]

    async def create_object(
        self,
        model: type[Object],
        name: str,
        spec: CodeExecutionSpec | CodeSessionSpec | ExecutionApprovalSpec,
        labels: Mapping[str, str] | None = None,
    ) -> Any:
        """Create an object of ours; it is labelled with the connection that did. Its answer may get lost on the way."""
        body = manifest(name=name, namespace=self.namespace, spec=spec)
        body["metadata"]["labels"] = {CLIENT_LABEL: self.id, **(labels or {})}

        async def find(_: bool) -> Any:
            with suppress(CodeExecError):
                raw = await self.get_object(model, name)
                return raw if raw["metadata"].get("labels", {}).get(CLIENT_LABEL) == self.id else None

        with self.errors(f"create the {model.kind}"):
            return await created_once(
                # Strict: what an older cluster doesn't know is refused, where it would be dropped in silence.
                lambda: self.request("POST", self.path(OURS, model.plural), {"fieldValidation": "Strict"}, body),
                find,
                self.retries,
            )

    async def get_object(self, model: type[Object], name: str) -> Any:
        """An object of ours, as it is stored; `NotFound` if there is no such object."""
        with self.errors(f"get the {model.kind}"):
            return await self.request("GET", self.path(OURS, model.plural, name))

    async def patch_object(self, model: type[Object], name: str, patch: Any) -> None:
        """Change an object of ours; within `errors`."""
        await self.request("PATCH", self.path(OURS, model.plural, name), body=patch)

    async def list_raw(self, model: type[Object], fields: str | None = None) -> AsyncGenerator[Mapping[str, Any], None]:
        """All objects of a kind as they are stored, page by page; `fields` is a field selector.

        A list that takes longer than some minutes goes on with objects as they are then.
        """
        query = {"limit": _PAGE, **({"fieldSelector": fields} if fields else {})}
        with self.errors(f"list {model.kind}s"):
            async for page in self.pages(self.path(OURS, model.plural), query):
                for item in page["items"]:
                    yield item

    async def pages(
        self, path: str, query: Mapping[str, Any], accept: str = "application/json"
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """A list, page by page. Where the list began too long ago, the next pages are of objects as they are then.

        Args:
            path: as of `request`.
            query: as of `request`, with the limit of a page.
            accept: as of `request`.

        Raises:
            ApiException: as `request`, and what else that raises.
        """
        token: str | None = ""
        while token is not None:
            following = {"continue": token} if token else {}
            try:
                page = await self.request("GET", path, {**query, **following}, accept=accept, seconds=LONG_SECONDS)
            except ApiException as error:
                if not (token := _token_in(error)):
                    raise
            else:
                yield page
                token = page["metadata"].get("continue") or None

    def path(self, api: str, plural: str, *name: str) -> str:
        """The path of a kind in this namespace, or of one object and what is below: `api` is `OURS`, for example."""
        return "/".join((api, "namespaces", *(quote(one, safe="") for one in (self.namespace, plural, *name))))

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        *,
        accept: str = "application/json",
        seconds: float | None = None,
    ) -> Any:
        """What the API server answers, from JSON. The generated methods take a second to import, in each process.

        Args:
            method: of HTTP. A PATCH is a merge patch.
            path: with everything in it that belongs to it, as `path` makes it.
            query: parameters.
            body: what becomes JSON.
            accept: the media type that is asked for.
            seconds: how long the answer may take; None for `REQUEST_SECONDS`.

        Raises:
            ApiException: the status is none of success, or the answer is no JSON.
            aiohttp.ClientError: there is no whole answer.
            OSError: the same.
        """
        text = await self._answer(method, path, query, body, accept, seconds)
        try:
            return json.loads(text)
        except ValueError:
            raise ApiException(status=200, reason=f"the answer is no JSON: {text[:100]!r}") from None

    async def find(self, path: str, *, seconds: float | None = None) -> Any:
        """The same for a GET; None if nothing is there (404)."""
        try:
            return await self.request("GET", path, seconds=seconds)
        except ApiException as error:
            if error.status != 404:
                raise
            return None

    async def text(self, path: str, query: Mapping[str, Any], *, seconds: float | None = None) -> str:
        """The same for a GET, but the text of the answer, which need not be JSON."""
        return await self._answer("GET", path, query, None, "*/*", seconds)

    async def stream(
        self, path: str, query: Mapping[str, str], *, silent: float | None = None
    ) -> aiohttp.ClientResponse:
        """An answer that comes piece by piece, for as long as it takes.

        Args:
            path: as of `request`.
            query: parameters.
            silent: seconds after which an answer of which nothing comes is over; None for never.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=connections.REQUEST_SECONDS, sock_read=silent)
        response: aiohttp.ClientResponse = (await self._send("GET", path, query, None, "*/*", limits)).response
        return response

    async def _answer(
        self, method: str, path: str, query: Mapping[str, Any] | None, body: Any, accept: str, seconds: float | None
    ) -> str:
        answer = await self._send(method, path, query, body, accept, seconds)
        text: str = (await answer.read()).decode(errors="replace")
        if not 200 <= answer.status < 300:
            raise ApiException(http_resp=answer, body=text)
        return text

    async def _send(
        self, method: str, path: str, query: Mapping[str, Any] | None, body: Any, accept: str, limits: Any
    ) -> Any:
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        serialized = await self.client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": content},
            body=body,
        )
        answer = await self.client.call_api(*serialized, _request_timeout=limits)
        self.retries.answered = True
        return answer

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Translate what goes wrong in here; `doing` says in which attempt."""
        try:
            with self.network_errors(doing):
                yield
        except ApiException as error:
            raise translate(doing, self.namespace, error) from error

    @contextmanager
    def network_errors(self, doing: str) -> Iterator[None]:
        """The same, but an answer of the API server is raised as it is."""
        try:
            yield
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ClusterUnreachable(
                f"could not {doing}: no answer from the API server at {self.host} "
                f"({type(error).__name__}: {error}); check that the cluster is running, and that kubeconfig and "
                "context are right"
            ) from error


def _token_in(error: ApiException) -> str:
    """With what a list goes on that the API server has taken for too old; empty if it does not."""
    if error.status != 410:
        return ""
    with suppress(ValueError, AttributeError):
        return str(json.loads(error.body or "{}").get("metadata", {}).get("continue") or "")
    return ""
