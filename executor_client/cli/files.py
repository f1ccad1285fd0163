"""`codeexec cp`: copy a file from an execution or a session, or into a session."""

import os
import re
from pathlib import Path
from typing import Final

import click

from executor_client.cli.common import PROGRAM, Cluster, cluster_options
from executor_client.cli.completion import LIVE_SESSIONS, WITH_FILES, file_or
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import Request
from executor_client.exceptions import FileTransferError, NotFound
from executor_client.model.arguments import inside
from executor_client.model.selection import literally
from executor_client.workspace.work_dir import refusal, write_inside

_REMOTE: Final = re.compile(r"([a-z0-9][-a-z0-9.]*):(.+)", re.DOTALL)


@click.command(short_help="Copy a file from or to the cluster.")
@click.argument("source", shell_complete=file_or(LIVE_SESSIONS, WITH_FILES))
@click.argument("target", shell_complete=file_or(LIVE_SESSIONS))
@cluster_options
def cp(cluster: Cluster, source: str, target: str) -> None:
    """Copy a file from or to the cluster. Write NAME:PATH for the file in the cluster.

    NAME is a session, or an execution that fetched the file (`codeexec run --artifacts`, `fetch=` in Python). PATH is
    relative to the workspace, or begins with /workspace/. If the name of a local file contains a colon, write ./NAME.
    """
    here, there = _REMOTE.fullmatch(source), _REMOTE.fullmatch(target)
    if bool(here) == bool(there):
        raise click.UsageError("give NAME:PATH as either SOURCE or TARGET, and a local file as the other")
    if here:
        content = cluster.run(lambda client: _read(client, here[1], inside(here[2])))
        goal = Path(target)
        try:
            goal = goal / Path(here[2]).name if goal.is_dir() else goal
            if goal.is_relative_to("/dev") or (goal.exists() and not goal.is_file()):
                goal.write_bytes(content)  # a device or a pipe is written to; a file is replaced as a whole
            else:
                write_inside(goal.parent.resolve(), goal.name, content, any_name=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise click.ClickException(f"can't write {goal.name!r} below {str(goal.parent)!r}: {error}") from error
    elif there:
        local = Path(source)
        path = there[2] + local.name if there[2].endswith("/") else there[2]
        try:
            if not local.is_file():
                raise click.ClickException(f"{source!r} is not a local file")
            content = local.read_bytes()
        except OSError as error:
            raise click.ClickException(f"can't read {source!r}: {error.strerror}") from error
        cluster.run(lambda client: _upload(client, there[1], path, content))


async def _read(client: CodeExecutionClient, name: str, path: str) -> bytes:
    try:
        execution = await client.get(name)
    except NotFound:
        session = await client.join_session(name, Request(agent=PROGRAM, executor=PROGRAM))
        found = await session.download([literally(path)])
        if path not in found:
            raise FileTransferError(f"session {name} has no file {path!r}") from None
        return found[path]
    return await client.read_artifact(execution, path)


async def _upload(client: CodeExecutionClient, name: str, path: str, content: bytes) -> None:
    session = await client.join_session(name, Request(agent=PROGRAM, executor=PROGRAM))
    await session.upload({inside(path): content})


def save_artifact(folder: Path, path: str, content: bytes, *, overwrite: bool) -> str:
    """Write a file that code made below a local folder, or say why not: the caller has not typed its name.

    Args:
        folder: of the caller's.
        path: below it.
        content: of the file.
        overwrite: replace what stands there. It is never opened.
    """
    try:
        if why := refusal(folder, path):
            return why
        if not overwrite and os.path.lexists(folder / path):
            return f"it exists in {str(folder)!r}, and --overwrite is not set"
        write_inside(folder.resolve(), path, content)
    except (OSError, RuntimeError, ValueError) as error:  # such as a path that leads out of the folder, by a link
        return str(error)
    return ""
