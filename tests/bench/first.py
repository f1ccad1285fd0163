"""How long it takes to start from nothing: the first call of an executor, and the first command of a sandbox."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from cluster_tools import image
from contenders import CODE, output_of
from measuring import Contender, nothing, progress, timed

from executor_client import CodeExecutionClient, Request, SourceBlock, prepare

_BLOCK = CodeBlock(CODE, "python")


@dataclass(frozen=True)
class Fresh:
    """What is made anew for each run, and taken away again. Only `begin` is timed, until its first result."""

    begin: Callable[[], Awaitable[Contender]]
    """Ends with the first result; gives what takes it away."""
    before: Contender = nothing
    """Not timed."""


def first_call(make: Callable[[], CodeExecutor], before: Contender = nothing) -> Fresh:
    """Construction, `start()` and the first call of an executor."""

    async def begin() -> Contender:
        executor = make()
        await executor.start()
        result = await executor.execute_code_blocks([_BLOCK], CancellationToken())
        assert (result.exit_code, result.output) == (0, "1\n"), result
        return executor.stop

    return Fresh(begin, before)


def first_command(client: CodeExecutionClient, request: Request, before: Contender = nothing) -> Fresh:
    """Creation of a session, and its first call."""
    blocks = prepare([SourceBlock("python", CODE)]).blocks

    async def begin() -> Contender:
        session = await client.open_session(request)
        result = await session.execute(blocks)
        assert (result.exit_code, result.output) == (0, "1\n"), result
        return session.end

    return Fresh(begin, before)


def first_command_of_docker() -> Fresh:
    """`docker run` of a container that waits, and `docker exec`."""
    run = ("docker", "run", "--rm", "--detach", "--network", "none", "--entrypoint", "sleep", image(), "infinity")

    async def begin() -> Contender:
        container = (await output_of(*run)).decode().strip()
        assert await output_of("docker", "exec", container, "python3", "-c", CODE) == b"1\n"
        return lambda: output_of("docker", "rm", "--force", container)

    return Fresh(begin)


async def in_turn(contenders: Mapping[str, Fresh], runs: int) -> dict[str, list[float]]:
    """Each contender in turn, so that all see the same drift of the machine. The first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(1 + runs):
        for name, one in contenders.items():
            seconds = await _once(one)
            if number:
                times[name].append(seconds)
        progress(f"first call: round {number + 1} of {1 + runs}")
    return times


async def one_after_the_other(contenders: Mapping[str, Fresh], runs: int) -> dict[str, list[float]]:
    """All runs of a contender without a pause, then those of the next: ComputeSDK's sequential mode."""
    times: dict[str, list[float]] = {}
    for name, one in contenders.items():
        times[name] = [await _once(one) for _ in range(runs)]
        progress(f"first command: {name}")
    return times


async def _once(one: Fresh) -> float:
    await one.before()
    ends: list[Contender] = []

    async def begin() -> None:
        ends.append(await one.begin())

    seconds = await timed(begin)
    await ends[0]()
    return seconds
