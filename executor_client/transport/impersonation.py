"""The headers by which a request is made as another user: `as` of a kubeconfig. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from kubernetes.aio.config import ConfigException

Header: TypeAlias = tuple[str, str]

_LEGAL: Final = "!#$&'*+-.^_`|~"
"""What a name of a header may have besides letters and digits. A percent sign begins an encoded byte."""


def impersonation(user: Mapping[str, Any]) -> tuple[Header, ...]:
    """The headers that client-go sends for this entry of a kubeconfig. A name that has several values is repeated.

    Args:
        user: users[].user of a kubeconfig.

    Raises:
        ConfigException: a field has a value that is none, or there is no user to impersonate.
    """
    fields = [name for name in ("as", "as-uid", "as-groups", "as-user-extra") if user.get(name)]
    if fields and "as" not in fields:
        raise ConfigException(
            f"users[].user names {', '.join(fields)} without as: add the user to impersonate, or delete the fields"
        )
    return tuple(_headers({name: user[name] for name in fields}))


def _headers(user: Mapping[str, Any]) -> Iterator[Header]:
    for name, header in (("as", "Impersonate-User"), ("as-uid", "Impersonate-Uid")):
        if name in user:
            yield header, _text(name, user[name])
    for group in _texts("as-groups", user.get("as-groups", [])):
        yield "Impersonate-Group", group
    extra = user.get("as-user-extra", {})
    if not isinstance(extra, Mapping):
        raise ConfigException(f"users[].user.as-user-extra is {extra!r}, but must have a list of strings by key")
    for key, values in extra.items():
        for value in _texts(f"as-user-extra.{key}", values):
            yield f"Impersonate-Extra-{quote(str(key), safe=_LEGAL).lower()}", value


def _texts(name: str, given: Any) -> Iterator[str]:
    if not isinstance(given, list):
        raise ConfigException(f"users[].user.{name} is {given!r}, but must be a list of strings")
    for one in given:
        yield _text(name, one)


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str) or set("\r\n\0") & set(given):
        raise ConfigException(f"users[].user.{name} is {given!r}, but must be a string without line breaks")
    return given
