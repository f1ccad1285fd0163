"""How long it takes to start from nothing: the first call of an executor, and the first command of a sandbox."""

from collections.abc import Callable

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from cluster_tools import image
from contenders import CODE, output_of
from measuring import Contender, Fresh, nothing

from executor_client import CodeExecutionClient, Request, SourceBlock, prepare

_BLOCK = CodeBlock(CODE, "python")


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
