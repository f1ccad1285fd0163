"""The files of a session's workspace."""

from collections.abc import Mapping, Sequence
from typing import Final

from codeexec_api.paths import check_workspace_path
from codeexec_api.v1alpha1.bounds import MAX_FILES, MAX_PAYLOAD_BYTES
from executor_client.client.session_handle import SessionHandle, demand_success
from executor_client.exceptions import FileMissing, FileTransferError
from executor_client.model.blocks import removal
from executor_client.model.results import Artifact
from executor_client.workspace.batches import groups

_WORKSPACE: Final = "/workspace/"


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
        names = {path: _inside(path) for path in paths}
        found = await self._handle.download(list(dict.fromkeys(names.values())))
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
        contents = {_inside(path): as_bytes(content) for path, content in files.items()}
        sizes = {path: len(content) for path, content in contents.items()}
        for path, size in sizes.items():
            if size > MAX_PAYLOAD_BYTES:
                raise FileTransferError(
                    f"{path!r} has {size} bytes; at most {MAX_PAYLOAD_BYTES} can be written: split or compress it"
                )
        for group in groups(sizes, MAX_PAYLOAD_BYTES, MAX_FILES):
            await self._handle.upload({path: contents[path] for path in group})

    async def list(self) -> list[Artifact]:
        """The files of the workspace, sorted by path: at most 256. How many are left out is a line in the log.

        Raises:
            SessionEnded: the session is over.
            Error: see `codeexec`.
        """
        return await self._handle.list_files()

    async def stat(self, path: str) -> Artifact:
        """Path, size in bytes and SHA-256 of a file.

        Raises:
            FileMissing: there is no such file; a FileNotFoundError.
            Error: as `read`.
        """
        name = _inside(path)
        result = await self._handle.execute((), fetch=[name], list_files="None")
        demand_success(result)
        for one in result.artifacts:
            if one.path == name:
                return one
        raise FileMissing(f"not in the workspace of session {self._handle.name}: {path}")

    async def exists(self, path: str) -> bool:
        """True if there is such a file.

        Raises:
            Error: as `read`, but for a file that is missing.
        """
        try:
            await self.stat(path)
        except FileMissing:
            return False
        return True

    async def remove(self, path: str) -> None:
        """Delete a file. The record shows it as a shell block.

        Raises:
            FileMissing: there is no such file; a FileNotFoundError.
            FileTransferError: the file can't be deleted; the text says why.
            Error: as `read`.
        """
        name = _inside(path)
        result = await self._handle.execute([removal(name)], list_files="None")
        if result.exit_code != 0:
            await self.stat(path)
            raise FileTransferError(f"{path!r} can't be deleted: {result.output.strip()}")


def as_bytes(content: bytes | str) -> bytes:
    """Content of a file as it is sent; text as UTF-8."""
    return content.encode() if isinstance(content, str) else content


def _inside(path: str) -> str:
    """The path relative to the workspace.

    Raises:
        FileTransferError: it can't be one in the workspace.
    """
    try:
        return check_workspace_path(path.removeprefix(_WORKSPACE))
    except ValueError as error:
        raise FileTransferError(str(error)) from None
