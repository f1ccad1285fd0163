"""What AutoGen's executors of this package have in common: settings, results, functions and cancellation."""

import asyncio
import keyword
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import BaseModel, ConfigDict, Field

from codeexec_api import BlockStatus, Limits, Phase
from codeexec_api.languages import unknown_language
from codeexec_api.v1alpha1.bounds import MAX_TIMEOUT_SECONDS
from executor_client.autogen.functions import (
    PROMPT_TEMPLATE,
    UserFunction,
    check_program,
    module_source,
    names,
    prompt,
    silence_pip,
)
from executor_client.model.arguments import check_agent, whole_seconds
from executor_client.model.blocks import Prepared, PreparedBlock, SourceBlock, WorkspaceFile, prepare
from executor_client.model.results import CANCELLED, Artifact, ExecutionResult
from executor_client.runtime import asyncio_tasks
from executor_client.workspace.work_dir import Stamp, WorkDir

T = TypeVar("T")


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


AnyResult = TypeVar("AnyResult", bound=SandboxCodeResult)


class Settings(BaseModel):
    """What the configurations of both executors have. They hold references to credentials, never credentials."""

    model_config = ConfigDict(extra="forbid")

    timeout: int = 60
    work_dir: str | None = None
    upload_work_dir: bool = True
    functions_module: str = "functions"
    agent: str = "autogen"
    limits: dict[str, Any] = Field(default_factory=dict)


AnySettings = TypeVar("AnySettings", bound=Settings)


@dataclass(frozen=True)
class FunctionModule:
    """The functions that code may import, as a module."""

    functions: tuple[UserFunction, ...]
    name: str
    place: str
    """What has the packages that they need, for messages."""

    def __bool__(self) -> bool:
        return bool(self.functions)

    @property
    def path(self) -> str:
        """Path of the file in the workspace."""
        return f"{self.name}.py"

    def file(self) -> WorkspaceFile:
        """Its file."""
        return WorkspaceFile(self.path, module_source(self.functions).encode())

    def check(self) -> PreparedBlock:
        """What finds out whether it can be imported."""
        return PreparedBlock("python", check_program(self.functions, self.name, self.place).encode())

    def failed(self, words: str) -> ValueError:
        """It can't be imported, in the words of AutoGen's own executors."""
        return ValueError(f"Functions failed to load: {words.strip()}")

    def unsent(self, folder: WorkDir, sent: Mapping[str, Stamp], blocks: Sequence[PreparedBlock]) -> dict[str, Stamp]:
        """What the caller has put into the folder or changed there, and the workspace lacks; no sources."""
        sources = {block.file for block in blocks} | ({self.path} if self else set())
        return {name: stamp for name, stamp in folder.unsent(sent).items() if name not in sources}


class SandboxExecutor(CodeExecutor, Generic[AnySettings, AnyResult]):
    """What both executors have: settings, functions, a local folder, and how a call begins.

    Args:
        config: settings.
        functions: functions that the code may import from `config.functions_module`.
    """

    _kind: type[AnyResult]
    """Class of the results."""
    _place: ClassVar[str] = "the sandbox image"
    """What has the packages that functions need, for messages."""

    def __init__(self, config: AnySettings, functions: Sequence[UserFunction]) -> None:
        self._config = config
        self._module = FunctionModule(tuple(functions), config.functions_module, self._place)
        self._folder = WorkDir(self.work_dir) if self.work_dir else None

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
        return names(self._module.functions)

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
        return prompt(self._module.functions, self.functions_module, prompt_template)

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> AnyResult:
        """Run blocks in order; the first that fails ends the call.

        What the code does, a refusal by policy, an unknown language and a cancellation are results. Exit codes: the
        block's own, 124 after a timeout, 137 when out of memory, 1 when cancelled or refused.

        Raises:
            ValueError: there is no block, the code is too large, its source can't be kept in work_dir, or the functions
                can't be loaded.
            CodeExecError: something other than the code failed; see `executor_client.exceptions`.
        """
        if not code_blocks:
            raise ValueError("No code blocks to execute.")
        if cancellation_token.is_cancelled():
            return self._kind(exit_code=1, output=CANCELLED)
        # Beside our words those of the Docker executor, which raises them.
        prepared = prepare(
            [SourceBlock(block.language, silence_pip(block.code, block.language)) for block in code_blocks],
            lambda language: f"{self._unknown(language)}\nUnsupported language: {language}",
        )
        if not prepared.runnable:
            return self._kind(exit_code=1, output=prepared.refusal)
        return await self._call(prepared, cancellation_token)

    @abstractmethod
    async def _call(self, prepared: Prepared, token: CancellationToken) -> AnyResult:
        """Run blocks, of which there is one at least."""

    def _unknown(self, language: str) -> str:
        """What a caller is told of a language that this executor doesn't run."""
        return unknown_language(language)

    def _to_config(self) -> AnySettings:
        return self._config

    @classmethod
    def _from_config(cls, config: AnySettings) -> Self:
        make: Callable[..., Self] = cls
        limits = Limits(**config.limits) if config.limits else None
        return make(**config.model_dump(exclude={"limits"}), limits=limits)


def check_settings(timeout: int, functions_module: str, agent: str) -> None:
    """Refuse what both executors refuse, in the words of AutoGen's own.

    Raises:
        ValueError: the limit for each block is out of range, the module's name is not an identifier, or the agent has
            no name.
    """
    if isinstance(timeout, int | float) and timeout < 1:
        raise ValueError("Timeout must be greater than or equal to 1.")
    whole_seconds("timeout", timeout, MAX_TIMEOUT_SECONDS)
    if not functions_module.isidentifier() or keyword.iskeyword(functions_module):
        raise ValueError(f"Module name must be a valid Python identifier: functions_module is {functions_module!r}")
    check_agent(agent)


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
    kind: type[AnyResult], result: ExecutionResult, code_file: str | None, refusal: str = "", note: str = ""
) -> AnyResult:
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
