"""Start, stop, restart, and what happens without them."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from autogen_core.code_executor import CodeExecutor
from parity.case import Case, Group, Scenario, Seen
from parity.parties import Party, environment

LAZY = "The first call connects by itself: agents, teams and AutoGen Studio never call `start()`."


def _after(*steps: str) -> Scenario:
    """A call after these methods of a new executor; what each raises is an observation."""

    async def scenario(party: Party) -> Seen:
        executor = party.make()
        for step in steps:
            try:
                await getattr(executor, step)()
            except Exception as error:
                return {f"{step}() raises": type(error).__name__}
        try:
            result = await party.run(("sh", "echo works"), at=executor)
        except Exception as error:
            return {"call raises": type(error).__name__}
        return {"exit code": result.exit_code, "output": result.output}

    return scenario


WORKS: Seen = {"exit code": 0, "output": "works\n"}
NOT_RUNNING: Seen = {"call raises": "ValueError"}


async def _context_manager(party: Party) -> Seen:
    executor = party.make()
    async with executor as entered:
        output = (await party.run(("sh", "echo works"), at=executor)).output
    return {"output": output, "gives itself": entered is executor}


async def _error_in_context(party: Party) -> Seen:
    try:
        async with party.make():
            raise LookupError("of the caller")
    except LookupError as error:
        return {"raises": str(error)}


@contextlib.asynccontextmanager
async def _nowhere(party: Party) -> AsyncIterator[CodeExecutor]:
    """An executor that can reach nothing."""
    async with environment():
        with pytest.MonkeyPatch.context() as patch:
            if party.name == "Docker":
                patch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
            yield party.make(**{"kubeconfig": "/nonexistent/kubeconfig"} if party.name == "ours" else {})


async def _constructed_nowhere(party: Party) -> Seen:
    async with _nowhere(party) as executor:
        executor.dump_component()
    return {"constructed and dumped": True}


async def _started_nowhere(party: Party) -> Seen:
    async with _nowhere(party) as executor:
        try:
            await executor.start()
        except Exception as error:
            return {"raises": type(error).__name__}
    return {"started": True}


LIFECYCLE = Group(
    "Start and stop",
    (
        Case(
            id="not-started",
            about="a call without `start()`",
            scenario=_after(),
            local=WORKS,
            docker=NOT_RUNNING,
            ours=WORKS,
            why=LAZY,
        ),
        Case(id="started", about="a call after `start()`", scenario=_after("start"), docker=WORKS),
        Case(id="started-twice", about="a call after two `start()`", scenario=_after("start", "start"), docker=WORKS),
        Case(
            id="stopped",
            about="a call after `stop()`",
            scenario=_after("start", "stop"),
            local=WORKS,
            docker=NOT_RUNNING,
            ours=WORKS,
            why=LAZY,
        ),
        Case(
            id="stopped-before-started",
            about="`stop()` before `start()`",
            scenario=_after("stop", "start"),
            docker=WORKS,
        ),
        Case(
            id="stopped-twice",
            about="`stop()` twice, then `start()`",
            scenario=_after("start", "stop", "stop", "start"),
            docker=WORKS,
        ),
        Case(
            id="restarted",
            about="a call after `restart()`",
            scenario=_after("start", "restart"),
            docker=WORKS,
        ),
        Case(
            id="restarted-before-started",
            about="`restart()` before `start()`",
            scenario=_after("restart"),
            local=WORKS,
            docker={"restart() raises": "ValueError"},
            ours=WORKS,
            why=LAZY,
        ),
        Case(
            id="context-manager",
            about="`async with`",
            scenario=_context_manager,
            docker={"output": "works\n", "gives itself": True},
        ),
        Case(
            id="error-in-context",
            about="an error inside `async with`",
            scenario=_error_in_context,
            docker={"raises": "of the caller"},
        ),
        Case(
            id="constructed-nowhere",
            about="construction and dump where nothing can be reached",
            scenario=_constructed_nowhere,
            docker={"constructed and dumped": True},
        ),
        Case(
            id="started-nowhere",
            about="`start()` where nothing can be reached",
            scenario=_started_nowhere,
            local={"started": True},
            docker={"raises": "DockerException"},
            ours={"raises": "ClusterUnreachable"},
            why="Both say what can't be reached, each by an error of its own.",
        ),
    ),
)

GROUPS = (LIFECYCLE,)
