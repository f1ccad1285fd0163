"""How a caller names what a record, or a message of the operator, names by a field of the spec: one table.

Most callers are Python programs. The command line says so with `from_the_command_line`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from operator import attrgetter
from typing import Final, NamedTuple

from codeexec_api import CodeExecutionSpec, CodeSessionSpec


class Caller(Enum):
    """Who reads a message."""

    PYTHON = "Python"
    COMMAND_LINE = "command line"


class _Name(NamedTuple):
    """What a field is for each caller, with its value in place of `{}`. Empty: the same as in the record."""

    python: str
    command_line: str
    attribute: str
    """Of the spec, where its value is."""


_NAMES: Final = {
    "spec.timeoutSeconds": _Name("timeout={}", "--timeout {}", "timeout_seconds"),
    "spec.limits.cpu": _Name('Limits(cpu="{}")', "--cpu {}", "limits.cpu"),
    "spec.limits.memory": _Name('Limits(memory="{}")', "--memory {}", "limits.memory"),
    "spec.limits.ephemeralStorage": _Name('Limits(ephemeral_storage="{}")', "", "limits.ephemeral_storage"),
    "spec.limits.pids": _Name("Limits(pids={})", "", "limits.pids"),
    "spec.limits.outputBytes": _Name("Limits(output_bytes={})", "", "limits.output_bytes"),
    "spec.image": _Name('image="{}"', "--image {}", "image"),
    "spec.runtimeClassName": _Name('runtime_class_name="{}"', "--runtime-class {}", "runtime_class_name"),
    "spec.idleTimeoutSeconds": _Name("idle_timeout={}", "", "idle_timeout_seconds"),
    "spec.sleepAfterSeconds": _Name("sleep_after={}", "--sleep-after {}", "sleep_after_seconds"),
    "spec.maxLifetimeSeconds": _Name("max_lifetime={}", "", "max_lifetime_seconds"),
}
_OPTIONS: Final = {
    "kubeconfig": "--kubeconfig",
    "context": "--context",
    "namespace": "--namespace",
}
_FIELD: Final = re.compile(
    rf"(?P<field>{'|'.join(map(re.escape, _NAMES))})(?![\w.\[=])"
    r"(?:: (?P<refused>\S+)(?= is not )| \((?P<limit>\S+?)(?: s)?\))?"
)
"""A field, and its value where the message has it: `spec.image: NAME is not allowed`, `spec.timeoutSeconds (60 s)`."""

_CALLER: Final[ContextVar[Caller]] = ContextVar("codeexec_caller", default=Caller.PYTHON)


def caller() -> Caller:
    """Who reads the messages that are made now."""
    return _CALLER.get()


@contextmanager
def from_the_command_line() -> Iterator[None]:
    """Messages that are made inside are read by somebody at the command line."""
    token = _CALLER.set(Caller.COMMAND_LINE)
    try:
        yield
    finally:
        _CALLER.reset(token)


def option(name: str) -> str:
    """An argument of `ClusterRef`, as the current caller gives it: `kubeconfig=` or `--kubeconfig`."""
    return f"{name}=" if caller() is Caller.PYTHON else _OPTIONS[name]


def in_words_of(caller: Caller, message: str, spec: CodeExecutionSpec | CodeSessionSpec) -> str:
    """A message of the operator with the caller's names for fields of the spec. Pure.

    Args:
        caller: who reads it.
        message: as the record has it.
        spec: what was asked for: a field whose value the message doesn't tell gets it from here.
    """

    def rename(found: re.Match[str]) -> str:
        name = _NAMES[found["field"]]
        form = name.python if caller is Caller.PYTHON else name.command_line
        return form.format(found["refused"] or found["limit"] or _value(spec, name)) if form else found[0]

    return _FIELD.sub(rename, message)


def _value(spec: CodeExecutionSpec | CodeSessionSpec, name: _Name) -> str:
    try:
        return str(attrgetter(name.attribute)(spec))
    except AttributeError:  # executions have another time limit than sessions
        return "…"
