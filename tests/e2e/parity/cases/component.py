"""Dump to and load from a configuration."""

import json
from typing import Any

import pytest
from autogen_agentchat.agents import CodeExecutorAgent
from autogen_core.code_executor import CodeExecutor
from autogen_core.tools import BaseTool
from autogen_ext.tools.code_execution import PythonCodeExecutionTool
from parity.case import Case, Group, Seen
from parity.parties import Party


def _written(component: Any) -> dict[str, Any]:
    """The configuration as a file of JSON would hold it."""
    return json.loads(component.dump_component().model_dump_json())


async def _round_trip(party: Party) -> Seen:
    one = party.make(timeout=33)
    dumped = _written(one)
    again = CodeExecutor.load_component(dumped)
    return {
        "component_type": dumped["component_type"],
        "same class": type(again) is type(one),
        "same configuration": _written(again)["config"] == dumped["config"],
        "timeout": again.timeout,
    }


async def _plain_json(party: Party) -> Seen:
    dumped = party.make(work_dir=party.folder()).dump_component().model_dump()
    return {"is JSON as it is": json.loads(json.dumps(dumped)) == dumped}


async def _provider(party: Party) -> Seen:
    one = party.make()
    provider = _written(one)["provider"]
    return {"ends with the class": provider.endswith(f".{type(one).__name__}"), "is private": "._" in provider}


async def _loaded_runs(party: Party) -> Seen:
    again = CodeExecutor.load_component(_written(party.make()))
    async with again:
        return {"output": (await party.run(("sh", "echo works"), at=again)).output}


async def _without_functions(party: Party) -> Seen:
    def local() -> int:
        return 1

    return {"functions in it": "functions" in _written(party.make(functions=[local]))["config"]}


async def _identity(party: Party) -> Seen:
    one, other = (_written(party.make(work_dir="/tmp"))["config"] for _ in range(2))
    return {"names one sandbox": one != other}


def _loads(change: dict[str, Any], kind: Any = CodeExecutor):
    """Loading a dump with something changed in it."""

    async def scenario(party: Party) -> Seen:
        dumped = _written(party.make())
        config = dumped["config"] | change.get("config", {})
        try:
            kind.load_component(dumped | change | {"config": config})
        except Exception as error:
            return {"raises": type(error).__name__}
        return {"loads": True}

    return scenario


async def _trusted(party: Party) -> Seen:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOGEN_ALLOWED_PROVIDER_NAMESPACES", "executor_client")
        return {"loads": isinstance(CodeExecutor.load_component(_written(party.make())), CodeExecutor)}


async def _minimal(party: Party) -> Seen:
    provider = _written(party.make())["provider"]
    return {"timeout": CodeExecutor.load_component({"provider": provider, "config": {}}).timeout}


async def _in_agent(party: Party) -> Seen:
    dumped = _written(CodeExecutorAgent("runner", party.make(timeout=33)))
    return {
        "holds the executor": dumped["config"]["code_executor"]["config"]["timeout"] == 33,
        "same configuration": _written(CodeExecutorAgent.load_component(dumped)) == dumped,
    }


async def _in_tool(party: Party) -> Seen:
    tool = PythonCodeExecutionTool(party.make(timeout=33))
    dumped = _written(tool)
    return {
        "holds the executor": dumped["config"]["executor"]["config"]["timeout"] == 33,
        "same configuration": _written(BaseTool.load_component(dumped)) == dumped,
    }


COMPONENT = Group(
    "Dump and load",
    (
        Case(
            id="round-trip",
            about="dump, JSON, load",
            scenario=_round_trip,
            docker={"component_type": "code_executor", "same class": True, "same configuration": True, "timeout": 33},
        ),
        Case(id="plain-json", about="a dump with `work_dir`", scenario=_plain_json, docker={"is JSON as it is": True}),
        Case(
            id="provider",
            about="the name by which it is loaded",
            scenario=_provider,
            docker={"ends with the class": True, "is private": False},
        ),
        Case(
            id="loaded-runs", about="a call of a loaded executor", scenario=_loaded_runs, docker={"output": "works\n"}
        ),
        Case(
            id="minimal",
            about="a configuration of nothing but the provider",
            scenario=_minimal,
            docker={"timeout": 60},
        ),
        Case(
            id="dump-without-functions",
            about="whether functions are in a dump",
            scenario=_without_functions,
            docker={"functions in it": False},
        ),
        Case(
            id="dump-names-no-sandbox",
            about="whether a dump names the container, so that a copy takes it over",
            scenario=_identity,
            local={"names one sandbox": False},
            docker={"names one sandbox": True},
            ours={"names one sandbox": False},
            why="A loaded copy gets a sandbox of its own, and the original keeps its.",
        ),
        Case(
            id="load-unknown-key",
            about="an unknown key in the configuration",
            scenario=_loads({"config": {"colour": "red"}}),
            docker={"loads": True},
            ours={"raises": "ValidationError"},
            why="A misspelt setting, such as `tiemout`, would have no effect, and nobody would notice.",
        ),
        Case(
            id="load-wrong-value",
            about="a timeout that is a word",
            scenario=_loads({"config": {"timeout": "long"}}),
            docker={"raises": "ValidationError"},
        ),
        Case(
            id="load-timeout-0",
            about="a timeout of 0",
            scenario=_loads({"config": {"timeout": 0}}),
            docker={"raises": "ValueError"},
        ),
        Case(
            id="load-newer-version",
            about="a `component_version` of the future",
            scenario=_loads({"component_version": 99}),
            docker={"loads": True},
        ),
        Case(
            id="load-as-tool",
            about="an executor, loaded as a tool",
            scenario=_loads({}, BaseTool),
            docker={"raises": "TypeError"},
        ),
        Case(
            id="load-trusted",
            about="loading with `AUTOGEN_ALLOWED_PROVIDER_NAMESPACES` set",
            scenario=_trusted,
            docker={"loads": True},
        ),
        Case(
            id="dump-in-agent",
            about="dump and load of a `CodeExecutorAgent` with the executor",
            scenario=_in_agent,
            docker={"holds the executor": True, "same configuration": True},
        ),
        Case(
            id="dump-in-tool",
            about="dump and load of a `PythonCodeExecutionTool` with the executor",
            scenario=_in_tool,
            docker={"holds the executor": True, "same configuration": True},
        ),
    ),
)

GROUPS = (COMPONENT,)
