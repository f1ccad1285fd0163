"""Objects of a cluster as dicts, and what becomes of them, by watches."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from api_server import (
    PATCHES,
    READ_SECONDS,
    Connection,
    Failure,
    NotFound,
    Object,
    Refusal,
    Resource,
    discover,
    failures,
)
from urllib3.exceptions import HTTPError

DEFAULT_SANDBOX = "codeexec-sandbox"
"""The sandbox namespace that clients take by themselves, and that tests use which run alone."""


def _sandbox() -> str:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    return f"{DEFAULT_SANDBOX}-{int(worker.removeprefix('gw')) + 1}" if worker else DEFAULT_SANDBOX


SANDBOX = _sandbox()
"""The sandbox namespace of this worker of pytest-xdist: tests of others don't see what happens there."""


QUOTA_RACES = 20
"""So often an object is created anew that was counted at the same time as another."""

LONGEST_WATCH_SECONDS = 20
"""A wait is made of watches of this length: if one of them falls silent, the next sees what was missed."""


class Event(NamedTuple):
    """ADDED, MODIFIED or DELETED, and the version of the object."""

    type: str
    object: Object


@dataclass
class Wait:
    """What is awaited, and until when; keeps the last version that was seen."""

    what: str
    seconds: float
    last: Event | None = None
    versions: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return self.started + self.seconds - time.monotonic()

    def see(self, event: Event) -> Object | None:
        """The version, unless the object is gone."""
        self.versions += 1
        self.last = event
        return None if event.type == "DELETED" else event.object

    def in_vain(self) -> AssertionError:
        return AssertionError(f"waited {self.seconds:g} s in vain for {self.what}; {self.seen()}")

    def seen(self) -> str:
        if self.last is None:
            return "there was no such object"
        gone = ", before it was deleted," if self.last.type == "DELETED" else ""
        return f"of {self.versions} versions the last{gone} was {summary(self.last.object)}"


def summary(thing: Object, most: int = 1500) -> str:
    """The name and the status of an object, in about so many characters at most."""
    text = json.dumps(thing.get("status", {}))
    meta = thing.get("metadata", {})
    deleted = f", being deleted since {meta['deletionTimestamp']}" if "deletionTimestamp" in meta else ""
    return (
        f"{thing.get('kind', '')} {meta.get('name', '')}{deleted}: {text if len(text) <= most else text[:most] + '…'}"
    )


_served: dict[str, list[Resource]] = {}
"""What each API server serves, by its address."""


def _refusal(call: Callable[..., Any], *arguments: Any, **how: Any) -> Refusal | None:
    try:
        call(*arguments, **how)
    except Refusal as refusal:
        return refusal
    return None


class Kube:
    """The objects of a cluster, for the user of a kubeconfig, or for another whom that user may impersonate."""

    def __init__(
        self, kubeconfig: str, user: str = "", groups: tuple[str, ...] = (), seconds: float = READ_SECONDS
    ) -> None:
        self.kubeconfig = kubeconfig
        self.connection = Connection(kubeconfig, user, groups, seconds)

    def resource(self, kind: str, api_version: str = "") -> Resource:
        """A kind as kubectl takes it: `pod`, `pods`, `cex`, `networkpolicies.networking.k8s.io`."""
        host = self.connection.host
        for known in (host in _served, False):
            if not known:
                _served[host] = list(discover(self.connection))
            for one in _served[host]:
                if kind.lower() in one.names and api_version in ("", one.api_version):
                    return one
        raise AssertionError(f"the API server serves no {kind} {api_version}")

    def _place(self, thing: Mapping[str, Any]) -> tuple[str, str]:
        """The path of those of its kind in its namespace, and its name."""
        meta = thing.get("metadata", {})
        resource = self.resource(thing["kind"], thing["apiVersion"])
        return resource.path(meta.get("namespace", "default")), meta.get("name", "")

    def get(self, kind: str, name: str, namespace: str = SANDBOX, *, subresource: str = "") -> Object:
        return self.connection.json("GET", self.resource(kind).path(namespace, name, subresource))

    def find(self, kind: str, name: str, namespace: str = SANDBOX) -> Object | None:
        try:
            return self.get(kind, name, namespace)
        except NotFound:
            return None

    def exists(self, kind: str, name: str, namespace: str = SANDBOX) -> bool:
        return self.find(kind, name, namespace) is not None

    def list(self, kind: str, namespace: str | None = SANDBOX, *, labels: str = "", fields: str = "") -> list[Object]:
        """All of a kind; of all namespaces if that is None."""
        return [*self.look(kind, namespace, labels=labels, fields=fields)[0]]

    def create(self, *objects: Mapping[str, Any], dry_run: bool = False) -> Object:
        """Unknown fields are refused, as kubectl does. Gives back the last of them."""
        made: Object = {}
        for one in objects:
            path, _ = self._place(one)
            made = self._post(path, one, dryRun="All" * dry_run, fieldValidation="Strict")
        return made

    def _post(self, path: str, thing: Mapping[str, Any], **query: str) -> Object:
        """Two that are counted in one quota at the same time conflict: one of them is refused, and has to ask again."""
        for _ in range(QUOTA_RACES):
            try:
                return self.connection.json("POST", path, thing, **query)
            except Refusal as refusal:
                if refusal.code != 409 or "resourcequotas" not in refusal.message:
                    raise
        return self.connection.json("POST", path, thing, **query)

    def apply(self, *objects: Mapping[str, Any], dry_run: bool = False) -> Object:
        """By server-side apply, whoever else wrote these fields. Gives back the last of them."""
        made: Object = {}
        for one in objects:
            path, name = self._place(one)
            how = {"type": PATCHES["apply"], "dryRun": "All" * dry_run, "fieldValidation": "Strict"}
            made = self.connection.json("PATCH", f"{path}/{name}", one, fieldManager="tests", force="true", **how)
        return made

    def patch(
        self,
        kind: str,
        name: str,
        patch: Any,
        namespace: str = SANDBOX,
        subresource: str = "",
        type: str = "merge",
        dry_run: bool = False,
    ) -> Object:
        """`type` is one of merge, json, strategic, apply."""
        path = self.resource(kind).path(namespace, name, subresource)
        return self.connection.json("PATCH", path, patch, type=PATCHES[type], dryRun="All" * dry_run)

    def replace(self, thing: Mapping[str, Any], subresource: str = "", *, dry_run: bool = False) -> Object:
        """Refused if somebody wrote it meanwhile, unless it has no resourceVersion."""
        path, name = self._place(thing)
        path = "/".join(part for part in (path, name, subresource) if part)
        return self.connection.json("PUT", path, thing, dryRun="All" * dry_run, fieldValidation="Strict")

    def delete(
        self,
        kind: str,
        name: str,
        namespace: str = SANDBOX,
        missing_ok: bool = True,
        wait: bool = False,
        *,
        dry_run: bool = False,
        **options: Any,
    ) -> None:
        """`options` are those of DeleteOptions, such as gracePeriodSeconds=0."""
        path = self.resource(kind).path(namespace, name)
        try:
            # In the body: where there is one, the API server doesn't look at the query.
            how = {"dryRun": ["All"]} if dry_run else {}
            self.connection.request("DELETE", path, {"propagationPolicy": "Background", **how, **options})
        except NotFound:
            if not missing_ok:
                raise
        if wait:
            self.wait_until_gone(kind, name, namespace=namespace)

    def delete_collection(self, kind: str, namespace: str = SANDBOX, *, fields: str, dry_run: bool = False) -> None:
        """What this selects. The API server asks admission about each object, without its name."""
        options = {"dryRun": ["All"]} if dry_run else {}
        self.connection.request("DELETE", self.resource(kind).path(namespace), options, fieldSelector=fields)

    def wait_until_gone(self, kind: str, name: str, seconds: float = 100, namespace: str = SANDBOX) -> None:
        """Until there is no object of this name."""
        wait = Wait(f"{kind} {name} to go", seconds)
        for change in self.changes(kind, namespace, wait, fields=f"metadata.name={name}"):
            if not [version for version in map(wait.see, change) if version]:
                return
        raise wait.in_vain()

    # For tests about refusals: what the server said, or None if it did as it was asked.

    def try_get(self, *arguments: Any, **how: Any) -> Refusal | None:
        return _refusal(self.get, *arguments, **how)

    def try_list(self, *arguments: Any, **how: Any) -> Refusal | None:
        return _refusal(self.list, *arguments, **how)

    def try_create(self, thing: Mapping[str, Any], **how: Any) -> Refusal | None:
        return _refusal(self.create, thing, **how)

    def try_apply(self, thing: Mapping[str, Any], **how: Any) -> Refusal | None:
        return _refusal(self.apply, thing, **how)

    def try_patch(self, *arguments: Any, **how: Any) -> Refusal | None:
        return _refusal(self.patch, *arguments, **how)

    def try_replace(self, *arguments: Any, **how: Any) -> Refusal | None:
        return _refusal(self.replace, *arguments, **how)

    def try_delete(self, *arguments: Any, **how: Any) -> Refusal | None:
        """That there is no such object is a refusal, too."""
        return _refusal(self.delete, *arguments, **{"missing_ok": False, **how})

    def try_delete_collection(self, *arguments: Any, **how: Any) -> Refusal | None:
        return _refusal(self.delete_collection, *arguments, **how)

    def try_connect(
        self, pod: str, how: str, namespace: str = SANDBOX, *, kind: str = "pod", method: str = "GET"
    ) -> Refusal | None:
        """`how` is the subresource with its query, such as `exec?command=true`. No connection is made this way."""
        return _refusal(self.connection.request, method, f"{self.resource(kind).path(namespace, pod)}/{how}")

    def logs(self, namespace: str, pod: str, container: str = "", **query: Any) -> str:
        """`query` as of the log subresource: sinceSeconds, sinceTime, tailLines, previous, timestamps."""
        path = self.resource("pod").path(namespace, pod, "log")
        return self.connection.request("GET", path, accept="*/*", container=container, **query).data.decode(
            errors="replace"
        )

    def look(
        self, kind: str, namespace: str | None, *, labels: str = "", fields: str = "", seconds: float | None = None
    ) -> tuple[Sequence[Object], str]:
        """What there is of a kind, and the resourceVersion from which a watch goes on."""
        resource = self.resource(kind)
        query = {"labelSelector": labels, "fieldSelector": fields}
        found = self.connection.json("GET", resource.path(namespace), seconds=seconds, **query)
        own = {"apiVersion": resource.api_version, "kind": resource.kind}
        return [{**own, **one} for one in found["items"]], found["metadata"]["resourceVersion"]

    def changes(
        self, kind: str, namespace: str | None, wait: Wait, *, since: str = "", labels: str = "", fields: str = ""
    ) -> Iterator[Sequence[Event]]:
        """First what there is, as ADDED, then each change, until the wait is over; with `since` those since then.

        A watch that is cut or ends is taken up where it was. If the server has forgotten that version, what there is
        now is compared with what there was; with `since`, where each version matters, that is an error.
        """
        path = self.resource(kind).path(namespace)
        known: dict[str, Object] = {}
        start, looked = since, False
        while wait.left > 0 or not looked:  # once, however long it took to get here
            looked = True
            if not since:
                there, since = self.look(kind, namespace, labels=labels, fields=fields, seconds=max(wait.left, 1))
                yield list(_differences(known, {_uid(one): one for one in there}))
                known = {_uid(one): one for one in there}
            for type_, thing in self._stream(path, wait, since, labelSelector=labels, fieldSelector=fields):
                if type_ == "ERROR":
                    assert not start, f"versions of {kind} since {start} are lost: {thing}"
                    since = ""
                    break
                since = thing["metadata"]["resourceVersion"]
                if type_ == "DELETED":
                    known.pop(_uid(thing), None)
                elif type_ != "BOOKMARK":
                    known[_uid(thing)] = thing
                if type_ != "BOOKMARK":
                    yield [Event(type_, thing)]

    def _stream(self, path: str, wait: Wait, since: str, **selectors: str) -> Iterator[tuple[str, Object]]:
        """One watch, until it is cut or the time is over. ERROR means that the server has forgotten the version."""
        left = min(max(wait.left, 0), LONGEST_WATCH_SECONDS)
        how = {"watch": "1", "resourceVersion": since, "allowWatchBookmarks": "true", **selectors}
        try:
            answer = self.connection.request(
                "GET", path, stream=True, seconds=left, timeoutSeconds=math.ceil(left), **how
            )
        except Refusal as refusal:
            if refusal.code != 410:
                raise
            yield "ERROR", {"message": refusal.message}
            return
        try:
            rest = b""
            for chunk in answer.stream(amt=None):
                *lines, rest = (rest + chunk).split(b"\n")
                for event in map(json.loads, filter(None, lines)):
                    yield event["type"], event["object"]
        except HTTPError as cut:
            failures.append(Failure(time.time(), f"watch {path}", str(cut)))
        finally:
            answer.close()  # not given back to the pool: the server may still be sending


def _uid(thing: Object) -> str:
    return thing["metadata"]["uid"]


def _differences(before: Mapping[str, Object], now: Mapping[str, Object]) -> Iterator[Event]:
    for uid in before.keys() - now.keys():
        yield Event("DELETED", before[uid])
    for uid, one in now.items():
        if uid not in before:
            yield Event("ADDED", one)
        elif before[uid]["metadata"]["resourceVersion"] != one["metadata"]["resourceVersion"]:
            yield Event("MODIFIED", one)
