"""The files of a session's workspace."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from codeexec_api.v1alpha1.bounds import MAX_FETCH_BYTES, MAX_FILES, MAX_PAYLOAD_BYTES
from executor_client.client.session_handle import SessionHandle, demand_success
from executor_client.exceptions import FileMissing, FileTransferError
from executor_client.model.arguments import contents, inside, several
from executor_client.model.blocks import removal
from executor_client.model.results import Artifact, ExecutionResult
from executor_client.model.selection import literally
from executor_client.workspace.batches import groups

_REMOVAL_SECONDS: Final = 10
"""How long a removal may take. The time that code may take can need an approval."""


class Files:
    """The files of a session's workspace: `session.files`.

    Paths are relative to the workspace; `/workspace/plot.png`, as code in a cluster prints it, is `plot.png`. Each call
    is an execution with a record of its own, and waits for the code that runs.
    """

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle

    async def read(self, path: str) -> bytes:
        """The content of a file of at most 16 MiB, or 128 MiB if the cluster has an output store.

        Raises:
            FileMissing: there is no such file; a FileNotFoundError.
            FileTransferError: the file is too large, or the path can't be one in the workspace; a ValueError.
            SessionEnded: the session is over.
            Error: see `codeexec`.
        """
        [content] = (await self.read_many([path])).values()
        return content

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """The content of a file as text; sizes as in `read`.

        Raises:
            UnicodeDecodeError: the file holds other bytes.
            Error: as `read`.
        """
        return (await self.read(path)).decode(encoding)

    async def read_many(self, paths: Sequence[str]) -> dict[str, bytes]:
        """The content of at most 64 files, by path, as one operation; their sizes together as in `read`.

        Raises:
            Error: as `read`; the text names the files.
        """
        names = {path: inside(path) for path in several("paths", paths)}
        found = await self._handle.download(list(dict.fromkeys(map(literally, names.values()))))
        if missing := [path for path, name in names.items() if name not in found]:
            raise FileMissing(f"not in the workspace of session {self._handle.name}: {', '.join(missing)}")
        return {path: found[name] for path, name in names.items()}

    async def write(self, path: str, content: bytes | str) -> None:
        """Put a file of at most 16,000,000 bytes into the workspace; what stands there is replaced. Text is UTF-8.

        Raises:
            FileTransferError: the file is too large, or can't be put there; the text says why. A ValueError.
            SessionEnded: the session is over.
            Error: see `codeexec`.
        """
        await self.write_many({path: content})

    async def write_many(self, files: Mapping[str, bytes | str]) -> None:
        """Put files into the workspace, by path, in as few operations as their sizes need.

        Raises:
            Error: as `write`. Files of earlier operations are in the workspace then.
        """
        sent = contents(files)
        sizes = {path: len(content) for path, content in sent.items()}
        for path, size in sizes.items():
            if size > MAX_PAYLOAD_BYTES:
                raise FileTransferError(
                    f"{path!r} has {size} bytes; at most {MAX_PAYLOAD_BYTES} can be written: split or compress it"
                )
        for group in groups(sizes, MAX_PAYLOAD_BYTES, MAX_FILES):
            await self._handle.upload({path: sent[path] for path in group})

    async def list(self) -> list[Artifact]:
        """The files of the workspace, sorted by path: at most 256. How many are left out is a line in the log.

        Raises:
            SessionEnded: the session is over.
            Error: see `codeexec`.
        """
        return await self._handle.list_files()

    async def stat(self, path: str) -> Artifact:
        """Path, size in bytes and SHA-256 of a file; a larger one than 16 MiB has none.

        The content stays where it is, unless the workspace has more than 256 files or 64 MiB.

        Raises:
            FileMissing: there is no such file; a FileNotFoundError.
            Error: as `read`.
        """
        if found := await self._find(inside(path), digest=True):
            return found
        raise FileMissing(f"not in the workspace of session {self._handle.name}: {path}")

    async def exists(self, path: str) -> bool:
        """True if there is such a file. The content stays where it is, unless the workspace has more than 256 files.

        Raises:
            Error: as `read`, except that a missing file is no error.
        """
        return await self._find(inside(path), digest=False) is not None

    async def remove(self, path: str) -> None:
        """Delete a file. The record shows it as a shell block, so the policy has to allow `sh`.

        Raises:
            FileMissing: there is no such file; a FileNotFoundError.
            FileTransferError: the file can't be deleted; the text says why.
            Error: as `read`.
        """
        name = inside(path)
        asked = self._handle.request
        quick = replace(asked, timeout_seconds=min(asked.timeout_seconds, _REMOVAL_SECONDS))
        result = await self._handle.execute([removal(name)], quick, list_files="None")
        if result.exit_code != 0:
            await self.stat(path)
            raise FileTransferError(f"{path!r} can't be deleted: {result.output.strip()}")

    async def _find(self, name: str, *, digest: bool) -> Artifact | None:
        """What is known of a file: from the list of all, or, where that leaves it open, from having it fetched."""
        listed = await self._handle.execute((), list_files="All")
        demand_success(listed)
        found = _of(name, listed)
        lacks_digest = found is not None and found.sha256 is None and found.size_bytes <= MAX_FETCH_BYTES
        if (digest and lacks_digest) or (found is None and listed.artifacts_omitted):
            fetched = await self._handle.execute((), fetch=[literally(name)], list_files="None")
            demand_success(fetched)
            found = _of(name, fetched)
        return found


def _of(name: str, result: ExecutionResult) -> Artifact | None:
    return next((one for one in result.artifacts if one.path == name), None)
