"""The sandbox as the proofs use it: by AutoGen's executor, with an agent's rights.

A pod costs the node more than a call does. So there are three ways to run code, and a proof takes the cheapest that
shows its claim: `call` runs it in a pod that all tests of a run share, `session` in a pod for the calls of one test,
and `run` in a pod of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from cluster_tools import Admin
from waits import SECONDS

from codeexec_api import Limits
from executor_client import KubernetesCodeResult, OutputChunk

ALONE = Limits(cpu="200m", memory="128Mi")
SHARED = Limits(cpu="100m", memory="128Mi")
BESIDE_OTHERS = Limits(cpu="100m", memory="96Mi")
AT_THE_SAME_TIME = 3
"""So many pods of this size start on a node of two processors without starving each other."""
DEFAULT_RUNTIME = "runc"
"""What proofs that name no runtime run under: the cluster's default."""

Block: TypeAlias = str | tuple[str, str]
"""Python, or language and code."""


class Heard:
    """What an executor's code has printed so far, and who waits for which words of it."""

    def __init__(self) -> None:
        self._text = ""
        self._waiting: list[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = []

    def __call__(self, chunk: OutputChunk) -> None:
        """Called in a thread, for one chunk after the other."""
        self._text += chunk.text
        for words_, loop, event in self._waiting:
            if words_ in self._text:
                loop.call_soon_threadsafe(event.set)

    def event(self, words_: str) -> asyncio.Event:
        """Set once the code has printed these words, from now on."""
        self._text, event = "", asyncio.Event()
        self._waiting.append((words_, asyncio.get_running_loop(), event))
        return event


class Sandbox:
    """Runs code as an agent does, by AutoGen's executor with an agent's rights, and knows its record."""

    def __init__(
        self, admin: Admin, make_executor: Callable[..., Any], runtime: str, shared: Callable[[str], CodeExecutor]
    ) -> None:
        self.runtime = runtime
        self._admin = admin
        self._make_executor = make_executor
        self._shared = shared
        self._heard: dict[CodeExecutor, Heard] = {}

    def session(self, **options: Any) -> CodeExecutor:
        """An executor whose calls share a pod and its workspace."""
        return self._make(session="per-executor", **options)

    async def call(self, *blocks: Block) -> KubernetesCodeResult:
        """Run blocks in one execution, in the pod that all tests share."""
        return await self.run(*blocks, at=self._shared(self.runtime))

    async def run(self, *blocks: Block, at: CodeExecutor | None = None, **options: Any) -> KubernetesCodeResult:
        """Run blocks in one execution, in a pod of its own or with a given executor. Options are those of executors."""
        executor = at or self._make(**options)
        pairs = [("python", block) if isinstance(block, str) else block for block in blocks]
        code_blocks = [CodeBlock(code, language) for language, code in pairs]
        result = await executor.execute_code_blocks(code_blocks, CancellationToken())
        if result.execution and self.runtime != DEFAULT_RUNTIME:
            assert self.record(result)["status"]["runtimeClassName"] == self.runtime
        return result

    async def run_all(self, cases: Mapping[str, Sequence[Block]], **options: Any) -> dict[str, KubernetesCodeResult]:
        """Run each case as an execution in a pod of its own, some at the same time."""
        room = asyncio.Semaphore(AT_THE_SAME_TIME)

        async def run(blocks: Sequence[Block]) -> KubernetesCodeResult:
            async with room:
                return await self.run(*blocks, **{"limits": BESIDE_OTHERS, **options})

        return dict(zip(cases, await asyncio.gather(*map(run, cases.values())), strict=True))

    @asynccontextmanager
    async def beside(self, code: str, says: str, at: CodeExecutor | None = None) -> AsyncIterator[None]:
        """Code that runs during the block: it has printed `says` before, is still running afterwards, and ends then."""
        executor = at or self._make(limits=BESIDE_OTHERS, timeout=300)
        said = self._heard[executor].event(says)
        running = asyncio.create_task(self.run(code, at=executor))
        hearing = asyncio.create_task(said.wait())
        try:
            await asyncio.wait({running, hearing}, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
            told = running.result().output if running.done() else f"nothing within {SECONDS} s"
            assert said.is_set(), f"code that is to run beside others has to say {says!r} first, but said: {told}"
            yield
            assert not running.done(), f"the code that was to run beside others has ended: {running.result().output}"
        finally:
            hearing.cancel()
            running.cancel()
            await asyncio.gather(hearing, running, return_exceptions=True)

    def record(self, result: KubernetesCodeResult) -> dict[str, Any]:
        """The CodeExecution that the run has left."""
        assert result.execution
        return self._admin.execution(result.execution)

    def _make(self, **options: Any) -> CodeExecutor:
        heard = Heard()
        name = {} if self.runtime == DEFAULT_RUNTIME else {"runtime_class_name": self.runtime}
        defaults = {"timeout": 300, "limits": ALONE, "agent": "conformance", "on_output": heard, **name}
        executor = self._make_executor(**{**defaults, **options})
        self._heard[executor] = heard
        return executor
