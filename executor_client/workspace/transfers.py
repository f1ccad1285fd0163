"""Files between a workspace and the caller's folder, in as many executions as their sizes need."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from codeexec_api import Block, CodeExecution, File
from codeexec_api.v1alpha1.bounds import MAX_ARTIFACTS, MAX_FETCH_BYTES
from executor_client.exceptions import FileTransferError
from executor_client.model.blocks import PreparedBlock
from executor_client.model.results import Artifact, ExecutionResult
from executor_client.model.selection import as_sent, literally
from executor_client.workspace.batches import PATTERNS_AT_ONCE, fetch_after, groups
from executor_client.workspace.shared_session import OpenSession, SharedSession
from executor_client.workspace.work_dir import NameRefused, WorkDir, is_kept_source

logger = logging.getLogger(__name__)


def keep_source(folder: WorkDir | None, blocks: Sequence[PreparedBlock]) -> str | None:
    """Keep each block in work_dir, if that is set and no program of the caller's acts on its name unasked.

    What stands under a name there is replaced; see `write_inside`. If the file system takes two names for one (by
    case or Unicode normalization), the source of the later block stays; what is run doesn't come from here.

    Returns:
        Path of the first block, or None if it was not kept.

    Raises:
        ValueError: a name leads out of work_dir or can't be written.
    """
    if folder is None:
        return None
    root = folder.root.resolve()
    kept = [block for block in blocks if not folder.keeps_out(block.file)]
    for block in kept:
        try:
            folder.write(block.file, block.content)
        except ValueError:
            raise ValueError(
                f"`# filename:` is {block.file!r}, which leads out of work_dir {root} by a link: remove the link, or "
                "use another name. Nothing was run"
            ) from None
        except (OSError, RuntimeError) as error:
            raise ValueError(f"{block.file!r} can't be saved in work_dir: {error}; nothing was run") from error
    first = blocks[0]
    return str(root / first.file) if first in kept else None


def keep_artifacts(folder: WorkDir, result: ExecutionResult, contents: Mapping[str, bytes]) -> ExecutionResult:
    """Write files into work_dir, and say which of the artifacts are there: none that programs act on unasked."""
    kept = set()
    for path, content in contents.items():
        try:
            folder.write(path, content)
            kept.add(path)
        except NameRefused:
            continue  # told of below, as those that were not even fetched
        except (OSError, RuntimeError, ValueError) as error:
            logger.warning("%r of execution %s can't be saved in work_dir: %s", path, result.name, error)
    artifacts = tuple(replace(one, fetched=one.path in kept) for one in result.artifacts)
    if left := [f"{one.path} ({one.size_bytes} bytes)" for one in artifacts if not one.fetched]:
        logger.warning(
            "not copied into work_dir from execution %s (at most %d bytes a call, and no names that programs act on "
            "unasked, such as hidden ones): %s",
            result.name,
            MAX_FETCH_BYTES,
            ", ".join(left),
        )
    if result.artifacts_omitted:
        logger.warning(
            "%d files of execution %s were not copied into work_dir: its record names at most %d files, and none with "
            "an unusable name",
            result.artifacts_omitted,
            result.name,
            MAX_ARTIFACTS,
        )
    return replace(result, artifacts=artifacts, files=contents)


def keep_made(
    folder: WorkDir, result: ExecutionResult, blocks: Iterable[Block], files: Iterable[File]
) -> ExecutionResult:
    """Copy the files of an execution without a session, which fetches all, except those that are as they were sent."""
    unchanged = as_sent(result.artifacts, blocks, files)
    made = tuple(one for one in result.artifacts if one.path not in unchanged)
    contents = {path: content for path, content in result.files.items() if path not in unchanged}
    return keep_artifacts(folder, replace(result, artifacts=made), contents)


async def keep_later(
    folder: WorkDir, record: CodeExecution, result: ExecutionResult, shared: SharedSession | None
) -> ExecutionResult:
    """Copy the files of an execution that no call waits for into work_dir, as its call would have done."""
    if result.session is None:
        return keep_made(folder, result, record.spec.blocks, record.spec.files or ())
    if opened := shared.opened(result.session) if shared else None:
        return await bring_back(folder, opened, result, asyncio.Event())
    if result.artifacts:
        logger.warning(
            "files of execution %s are not copied into work_dir: its session %s is not the open one of this executor",
            result.name,
            result.session,
        )
    return replace(result, artifacts=tuple(replace(one, fetched=False) for one in result.artifacts))


def keep(folder: WorkDir, name: str, content: bytes, *, any_name: bool) -> Path:
    """Write a file that was asked for by name; see `write_inside`.

    Raises:
        FileTransferError: it can't be kept.
    """
    try:
        return folder.write(name, content, any_name=any_name)
    except (OSError, RuntimeError, ValueError) as error:
        raise FileTransferError(f"{name!r} can't be saved in {folder.root}: {error}") from error


def without_sources(paths: Iterable[str]) -> list[str]:
    """Without `tmp_code_….py` and the like: nobody has asked for these files."""
    return [path for path in paths if not is_kept_source(path)]


async def upload(files: Mapping[str, bytes], cancelled: asyncio.Event, opened: OpenSession) -> None:
    """Put files into the workspace."""
    await opened.session.upload(files, cancelled=cancelled)


async def list_all(cancelled: asyncio.Event, opened: OpenSession) -> list[Artifact]:
    """The files of the workspace."""
    return await opened.session.list_files(cancelled=cancelled)


async def fetch(sizes: Mapping[str, int], cancelled: asyncio.Event, opened: OpenSession) -> dict[str, bytes]:
    """Content of files of the workspace, as far as they are there, in as many executions as their sizes need."""
    found: dict[str, bytes] = {}
    for group in groups(sizes, MAX_FETCH_BYTES, PATTERNS_AT_ONCE):
        contents = await opened.session.download(list(map(literally, group)), cancelled=cancelled)
        found |= {path: contents[path] for path in group if path in contents}
    return found


async def bring_back(
    folder: WorkDir, opened: OpenSession, result: ExecutionResult, cancelled: asyncio.Event
) -> ExecutionResult:
    """Copy files that the code has made or changed into work_dir. The result is there whether that works or not."""
    wanted: list[Artifact] = []
    room = MAX_FETCH_BYTES
    for artifact in result.artifacts:
        if artifact.size_bytes <= room and not folder.keeps_out(artifact.path):
            wanted.append(artifact)
            room -= artifact.size_bytes
    found = await fetch_after(opened.session, result.name, wanted, cancelled)
    kept = keep_artifacts(folder, result, found)
    opened.sent |= folder.stamps(one.path for one in kept.artifacts if one.fetched)
    return kept
