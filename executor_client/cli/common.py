"""Shared by all commands: the options that select the cluster, and how errors end a command."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

import click
import pydantic

from codeexec_api.invalid import place_of, words_of
from codeexec_api.quantities import parse_quantity
from codeexec_api.v1alpha1.fields import RuntimeClassName
from executor_client.cli.escaping import one_line
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import DEFAULT_NAMESPACE, ClusterRef
from executor_client.exceptions import CodeExecError
from executor_client.model.words import from_the_command_line

T = TypeVar("T")
Connect: TypeAlias = Callable[[ClusterRef], CodeExecutionClient]
"""Creates the client of a command. Tests pass their own as click's `obj`."""

PROGRAM: Final = "codeexec-cli"
"""Recorded as the executor of everything the command line runs, and as its agent unless `--agent` names another."""
_OPTIONS: Final = {
    "agent": "--agent",
    "cpu": "--cpu",
    "egress": "--egress",
    "image": "--image",
    "memory": "--memory",
    "mounts": "--mount",
    "timeout_seconds": "--timeout",
}
"""The option that gives a field of a request."""
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C: 128 plus the number of SIGINT."""


@dataclass(frozen=True)
class Cluster:
    """The cluster that a command connects to."""

    ref: ClusterRef
    connect: Connect

    def run(self, work: Callable[[CodeExecutionClient], Awaitable[T]]) -> T:
        """Run `work` with a client, and close the client afterwards."""

        async def main() -> T:
            client = self.connect(self.ref)
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(main())


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    """End a command with one message for each error of a request or of the cluster, instead of a traceback.

    Raises:
        click.ClickException: such an error; the exit code is 1.
        click.exceptions.Exit: after Ctrl-C.
    """
    try:
        yield
    except pydantic.ValidationError as error:
        raise click.ClickException(one_line(explain(error, _OPTIONS))) from error
    except (CodeExecError, ValueError) as error:
        raise click.ClickException(one_line(str(error))) from error
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def in_namespace(
    option: Callable[[Callable[..., None]], Callable[..., None]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that select the cluster, of which this one gives `namespace`.

    The command receives them as `cluster`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @option
        @click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False), help="Kubeconfig file.")
        @click.option("--context", "context_name", metavar="NAME", help="Context of the kubeconfig.")
        @functools.wraps(command)
        def wrapped(*, namespace: str, kubeconfig: str | None, context_name: str | None, **options: Any) -> None:
            connect: Connect = click.get_current_context().obj or CodeExecutionClient
            with from_the_command_line(), _errors_as_messages():
                command(cluster=Cluster(ClusterRef(namespace, kubeconfig, context_name), connect), **options)

        return wrapped

    return decorate


cluster_options: Final = in_namespace(
    click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        default=DEFAULT_NAMESPACE,
        show_default=True,
        envvar="CODEEXEC_NAMESPACE",
        show_envvar=True,
        help="Sandbox namespace.",
    )
)
"""Those options, for a sandbox namespace."""


def output_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option for JSON output. The command receives it as `as_json`."""
    choice = click.Choice(["text", "json"])

    @click.option(
        "-o", "--output", "output_format", type=choice, default="text", show_default=True, help="Output format."
    )
    @functools.wraps(command)
    def wrapped(*, output_format: str, **options: Any) -> None:
        command(as_json=output_format == "json", **options)

    return wrapped


def parsed(parse: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """The callback of an option, whose value or values are parsed if there are any."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            return tuple(map(parse, value)) if isinstance(value, tuple) else None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error

    return callback


def quantity(value: str) -> str:
    """Check an amount of a resource in the notation of Kubernetes."""
    if parse_quantity(value) <= 0:
        raise ValueError(f"{value!r} must be greater than 0")
    return value


def runtime_class_name(value: str) -> str:
    """Check the name of a RuntimeClass, which need not exist."""
    try:
        return pydantic.TypeAdapter(RuntimeClassName).validate_python(value)
    except pydantic.ValidationError:
        raise ValueError(
            f"{value!r} is not a valid name: use lower-case letters, digits, - and .; kubectl get runtimeclasses lists "
            "them"
        ) from None


def explain(error: pydantic.ValidationError, options: Mapping[str, str] = MappingProxyType({})) -> str:
    """List every wrong field, in one line. Fields that an option gives are called as the option."""
    wrong = ((options.get(next(map(str, one["loc"]), "")) or place_of(one), words_of(one)) for one in error.errors())
    return "; ".join(f"{place}: {words}" if place else words for place, words in wrong)


def now() -> datetime:
    """The current time, by the clock of this machine."""
    return datetime.now(UTC)  # noqa: TID251 - the one place where the command line reads it
