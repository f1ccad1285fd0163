"""The local sandbox takes what the cluster's faces take, or refuses it by name: nothing is added without an answer."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from codeexec import ApprovalWait
from codeexec.local import Sandbox
from codeexec_api import Limits
from executor_client import (
    CodeExecutionClient,
    KubernetesCodeExecutor,
    LocalSandboxExecutor,
    NotSupported,
    Request,
)

WIDENED = {"approval"}
"""Another thing under the same name: a human's approval for production."""
HONOURED = {"agent", "timeout_seconds", "limits", "executor", "start_seconds"}
"""Of a request, by the local backend."""
REFUSED: dict[str, Any] = {
    "image": f"x@sha256:{'0' * 64}",
    "runtime_class_name": "kata",
    "egress": ["10.0.0.1/32:443"],
    "mounts": ["pvc:data:/mnt/data"],
    "approval": ApprovalWait(mode="return"),
    "on_wait": print,
}
SESSION_REFUSED: dict[str, Any] = {
    "idle_timeout_seconds": 60,
    "max_lifetime_seconds": 60,
    "stateful": True,
    "outlives_client": True,
    "sleep_after_seconds": 60,
}


def parameters(of: Callable[..., Any]) -> set[str]:
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {name for name, one in inspect.signature(of).parameters.items() if one.kind in named} - {"self"}


def public(kind: type) -> set[str]:
    return {name for name, one in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


TAKEN = parameters(LocalSandboxExecutor.__init__)
UNTAKEN = sorted(parameters(KubernetesCodeExecutor.__init__) - TAKEN)


@pytest.mark.parametrize("name", UNTAKEN)
def test_an_argument_that_needs_a_cluster_is_refused_by_name(name: str) -> None:
    arguments: dict[str, Any] = {name: None}
    with pytest.raises(NotSupported, match=f"^{name} is not supported by LocalSandboxExecutor: .+KubernetesCodeExec"):
        LocalSandboxExecutor(**arguments)


def test_an_argument_that_no_executor_has_is_an_error_as_ever() -> None:
    arguments: dict[str, Any] = {"tiemout": 5}
    with pytest.raises(TypeError, match="unexpected keyword argument 'tiemout'"):
        LocalSandboxExecutor(**arguments)


def test_arguments_of_one_name_mean_the_same() -> None:
    cluster, local = (
        inspect.signature(one.__init__).parameters for one in (KubernetesCodeExecutor, LocalSandboxExecutor)
    )
    for name in TAKEN & cluster.keys() - WIDENED:
        assert local[name].annotation == cluster[name].annotation, name
        assert local[name].default == cluster[name].default, name


def test_each_method_is_there_with_its_parameters() -> None:
    assert public(KubernetesCodeExecutor) <= public(LocalSandboxExecutor)
    for name in public(KubernetesCodeExecutor):
        theirs, ours = getattr(KubernetesCodeExecutor, name), getattr(LocalSandboxExecutor, name)
        assert parameters(theirs) == parameters(ours), name


async def test_a_method_that_needs_a_cluster_is_refused_by_name() -> None:
    executor = object.__new__(LocalSandboxExecutor)  # to construct one, the machine must be able to confine code
    token: Any = None
    for name, arguments in {
        "upload_files": ([], token),
        "download_files": ([], token),
        "get_file_list": (token,),
        "result_of": ("x",),
    }.items():
        with pytest.raises(NotSupported, match=f"^{name} is not supported"):
            await getattr(executor, name)(*arguments)


def test_the_backend_takes_the_calls_of_the_client_of_a_cluster() -> None:
    for name in ("execute", "new_session"):
        assert parameters(getattr(Sandbox, name)) == parameters(getattr(CodeExecutionClient, name)), name


def test_each_part_of_a_request_has_an_answer() -> None:
    assert {one.name for one in fields(Request)} == HONOURED | set(REFUSED)
    assert Request(agent="a").limits == Limits()


def test_so_has_each_argument_of_a_session() -> None:
    assert parameters(Sandbox.new_session) == {"request"} | set(SESSION_REFUSED)


@pytest.mark.parametrize("name", [*REFUSED, *SESSION_REFUSED])
def test_the_backend_refuses_by_name_what_it_can_not_honour(name: str) -> None:
    sandbox = object.__new__(Sandbox)
    request = Request(agent="a", **{key: value for key, value in REFUSED.items() if key == name})
    options = {key: value for key, value in SESSION_REFUSED.items() if key == name}
    with pytest.raises(NotSupported, match=f"^{name.removesuffix('_seconds').removesuffix('_name')} is "):
        sandbox.new_session(request, **options)
    assert sandbox.new_session(Request(agent="a")).name.startswith("local-session-")
