"""`codeexec audit export`: write finished records, and the operator's audit lines about them, to files."""

import functools
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import click

from codeexec_api import Phase, SessionPhase
from codeexec_api.audit import MEMBER, canonical, in_utc
from codeexec_api.audit_check import audit_line
from codeexec_api.audit_export import (
    MOST_FILES,
    Cursor,
    Header,
    Identity,
    Versions,
    export_files,
    identity_of,
    records_in,
    render,
)
from codeexec_api.audit_findings import LogLine
from codeexec_api.digests import sha256_hex
from codeexec_api.names import EXECUTION_KIND, EXECUTION_PLURAL, SESSION_KIND, SESSION_PLURAL
from executor_client.cli.audit import LOG_FILE, read_logs
from executor_client.cli.auditing import many
from executor_client.cli.common import Cluster, now
from executor_client.cli.escaping import one_line
from executor_client.cli.evidence_store import EvidenceStore
from executor_client.cli.finished_records import FinishedRecords, Name
from executor_client.cli.operator_log import OperatorLog, of_the_operator
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import DEFAULT_NAMESPACE, ClusterRef
from executor_client.exceptions import CodeExecError

_KINDS: Final = (
    (EXECUTION_PLURAL, EXECUTION_KIND, tuple(one.value for one in Phase if not one.terminal)),
    (SESSION_PLURAL, SESSION_KIND, tuple(one.value for one in SessionPhase if not one.terminal)),
)
_READ: Final = 20
"""Records that are read before it is looked whether a file is full."""
_FULL: Final = 8 * 1024 * 1024
"""Bytes of a file, more or less: one record may have 1.5 MiB."""
_STDOUT: Final = "-"

ReadLog = Callable[[], Awaitable[Iterable[LogLine]]]


class _Store(Protocol):
    def names(self) -> list[str]: ...

    def read(self, names: Iterable[str]) -> dict[str, bytes]: ...

    def add(self, name: str, content: bytes, /) -> None: ...


class _Stdout:
    """Has no files from before."""

    def names(self) -> list[str]:
        return []

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        raise FileNotFoundError(*names)

    def add(self, _name: str, content: bytes) -> None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


@click.command(short_help="Write finished records to a folder or an object storage.")
@click.argument("logs", nargs=-1, metavar="[FILE...]", type=LOG_FILE)
@click.option(
    "--to",
    "place",
    required=True,
    metavar="PLACE",
    help="Where records are kept: an existing folder, a URL (file://, s3://, gs://, az://), or - for stdout.",
)
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    metavar="NAME",
    multiple=True,
    default=(DEFAULT_NAMESPACE,),
    show_default=True,
    help="Sandbox namespace; can be repeated.",
)
@click.option("--from-cluster", is_flag=True, help="Also write the audit lines of the operator's pods.")
@click.option("--confirm", is_flag=True, help="Tell the operator which records were written, so it may delete them.")
@of_the_operator
def export(
    cluster: Cluster, logs: tuple[str, ...], place: str, namespaces: tuple[str, ...], from_cluster: bool, confirm: bool
) -> None:
    """Write finished records that were not written before, with the audit lines of FILEs (- is stdin), as JSON lines.

    Each namespace has a folder of numbered files, which are never replaced. If the command fails or is interrupted, run
    it again: it continues.
    """
    if confirm and place == _STDOUT:
        raise click.UsageError("--confirm needs files that stay: pass a folder or a URL to --to")
    given = list(read_logs(logs))

    async def lines() -> list[LogLine]:
        """Of the operator, read after the records, so that it has the lines of all of them."""
        if not from_cluster:
            return given
        async with OperatorLog.opened(**cluster.ref.kube_context()) as operator:
            return [*given, *(line for log in await operator.read() for line in log.lines())]

    failed: list[str] = []
    for namespace in namespaces:
        try:
            store: _Store = _Stdout() if place == _STDOUT else EvidenceStore(place, "records", namespace)
            told = cluster.run(functools.partial(_export, cluster.ref, namespace, store, lines, confirm))
        except (CodeExecError, click.ClickException) as error:  # the other namespaces are exported all the same
            failed.append(namespace)
            told = one_line(str(error))
        else:
            told += f", to {place}"
        click.echo(f"{namespace}: {told}", err=True)
    if failed:
        raise click.ClickException(
            f"{len(failed)} of {many(len(namespaces), 'namespace')} could not be exported: {', '.join(failed)}"
        )


async def _export(
    ref: ClusterRef, namespace: str, store: _Store, lines: ReadLog, confirm: bool, _: CodeExecutionClient
) -> str:
    async with FinishedRecords.opened(**ref.kube_context(namespace)) as source:
        confirmed = await source.cursor() if confirm else None
        run = Export(namespace, store, confirmed)
        up_to: dict[str, int] = {}
        for plural, kind, unfinished in _KINDS:
            found, up_to[plural] = await source.listed(plural, unfinished)
            missing = run.missing(plural, found, up_to[plural])
            for start in range(0, len(missing), _READ):
                run.add(await source.read(plural, kind, missing[start : start + _READ]))
                if confirmed and run.cursor != confirmed:
                    await source.confirm(confirmed := run.cursor)
        run.end(up_to, await lines())
        if confirmed and run.cursor != confirmed:
            await source.confirm(run.cursor)
        return run.told


def _least(one: Versions, other: Versions) -> Versions:
    return {plural: min(version, other.get(plural, 0)) for plural, version in one.items()}


class Export:
    """What is written in one run, after what was written before.

    Args:
        namespace: of the records.
        store: has the files.
        confirmed: what the cluster knows of the export so far; None: the cluster is not used. If etcd was restored from
            a backup, this is as old as the records are, and the files are newer.

    Raises:
        click.ClickException: the files are not those that an export has written.
    """

    def __init__(self, namespace: str, store: _Store, confirmed: Cursor | None = None) -> None:
        self._store = store
        self.cursor = confirmed or Cursor()
        """How far the export got."""
        self._next = Header(namespace, time=in_utc(now()))
        self._start: Versions = {}
        self._unfinished = False
        self._seen: set[Identity] = set()
        self._records: list[Mapping[str, Any]] = []
        self._size = self._files = self._written = self._lines = 0
        self._resume(confirmed)

    @property
    def told(self) -> str:
        """What was done, for a person."""
        written, lines = many(self._written, "record"), many(self._lines, "audit line")
        return f"{written} and {lines} in {many(self._files, 'new file')}"

    def _resume(self, confirmed: Cursor | None) -> None:
        """Find what the next file follows, and what the files have that the last whole export may lack.

        Others may be able to add files to the store. If the cluster knows the last file of the export, only this file
        and those that it follows say what was written. Other files count for numbers and for the chain of digests only.
        """
        if not (names := export_files(self._store.names())):
            return
        newest = self._store.read(names[-1:])
        own = names if confirmed is None else confirmed.own(names)
        header, expected = Header(self._next.namespace), confirmed.sha256 if confirmed else ""
        reached: Versions | None = None
        name = own[-1] if own else ""
        while name:
            content = (newest if name in newest else self._store.read([name]))[name]
            try:
                found = Header.parse(content).checked(name, content, self._next.namespace, expected)
                if name == own[-1]:
                    header = found
                    self.cursor = Cursor(self.cursor.versions, name, sha256_hex(content))
                if found.up_to is not None:
                    if reached is None:
                        reached = found.up_to
                        self._start = reached if confirmed is None else _least(reached, confirmed.versions)
                    if _least(found.up_to, self._start) == found.up_to:
                        break
                self._seen |= {identity_of(record) for record in records_in(content)}
                name, expected = found.before(own)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise click.ClickException(f"can't go on after {name}: {error}") from error
        self._unfinished = header.up_to is None or own != names
        self._follow(names[-1], newest[names[-1]], header)
        if own != names:
            self._next = replace(self._next, own=(self.cursor.file or "", self.cursor.sha256))
        if confirmed is None or confirmed.file is None:  # else the cluster knows better than any file
            self.cursor = replace(self.cursor, versions=reached or self.cursor.versions)

    def _follow(self, name: str, content: bytes, header: Header) -> None:
        """The next file comes after this one, and has the audit lines that `header` does not count."""
        if (number := int(name.partition(".")[0]) + 1) > MOST_FILES:
            raise click.ClickException(f"no file can follow {name}: no export has written this file; remove the file")
        self._next = replace(header.following(content, now()), number=number)

    def missing(self, plural: str, found: Sequence[Name], version: int) -> list[Name]:
        """Those of these records that were not written yet. `version` is that of the list."""
        after = self._start.get(plural, 0)
        if version < after:  # the records were restored from a backup, or the cluster is another one
            after = 0
        return [one for one in found if one.version > after and (one.uid, str(one.version)) not in self._seen]

    def add(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write records, once they fill a file."""
        self._records += records
        self._size += sum(len(json.dumps(one)) for one in records)
        if self._size >= _FULL:
            self._write(self._next, ())

    def end(self, up_to: Versions, lines: Iterable[LogLine]) -> None:
        """Write the rest, and say how far the files go now."""
        heads, new = self._new(lines)
        if self._records or new or self._files or self._unfinished:
            self._write(replace(self._next, up_to=up_to, lines=heads), new)
            self.cursor = replace(self.cursor, versions=up_to)
        elif self._next.number == 1:
            self.cursor = Cursor(up_to, "")
        self._lines = len(new)

    def _write(self, header: Header, lines: Sequence[str]) -> None:
        content = render(header, self._records, lines)
        self._store.add(header.file, content)
        self.cursor = replace(self.cursor, file=header.file, sha256=sha256_hex(content))
        self._written += len(self._records)
        self._files += 1
        self._next = header.following(content, now())
        self._records, self._size = [], 0

    def _new(self, lines: Iterable[LogLine]) -> tuple[Mapping[str, int], list[str]]:
        """The audit lines of this namespace that were not written yet, in order, and the last one of each chain.

        Logs may come in any order and overlap. Two different lines at one position stay: `verify` reports them.
        """
        known, heads = self._next.lines, dict[str, int]()
        new: set[tuple[str, int, str]] = set()
        for line in lines:
            try:
                body = audit_line(line.text)
                if body is None or body["namespace"] != self._next.namespace:
                    continue
                chain, number, text = str(body["chain"]), int(body["sequence"]), canonical({MEMBER: body}).decode()
            except (ValueError, KeyError, TypeError):
                continue  # `verify` says what is wrong with it
            heads[chain] = max(heads.get(chain, known.get(chain, 0)), number)
            if number > known.get(chain, 0):
                new.add((chain, number, text))
        return heads or known, [text for _, _, text in sorted(new)]
