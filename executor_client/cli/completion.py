"""What the shell offers for names: completion never fails, and ends within about two seconds."""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TypeAlias

import click
from click.shell_completion import CompletionItem

from codeexec_api import CodeExecution, CodeSession, Phase
from codeexec_api.languages import LANGUAGES
from executor_client.cli.common import Connect
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import DEFAULT_NAMESPACE, ClusterRef
from executor_client.transport.protocol import ClusterTransport

_SECONDS: Final = 1.5
"""After which what has been found by then is all."""
_HARD_SECONDS: Final = 2.0
"""After which the process ends: something blocks, such as the look-up of a host name."""

Record: TypeAlias = CodeExecution | CodeSession
Plain: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]
Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
"""What click asks of a parameter: words, or words and files."""


class Names(NamedTuple):
    """Records whose names fit a parameter."""

    listing: Callable[[ClusterTransport], AsyncIterator[Any]]
    fits: Callable[[Any], bool]


def _all(_: Record) -> bool:
    return True


def _goes_on(record: Record) -> bool:
    return not record.status.phase.terminal


def _is_approved(execution: CodeExecution) -> bool:
    """True while the approval can be taken back."""
    status = execution.status
    approved = status.approval is not None and status.approval.decision == "Approve"
    return approved and _goes_on(execution) and status.started_at is None


def _executions(fits: Callable[[CodeExecution], bool]) -> Names:
    return Names(lambda transport: transport.list(), lambda one: bool(one.spec.blocks) and fits(one))


def _sessions(fits: Callable[[CodeSession], bool]) -> Names:
    return Names(lambda transport: transport.list_sessions(), fits)


EXECUTIONS: Final = _executions(_all)
UNFINISHED: Final = _executions(_goes_on)
WAITING: Final = _executions(lambda one: one.status.phase is Phase.AWAITING_APPROVAL)
APPROVED: Final = _executions(_is_approved)
WITH_FILES: Final = _executions(lambda one: any(file.fetched for file in one.status.artifacts))
SESSIONS: Final = _sessions(_all)
LIVE_SESSIONS: Final = _sessions(_goes_on)


def name_of(*wanted: Names) -> Plain:
    """Completes the name of a record, the newest first."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        given = ctx.params.get(param.name or "") if param.nargs == -1 else ()
        return [name for name in _look_up(ctx, wanted, incomplete) if name not in (given or ())]

    return complete


def name_or_end(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Completes the arguments of `codeexec sessions`."""
    given = ctx.params.get(param.name or "") or ()
    if "end" in given[:1]:
        return name_of(LIVE_SESSIONS)(ctx, param, incomplete)
    if given:
        return []
    return [*(["end"] if "end".startswith(incomplete) else []), *name_of(SESSIONS)(ctx, param, incomplete)]


def file_or(*wanted: Names) -> Complete:
    """Completes a local file, or the `NAME:` of what has files in the cluster."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        local = CompletionItem(incomplete, type="file")
        return [local, *(CompletionItem(f"{name}:") for name in _look_up(ctx, wanted, incomplete))]

    return complete


def complete_language(_: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Completes a language."""
    return [name for name in LANGUAGES if name.startswith(incomplete.lower())]


def _look_up(ctx: click.Context, wanted: Sequence[Names], incomplete: str) -> list[str]:
    connect: Connect = ctx.obj or CodeExecutionClient
    namespace = ctx.params.get("namespace") or DEFAULT_NAMESPACE
    ref = ClusterRef(namespace, ctx.params.get("kubeconfig"), ctx.params.get("context_name"))
    found: list[Record] = []

    def work() -> None:
        with suppress(Exception):  # whatever it is: somebody is typing a command
            asyncio.run(_collect(connect(ref), wanted, found))

    with _silence():
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(_HARD_SECONDS)
        if thread.is_alive():
            os._exit(0)  # an orderly end would wait for the thread that is blocked
    newest = sorted(found, key=lambda one: str(one.metadata.creation_timestamp), reverse=True)
    names = (one.metadata.name for one in newest)
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


async def _collect(client: CodeExecutionClient, wanted: Sequence[Names], found: list[Record]) -> None:
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS):
                transport = await client.connect()
                for names in wanted:
                    async for one in names.listing(transport):
                        if names.fits(one):
                            found.append(one)
    finally:
        await client.close()


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing that libraries log gets between the lines of who is typing."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
