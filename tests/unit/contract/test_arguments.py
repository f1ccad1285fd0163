"""Arguments of one kind are checked in one way: nothing is added without.

What takes several strings takes no single one, whose characters would be the items. Numbers of seconds are numbers.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, get_args, get_origin

import pytest
from autogen_core import CancellationToken

import codeexec
from codeexec._files import Files
from codeexec._records import Approvals, Executions, Sessions
from codeexec.local import Sandbox
from codeexec.testing import FakeCluster, FakeOutcome
from executor_client import ApprovalWait, CodeExecutionClient, KubernetesCodeExecutor, LocalSandboxExecutor, Request
from executor_client.client.session_handle import SessionHandle

Call = Callable[[Any], Any]


def client() -> codeexec.Client:
    return codeexec.Client(agent="a", backend=FakeCluster(run=lambda _: FakeOutcome()).client())


def executor(**options: Any) -> KubernetesCodeExecutor:
    return KubernetesCodeExecutor(client=FakeCluster().client(), **options)


TOKEN = CancellationToken()
ASKING = Request(agent="a")
CALLS: dict[tuple[str, str, str], Call] = {
    ("CodeExecutionClient", "execute", "fetch"): lambda given: client()._backend.execute((), ASKING, fetch=given),
    ("CodeExecutionClient", "submit", "fetch"): lambda given: client()._backend.submit((), ASKING, fetch=given),
    ("SessionHandle", "download", "patterns"): lambda given: client()._backend.new_session(ASKING).download(given),
    ("Client", "run", "fetch"): lambda given: client().run("1", fetch=given),
    ("Client", "run", "egress"): lambda given: client().run("1", egress=given),
    ("Client", "run", "mounts"): lambda given: client().run("1", mounts=given),
    ("Session", "run", "fetch"): lambda given: client().session().run("1", fetch=given),
    ("Files", "read_many", "paths"): lambda given: client().session().files.read_many(given),
    ("Sandbox", "__init__", "endpoints"): lambda given: Sandbox(endpoints=given),
    ("KubernetesCodeExecutor", "__init__", "egress"): lambda given: executor(session="per-call", egress=given),
    ("KubernetesCodeExecutor", "__init__", "mounts"): lambda given: executor(session="per-call", mounts=given),
    ("KubernetesCodeExecutor", "upload_files", "files"): lambda given: executor().upload_files(given, TOKEN),
    ("KubernetesCodeExecutor", "download_files", "files"): lambda given: executor().download_files(given, TOKEN),
    ("KubernetesCodeExecutor", "download_files", "allow_names"): lambda given: executor().download_files(
        [], TOKEN, allow_names=given
    ),
    ("LocalSandboxExecutor", "__init__", "endpoints"): lambda given: LocalSandboxExecutor(endpoints=given),
    ("Request", "__init__", "egress"): lambda given: Request(agent="a", egress=given),
    ("Request", "__init__", "mounts"): lambda given: Request(agent="a", mounts=given),
}
FACES = [
    CodeExecutionClient,
    SessionHandle,
    codeexec.Client,
    codeexec.Session,
    Files,
    Executions,
    Sessions,
    Approvals,
    Sandbox,
    Request,
]
NOT_HERE = {
    ("Sandbox", "execute"),
    ("SessionHandle", "execute"),
    ("LocalSandboxExecutor", "download_files"),
    ("LocalSandboxExecutor", "upload_files"),
}
"""The first takes what the client has checked; the others are refused by name."""


def several_strings(annotation: Any) -> bool:
    if get_origin(annotation) not in (Sequence, list, tuple):
        return False
    [item, *_] = get_args(annotation)
    return item is str or str in get_args(item)


def found() -> set[tuple[str, str, str]]:
    return {
        (face.__name__, name, parameter.name)
        for face in (*FACES, KubernetesCodeExecutor, LocalSandboxExecutor)
        for name, method in inspect.getmembers(face, inspect.isfunction)
        if (name == "__init__" or not name.startswith("_")) and (face.__name__, name) not in NOT_HERE
        for parameter in inspect.signature(method).parameters.values()
        if several_strings(parameter.annotation)
    }


def test_each_such_argument_is_tried() -> None:
    assert found() == set(CALLS)
    assert {one.name for one in fields(Request)} >= {"egress", "mounts"}


async def made(call: Call, given: Any) -> None:
    result = call(given)
    if inspect.isawaitable(result):
        await result


@pytest.mark.parametrize("given", ["10.0.0.1/32:443", b"10.0.0.1/32:443"])
@pytest.mark.parametrize("call", CALLS, ids="-".join)
async def test_one_string_is_refused_in_place_of_several(call: tuple[str, str, str], given: str | bytes) -> None:
    name = call[-1]
    with pytest.raises(ValueError, match=f"^{name} is b?'10") as raised:
        await made(CALLS[call], given)
    assert f"write {name}=['10.0.0.1/32:443']" in str(raised.value)


def session(**options: Any) -> Any:
    return client().session(stateful=False, **options)


SECONDS: dict[tuple[str, str, str], Call] = {
    ("Client", "__init__", "timeout"): lambda given: codeexec.Client(agent="a", timeout=given),
    ("Client", "__init__", "start_timeout"): lambda given: codeexec.Client(agent="a", start_timeout=given),
    ("Client", "run", "timeout"): lambda given: client().run("1", timeout=given),
    ("Client", "run", "start_timeout"): lambda given: client().run("1", start_timeout=given),
    **{
        ("Client", "session", name): lambda given, name=name: session(**{name: given})  # type: ignore[misc]
        for name in ("timeout", "start_timeout", "idle_timeout", "max_lifetime", "sleep_after")
    },
    ("ApprovalWait", "__init__", "seconds"): lambda given: ApprovalWait(seconds=given),
    ("Request", "__init__", "timeout_seconds"): lambda given: Request(agent="a", timeout_seconds=given),
    ("Request", "__init__", "start_seconds"): lambda given: Request(agent="a", start_seconds=given),
    ("Session", "run", "timeout"): lambda given: in_a_session("timeout", given),
    ("Session", "run", "start_timeout"): lambda given: in_a_session("start_timeout", given),
    **{
        ("KubernetesCodeExecutor", "__init__", name): lambda given, name=name: executor(**{name: given})  # type: ignore[misc]
        for name in ("timeout", "idle_timeout", "max_lifetime", "sleep_after", "approval_timeout")
    },
}


async def in_a_session(name: str, given: Any) -> None:
    async with client().session() as session:
        await session.run("1", **{name: given})


def test_each_number_of_seconds_is_tried() -> None:
    names = ("timeout", "lifetime", "_after", "seconds")
    assert set(SECONDS) == {
        (face.__name__, name, parameter)
        for face in (
            codeexec.Client,
            codeexec.Session,
            Files,
            Executions,
            Sessions,
            Approvals,
            KubernetesCodeExecutor,
            Request,
            ApprovalWait,
        )
        for name, method in inspect.getmembers(face, inspect.isfunction)
        if name == "__init__" or not name.startswith("_")
        for parameter in inspect.signature(method).parameters
        if parameter.endswith(names)
    }


@pytest.mark.parametrize("given", [True, False, "30", float("nan"), float("inf"), -1])
@pytest.mark.parametrize("call", SECONDS, ids="-".join)
async def test_a_number_of_seconds_is_a_number(call: tuple[str, str, str], given: Any) -> None:
    name = call[-1]
    ours = f"^{name} is {given!r}, but must be "
    theirs = "^Timeout must be greater than or equal to 1" if call[0].startswith("Kube") else ours
    with pytest.raises(ValueError, match=f"{ours}|{theirs}"):
        await made(SECONDS[call], given)


@pytest.mark.parametrize("call", SECONDS, ids="-".join)
async def test_and_may_be_a_whole_float(call: tuple[str, str, str]) -> None:
    await made(SECONDS[call], 30.0)
    if call[-1] not in ("start_timeout", "start_seconds", "seconds"):
        with pytest.raises(ValueError, match=rf"^{call[-1]} is 30\.5, but must be whole seconds, 1 to "):
            await made(SECONDS[call], 30.5)
