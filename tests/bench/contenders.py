"""One call of `print(1)`, in each of the ways that are compared. A call ends when the caller holds the output."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count, repeat
from pathlib import Path
from typing import Any

import aiohttp
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor
from cluster_tools import image
from kubernetes.aio import client
from kubernetes.aio.stream import WsApiClient
from kubernetes.aio.stream.ws_client import ERROR_CHANNEL, STDIN_CHANNEL, STDOUT_CHANNEL
from measuring import Contender
from stage import NAMESPACE, bare_template, create_pod, standing_pod, until_phase

from codeexec_api.names import SANDBOX_CONTAINER
from codeexec_api.quantities import parse_quantity
from codeexec_operator.manifests import hardening
from executor_client import Limits

CODE = "print(1)"
LOOP = ("sh", "-c", 'while IFS= read -r line; do python3 -c "$line"; echo $?; done')
"""Runs each line of its stdin as Python, and prints the exit code after what that has printed."""
_SECONDS = 60


def calls(executor: CodeExecutor) -> Contender:
    """One of AutoGen's executors, or ours."""
    return _calls(executor, repeat(CODE))


def concurrent_calls(executor: CodeExecutor) -> Contender:
    """The same, for calls at the same time, which have to differ.

    AutoGen's executors write the code into a file whose name is its digest: a call that writes the file of another
    empties it, perhaps just when that is about to be run.
    """
    return _calls(executor, (f"{CODE}  # {number}" for number in count()))


def _calls(executor: CodeExecutor, codes: Iterator[str]) -> Contender:
    async def call() -> None:
        result = await executor.execute_code_blocks([CodeBlock(next(codes), "python")], CancellationToken())
        assert (result.exit_code, result.output) == (0, "1\n"), result

    return call


def autogen_in_docker(folder: Path) -> DockerCommandLineCodeExecutor:
    """AutoGen's Docker executor, which is not started yet."""
    return DockerCommandLineCodeExecutor(image=image(), timeout=60, work_dir=folder)


@asynccontextmanager
async def executors_of_callers(folder: Path, count: int) -> AsyncIterator[Sequence[CodeExecutor]]:
    """So many of them that run, each with a folder of its own. They end one after the other, see `closed_network`."""
    found = [autogen_in_docker(folder / f"caller-{number}") for number in range(count)]
    try:
        for one in found:
            await one.start()
        yield found
    finally:
        for one in found:
            # AutoGen's shell hears no SIGTERM, so that each stop would take ten seconds.
            await output_of("docker", "rm", "--force", one.container_name)
            await one.stop()


def bare_pod(core: client.CoreV1Api, limits: Limits) -> Contender:
    """The same pod, with the code on its command line instead of our runner; no record, no payload, no operator."""
    template = bare_template(["python3", "-c", CODE], limits)

    async def call() -> None:
        name, since = await create_pod(core, template)
        await until_phase(core, name, since, "Succeeded", "Failed")
        assert (await core.read_namespaced_pod_log(name, NAMESPACE)).strip() == "1"
        await core.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)

    return call


@asynccontextmanager
async def bare_attach_and_exec(api: client.ApiClient, limits: Limits) -> AsyncIterator[tuple[Contender, Contender]]:
    """A hardened pod that already runs, and is used again and again: by a line on its stdin, and by `exec`.

    Both are what Kubernetes gives by itself: no record, no policy, and whatever a call leaves behind is there in the
    next. The connection to its stdin is open beforehand; `exec` makes one for each call.
    """
    async with WsApiClient(api.configuration) as sockets, standing_pod(client.CoreV1Api(api), LOOP, limits) as pod:
        core = client.CoreV1Api(sockets)
        async with await _open_stdin(core, pod) as socket:
            yield _bare_attach(socket), _bare_exec(core, pod)


async def _open_stdin(core: client.CoreV1Api, pod: str) -> Any:
    return await core.connect_get_namespaced_pod_attach_without_preload_content(
        pod, NAMESPACE, container=SANDBOX_CONTAINER, stdin=True, stdout=True, stderr=False, tty=False
    )


def _bare_attach(socket: aiohttp.ClientWebSocketResponse) -> Contender:
    async def call() -> None:
        await socket.send_bytes(bytes([STDIN_CHANNEL]) + f"{CODE}\n".encode())
        answer = b""
        async with asyncio.timeout(_SECONDS):
            while answer.count(b"\n") < 2:
                answer += _of_channel(STDOUT_CHANNEL, await socket.receive_bytes())
        assert answer == b"1\n0\n", answer

    return call


def _bare_exec(core: client.CoreV1Api, pod: str) -> Contender:
    async def call() -> None:
        opening: Any = await core.connect_get_namespaced_pod_exec_without_preload_content(
            pod,
            NAMESPACE,
            command=["python3", "-c", CODE],
            container=SANDBOX_CONTAINER,
            stdin=False,
            stdout=True,
            stderr=True,
            tty=False,
        )
        output, end = b"", b""
        async with asyncio.timeout(_SECONDS), opening as socket:
            while not end:  # how it has ended is the last thing that comes
                message = await socket.receive_bytes()
                output += _of_channel(STDOUT_CHANNEL, message)
                end += _of_channel(ERROR_CHANNEL, message)
        assert (WsApiClient.parse_error_data(end), output) == (0, b"1\n"), (end, output)

    return call


def _of_channel(channel: int, message: bytes) -> bytes:
    """What a message brings on this channel: its first byte says which it is for."""
    return message[1:] if message[:1] == bytes([channel]) else b""


@asynccontextmanager
async def closed_network() -> AsyncIterator[str]:
    """The value of Docker's `--network` for containers that share the closed network of one that stands there.

    Where several containers with networks of their own end at once, Docker 20.10 may block for good: two of its locks
    are taken in either order. Containers that share one don't come near them.
    """
    command = ("docker", "run", "--rm", "--detach", "--network", "none", "--entrypoint", "sleep", image(), "infinity")
    container = (await output_of(*command)).decode().strip()
    try:
        yield f"container:{container}"
    finally:
        await output_of("docker", "rm", "--force", container)


def docker_run(limits: Limits, network: str = "none") -> Contender:
    """One container with the same hardening and limits, by the command line."""
    command = [
        *("docker", "run", "--rm", "--network", network, "--read-only", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--user", f"{hardening.SANDBOX_UID}:{hardening.SANDBOX_GID}"),
        *("--memory", str(int(parse_quantity(limits.memory))), "--cpus", str(parse_quantity(limits.cpu))),
        *("--pids-limit", str(limits.pids), "--tmpfs", "/workspace", "--tmpfs", "/tmp"),
        *("--entrypoint", "python3", image(), "-c", CODE),
    ]

    async def call() -> None:
        assert await output_of(*command) == b"1\n"

    return call


async def output_of(*command: str) -> bytes:
    """What a command prints; it has to end well, and within a minute."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        async with asyncio.timeout(_SECONDS):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, command
    return out
