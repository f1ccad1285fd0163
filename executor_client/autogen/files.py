"""Files of an executor's workspace: what is put there, fetched and listed, one transfer at a time."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from autogen_core import CancellationToken

from codeexec_api.v1alpha1.bounds import MAX_ARTIFACTS, MAX_FETCH_BYTES, MAX_FILES, MAX_PAYLOAD_BYTES
from executor_client.autogen.base import AnyResult, AnySettings, SandboxExecutor, despite_cancellation, event_of
from executor_client.exceptions import FileMissing, FileTransferError
from executor_client.model.arguments import inside, several
from executor_client.model.results import CANCELLED
from executor_client.runtime import forks
from executor_client.workspace.batches import groups
from executor_client.workspace.shared_session import OpenSession, SharedSession
from executor_client.workspace.transfers import fetch, keep, list_all, upload, without_sources
from executor_client.workspace.unasked import acted_on
from executor_client.workspace.work_dir import WorkDir, refusal

T = TypeVar("T")


class FileTransfers(SandboxExecutor[AnySettings, AnyResult]):
    """An executor whose workspace lasts from call to call, so that files can be put there and fetched."""

    _shared: SharedSession | None
    """None: each call has a workspace of its own."""
    _downloads: WorkDir | None = None
    """A temporary folder, if one was needed."""

    async def upload_files(self, files: list[Path | str], cancellation_token: CancellationToken) -> None:
        """Copy local files into the workspace, each under its own name without folders.

        Args:
            files: local paths; if work_dir is set, relative ones are looked up there first.
            cancellation_token: stops the transfer.

        Raises:
            ValueError: each call has a workspace of its own, a file is no regular file, two have the same name, or one
                is too large.
            FileMissing: there is no such file; also a FileNotFoundError.
            FileTransferError: the workspace doesn't take a file, or the token was cancelled.
            CodeExecError: see `executor_client.exceptions`.
        """
        transfer = self._transfer("upload_files", cancellation_token)
        contents = self._read(files)
        sizes = {name: len(content) for name, content in contents.items()}
        pieces = [{name: contents[name] for name in group} for group in groups(sizes, MAX_PAYLOAD_BYTES, MAX_FILES)]

        async def send_all(cancelled: asyncio.Event, opened: OpenSession) -> None:
            for piece in pieces:
                await upload(piece, cancelled, opened)

        await transfer.run(send_all)  # if the session ends meanwhile, all are sent to the next one

    async def download_files(
        self, files: list[Path | str], cancellation_token: CancellationToken, *, allow_names: Sequence[Path | str] = ()
    ) -> list[str]:
        """Copy files of the workspace into work_dir, or, if that isn't set, into a temporary folder of this executor.

        The temporary folder is deleted with the executor.

        Args:
            files: paths in the workspace; `/workspace/plot.png`, as code prints it, is `plot.png`.
            cancellation_token: stops the transfer.
            allow_names: those of them that you want although programs act on such names unasked, such as `.env`.

        Returns:
            The local path of each file, in the order of `files`.

        Raises:
            ValueError: each call has a workspace of its own.
            FileMissing: there is no such file in the workspace; the text says which there are.
            FileTransferError: a path leads out of the workspace, a file is too large or can't be kept here, the token
                was cancelled, or programs act unasked on a name that is not in `allow_names`. Then nothing was saved.
            CodeExecError: see `executor_client.exceptions`.
        """
        transfer = self._transfer("download_files", cancellation_token)
        wanted = [inside(Path(file).as_posix()) for file in several("files", files)]
        allowed = {inside(Path(name).as_posix()) for name in several("allow_names", allow_names)}
        there = await transfer.run(list_all)
        sizes = {one.path: one.size_bytes for one in there}
        # Where not all are named, one that isn't may be there all the same, and of any size.
        unnamed = [name for name in wanted if name not in sizes] if len(there) == MAX_ARTIFACTS else []
        asked = {name: sizes[name] for name in wanted if name in sizes} | dict.fromkeys(unnamed, MAX_FETCH_BYTES)
        found = await transfer.run(partial(fetch, asked))
        if missing := [name for name in wanted if name not in found]:
            raise FileMissing(
                f"not in the workspace: {', '.join(missing)}; there are: "
                f"{', '.join(without_sources(sizes)) or 'no files'}"
            )
        folder = self._download_folder()
        for name in wanted:
            if name not in allowed and (why := refusal(folder.root, name)):
                raise FileTransferError(
                    f"{name!r} is not saved in {folder.root}: {why}. Leave the name out, or give it in allow_names, "
                    "too; nothing was saved"
                )
        return [str(keep(folder, name, found[name], any_name=name in allowed)) for name in wanted]

    async def get_file_list(self, cancellation_token: CancellationToken) -> list[str]:
        """Paths of the files in the workspace that `download_files` takes, sorted; of at most 256 files.

        Left out are the sources that this executor keeps there, and names that programs act on unasked, such as hidden
        ones.

        Raises:
            ValueError: each call has a workspace of its own.
            FileTransferError: the token was cancelled.
            CodeExecError: see `executor_client.exceptions`.
        """
        transfer = self._transfer("get_file_list", cancellation_token)
        return [
            path for path in without_sources(one.path for one in await transfer.run(list_all)) if not acted_on(path)
        ]

    def _transfer(self, method: str, token: CancellationToken) -> "_Transfer":
        if self._shared is None:
            raise ValueError(f"{method} needs session='per-executor': with 'per-call' each call has its own workspace")
        if token.is_cancelled():
            raise FileTransferError(CANCELLED)
        return _Transfer(self._shared, token)

    def _download_folder(self) -> WorkDir:
        folder = self._folder or self._downloads
        if folder is None:
            root = Path(tempfile.mkdtemp(prefix="codeexec-"))
            folder = self._downloads = WorkDir(root)
            forks.finalize(self, shutil.rmtree, root, ignore_errors=True)
        return folder

    def _read(self, files: Sequence[Path | str]) -> dict[str, bytes]:
        """Content of local files by the name under which they go into the workspace."""
        contents: dict[str, bytes] = {}
        for file in several("files", files):
            places = [Path(file)] if self.work_dir is None else [self.work_dir / file, Path(file)]
            path = next((place for place in places if place.exists()), None)
            if path is None:
                raise FileMissing(f"{file} does not exist; looked at {', '.join(map(str, places))}")
            if not path.is_file():
                raise FileTransferError(f"{path} is not a regular file; upload the files in a folder one by one")
            name = inside(path.name)
            if name in contents:
                raise FileTransferError(f"{path} would replace another file {name!r} of the same upload")
            if (size := path.stat().st_size) > MAX_PAYLOAD_BYTES:
                raise FileTransferError(
                    f"{path} has {size} bytes; at most {MAX_PAYLOAD_BYTES} can be uploaded: split or compress it"
                )
            contents[name] = path.read_bytes()
        return contents


class _Transfer:
    """Steps of one method that moves or lists files; its token stops whichever runs."""

    def __init__(self, shared: SharedSession, token: CancellationToken) -> None:
        self._shared, self._token, self._cancelled = shared, token, event_of(token)

    async def run(self, step: Callable[[asyncio.Event, OpenSession], Awaitable[T]]) -> T:
        return await despite_cancellation(self._shared.run(partial(step, self._cancelled)), self._token)
