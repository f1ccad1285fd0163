"""What the commands have in common: which cluster, and how errors end a command."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar

import click
import pydantic

from executor_client.client import DEFAULT_NAMESPACE, ClusterRef, CodeExecutionClient
from executor_client.exceptions import CodeExecError

T = TypeVar("T")
Connect: TypeAlias = Callable[[ClusterRef], CodeExecutionClient]
"""Makes the client of a command; tests put another in as click's `obj`."""

PROGRAM: Final = "codeexec-cli"
"""Executor of what the command line runs, in its record; also the agent if none is named."""
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C: 128 and the number of SIGINT."""


@dataclass(frozen=True)
class Cluster:
    """The cluster that a command works with."""

    ref: ClusterRef
    connect: Connect

    def run(self, work: Callable[[CodeExecutionClient], Awaitable[T]]) -> T:
        """Do `work` with a client that is closed afterwards.

        Raises:
            click.ClickException: whatever goes wrong, in one message; the exit code is 1.
            click.exceptions.Exit: after Ctrl-C.
        """

        async def main() -> T:
            client = self.connect(self.ref)
            try:
                return await work(client)
            finally:
                await client.close()

        try:
            return asyncio.run(main())
        except pydantic.ValidationError as error:
            raise click.ClickException(explain(error)) from error
        except (CodeExecError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which cluster; the command gets them as `cluster`."""

    @click.option(
        "-n",
        "--namespace",
        default=DEFAULT_NAMESPACE,
        show_default=True,
        envvar="CODEEXEC_NAMESPACE",
        show_envvar=True,
        help="Sandbox namespace.",
    )
    @click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False), help="Kubeconfig to use.")
    @click.option("--context", "context_name", metavar="NAME", help="Context in the kubeconfig.")
    @functools.wraps(command)
    def wrapped(*, namespace: str, kubeconfig: str | None, context_name: str | None, **options: Any) -> None:
        connect: Connect = click.get_current_context().obj or CodeExecutionClient
        command(cluster=Cluster(ClusterRef(namespace, kubeconfig, context_name), connect), **options)

    return wrapped


def output_option(command: Callable[..., None]) -> Callable[..., None]:
    """The option that asks for JSON; the command gets it as `as_json`."""
    choice = click.Choice(["text", "json"])

    @click.option("-o", "--output", "output_format", type=choice, default="text", show_default=True)
    @functools.wraps(command)
    def wrapped(*, output_format: str, **options: Any) -> None:
        command(as_json=output_format == "json", **options)

    return wrapped


def explain(error: pydantic.ValidationError) -> str:
    """Each field that is wrong, on one line."""
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())


def now() -> datetime:
    """The clock of this machine."""
    return datetime.now(UTC)  # noqa: TID251 - the one place where the command line reads it
