"""The AutoGen executor: a thin face on `CodeExecutionClient`."""

import asyncio
import keyword
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeAlias

from autogen_core import CancellationToken, Component
from autogen_core.code_executor import (
    CodeBlock,
    CodeExecutor,
    CodeResult,
    FunctionWithRequirements,
    FunctionWithRequirementsStr,
)
from autogen_core.code_executor._func_with_reqs import build_python_functions_file
from pydantic import BaseModel, Field

from codeexec_api import Limits, Phase
from codeexec_api.v1alpha1 import MAX_TIMEOUT_SECONDS
from executor_client.blocks import PreparedBlock, SourceBlock, WorkspaceFile, prepare
from executor_client.client import DEFAULT_NAMESPACE, ClusterRef, CodeExecutionClient, Request
from executor_client.results import CANCELLED, ExecutionResult

UserFunction: TypeAlias = Callable[..., Any] | FunctionWithRequirements[Any, Any] | FunctionWithRequirementsStr

_REQUIREMENT_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_CHECK_FUNCTIONS: Final = """\
import importlib, importlib.metadata, sys
missing = []
for name in {packages!r}:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        missing.append(name)
if missing:
    there = sorted({{one.metadata["Name"] for one in importlib.metadata.distributions()}})
    sys.exit(f"the sandbox image lacks {{', '.join(missing)}}; nothing is installed at run time. It has: "
             f"{{', '.join(there) or 'no packages'}}")
importlib.import_module({module!r})
"""


@dataclass
class KubernetesCodeResult(CodeResult):
    """AutoGen's result, with what the record knows beyond it."""

    code_file: str | None = None
    """File of the first block: in `work_dir` if that is set, else its path in the sandbox."""
    stdout: str = ""
    stderr: str = ""
    execution: str | None = None
    """Name of the CodeExecution, None if nothing was submitted."""
    reason: str = ""


class KubernetesCodeExecutorConfig(BaseModel):
    """Configuration of `KubernetesCodeExecutor`. Holds references to credentials, never credentials."""

    timeout: int = 60
    namespace: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    image: str | None = None
    runtime_class_name: str | None = None
    work_dir: str | None = None
    functions_module: str = "functions"
    agent: str = "autogen"
    limits: dict[str, Any] = Field(default_factory=dict)


class KubernetesCodeExecutor(CodeExecutor, Component[KubernetesCodeExecutorConfig]):
    """Runs code blocks in hardened pods of a Kubernetes cluster, one new pod for each call.

    Construction does no I/O; the first call connects. Each call leaves a CodeExecution behind, its audit record.

    Args:
        timeout: limit of each block, in seconds, at least 1.
        namespace: sandbox namespace; default `codeexec-sandbox`.
        kubeconfig: path of a kubeconfig; default: the pod's service account, else as kubectl finds it.
        context: context in the kubeconfig; default: the current one.
        image: sandbox image by digest; default: the first image of the policy.
        runtime_class_name: RuntimeClass of the pod, such as `gvisor`; default: that of the policy.
        work_dir: local folder in which the source of each block is kept, under its file name.
        functions: functions that the code may import from `functions_module`.
        functions_module: name of that module, a Python identifier.
        agent: name recorded as the source of the code.
        limits: ceilings of the pod, such as `Limits(memory="512Mi")`; default: those of `executor_client.Limits`.

    Raises:
        ValueError: timeout is below 1 or above a day, functions_module is not an identifier, or the image is not named
            by digest.
    """

    component_config_schema = KubernetesCodeExecutorConfig
    component_provider_override = "executor_client.KubernetesCodeExecutor"
    component_version: ClassVar[int] = 1

    def __init__(
        self,
        *,
        timeout: int = 60,
        namespace: str | None = None,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        image: str | None = None,
        runtime_class_name: str | None = None,
        work_dir: str | Path | None = None,
        functions: Sequence[UserFunction] = (),
        functions_module: str = "functions",
        agent: str = "autogen",
        limits: Limits | None = None,
    ) -> None:
        if not 1 <= timeout <= MAX_TIMEOUT_SECONDS:
            raise ValueError(f"timeout is {timeout}, but must be at least 1 and at most {MAX_TIMEOUT_SECONDS} seconds")
        if not functions_module.isidentifier() or keyword.iskeyword(functions_module):
            raise ValueError(f"functions_module is {functions_module!r}, but must be a valid Python identifier")
        self._config = KubernetesCodeExecutorConfig(
            timeout=timeout,
            namespace=namespace,
            kubeconfig=str(kubeconfig) if kubeconfig else None,
            context=context,
            image=image,
            runtime_class_name=runtime_class_name,
            work_dir=str(work_dir) if work_dir else None,
            functions_module=functions_module,
            agent=agent,
            limits=limits.model_dump(exclude_defaults=True) if limits else {},
        )
        self._functions = tuple(functions)
        self._functions_checked = False
        self._client = CodeExecutionClient(ClusterRef(namespace or DEFAULT_NAMESPACE, self._config.kubeconfig, context))
        self._request = Request(
            agent=agent,
            timeout_seconds=timeout,
            image=image,
            runtime_class_name=runtime_class_name,
            limits=limits or Limits(),
            executor="KubernetesCodeExecutor",
        )

    @property
    def timeout(self) -> int:
        """Limit of each block, in seconds."""
        return self._config.timeout

    @property
    def work_dir(self) -> Path | None:
        """Local folder in which the source of each block is kept, if any."""
        return Path(self._config.work_dir) if self._config.work_dir else None

    @property
    def functions_module(self) -> str:
        """Module from which code imports the functions given at construction."""
        return self._config.functions_module

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> KubernetesCodeResult:
        """Run blocks in order in one new pod; the first that fails ends the call.

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
            return KubernetesCodeResult(exit_code=1, output=CANCELLED)
        prepared = prepare([SourceBlock(block.language, block.code) for block in code_blocks])
        if not prepared.blocks:
            return KubernetesCodeResult(exit_code=1, output=prepared.refusal)
        code_file = self._keep_source(prepared.blocks)
        cancelled = asyncio.Event()
        loop = asyncio.get_running_loop()
        # The token's lock is held while this runs, and another thread may be the one that cancels.
        cancellation_token.add_callback(lambda: _set_from_any_thread(loop, cancelled))
        files = await self._checked_functions()
        result = await self._client.execute(prepared.blocks, self._request, files=files, cancelled=cancelled)
        return _to_autogen(result, code_file, prepared.refusal)

    async def start(self) -> None:
        """Connect and make sure that codeexec is installed. Optional: the first call connects by itself.

        Raises:
            CodeExecError: what is wrong and what to do; see `executor_client.exceptions`.
        """
        await self._client.check()

    async def stop(self) -> None:
        """Close all connections. The executor can be used again."""
        await self._client.close()

    async def restart(self) -> None:
        """Nothing is kept between calls, so there is nothing to reset but the connections."""
        await self._client.close()

    def _keep_source(self, blocks: Sequence[PreparedBlock]) -> str:
        """Keep each block in work_dir, if that is set, and return the path of the first.

        What stands under a name there is replaced and never opened: no link is followed, no FIFO waited for. If the
        file system takes two names for one (by case or Unicode normalization), the source of the later block stays;
        what is run doesn't come from here.

        Raises:
            ValueError: a name leads out of work_dir or can't be written.
        """
        if self.work_dir is None:
            return f"/workspace/{blocks[0].file}"
        root = self.work_dir.resolve()
        for block in blocks:
            path = root / block.file
            try:
                # By a link that stands in work_dir, or a name that is more than a name on Windows, such as C:x.
                if not path.parent.resolve().is_relative_to(root):
                    raise ValueError(f"{block.file!r} leads out of work_dir {root}; nothing was run")
                path.parent.mkdir(parents=True, exist_ok=True)
                _replace(path, block.content)
            except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself, before Python 3.13
                raise ValueError(f"{block.file!r} can't be kept in work_dir: {error}; nothing was run") from error
        return str(root / blocks[0].file)

    async def _checked_functions(self) -> tuple[WorkspaceFile, ...]:
        """The functions as a module, once it has been imported successfully in a sandbox."""
        if not self._functions:
            return ()
        module = self.functions_module
        file = WorkspaceFile(f"{module}.py", build_python_functions_file(self._functions).encode())
        if not self._functions_checked:
            code = _CHECK_FUNCTIONS.format(packages=_packages(self._functions), module=module)
            result = await self._client.execute((PreparedBlock("python", code.encode()),), self._request, files=(file,))
            if result.exit_code != 0:
                raise ValueError(f"Functions failed to load: {result.output.strip()}")
            self._functions_checked = True
        return (file,)

    def _to_config(self) -> KubernetesCodeExecutorConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: KubernetesCodeExecutorConfig) -> Self:
        limits = Limits(**config.limits) if config.limits else None
        return cls(**config.model_dump(exclude={"limits"}), limits=limits)


def _set_from_any_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the token has outlived the loop, and with it the call that it was given to
        loop.call_soon_threadsafe(event.set)


def _replace(path: Path, content: bytes) -> None:
    """Put a file in the place of whatever has this name; only a new file is ever opened.

    Raises:
        OSError: the folder can't be written to, or a folder has this name.
    """
    new = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with new.open("xb") as out:
            out.write(content)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _packages(functions: Sequence[UserFunction]) -> list[str]:
    requirements: list[str] = []
    for function in functions:
        packages = getattr(function, "python_packages", ())
        requirements += [packages] if isinstance(packages, str) else packages
    names = [_REQUIREMENT_NAME.match(requirement.strip()) for requirement in requirements]
    return sorted({match[0] for match in names if match})


def _to_autogen(result: ExecutionResult, code_file: str, refusal: str) -> KubernetesCodeResult:
    exit_code, output = result.exit_code, result.output
    if result.phase is Phase.CANCELLED:
        exit_code = 1
    if refusal and exit_code == 0 and result.phase is Phase.SUCCEEDED:
        exit_code, output = 1, f"{output}\n{refusal}"
    return KubernetesCodeResult(
        exit_code=exit_code,
        output=output,
        code_file=code_file,
        stdout=result.stdout,
        stderr=result.stderr,
        execution=result.name,
        reason=result.reason,
    )
