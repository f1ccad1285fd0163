"""How a client shows the API server who it is. What runs out or is replaced is read again before the next request.

Key material stays in memory: see `kube_config`.
"""

import asyncio
import os
import ssl
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

from kubernetes.aio import client

from executor_client.exceptions import ClusterUnreachable
from executor_client.transport.impersonation import Header

_EARLY: Final = timedelta(seconds=5)
"""How long before its end a token is replaced."""


_AGAIN_SECONDS: Final = 5
"""How long a failure to read counts for all requests, unless a file changes."""


@dataclass(frozen=True, repr=False)
class Identity:
    """What a request shows, and by which certificates the API server is known."""

    authorization: str | None = None
    certificate: bytes = b""
    key: bytes = b""
    authority: bytes = b""
    impersonation: tuple[Header, ...] = ()
    expires_at: datetime | None = None

    @property
    def expired(self) -> bool:
        """True if the API server is about to refuse it."""
        return self.expires_at is not None and datetime.now(UTC) + _EARLY >= self.expires_at  # noqa: TID251 - the plugin's clock

    @property
    def headers(self) -> tuple[Header, ...]:
        """Those that each request has, by name and value. A name may be there several times."""
        return ((("Authorization", self.authorization),) if self.authorization else ()) + self.impersonation

    @property
    def tls(self) -> tuple[bytes, bytes, bytes]:
        """What a connection is made with."""
        return self.certificate, self.key, self.authority

    @property
    def authorities(self) -> str | None:
        """The certificates as PEM; None for those of the system."""
        return self.authority.decode("ascii", errors="ignore") or None


@dataclass(frozen=True)
class Reading:
    """What was read, and the files that it came from."""

    configuration: client.Configuration
    identity: Identity
    files: tuple[Path, ...]
    context: str | None = None
    """That of the kubeconfig; None for a service account."""


Read: TypeAlias = Callable[[], Coroutine[Any, Any, Reading]]
_Stamps: TypeAlias = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class _Failure:
    """Why credentials could not be read. That counts while the files are the same, until a time of the loop's clock."""

    why: str
    stamps: _Stamps
    until: float


class Credentials:
    """The identity that counts. For one event loop.

    Args:
        read: reads all of it anew.
        reading: what was read last.
    """

    def __init__(self, read: Read, reading: Reading) -> None:
        self._read = read
        self._lock = asyncio.Lock()
        self._keep(reading)

    def _keep(self, reading: Reading) -> None:
        self.identity, self._files = reading.identity, reading.files
        self._stamps = _stamps(reading.files)
        self._failure: _Failure | None = None

    async def _read_again(self) -> None:
        """Read it, unless that has just failed for another request.

        Raises:
            ClusterUnreachable: it can't be read.
        """
        stamps, clock = _stamps(self._files), asyncio.get_running_loop().time
        failure = self._failure
        if failure and failure.stamps == stamps and clock() < failure.until:
            raise ClusterUnreachable(failure.why)
        try:
            self._keep(await self._read())
        except ClusterUnreachable as error:
            self._failure = _Failure(str(error), stamps, clock() + _AGAIN_SECONDS)
            raise

    async def current(self) -> Identity:
        """The identity, read again if it is about to expire or if one of its files has changed.

        A file may just be being written: what was read last goes on until it expires.

        Raises:
            ClusterUnreachable: it has expired, and can't be read.
        """
        before = self.identity
        if self._stale:
            async with self._lock:
                if self._stale and self.identity is before:  # else another request has just had it read
                    try:
                        await self._read_again()
                    except ClusterUnreachable:
                        if self.identity.expired:
                            raise
        return self.identity

    async def after(self, refused: Identity) -> Identity | None:
        """Another identity than the one that the API server has refused; None if there is none.

        Args:
            refused: as `current` has returned it. It is read again once, for all requests that it was refused to.

        Raises:
            ClusterUnreachable: it can't be read.
        """
        async with self._lock:
            if self.identity is refused:
                await self._read_again()
            return None if self.identity == refused else self.identity

    @property
    def _stale(self) -> bool:
        return self.identity.expired or _stamps(self._files) != self._stamps


def tls_context(configuration: client.Configuration, identity: Identity) -> ssl.SSLContext:
    """For connections to the API server."""
    context = ssl.create_default_context(cadata=identity.authorities)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if identity.certificate:
        with _as_file(identity.certificate) as certificate, _as_file(identity.key or identity.certificate) as key:
            context.load_cert_chain(certificate, key)
    return context


def _stamps(files: tuple[Path, ...]) -> _Stamps:
    return tuple(_stamp(file) for file in files)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A name under which the content can be read: OpenSSL takes files only. On Linux it is in memory."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("codeexec"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name
