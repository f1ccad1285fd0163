"""Opens an output store, for the operator and for clients alike: by fsspec, or by obstore where fsspec has no backend.

Imports neither before it is asked to.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeVar

from codeexec_api.output_store import MAX_OBJECT_BYTES

T = TypeVar("T")

_BY_OBSTORE: Final = ("s3", "gs", "az")
_RETRIES: Final[Any] = {"max_retries": 1}
"""Whoever calls tries again, with pauses of its own."""


class StoreFiles(Protocol):
    """The two calls of a filesystem of fsspec that are needed. Both block, and raise whatever the backend likes."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> object:
        """Write an object; with the mode `create` a FileExistsError says that it is there already."""

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read an object."""


def open_store(url: str) -> tuple[StoreFiles, str]:
    """A store, and the path of its root in it. Connects to nothing. Credentials come from the environment.

    Raises:
        ImportError: no backend for this protocol is installed.
        Exception: of any type, as the backend likes: its configuration is wrong.
    """
    import fsspec

    protocol, _, place = url.partition("://")
    try:
        files, root = fsspec.url_to_fs(url, **({"auto_mkdir": True} if protocol == "file" else {}))
        return files, root
    except ImportError as no_backend:
        try:
            return _ObjectStore(protocol, place.partition("/")[0]), place.partition("/")[2]
        except ImportError:
            raise no_backend from None


def in_thread(call: Callable[[], T]) -> "Future[T]":
    """Run a call that may hang in a thread that nothing waits for when the process ends."""
    future: Future[T] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()  # from now on it can't be cancelled
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
        except BaseException as error:  # the panic of a backend in Rust is none of Exception
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

    threading.Thread(target=run, name="output store", daemon=True).start()
    return future


class _ObjectStore:
    def __init__(self, protocol: str, bucket: str) -> None:
        import obstore
        from obstore.store import from_url

        if protocol not in _BY_OBSTORE:
            raise ImportError(protocol)
        self._obstore = obstore
        self._store = from_url(f"{protocol}://{bucket}", retry_config=_RETRIES)

    def pipe_file(self, path: str, value: bytes, mode: Any = "overwrite") -> None:
        try:
            self._obstore.put(self._store, path, value, mode=mode, use_multipart=False)
        except self._obstore.exceptions.AlreadyExistsError as error:
            raise FileExistsError(path) from error

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        try:
            found = self._obstore.get(self._store, path)
        except self._obstore.exceptions.NotFoundError as error:
            raise FileNotFoundError(path) from error
        if found.meta["size"] > MAX_OBJECT_BYTES:
            raise ValueError(f"it has {found.meta['size']} bytes; no part has more than {MAX_OBJECT_BYTES}")
        return bytes(found.bytes())[start:end]
