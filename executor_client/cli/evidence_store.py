"""Where checkpoints of the audit log and exports of records are kept: a folder, or a bucket of an object storage."""

import errno
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from executor_client.runtime.extras import missing_extra

_AT_ONCE: Final = 16
"""Files that are read at the same time: an object storage takes a moment for each."""
_NO_FOLDERS: Final = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EACCES))
"""What systems answer that sync files, but no folders."""


class EvidenceStore:
    """Files are added to it, and never replaced.

    Args:
        place: a folder, or a URL: file://, s3://, gs:// or az://. Credentials come from the environment.
        what: the files, for messages.
        folder: where they are in that place; empty if they are at its top.

    Raises:
        click.ClickException: of all methods: the place can't be used.
    """

    def __init__(self, place: str, what: str, folder: str = "") -> None:
        try:
            # Imported here, because only these commands need the library, and it is an extra of its own.
            import obstore
            from obstore.store import from_url
        except ModuleNotFoundError as error:
            raise click.ClickException(str(missing_extra(f"to keep {what}", error))) from error
        self._obstore, self._what = obstore, what
        self._prefix = f"{folder}/" if folder else ""
        self._place = f"{place.rstrip('/')}/{folder}" if folder else place
        with self._errors("find", " (allowed: a folder that exists, or a URL with file://, s3://, gs:// or az://)"):
            self._store = from_url(place if "://" in place else Path(place).resolve().as_uri())

    def names(self) -> list[str]:
        """Of the files that are there, in order."""
        with self._errors("list"):
            listed = self._obstore.list_with_delimiter(self._store, prefix=self._prefix or None)
            return sorted(one["path"].removeprefix(self._prefix) for one in listed["objects"])

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Content by name."""

        def content(name: str) -> tuple[str, bytes]:
            return name, bytes(self._obstore.get(self._store, self._prefix + name).bytes())

        with self._errors("read"), ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(pool.map(content, names))

    def add(self, name: str, content: bytes) -> None:
        """Write a new one. Afterwards, a crash of this machine does not lose it."""
        with self._errors(f"write {name} to"):  # another writer may have been faster: that is an error, too
            self._obstore.put(self._store, self._prefix + name, content, mode="create")
            if isinstance(self._store, self._obstore.store.LocalStore) and (root := self._store.prefix):
                _sync(root, self._prefix + name)

    @contextmanager
    def _errors(self, verb: str, more: str = "") -> Iterator[None]:
        try:
            yield
        except (self._obstore.exceptions.BaseError, OSError, ValueError) as error:
            told = str(error).partition("\n")[0]
            raise click.ClickException(f"can't {verb} the {self._what} at {self._place}: {told}{more}") from error


def _sync(root: Path, name: str) -> None:
    """Have a file on disk, and the folders that lead to it, from `root` on."""
    path = root / name
    for one in (path, *(root / folder for folder in Path(name).parents)):
        try:
            descriptor = os.open(one, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if one == path or error.errno not in _NO_FOLDERS:
                raise
