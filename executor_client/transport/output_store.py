"""The store that the platform owner keeps large output in, as this client's user has named it; read by fsspec.

A record can't make the client open anything: its URL is shown in messages only. Names of objects are made of the
namespace and the UID of the record that the caller has asked for.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import Final

from codeexec_api import CodeExecution
from codeexec_api.output_store import (
    MAX_OBJECT_BYTES,
    STORE_VARIABLE,
    below,
    check_store_url,
    load_part,
    object_path,
)
from codeexec_api.store_files import StoreFiles, in_thread, open_store
from executor_client.exceptions import OutputUnavailable

_SECONDS: Final = 60
"""How long the store may take for one part."""


class OutputStore:
    """Reads parts of output.

    Args:
        url: of the store; None: as CODEEXEC_OUTPUT_STORE says. Credentials come from the environment.
    """

    def __init__(self, url: str | None = None) -> None:
        self._url: Final = os.environ.get(STORE_VARIABLE, "") if url is None else url
        self._opened: tuple[StoreFiles, str] | None = None

    async def read(self, execution: CodeExecution, part: int) -> Mapping[str, bytes]:
        """What one part of the output of this execution holds.

        Raises:
            OutputUnavailable: the user has named no store, or the store doesn't give the part.
        """
        recorded = execution.status.output_store
        told, parts = (recorded.url, recorded.parts) if recorded else ("", ())
        name = execution.metadata.name
        if not self._url:
            raise OutputUnavailable(
                f"the output of execution {name} is in the output store {told!r}, but this client has no output store. "
                f"If your platform uses that store, set {STORE_VARIABLE}, or output_store of ClusterRef, to this URL"
            )
        try:
            path = object_path(execution.metadata.namespace, execution.metadata.uid, parts[part])
            async with asyncio.timeout(_SECONDS):
                return load_part(await asyncio.wrap_future(in_thread(lambda: self._read(path))))
        except TimeoutError:
            why = f"it did not answer within {_SECONDS} s"
        except FileNotFoundError:
            why = "it is not there: the store's lifecycle rules have deleted it, or the record is about another store"
        except Exception as error:  # of whatever type the backend likes
            why = f"{type(error).__name__}: {error}"
        raise OutputUnavailable(
            f"part {part} of the output of execution {name} can't be read from the output store {self._url!r} (the "
            f"record names {told!r}): {why}. Check {STORE_VARIABLE} and the credentials in the environment. The "
            "record has the digests and sizes"
        )

    def _read(self, path: str) -> bytes:
        files, root = self._opened = self._opened or open_store(check_store_url(self._url))
        return files.cat_file(below(root, path), start=0, end=MAX_OBJECT_BYTES)
