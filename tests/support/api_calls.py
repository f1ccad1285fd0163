"""Calls of the Kubernetes API, by verb and resource as RBAC names them, and which of them are meant."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_WRITES: Final = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True)
class Call:
    """One request to the API server."""

    verb: str
    """get, list, watch, create, update, patch, delete, deletecollection, or connect (attach, exec, port-forward)."""
    resource: str = ""
    """Plural; empty for what is no resource, such as /version."""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    path: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)

    @property
    def sent(self) -> Any:
        """What was sent, read as JSON; an empty object if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return {}

    @property
    def phase(self) -> str:
        """The phase that this call writes, if it writes one."""
        sent = self.sent
        status = sent.get("status") if isinstance(sent, dict) else None
        return str(status.get("phase") or "") if isinstance(status, dict) else ""


@dataclass(frozen=True)
class Match:
    """Which calls are meant; what is empty is not looked at. Verbs may be several, with commas between them."""

    verb: str = ""
    resource: str = ""
    name: str = ""
    subresource: str | None = None
    """None: with one or without; "": without."""
    namespace: str = ""
    where: Callable[[Call], bool] | None = None
    """Looks closer."""

    def __call__(self, call: Call) -> bool:
        """True if this call is meant."""
        return (
            (not self.verb or call.verb in self.verb.split(","))
            and self.resource in ("", call.resource)
            and self.name in ("", call.name)
            and self.subresource in (None, call.subresource)
            and self.namespace in ("", call.namespace)
            and (self.where is None or self.where(call))
        )


def call_of(method: str, path: str, query: Mapping[str, str], body: bytes) -> Call:
    """What a request asks for, by its method and path."""
    parts = path.strip("/").split("/")
    match parts:
        case ["api", _, *rest]:
            pass
        case ["apis", _, _, *rest]:
            pass
        case _:
            return Call(method.lower(), path=path, query=dict(query), body=body)
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "", "")[:3]
    verb = _verb(method, name, subresource, query)
    return Call(verb, resource, namespace, name, subresource, path, dict(query), body)


def _verb(method: str, name: str, subresource: str, query: Mapping[str, str]) -> str:
    if subresource in ("attach", "exec", "portforward"):
        return "connect"
    if method == "GET":
        watches = query.get("watch", "").lower() in ("1", "true")
        return "watch" if watches else "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return _WRITES.get(method, method.lower())
