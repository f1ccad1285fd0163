"""`codeexec audit checkpoint` and `keygen`: sign how far the audit log went."""

import os
import sys
from pathlib import Path

import click

from codeexec_api.audit_check import verify
from codeexec_api.audit_findings import LogLine
from codeexec_api.checkpoints import Witness, checkpoint_files, following
from codeexec_api.signed_note import SigningKey
from executor_client.cli.audit import FINDINGS, LOG_FILE, read_logs, show_findings
from executor_client.cli.auditing import many
from executor_client.cli.common import Cluster, now
from executor_client.cli.evidence_store import EvidenceStore
from executor_client.cli.operator_log import OperatorLog, of_the_operator
from executor_client.client.request import ClusterRef


@click.command(short_help="Make a key for checkpoints.")
@click.argument("name")
@click.argument("file", type=click.Path(dir_okay=False))
def keygen(name: str, file: str) -> None:
    """Write a new signing key to FILE, and print its public key. NAME says which installation signs with the key."""
    try:
        key = SigningKey.generate(name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        remedy = ": a key is never replaced; give the name of a new file" if isinstance(error, FileExistsError) else ""
        raise click.ClickException(f"can't write a new file {file}: {error.strerror}{remedy}") from error
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{key}\n")
    click.echo(str(key.public))


@click.command(short_help="Sign the current state of the operator's log.")
@click.argument("logs", nargs=-1, metavar="[FILE...]", type=LOG_FILE)
@click.option(
    "--to",
    "place",
    required=True,
    metavar="PLACE",
    help="Where checkpoints are kept: an existing folder, or a URL (file://, s3://, gs://, az://).",
)
@click.option(
    "--signing-key", metavar="FILE", required=True, type=click.Path(), help="File of the key, which `keygen` wrote."
)
@of_the_operator
def checkpoint(cluster: Cluster, place: str, signing_key: str, logs: tuple[str, ...]) -> None:
    """Check the operator's log, and write a signed checkpoint of it. Reads the log from the cluster, or from FILEs.

    Signs nothing and exits with 1 if the log has a finding, or contradicts the newest checkpoint.
    """
    key, store = _key(signing_key), EvidenceStore(place, "checkpoints")
    files = store.read(checkpoint_files(store.names())[-1:])  # before the log, which may only be newer
    lines = list(read_logs(logs)) if logs else cluster.run(lambda _: _read(cluster.ref))
    found = verify(lines, now=now(), witness=Witness(files, key.public) if files else None)
    if found.findings:
        show_findings("FINDING", found.findings, len(found.findings))
        click.echo(f"FAILED: {many(len(found.findings), 'finding')}; nothing was signed")
        sys.exit(FINDINGS)
    last = next(((one, files[one.file]) for one in found.checkpoints), None)
    made = following(last, key.name, (one.head for one in found.chains), now())
    store.add(made.file, key.sign(made.text))
    click.echo(f"signed {made.file}: {many(len(made.heads), 'chain')}, at {place}")


def _key(file: str) -> SigningKey:
    try:
        return SigningKey.parse(Path(file).read_text())
    except OSError as error:
        raise click.ClickException(f"can't read the signing key {file}: {error.strerror}") from error
    except ValueError as error:
        raise click.ClickException(f"the signing key {file} can't be used: {error}") from error


async def _read(ref: ClusterRef) -> list[LogLine]:
    async with OperatorLog.opened(**ref.kube_context()) as operator:
        return [line for log in await operator.read() for line in log.lines()]
