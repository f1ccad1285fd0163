"""The three executors, each with what a case needs to use it in the same way as the others."""

import asyncio
import contextlib
import functools
import re
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from cluster_tools import image, wait_for

from executor_client import KubernetesCodeExecutor, Limits, OutputChunk

WORKSPACE = "/workspace"
IDLE_SECONDS = 120
"""After which a pod is gone that a run which was ended from outside has left."""
_SHORT = 200
"""Characters of a piece of output that may hold a mark; large output is not kept."""
_DIGEST = re.compile(r"(?<=tmp_code_)[0-9a-f]{64}")
_EXECUTION = re.compile(r"run-[0-9a-f]{12}")
# The container's own shell ignores SIGTERM, which would make every stop() of the Docker executor last ten seconds.
_END_AT_ONCE = "trap exit TERM; while :; do sleep 0.1; done"


class Party(ABC):
    """One of the three executors. All that it makes is stopped by `tidy`."""

    name: ClassVar[str]
    one_call_at_a_time: ClassVar[bool] = False

    def __init__(self) -> None:
        self._made: list[CodeExecutor] = []
        self._folders = contextlib.ExitStack()
        self._shared: tuple[dict[str, Any], CodeExecutor] | None = None
        self.work_dir = self.folder()
        """For `shared(work_dir=party.work_dir)`."""

    def make(self, **options: Any) -> CodeExecutor:
        """An executor that is not started, with a workspace of its own. Options: those that all three have."""
        one = self._make(**{"timeout": 20, **options})
        self._made.append(one)
        return one

    async def started(self, **options: Any) -> CodeExecutor:
        """An executor that is started."""
        one = self.make(**options)
        await one.start()
        return one

    async def shared(self, **options: Any) -> CodeExecutor:
        """The started executor of all cases that need these options and no executor of their own.

        There is one at a time: a test cluster hasn't room for many pods.
        """
        if self._shared and self._shared[0] == options:
            return self._shared[1]
        await self._stop_shared()
        one = await self.started(**options)
        self._made.remove(one)
        self._shared = (options, one)
        return one

    async def run(
        self,
        *blocks: str | tuple[str, str],
        at: CodeExecutor | None = None,
        token: CancellationToken | None = None,
    ) -> CodeResult:
        """Run blocks in one call of this executor, or else of the shared one."""
        pairs = [("python", block) if isinstance(block, str) else block for block in blocks]
        code_blocks = [CodeBlock(code, language) for language, code in pairs]
        return await (at or await self.shared()).execute_code_blocks(code_blocks, token or CancellationToken())

    async def tidy(self) -> None:
        """Stop what the case has made."""
        while self._made:
            await self._made.pop().stop()

    async def close(self) -> None:
        """Stop everything."""
        await self.tidy()
        await self._stop_shared()
        self._folders.close()

    def normalised(self, text: str) -> str:
        """Text without what differs from run to run: the client's folders, digests, names of executions."""
        for folder in self._names_of_workspace():
            text = text.replace(folder, WORKSPACE)
        return _EXECUTION.sub("run-…", _DIGEST.sub("…", text))

    async def until_running(self, executor: CodeExecutor, mark: str) -> None:
        """Wait until code that was given `announce(mark)` has said it."""
        await asyncio.to_thread(wait_for, f"code to say {mark}", functools.partial(self._has_said, executor, mark), 30)

    def folder(self) -> Path:
        """A new folder of the client that anyone may write to: users of sandboxes are not those of this machine."""
        folder = Path(self._folders.enter_context(tempfile.TemporaryDirectory(dir="/tmp", prefix="parity-")))
        folder.chmod(0o777)
        return folder

    @abstractmethod
    def _make(self, **options: Any) -> CodeExecutor: ...

    @abstractmethod
    def _has_said(self, executor: Any, mark: str) -> bool: ...

    async def _stop_shared(self) -> None:
        if self._shared:
            await self._shared[1].stop()
            self._shared = None

    def _names_of_workspace(self) -> list[str]:
        """How the client calls the workspaces of the executors in use."""
        used = [*self._made, *([self._shared[1]] if self._shared else [])]
        return [str(one.work_dir) for one in used if one.work_dir]  # type: ignore[attr-defined]


class _OfAutogen(Party):
    def _has_said(self, executor: Any, mark: str) -> bool:
        return (executor.work_dir / mark).exists()


class Local(_OfAutogen):
    """AutoGen's executor that starts processes of this machine."""

    name = "Local"

    def _make(self, **options: Any) -> CodeExecutor:
        return LocalCommandLineCodeExecutor(**{"work_dir": self.folder(), **options})


class Docker(_OfAutogen):
    """AutoGen's executor that starts processes in a container, here of the sandbox image."""

    name = "Docker"

    def _make(self, **options: Any) -> CodeExecutor:
        folder = {} if "work_dir" in options else {"work_dir": self.folder()}
        return DockerCommandLineCodeExecutor(image=image(), init_command=_END_AT_ONCE, **folder, **options)


class Ours(Party):
    """The executor of this project, with no more rights than an agent has."""

    name = "ours"
    one_call_at_a_time = True

    def __init__(self, kubeconfig: str) -> None:
        super().__init__()
        self._kubeconfig = kubeconfig
        self._heard: list[str] = []

    def _make(self, **options: Any) -> CodeExecutor:
        small = Limits(cpu="250m", output_bytes=options.pop("output_bytes", Limits().output_bytes))
        return KubernetesCodeExecutor(
            **{"kubeconfig": self._kubeconfig, "agent": "parity", "limits": small, **options},
            idle_timeout=IDLE_SECONDS,
            on_output=self._hear,
        )

    def _hear(self, chunk: OutputChunk) -> None:
        if len(chunk.text) < _SHORT:
            self._heard.append(chunk.text)

    def _has_said(self, executor: Any, mark: str) -> bool:
        return mark in "".join(self._heard)


def announce(mark: str) -> str:
    """Shell code by which `Party.until_running` knows that it runs."""
    return f"touch {mark}; echo {mark}"


def beats(seconds: int, file: str) -> str:
    """Shell code that writes the time to a file, again and again.

    It ends by itself, so that nothing stays where an executor doesn't stop it.
    """
    return f"for i in $(seq {seconds * 10}); do date +%s%N >{file}.new; mv {file}.new {file}; sleep 0.1; done"


def whether_it_beats(file: str) -> str:
    """Shell code that says `alive` or `dead`, and something else if the file was never there."""
    return f'a=$(cat {file}) || exit; sleep 0.5; b=$(cat {file}); [ "$a" = "$b" ] && echo dead || echo alive'
