"""`codeexec run`: run code, show its output as it comes, and exit with its exit code."""

import asyncio
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from codeexec_api import Limits, Mount, Permit, Phase
from codeexec_api.digests import sha256_hex
from codeexec_api.languages import LANGUAGES
from codeexec_api.paths import check_workspace_path
from codeexec_api.permits import parse_mount, parse_permit
from codeexec_api.quantities import parse_quantity
from codeexec_api.v1alpha1 import MAX_TIMEOUT_SECONDS
from executor_client.approvals import ApprovalRequest, ApprovalWait
from executor_client.blocks import PreparedBlock, SourceBlock, WorkspaceFile, prepare
from executor_client.cli.common import PROGRAM, Cluster, cluster_options, output_option
from executor_client.cli.display import Printer, echo_json, one_line, report, size
from executor_client.cli.files import download, save
from executor_client.client import CodeExecutionClient, OnOutput, Request
from executor_client.images import check_image
from executor_client.results import Artifact, ExecutionResult
from executor_client.session import Session

_BY_SUFFIX: Final = {one.extension: one.name for one in LANGUAGES.values()}


def _quantity(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """An amount of a resource, as Kubernetes writes it."""
    try:
        if value is not None and parse_quantity(value) <= 0:
            raise ValueError(f"{value!r} must be greater than 0")
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return value


def _image(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A sandbox image, by digest."""
    try:
        if value is not None:
            check_image(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return value


def _permits(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Permit, ...]:
    """Ways out of the sandbox."""
    try:
        return tuple(map(parse_permit, values))
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _mounts(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Mount, ...]:
    """What code is to read besides its files."""
    try:
        return tuple(map(parse_mount, values))
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _files(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[WorkspaceFile, ...]:
    """Local files, and where they go in the workspace: under their own names, if nothing else is said."""
    files = []
    for value in values:
        local, path = Path(value), Path(value).name
        if not local.exists() and ":" in value:
            name, path = value.rsplit(":", 1)
            local = Path(name)
        try:
            files.append(WorkspaceFile(check_workspace_path(path), local.read_bytes()))
        except OSError as error:
            raise click.BadParameter(f"can't read {str(local)!r}: {error.strerror}", ctx, param) from error
        except ValueError as error:
            raise click.BadParameter(f"{path!r} can't be a path in the workspace: {error}", ctx, param) from error
    return tuple(files)


@dataclass(frozen=True)
class _Job:
    """What is to be run, and where."""

    blocks: tuple[PreparedBlock, ...]
    request: Request
    files: tuple[WorkspaceFile, ...]
    artifacts: Path | None
    """Folder to save in what the code makes."""
    session_name: str | None
    new_session: bool
    stateful: bool

    async def run(self, client: CodeExecutionClient, on_output: OnOutput | None) -> tuple[ExecutionResult, int | None]:
        """The result, and the signal that has stopped the code, if one has."""
        session = await self._session(client)
        cancelled = asyncio.Event()
        with _stopped_by_signals(cancelled) as signals:
            if session:
                result = await session.execute(self.blocks, files=self.files, cancelled=cancelled, on_output=on_output)
            else:
                result = await client.execute(
                    self.blocks,
                    self.request,
                    files=self.files,
                    fetch=("*",) if self.artifacts else (),
                    cancelled=cancelled,
                    on_output=on_output,
                )
        if self.artifacts:
            await self._save(result, session, self.artifacts)
        return result, signals[0] if signals else None

    def made(self, result: ExecutionResult) -> list[Artifact]:
        """The files that are there because of the code. Where all are fetched, the result names ours, too."""
        contents = {block.file: block.content for block in self.blocks}
        contents |= {file.path: file.content for file in self.files}
        return [
            one for one in result.artifacts if one.path not in contents or sha256_hex(contents[one.path]) != one.sha256
        ]

    async def _session(self, client: CodeExecutionClient) -> Session | None:
        if self.session_name:
            return await client.join_session(self.session_name, self.request)
        if not self.new_session:
            return None
        session = await client.open_session(self.request, stateful=self.stateful)
        click.echo(f"session {session.name}; `codeexec sessions end {session.name}` ends it", err=True)
        return session

    async def _save(self, result: ExecutionResult, session: Session | None, folder: Path) -> None:
        made = self.made(result)
        contents = await download(session, made) if session else result.files
        for artifact in made:
            if artifact.path in contents:
                save(folder, artifact.path, contents[artifact.path])
            else:
                name = one_line(artifact.path)
                click.echo(f"codeexec: {name} ({size(artifact.size_bytes)}) is too large to be fetched", err=True)
        if result.artifacts_omitted:
            click.echo(f"codeexec: {result.artifacts_omitted} more files are not listed", err=True)


@click.command(short_help="Run code, and exit with its exit code.")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("-c", "--code", help="Code to run, instead of FILE.")
@click.option("-l", "--language", help="Language; by default that of FILE's suffix, else python.")
@click.option(
    "--image", metavar="NAME@DIGEST", callback=_image, help="Sandbox image, by digest; default: the policy's."
)
@click.option("--runtime-class", metavar="NAME", help="RuntimeClass, such as gvisor; default: the policy's.")
@click.option("--cpu", metavar="QUANTITY", callback=_quantity, help=f"CPU of the sandbox; default: {Limits().cpu}.")
@click.option(
    "--memory",
    metavar="QUANTITY",
    callback=_quantity,
    help=f"Memory of the sandbox, files included; default: {Limits().memory}.",
)
@click.option(
    "--egress",
    multiple=True,
    metavar="CIDR:PORT[/UDP]",
    callback=_permits,
    help="Way out of the sandbox, which the policy or a human has to allow, such as 10.1.2.3/32:443; can be repeated.",
)
@click.option(
    "--mount",
    "mounts",
    multiple=True,
    metavar="KIND:NAME:PATH",
    callback=_mounts,
    help="What the code is to read, such as pvc:data:/mnt/data or configmap:settings:/mnt/settings; can be repeated.",
)
@click.option(
    "--timeout",
    default=60,
    show_default=True,
    type=click.IntRange(1, MAX_TIMEOUT_SECONDS),
    help="Limit in seconds.",
)
@click.option("--agent", default=PROGRAM, show_default=True, help="Name recorded as the source of the code.")
@click.option("--session", "session_name", metavar="NAME", help="Run in the workspace of this session.")
@click.option("--new-session", is_flag=True, help="Start a session, run in it, and leave it there for other calls.")
@click.option("--stateful", is_flag=True, help="With --new-session: its Python blocks share their variables.")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="LOCAL[:PATH]",
    callback=_files,
    help="Put a file into the workspace; can be repeated.",
)
@click.option(
    "--artifacts",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Save the files that the code makes or changes here.",
)
@output_option
@cluster_options
def run(
    cluster: Cluster,
    as_json: bool,
    file: str | None,
    code: str | None,
    language: str | None,
    files: tuple[WorkspaceFile, ...],
    artifacts: Path | None,
    session_name: str | None,
    new_session: bool,
    stateful: bool,
    image: str | None,
    runtime_class: str | None,
    cpu: str | None,
    memory: str | None,
    egress: tuple[Permit, ...],
    mounts: tuple[Mount, ...],
    timeout: int,
    agent: str,
) -> None:
    """Run FILE (or - for standard input) in a sandbox, and exit with the exit code of the code.

    Its output appears as it comes. If a human has to approve it, that is said on stderr, and waited for. Ctrl-C stops
    the code in the cluster and exits with 130.
    """
    if session_name and new_session:
        raise click.UsageError("give either --session or --new-session")
    if stateful and not new_session:
        raise click.UsageError("--stateful goes with --new-session: a session is stateful from its start, or never")
    asked = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value}
    if session_name and (image or runtime_class or asked):
        raise click.UsageError("--image, --runtime-class, --cpu and --memory are those of the session")
    if (egress or mounts) and (session_name or new_session):
        raise click.UsageError("--egress and --mount need a pod of the execution's own: there are none in a session")
    request = Request(
        agent=agent,
        timeout_seconds=timeout,
        image=image,
        runtime_class_name=runtime_class,
        limits=Limits.model_validate(asked),
        egress=egress,
        mounts=mounts,
        executor=PROGRAM,
        approval=ApprovalWait(notify=_tell),
    )
    job = _Job(_blocks(file, code, language), request, files, artifacts, session_name, new_session, stateful)
    printer = None if as_json else Printer()
    result, stopped_by = cluster.run(lambda client: job.run(client, printer))
    if printer is None:
        echo_json(_as_dict(result))
    else:
        printer.finish()
        report(result)
        if sys.stderr.isatty():
            click.echo(_summary(result, job.made(result)), err=True)
    sys.exit(128 + stopped_by if stopped_by and result.phase is Phase.CANCELLED else result.exit_code)


def _tell(request: ApprovalRequest) -> None:
    until = f" (until {request.wait_until:%H:%M:%S} UTC)" if request.wait_until else ""
    click.echo(f"codeexec: waiting{until}: {one_line(request.message)}", err=True)


def _blocks(file: str | None, code: str | None, language: str | None) -> tuple[PreparedBlock, ...]:
    if (file is None) == (code is None):
        raise click.UsageError("give either FILE or --code")
    language = language or _BY_SUFFIX.get(Path(file or "").suffix, "python")
    prepared = prepare([SourceBlock(language, _read(file) if file else code or "")])
    if prepared.refusal:
        raise click.UsageError(prepared.refusal)
    return prepared.blocks


def _read(file: str) -> str:
    try:
        return (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"can't read {file}: {error}") from error


@contextmanager
def _stopped_by_signals(cancelled: asyncio.Event) -> Iterator[list[int]]:
    """Ctrl-C and a request to terminate stop the code; a second one doesn't wait for that. Gives the signal."""
    loop = asyncio.get_running_loop()
    caught: list[int] = []

    def stop(number: int) -> None:
        caught.append(number)
        cancelled.set()
        loop.remove_signal_handler(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        yield caught
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _summary(result: ExecutionResult, made: Sequence[Artifact]) -> str:
    seconds = sum(block.duration_ms for block in result.blocks) / 1000
    files = [f"{one_line(one.path)} ({size(one.size_bytes)})" for one in made]
    return " · ".join([result.name, f"exit {result.exit_code}", f"{seconds:.2f} s", *files])


def _as_dict(result: ExecutionResult) -> dict[str, Any]:
    """The result without the content of files, which JSON can't hold."""
    fields = {name: value for name, value in vars(result).items() if name != "files"}
    return fields | {
        "blocks": [block.model_dump(mode="json") for block in result.blocks],
        "artifacts": [asdict(artifact) for artifact in result.artifacts],
    }
