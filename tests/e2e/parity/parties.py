"""The three executors, each with what a case needs to use it in the same way as the others."""

import asyncio
import contextlib
import re
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from cluster_tools import SANDBOX, image, wait_for

from executor_client import KubernetesCodeExecutor, Limits, OutputChunk

WORKSPACE = "/workspace"
IDLE_SECONDS = 120
"""After which a pod is gone that a run which was ended from outside has left."""
_MARK_SECONDS = 60
_TURNS = 100
"""Of the event loop: the Local executor needs some after the process has begun to run, before it waits for its end."""
_ENVIRONMENT: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
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
    waits_when_cancelled: ClassVar[bool] = False
    """A cancelled call returns only when its code has ended by itself."""

    def __init__(self) -> None:
        self._made: list[CodeExecutor] = []
        self._folders = contextlib.ExitStack()
        self._shared: tuple[dict[str, Any], CodeExecutor] | None = None
        self.work_dir = self.folder()
        """For `shared(work_dir=party.work_dir)`."""

    def make(self, **options: Any) -> CodeExecutor:
        """An executor that is not started, with a workspace of its own. Options: those that all three have."""
        one = self._make(**{"timeout": 120, **options})
        self._made.append(one)
        return one

    async def started(self, **options: Any) -> CodeExecutor:
        """An executor that is started."""
        one = self.make(**options)
        async with environment():
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
        with self._folders:
            await self.tidy()
            await self._stop_shared()

    def normalised(self, text: str) -> str:
        """Text without what differs from run to run: the client's folders, digests, names of executions."""
        for folder in self._names_of_workspace():
            text = text.replace(folder, WORKSPACE)
        return _EXECUTION.sub("run-…", _DIGEST.sub("…", text))

    async def until_running(self, executor: CodeExecutor, mark: str) -> None:
        """Wait until `held(mark)` or `living(mark)` runs, and the executor has got as far as to wait for its end."""
        await asyncio.to_thread(self._await_mark, executor, mark)
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    @abstractmethod
    def release(self, executor: CodeExecutor, mark: str) -> None:
        """Let code go on that was `held(mark)`, or end that is `living(mark)`."""

    def folder(self) -> Path:
        """A new folder of the client that anyone may write to: users of sandboxes are not those of this machine."""
        folder = Path(self._folders.enter_context(tempfile.TemporaryDirectory(dir="/tmp", prefix="parity-")))
        folder.chmod(0o777)
        return folder

    @abstractmethod
    def _make(self, **options: Any) -> CodeExecutor: ...

    @abstractmethod
    def _await_mark(self, executor: Any, mark: str) -> None: ...

    async def _stop_shared(self) -> None:
        if self._shared:
            await self._shared[1].stop()
            self._shared = None

    def _names_of_workspace(self) -> list[str]:
        """How the client calls the workspaces of the executors in use."""
        used = [*self._made, *([self._shared[1]] if self._shared else [])]
        return [str(one.work_dir) for one in used if one.work_dir]  # type: ignore[attr-defined]


class _OfAutogen(Party):
    def release(self, executor: Any, mark: str) -> None:
        (executor.work_dir / f"{mark}.release").touch()

    def _await_mark(self, executor: Any, mark: str) -> None:
        wait_for(f"code to make the file {mark}", (executor.work_dir / mark).exists, _MARK_SECONDS)


class Local(_OfAutogen):
    """AutoGen's executor that starts processes of this machine."""

    name = "Local"
    waits_when_cancelled = True

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
        self._hearing = threading.Condition()

    def _make(self, **options: Any) -> CodeExecutor:
        small = Limits(cpu="200m", output_bytes=options.pop("output_bytes", Limits().output_bytes))
        return KubernetesCodeExecutor(
            **{"kubeconfig": self._kubeconfig, "namespace": SANDBOX, "agent": "parity", "limits": small, **options},
            idle_timeout=IDLE_SECONDS,
            on_output=self._hear,
        )

    def _hear(self, chunk: OutputChunk) -> None:
        if len(chunk.text) < _SHORT:
            with self._hearing:
                self._heard.append(chunk.text)
                self._hearing.notify_all()

    def release(self, executor: CodeExecutor, mark: str) -> None:
        """Nothing has to be done: what is cancelled here is dead, and else the case fails."""

    def _await_mark(self, executor: Any, mark: str) -> None:
        with self._hearing:
            said = self._hearing.wait_for(lambda: mark in "".join(self._heard), _MARK_SECONDS)
        assert said, f"waited {_MARK_SECONDS} s in vain for code to say {mark}"


_HELD = "for i in $(seq 600); do [ -e %s.release ] && break; sleep 0.1; done"
"""It ends by itself after a minute, so that nothing stays where an executor doesn't stop it."""


def held(mark: str) -> str:
    """Shell code that says that it runs, and waits until it is released."""
    return f"touch {mark}; echo {mark}; {_HELD % mark}"


def living(mark: str) -> str:
    """A command: a process that is called after its mark and makes a file of that name, until it is released."""
    return f"sh -c 'touch $0; {_HELD % '$0'}' {mark}"


def whether_it_lives(mark: str) -> str:
    """Shell code that says whether a process of this mark is `alive` or `dead`, if there ever was one."""
    pattern = f"[{mark[0]}]{mark[1:]}"  # which the search itself doesn't match
    return f"[ -e {mark} ] && (cat /proc/[0-9]*/cmdline 2>/dev/null | grep -qa '{pattern}' && echo alive || echo dead)"


@contextlib.asynccontextmanager
async def environment() -> AsyncIterator[None]:
    """Whoever starts executors or changes this process's variables for a while does it alone."""
    loop = asyncio.get_running_loop()
    async with _ENVIRONMENT.setdefault(loop, asyncio.Lock()):
        yield
