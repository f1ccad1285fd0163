"""What a forked process does with what its parent had open: it begins anew, and ends nothing of the parent's."""

import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class Forked(Protocol):
    """Something that a forked process begins anew."""

    def begin_anew(self) -> None:
        """Forget what belongs to the parent, without ending it. No lock may be taken: nobody would release it."""


_all: "weakref.WeakSet[Forked]" = weakref.WeakSet()


def begins_anew(one: Forked) -> None:
    """From now on this begins anew in each process that is forked."""
    _all.add(one)


def finalize(one: object, call: Callable[..., object], *arguments: Any, **options: Any) -> "weakref.finalize[..., Any]":
    """As `weakref.finalize`, but only in this process: not where a forked one drops its copy, or ends."""
    return weakref.finalize(one, _here, os.getpid(), call, *arguments, **options)


def _here(process: int, call: Callable[..., object], *arguments: Any, **options: Any) -> None:
    if os.getpid() == process:
        call(*arguments, **options)


def _in_child() -> None:
    for one in list(_all):
        one.begin_anew()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_in_child)
