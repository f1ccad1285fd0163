"""What AutoGen's executors of this package have in common: the result, cancellation, and files in `work_dir`."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeResult

from codeexec_api import BlockStatus, Phase
from codeexec_api.languages import unknown_language
from codeexec_api.v1alpha1.bounds import MAX_TIMEOUT_SECONDS
from executor_client.autogen.functions import PROMPT_TEMPLATE, UserFunction, names, prompt, silence_pip
from executor_client.model.blocks import Prepared, SourceBlock, prepare
from executor_client.model.results import Artifact, ExecutionResult
from executor_client.runtime import asyncio_tasks

logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_MODULE: Final = "Module name must be a valid Python identifier:"
"""In the words of AutoGen's own executors."""


@dataclass
class SandboxCodeResult(CodeResult):
    """AutoGen's result, with what the record knows beyond it."""

    code_file: str | None = None
    """File of the first block: in `work_dir` if that is set, else its path in the sandbox."""
    stdout: str = ""
    stderr: str = ""
    execution: str | None = None
    """Name of the CodeExecution, or what the span of a local run calls it; None if there was none."""
    reason: str = ""
    blocks: tuple[BlockStatus, ...] = ()
    """How each block ended that ran."""
    artifacts: tuple[Artifact, ...] = ()
    """Files that the blocks have made or changed; `fetched` says which of them are in `work_dir`."""


Result = TypeVar("Result", bound=SandboxCodeResult)


class Settings(Protocol):
    """What the configurations of both executors have."""

    timeout: int
    work_dir: str | None
    functions_module: str


AnySettings = TypeVar("AnySettings", bound=Settings)


class Described(Generic[AnySettings]):
    """What both executors tell of themselves."""

    _config: AnySettings
    _functions: Sequence[UserFunction]

    @property
    def timeout(self) -> int:
        """Limit of each block, in seconds."""
        return self._config.timeout

    @property
    def work_dir(self) -> Path | None:
        """Local folder for the source of each block and the files that code makes, if any."""
        return Path(self._config.work_dir) if self._config.work_dir else None

    @property
    def functions(self) -> list[str]:
        """Names of the functions that code may import."""
        return names(self._functions)

    @property
    def functions_module(self) -> str:
        """Module from which code imports the functions given at construction."""
        return self._config.functions_module

    def format_functions_for_prompt(self, prompt_template: str = PROMPT_TEMPLATE) -> str:
        """A text that tells a model of the functions.

        Args:
            prompt_template: with `$functions` for their stubs, and `$module_name`.

        Raises:
            KeyError: the template has another variable.
            ValueError: the template has a `$` that begins none.
        """
        return prompt(self._functions, self.functions_module, prompt_template)


def prepare_blocks(code_blocks: Sequence[CodeBlock], unknown: Callable[[str], str] = unknown_language) -> Prepared:
    """AutoGen's blocks as they are run, up to the first that can't be; see `prepare`."""
    sources = [SourceBlock(block.language, silence_pip(block.code, block.language)) for block in code_blocks]
    # Beside our words those of the Docker executor, which raises them.
    return prepare(sources, lambda language: f"{unknown(language)}\nUnsupported language: {language}")


def check_timeout(value: int) -> None:
    """Refuse a limit for each block that is out of range.

    Raises:
        ValueError: it is too low, in the words of AutoGen's own executors, or too high.
    """
    if value < 1:
        raise ValueError("Timeout must be greater than or equal to 1.")
    check_range("timeout", value, MAX_TIMEOUT_SECONDS)


def check_range(name: str, value: int, most: int) -> None:
    """Refuse a number of seconds that is out of range.

    Raises:
        ValueError: it names the field, the value and the range.
    """
    if not 1 <= value <= most:
        raise ValueError(f"{name} is {value}, but must be at least 1 and at most {most} seconds")


def event_of(token: CancellationToken) -> asyncio.Event:
    """An event that is set when the token is cancelled."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    # The token's lock is held while this runs, and another thread may be the one that cancels.
    token.add_callback(lambda: _set_from_any_thread(loop, event))
    return event


async def despite_cancellation(running: Coroutine[Any, Any, T], token: CancellationToken) -> T:
    """The result, also where whoever cancels the token cancels the waiting task, too, as AutoGen's workbenches do.

    A task that is cancelled without the token, or once more, ends the call, and with it the code.
    """
    task, forgiven = asyncio.ensure_future(running), False
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() or forgiven or not token.is_cancelled():
                await asyncio_tasks.stop(task)
                raise
            forgiven = True
            if waiting := asyncio.current_task():
                waiting.uncancel()


def _set_from_any_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the token has outlived the loop, and with it the call that it was given to
        loop.call_soon_threadsafe(event.set)


def to_autogen(
    kind: type[Result], result: ExecutionResult, code_file: str | None, refusal: str, note: str = ""
) -> Result:
    """AutoGen's view of a result.

    Args:
        kind: class of the result.
        result: of the blocks that could be run.
        code_file: path of the first block, if it has one.
        refusal: why the block after them could not be run, if there was one.
        note: put before the output.
    """
    exit_code, output = result.exit_code, note + result.output
    if result.phase is Phase.CANCELLED:
        exit_code = 1
    if refusal and exit_code == 0 and result.phase is Phase.SUCCEEDED:
        exit_code, output = 1, f"{output}\n{refusal}"
    return kind(
        exit_code=exit_code,
        output=output,
        code_file=code_file,
        stdout=result.stdout,
        stderr=result.stderr,
        execution=result.name,
        reason=result.reason,
        blocks=result.blocks,
        artifacts=result.artifacts,
    )
