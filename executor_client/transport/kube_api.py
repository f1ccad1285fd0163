"""The one doorway of the client to the API server.

Every error of the API server or of the network leaves here as one of `exceptions`, with what to do about it.
"""

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

import aiohttp
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecutionSpec, CodeSessionSpec, ExecutionApprovalSpec, manifest
from codeexec_api.names import CLIENT_LABEL, GROUP, VERSION
from executor_client.exceptions import ClusterUnreachable, CodeExecError
from executor_client.runtime.asyncio_tasks import Shared
from executor_client.transport import connections
from executor_client.transport.api_errors import translate
from executor_client.transport.connections import Connections
from executor_client.transport.creation import created_once
from executor_client.transport.credentials import Credentials, Identity
from executor_client.transport.kube_config import find

_PAGE: Final = 50
"""Objects a page of a list: each may hold half a megabyte of output."""
MERGE_PATCH: Final = "application/merge-patch+json"
LONG_SECONDS: Final = 60
"""For what may be large, such as a log."""


class KubeApi:
    """A connection to one cluster, for one event loop."""

    def __init__(
        self, configuration: client.Configuration, namespace: str, credentials: Credentials | None = None
    ) -> None:
        self.namespace = namespace
        self.host = configuration.host
        self.client = client.ApiClient(configuration)
        self.client.rest_client = Connections(configuration, credentials)
        self.core = client.CoreV1Api(self.client)
        self.custom = client.CustomObjectsApi(self.client)
        self.closed = False
        self.id: Final = secrets.token_hex(8)
        """Labels what this connection creates."""
        self._credentials = credentials
        self._asking_who = Shared(self._ask_who)
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
            raise ClusterUnreachable(f"can't use the certificates of the cluster's configuration: {error}") from error

    async def close(self) -> None:
        """Close all connections. What is waited for is an error from then on."""
        self.closed = True
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
            review: Any = await client.AuthenticationV1Api(self.client).create_self_subject_review(
                client.V1SelfSubjectReview()
            )
        shown = self._credentials.identity if self._credentials else None
        self._me = shown, str(review.status.user_info.username)
        return self._me[1]

    async def create_object(
        self,
        kind: str,
        plural: str,
        name: str,
        spec: CodeExecutionSpec | CodeSessionSpec | ExecutionApprovalSpec,
        labels: Mapping[str, str] | None = None,
    ) -> Any:
        """Create an object of ours; it is labelled with the connection that did. Its answer may get lost on the way."""
        body = manifest(name=name, namespace=self.namespace, spec=spec)
        body["metadata"]["labels"] = {CLIENT_LABEL: self.id, **(labels or {})}

        async def find(_: bool) -> Any:
            with suppress(CodeExecError):
                raw = await self.get_object(kind, plural, name)
                return raw if raw["metadata"].get("labels", {}).get(CLIENT_LABEL) == self.id else None

        with self.errors(f"create the {kind}"):
            return await created_once(
                # Strict: what an older cluster doesn't know is refused, where it would be dropped in silence.
                lambda: self.custom.create_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, plural, body, field_validation="Strict"
                ),
                find,
            )

    async def get_object(self, kind: str, plural: str, name: str) -> Any:
        """An object of ours, as it is stored; `NotFound` if there is no such object."""
        with self.errors(f"get the {kind}"):
            return await self.custom.get_namespaced_custom_object(GROUP, VERSION, self.namespace, plural, name)

    async def patch_object(self, plural: str, name: str, patch: Any) -> None:
        """Change an object of ours; within `errors`."""
        await self.custom.patch_namespaced_custom_object(
            GROUP, VERSION, self.namespace, plural, name, patch, _content_type=MERGE_PATCH
        )

    async def list_raw(
        self, kind: str, plural: str, fields: str | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """All objects of a kind as they are stored, page by page; `fields` is a field selector.

        A list that takes longer than some minutes goes on with objects as they are then.
        """
        chosen: dict[str, Any] = {"limit": _PAGE, "_request_timeout": LONG_SECONDS}
        chosen |= {"field_selector": fields} if fields else {}
        following: dict[str, Any] = chosen
        while True:
            with self.errors(f"list {kind}s"):
                try:
                    page: Any = await self.custom.list_namespaced_custom_object(
                        GROUP, VERSION, self.namespace, plural, **following
                    )
                except ApiException as error:
                    if not (token := _token_in(error)):
                        raise
                    following = {**chosen, "_continue": token}
                    continue
            for item in page["items"]:
                yield item
            if not (token := page["metadata"].get("continue")):
                return
            following = {**chosen, "_continue": token}

    async def stream(
        self, path: str, places: Mapping[str, str], query: Mapping[str, str], *, silent: float | None = None
    ) -> aiohttp.ClientResponse:
        """An answer that comes piece by piece, for as long as it takes; the generated methods limit that.

        Args:
            path: with names of places in braces.
            places: what stands in them, beside the namespace.
            query: parameters.
            silent: seconds after which an answer of which nothing comes is over; None for never.
        """
        method, url, headers, body, form = await self.client.param_serialize(
            "GET",
            path,
            path_params={"namespace": self.namespace, **places},
            query_params=list(query.items()),
            header_params={"Accept": "*/*"},
            auth_settings=["BearerToken"],
        )
        limits = aiohttp.ClientTimeout(total=None, sock_connect=connections.REQUEST_SECONDS, sock_read=silent)
        answer = await self.client.call_api(method, url, headers, body, form, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        return response

    @staticmethod
    async def unparsed(request: Callable[..., Awaitable[Any]], *usual: int) -> tuple[int, str]:
        """Status and body of an answer that the library has not read; an ApiException for an unusual status.

        `request` is a method `…_without_preload_content` with its arguments, but for the time limit.
        """
        async with asyncio.timeout(LONG_SECONDS):
            answer = await request(_request_timeout=LONG_SECONDS)
            body = (await answer.read()).decode(errors="replace")
        if answer.status not in (200, *usual):
            error = ApiException(status=answer.status, reason=answer.reason)
            error.body = body
            raise error
        return answer.status, body

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
