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
from codeexec_api.permits import parse_mount, parse_permit
from codeexec_api.v1alpha1.bounds import DEFAULT_IDLE_SECONDS, MAX_TIMEOUT_SECONDS
from executor_client.cli.common import (
    PROGRAM,
    Cluster,
    cluster_options,
    output_option,
    parsed,
    quantity,
    runtime_class_name,
)
from executor_client.cli.completion import LIVE_SESSIONS, complete_language, name_of
from executor_client.cli.display import Printer, echo_json, report, size
from executor_client.cli.escaping import one_line
from executor_client.cli.files import save_artifact
from executor_client.cli.hints import hint_about
from executor_client.cli.streams import InputFile
from executor_client.client.approvals import ApprovalRequest, ApprovalWait
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import OnOutput, Request
from executor_client.client.session import Session
from executor_client.client.waiting import WaitNotice
from executor_client.model.arguments import inside
from executor_client.model.blocks import PreparedBlock, SourceBlock, WorkspaceFile, prepare
from executor_client.model.images import check_image
from executor_client.model.results import Artifact, ExecutionResult
from executor_client.workspace.batches import fetch_after

_BY_SUFFIX: Final = {one.extension: one.name for one in LANGUAGES.values()}


def _files(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[WorkspaceFile, ...]:
    """Read local files, and determine their paths in the workspace. By default, they keep their names."""
    files = []
    for value in values:
        local, path = Path(value), Path(value).name
        try:
            if not local.exists() and ":" in value:
                name, path = value.rsplit(":", 1)
                local = Path(name)
            files.append(WorkspaceFile(inside(path), local.read_bytes()))
        except OSError as error:
            raise click.BadParameter(f"can't read {str(local)!r}: {error.strerror}", ctx, param) from error
        except ValueError as error:
            raise click.BadParameter(f"{path!r} can't be a path in the workspace: {error}", ctx, param) from error
    return tuple(files)


@dataclass(frozen=True)
class _Job:
    """What to run, and where."""

    blocks: tuple[PreparedBlock, ...]
    request: Request
    files: tuple[WorkspaceFile, ...]
    artifacts: Path | None
    """Folder for the files that the code creates."""
    session_name: str | None
    new_session: bool
    stateful: bool
    sleep_after: int | None
    overwrite: bool

    async def run(self, client: CodeExecutionClient, on_output: OnOutput | None) -> tuple[ExecutionResult, int | None]:
        """Run the code. Return the result, and the signal that stopped the code, if any."""
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
        """The files that the code created or changed. The result also names unchanged ones if all are fetched."""
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
        session = await client.open_session(
            self.request, stateful=self.stateful, outlives_client=True, sleep_after_seconds=self.sleep_after
        )
        click.echo(
            f"codeexec: started session {session.name}; end it with `codeexec sessions end {session.name}`", err=True
        )
        return session

    async def _save(self, result: ExecutionResult, session: Session | None, folder: Path) -> None:
        made = self.made(result)
        fetchable = [one for one in made if one.sha256]
        contents = await fetch_after(session, result.name, fetchable) if session else result.files
        place = session.name if session else result.name
        for artifact in made:
            name = one_line(artifact.path)
            if artifact.path not in contents:
                why = "was not fetched" if artifact.sha256 else "is too large to be fetched"
                click.echo(f"codeexec: {name} ({size(artifact.size_bytes)}) {why}", err=True)
            elif why := save_artifact(folder, artifact.path, contents[artifact.path], overwrite=self.overwrite):
                click.echo(
                    f"codeexec: {name} was not saved: {one_line(why)}; `codeexec cp {place}:PATH LOCAL` saves it",
                    err=True,
                )
        if result.artifacts_omitted:
            click.echo(f"codeexec: {result.artifacts_omitted} more files are not listed", err=True)


@click.command(short_help="Run code, and exit with its exit code.")
@click.argument("file", required=False, type=InputFile(exists=True, dir_okay=False, allow_dash=True))
@click.option("-c", "--code", metavar="CODE", help="Code to run, instead of FILE.")
@click.option(
    "-l",
    "--language",
    metavar="LANGUAGE",
    shell_complete=complete_language,
    help="Language; default: by the suffix of FILE, else python.",
)
@click.option(
    "--image",
    metavar="NAME@DIGEST",
    callback=parsed(check_image),
    help="Sandbox image, by digest; default: the policy's.",
)
@click.option(
    "--runtime-class",
    metavar="NAME",
    callback=parsed(runtime_class_name),
    help="RuntimeClass, such as gvisor, or runc; default: the policy's.",
)
@click.option(
    "--cpu", metavar="QUANTITY", callback=parsed(quantity), help=f"CPU of the sandbox; default: {Limits().cpu}."
)
@click.option(
    "--memory",
    metavar="QUANTITY",
    callback=parsed(quantity),
    help=f"Memory of the sandbox, files included; default: {Limits().memory}.",
)
@click.option(
    "--egress",
    multiple=True,
    metavar="DESTINATION:PORT[/UDP]",
    callback=parsed(parse_permit),
    help="Egress that the policy or an approver must allow, such as 10.1.2.3/32:443 or pods{app=db}:5432; can be "
    "repeated.",
)
@click.option(
    "--mount",
    "mounts",
    multiple=True,
    metavar="KIND:NAME:PATH",
    callback=parsed(parse_mount),
    help="Read-only mount, such as pvc:data:/mnt/data or configmap:settings:/mnt/settings; can be repeated.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    default=60,
    show_default=True,
    type=click.IntRange(1, MAX_TIMEOUT_SECONDS),
    help="Time limit of the code, in seconds.",
)
@click.option(
    "--agent", metavar="NAME", default=PROGRAM, show_default=True, help="Name recorded as the source of the code."
)
@click.option(
    "--session",
    "session_name",
    metavar="NAME",
    shell_complete=name_of(LIVE_SESSIONS),
    help="Run in the workspace of this session.",
)
@click.option("--new-session", is_flag=True, help="Start a session, run in it, and keep it for later calls.")
@click.option("--stateful", is_flag=True, help="With --new-session: Python blocks of the session share variables.")
@click.option(
    "--sleep-after",
    type=click.IntRange(1, DEFAULT_IDLE_SECONDS - 1),
    metavar="SECONDS",
    help="With --new-session: the session gives up its pod and keeps its files after this many seconds without a call.",
)
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="LOCAL[:PATH]",
    callback=_files,
    help="Copy a local file into the workspace; can be repeated.",
)
@click.option(
    "--artifacts",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for files that the code creates or changes.",
)
@click.option("--overwrite", is_flag=True, help="With --artifacts: replace files that exist there.")
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
    overwrite: bool,
    session_name: str | None,
    new_session: bool,
    stateful: bool,
    sleep_after: int | None,
    image: str | None,
    runtime_class: str | None,
    cpu: str | None,
    memory: str | None,
    egress: tuple[Permit, ...],
    mounts: tuple[Mount, ...],
    timeout: int,
    agent: str,
) -> None:
    """Run FILE in a sandbox, and exit with the code's exit code. A FILE of - reads standard input.

    Output appears as it arrives. If the execution waits for approval, for room or for its turn, the command says so
    on stderr. Ctrl-C stops the code in the cluster and exits with 130.
    """
    if session_name and new_session:
        raise click.UsageError("give either --session or --new-session")
    if (stateful or sleep_after) and not new_session:
        option = "--stateful" if stateful else "--sleep-after"
        raise click.UsageError(f"{option} goes with --new-session: an existing session can't be changed")
    if stateful and sleep_after:
        raise click.UsageError("--stateful and --sleep-after can't be combined: variables would be lost")
    if overwrite and not artifacts:
        raise click.UsageError("--overwrite goes with --artifacts")
    asked = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value}
    if session_name and (image or runtime_class or asked):
        raise click.UsageError(
            "--image, --runtime-class, --cpu and --memory can't be combined with --session, which has its own"
        )
    if (egress or mounts) and (session_name or new_session):
        raise click.UsageError("--egress and --mount can't be used in a session: the execution needs its own pod")
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
        on_wait=_tell_wait,
    )
    blocks = _blocks(file, code, language)
    job = _Job(blocks, request, files, artifacts, session_name, new_session, stateful, sleep_after, overwrite)
    printer = None if as_json else Printer()
    result, stopped_by = cluster.run(lambda client: job.run(client, printer))
    if printer is None:
        echo_json(_as_dict(result))
    else:
        printer.finish()
        report(result)
        if hint := hint_about(result):
            click.echo(f"codeexec: {hint}", err=True)
        if sys.stderr.isatty():
            click.echo(_summary(result, job.made(result)), err=True)
    sys.exit(128 + stopped_by if stopped_by and result.phase is Phase.CANCELLED else result.exit_code)


def _tell(request: ApprovalRequest) -> None:
    until = f" (until {request.wait_until:%H:%M:%S} UTC)" if request.wait_until else ""
    click.echo(f"codeexec: waiting{until}: {one_line(request.message)}", err=True)


def _tell_wait(notice: WaitNotice) -> None:
    click.echo(f"codeexec: waiting ({notice.reason}): {one_line(notice.message)}", err=True)


def _blocks(file: str | None, code: str | None, language: str | None) -> tuple[PreparedBlock, ...]:
    if (file is None) == (code is None):
        raise click.UsageError("give either FILE or --code")
    language = language or _language_of(file)
    prepared = prepare([SourceBlock(language, _read(file) if file else _checked(code or ""))])
    if prepared.refusal:
        raise click.UsageError(prepared.refusal)
    return prepared.blocks


def _checked(code: str) -> str:
    """Code of the command line. A byte that is not UTF-8 arrives there as half a character, which no record takes."""
    try:
        code.encode()
    except UnicodeEncodeError as error:
        raise click.ClickException(
            f"--code is not UTF-8: {error.object[error.start : error.end]!r} at character {error.start}; save the code "
            "as a UTF-8 file, and give that FILE"
        ) from error
    return code


def _language_of(file: str | None) -> str:
    """Python, unless the name of a file says otherwise."""
    suffix = Path(file or "").suffix.lower()
    if suffix and suffix not in _BY_SUFFIX:
        raise click.UsageError(
            f"can't tell the language of {file!r}: {suffix} is not one of {', '.join(_BY_SUFFIX)}; give it with "
            f"--language ({', '.join(LANGUAGES)})"
        )
    return _BY_SUFFIX.get(suffix, "python")


def _read(file: str) -> str:
    try:
        return (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"can't read {file}: {error}") from error


@contextmanager
def _stopped_by_signals(cancelled: asyncio.Event) -> Iterator[list[int]]:
    """Stop the code on SIGINT and SIGTERM. A second signal does not wait for the end. Yields the signals received."""
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
    """The result without the content of files, which is bytes and not valid JSON."""
    fields = {name: value for name, value in vars(result).items() if name != "files"}
    return fields | {
        "blocks": [block.model_dump(mode="json") for block in result.blocks],
        "artifacts": [asdict(artifact) for artifact in result.artifacts],
    }
