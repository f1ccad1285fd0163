"""Requests to the API server from this process: they cost a millisecond, where kubectl costs 130.

A read is tried again when the server or the connection fails, as long as its bound allows. A write is tried again only
when it can't have happened: the server was too busy (429), or there was no connection.
"""

import json
import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError

Object = dict[str, Any]

BUSY = frozenset({429, 500, 502, 503, 504})
READ_SECONDS = 30.0
"""Bound of a read with its repetitions, unless a wait sets another."""

PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class ApiError(Exception):
    """A call that failed."""

    code = 0
    retry_after = 0.0

    def again(self, method: str) -> bool:
        """Whether the same call may be tried again."""
        raise NotImplementedError


class Unreachable(ApiError):
    """The API server gave no answer."""

    def __init__(self, call: str, error: HTTPError) -> None:
        super().__init__(f"{call}: {error}")
        self._error = error.reason if isinstance(error, MaxRetryError) else error

    def again(self, method: str) -> bool:
        return method == "GET" or isinstance(self._error, NewConnectionError)


class Refusal(ApiError):
    """What the API server said when it did not do what it was asked."""

    def __init__(self, call: str, code: int, body: bytes, retry_after: str = "") -> None:
        try:
            status = json.loads(body)
        except ValueError:
            status = {}
        status = status if isinstance(status, dict) else {}
        self.code = code
        self.reason: str = status.get("reason", "")
        self.message: str = status.get("message", body.decode(errors="replace"))
        self.details: Object = status.get("details") or {}
        self.retry_after = float(retry_after) if retry_after.isdigit() else 0.0
        super().__init__(f"{call}: {code} {self.reason}: {self.message}")

    def again(self, method: str) -> bool:
        return self.code in BUSY if method == "GET" else self.code == 429


class NotFound(Refusal):
    """There is no such object."""


class Failure(NamedTuple):
    """A call that failed, for those who look into a failing test."""

    at: float
    call: str
    said: str


failures: deque[Failure] = deque(maxlen=200)
"""The last calls of this process that failed, also those that were tried again; that something isn't there is none."""


class Resource(NamedTuple):
    """A kind as the API server serves it."""

    api_version: str
    kind: str
    plural: str
    names: frozenset[str]
    namespaced: bool

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        base = f"/api/{self.api_version}" if self.api_version == "v1" else f"/apis/{self.api_version}"
        where = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{base}{where}/{self.plural}" + "".join(f"/{part}" for part in (name, subresource) if part)


class Connection:
    """Requests to the API server that a kubeconfig names, as its user or as another."""

    def __init__(
        self, kubeconfig: str, user: str = "", groups: tuple[str, ...] = (), seconds: float = READ_SECONDS
    ) -> None:
        from kubernetes import config  # here: it costs tests without a cluster half a second

        self._client = config.new_client_from_config(kubeconfig)
        self._pool: urllib3.PoolManager = self._client.rest_client.pool_manager
        self.seconds = seconds
        self.host = self._client.configuration.host.rstrip("/")
        self._as = [("Impersonate-User", user)] * bool(user) + [("Impersonate-Group", group) for group in groups]

    def _headers(self, **more: str) -> urllib3.HTTPHeaderDict:
        headers = urllib3.HTTPHeaderDict({"Accept": "application/json", "User-Agent": "codeexec-tests", **more})
        token = self._client.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            headers["Authorization"] = token
        for name, value in self._as:
            headers.add(name, value)
        return headers

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        type: str = "application/json",
        accept: str = "application/json",
        seconds: float | None = None,
        stream: bool = False,
        **query: Any,
    ) -> urllib3.BaseHTTPResponse:
        """The answer, once there is one that is not worth another try; raises a Refusal for all but success."""
        asked = urlencode({name: value for name, value in query.items() if value not in ("", None)})
        path = f"{path}?{asked}" if asked else path
        deadline = time.monotonic() + (self.seconds if seconds is None else seconds)
        pause = 0.05
        while True:
            left = max(deadline - time.monotonic(), 0.1)
            # A watch may be silent for as long as it lasts; the server ends it in time.
            timeout = urllib3.Timeout(connect=min(left, 5), read=left + 5)
            headers = self._headers(Accept=accept, **({"Content-Type": type} if body is not None else {}))
            try:
                answer = self._pool.request(
                    method,
                    self.host + path,
                    body=None if body is None else json.dumps(body).encode(),
                    headers=headers,
                    preload_content=not stream,
                    retries=False,
                    timeout=timeout,
                )
                if answer.status < 400:
                    return answer
                kind = NotFound if answer.status == 404 else Refusal
                retry_after = answer.headers.get("Retry-After", "")
                error: ApiError = kind(f"{method} {path}", answer.status, answer.data, retry_after)
            except HTTPError as broken:
                error = Unreachable(f"{method} {path}", broken)
            if error.code != 404:
                failures.append(Failure(time.time(), f"{method} {path}", str(error)))
            wait = max(error.retry_after, pause * random.uniform(0.5, 1))
            if not error.again(method) or time.monotonic() + wait >= deadline:
                raise error
            time.sleep(wait)
            pause = min(pause * 2, 2)

    def json(self, method: str, path: str, body: Any = None, **how: Any) -> Object:
        return json.loads(self.request(method, path, body, **how).data)


def discover(connection: Connection) -> Iterator[Resource]:
    """What the API server serves, in the order in which kubectl prefers it."""
    for path in ("/api", "/apis"):
        for group in connection.json("GET", path, accept=_DISCOVERY)["items"]:
            prefix = f"{group['metadata']['name']}/" if group["metadata"].get("name") else ""
            for version in group["versions"]:
                for one in version.get("resources", []):
                    if "responseKind" not in one:
                        continue
                    names = {one["resource"], one.get("singularResource", ""), *one.get("shortNames", [])} - {""}
                    names |= {one["responseKind"]["kind"].lower(), f"{one['resource']}.{prefix.rstrip('/')}"}
                    yield Resource(
                        api_version=prefix + version["version"],
                        kind=one["responseKind"]["kind"],
                        plural=one["resource"],
                        names=frozenset(names),
                        namespaced=one["scope"] == "Namespaced",
                    )
