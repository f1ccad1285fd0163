"""Watches that survive what is lost on the way: they are opened again, and what may have been missed is looked at."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar

import aiohttp
from kubernetes.aio.client.exceptions import ApiException

from codeexec_api import CodeExecution, CodeSession
from codeexec_api.v1alpha1.base import Object
from executor_client.exceptions import ClusterUnreachable, CodeExecError, NotFound
from executor_client.transport.api_errors import translate
from executor_client.transport.kube_api import OURS, KubeApi
from executor_client.transport.outage import Outage
from executor_client.transport.protocol import CLOSED

_WATCH_SECONDS: Final = 240
_SILENT_SECONDS: Final = 90
"""After which a watch that says nothing counts as broken: bookmarks come every minute."""

_Object = TypeVar("_Object", CodeExecution, CodeSession)

SEEN: Final = "SEEN"
GONE: Final = "GONE"
"""Beside the changes that a watch tells of."""


class Watcher:
    """Watches objects of a connection."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def changes(self, start: _Object) -> AsyncGenerator[_Object, None]:
        """Each version of an object after the given one, until it is deleted. Lost watches are resumed, for a while.

        Raises:
            CodeExecError: see `exceptions`.
        """
        model, name, seen = type(start), start.metadata.name, int(start.metadata.resource_version)
        version = start.metadata.resource_version
        events = self.events(model, version, lambda: [name], {"fieldSelector": f"metadata.name={name}"})
        async with aclosing(events):
            async for change, raw in events:
                if change == GONE:
                    return
                current = model.read(raw)
                if int(current.metadata.resource_version) > seen:
                    seen = int(current.metadata.resource_version)
                    yield current
                if change == "DELETED":
                    return

    async def begin(self, model: type[Object], selector: Mapping[str, str]) -> str:
        """The resource version from which on nothing will be missed."""
        with self._api.errors(f"list {model.kind}s"):
            listed = await self._api.request("GET", self._api.path(OURS, model.plural), {"limit": 1, **selector})
        version: str = listed["metadata"]["resourceVersion"]
        return version

    async def _look(self, model: type[Object], names: Collection[str]) -> AsyncGenerator[tuple[str, Any], None]:
        """The objects of these names as they are, or GONE with the name."""
        for name in names:
            try:
                yield SEEN, await self._api.get_object(model, name)
            except NotFound:
                yield GONE, {"metadata": {"name": name}}

    async def events(
        self, model: type[Object], version: str, names: Callable[[], Collection[str]], selector: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """What changes from a resource version on: the kind of the change, and the object. Lost watches are resumed.

        Where a change may have been missed, the objects of these names are looked at: SEEN or GONE.
        """
        outage, missed = Outage(asyncio.get_running_loop().time), False
        while True:
            outage.opens()
            try:
                if missed:
                    version = await self.begin(model, selector)
                    async with aclosing(self._look(model, names())) as found:
                        async for seen in found:
                            yield seen
                async with aclosing(self._watch_once(model, version, selector, outage)) as events:
                    async for change, raw in events:
                        outage.said = True
                        version = raw["metadata"]["resourceVersion"]
                        if change != "BOOKMARK":
                            yield change, raw
                missed = outage.ended()
            except (ApiException, CodeExecError) as error:
                too_old = isinstance(error, ApiException) and error.status == 410
                missed = missed or too_old
                if self._api.retries.closed:
                    raise ClusterUnreachable(CLOSED) from None
                if not (outage.passes(error) or too_old):
                    if isinstance(error, ApiException):
                        raise translate(f"watch the {model.kind}", self._api.namespace, error) from error
                    raise
            await self._api.retries.pause(outage.pause())

    async def _watch_once(
        self, model: type[Object], version: str, selector: Mapping[str, str], outage: Outage
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """One watch, until the server ends it. When the caller has seen enough, its connection is dropped at once."""
        with self._api.network_errors(f"watch the {model.kind}"):
            query = {
                "watch": "true",
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(_WATCH_SECONDS),
                "resourceVersion": version,
                **selector,
            }
            response = await self._api.stream(self._api.path(OURS, model.plural), query, silent=_SILENT_SECONDS)
            try:
                if response.status != 200:
                    raise ApiException(status=response.status, reason=await response.text())
                outage.answered = True
                while line := await response.content.readline():
                    event = _parsed_event(line)
                    if event["type"] == "ERROR":
                        raise ApiException(status=event["object"].get("code"), reason=event["object"].get("message"))
                    yield event["type"], event["object"]
            finally:
                response.close()


def _parsed_event(line: bytes) -> dict[str, Any]:
    """One line of a watch. One that was cut off is an end of the connection like any other."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise aiohttp.ClientPayloadError(f"a line of the watch is not JSON: {error}") from None
    return event
