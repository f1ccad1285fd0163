"""The commands of the command line, all of them."""

import click

from executor_client.cli.approvals import approvals, approve, deny, revoke
from executor_client.cli.audit import audit
from executor_client.cli.checkpoints import checkpoint, keygen
from executor_client.cli.doctor import doctor
from executor_client.cli.export import export
from executor_client.cli.files import cp
from executor_client.cli.manage import cancel, sessions
from executor_client.cli.policy import policy
from executor_client.cli.run import run
from executor_client.cli.show import get, logs
from executor_client.cli.streams import prepare


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: codeexec doctor, then codeexec run -c 'print(1)'.",
)
@click.version_option(package_name="codeexec")
def main() -> None:
    """Run code in hardened pods of a Kubernetes cluster, and inspect, approve and audit what runs there."""
    prepare()


for _command in (run, logs, get, cp, cancel, sessions, approvals, approve, deny, revoke, policy, audit, doctor):
    main.add_command(_command)
for _command in (checkpoint, export, keygen):
    audit.add_command(_command)
