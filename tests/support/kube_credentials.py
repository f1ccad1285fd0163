"""What a kubeconfig says of its API server, and kubeconfigs that lead to another address."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Upstream:
    """An API server, and how to show who is calling."""

    server: str
    authority: str | None = None
    """Certificates in PEM, by which the API server is known."""
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


def upstream_of(kubeconfig: Mapping[str, Any]) -> Upstream:
    """The API server of the current context, and its user's client certificate, if there is one."""
    cluster, user = _current(kubeconfig)
    authority = _content(cluster, "certificate-authority")
    return Upstream(
        cluster["server"].rstrip("/"),
        authority.decode() if authority else None,
        _content(user, "client-certificate"),
        _content(user, "client-key"),
    )


def without_tls(kubeconfig: Mapping[str, Any], server: str, token: str | None) -> dict[str, Any]:
    """A kubeconfig for plain HTTP to this server, with this token, or with the one that is in it."""
    _, user = _current(kubeconfig)
    shown = token or user.get("token")
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": server}}],
        "users": [{"name": "it", "user": {"token": shown} if shown else {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    }


def _current(kubeconfig: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    context = _named(kubeconfig["contexts"], kubeconfig["current-context"])["context"]
    cluster = _named(kubeconfig["clusters"], context["cluster"])["cluster"]
    return cluster, _named(kubeconfig["users"], context["user"])["user"]


def _named(entries: list[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return next(one for one in entries if one["name"] == name)


def _content(entry: Mapping[str, Any], key: str) -> bytes | None:
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data)
    return Path(entry[key]).read_bytes() if entry.get(key) else None
