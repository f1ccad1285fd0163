"""The command line: `codeexec run`."""

import asyncio
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from executor_client.blocks import SourceBlock, prepare
from executor_client.client import DEFAULT_NAMESPACE, ClusterRef, CodeExecutionClient, Request
from executor_client.exceptions import CodeExecError
from executor_client.results import ExecutionResult

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(output: str) -> str:
    """Output for a terminal: what would control it, but for line ends and tabs, is shown by its number."""
    return _CONTROLS.sub(lambda one: f"\\x{ord(one[0]):02x}", output.replace("\r\n", "\n"))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="codeexec")
def main() -> None:
    """Run code in hardened pods of a Kubernetes cluster."""


@main.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("-c", "--code", help="Code to run, instead of FILE.")
@click.option("-l", "--language", help="Language; by default python, or sh for files that end in .sh.")
@click.option("-n", "--namespace", default=DEFAULT_NAMESPACE, show_default=True, help="Sandbox namespace.")
@click.option("--kubeconfig", type=click.Path(exists=True), help="Kubeconfig to use.")
@click.option("--context", help="Context in the kubeconfig.")
@click.option("--image", help="Sandbox image, by digest.")
@click.option("--runtime-class", help="RuntimeClass of the sandbox, such as gvisor; default: the policy's.")
@click.option("--timeout", default=60, show_default=True, type=click.IntRange(min=1), help="Limit in seconds.")
@click.option("--agent", default="codeexec-cli", show_default=True, help="Name recorded as the source of the code.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def run(
    file: str | None,
    code: str | None,
    language: str | None,
    namespace: str,
    kubeconfig: str | None,
    context: str | None,
    image: str | None,
    runtime_class: str | None,
    timeout: int,
    agent: str,
    output: str,
) -> None:
    """Run FILE (or - for standard input) and exit with the exit code of the code."""
    if (file is None) == (code is None):
        raise click.UsageError("give either FILE or --code")
    if code is None:
        code = sys.stdin.read() if file == "-" else Path(str(file)).read_text()
    language = language or ("sh" if str(file).endswith(".sh") else "python")
    prepared = prepare([SourceBlock(language, code)])
    if prepared.refusal:
        raise click.ClickException(prepared.refusal)
    client = CodeExecutionClient(ClusterRef(namespace, kubeconfig, context))

    async def execute() -> ExecutionResult:
        request = Request(
            agent=agent,
            timeout_seconds=timeout,
            image=image,
            runtime_class_name=runtime_class,
            executor="codeexec-cli",
        )
        try:
            return await client.execute(prepared.blocks, request)
        finally:
            await client.close()

    try:
        result = asyncio.run(execute())
    except (CodeExecError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if output == "json":
        click.echo(json.dumps(asdict(result), default=str, indent=2))
    else:
        click.echo(visible(result.output) if sys.stdout.isatty() else result.output, nl=False)
    sys.exit(result.exit_code)
