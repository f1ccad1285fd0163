"""Attacks: plain functions whose source is sent to where they are tried, in the sandbox and in a control pod.

An attack returns a true value if it got what it was after. It fails by returning a false one, by an OSError, by being
killed, or by hanging. Any other exception means that the attack itself is broken, which proves nothing. Each one runs
in a process and a folder of its own. The first line of its docstring says what it does, in the infinitive.
"""

import ctypes
import inspect
import json
import os
import signal
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

SUCCEEDED = "succeeded"
BROKEN = "broken"
SECONDS = 8
"""How long one attack may take before it counts as failed."""

MODULES = (
    "ctypes",
    "json",
    "os",
    "signal",
    "socket",
    "struct",
    "subprocess",
    "sys",
    "sysconfig",
    "tempfile",
    "threading",
    "time",
    "urllib.request",
)
"""What attacks may use without importing it."""

FACTS: dict[str, Any] = {}
"""What an attack has to know of the place, such as addresses; filled in where it runs."""

Attack = Callable[[], Any]


def libc(name: str, *arguments: Any) -> int:
    """Call a function of the C library; its error is an OSError."""
    result = getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def try_alone(attack: Attack) -> str:
    """What became of an attack, tried in a process of its own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        os.chdir(tempfile.mkdtemp())
        try:
            outcome = SUCCEEDED if attack() else "came to nothing"
        except OSError as error:
            outcome = f"{type(error).__name__}: {error}"
        except BaseException as error:
            outcome = f"{BROKEN}: {error!r}"
        os.write(writer, outcome.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        outcome = pipe.read()
    _, status = os.waitpid(pid, 0)
    return outcome or f"killed by signal {os.waitstatus_to_exitcode(status)}"


def words(attack: Attack) -> str:
    """What an attack is after."""
    assert attack.__doc__, f"{attack.__name__} has to say in its docstring what it is after"
    return attack.__doc__.splitlines()[0].rstrip(".")


def script(
    *attacks: Attack, facts: Mapping[str, Any] | None = None, helpers: tuple[Callable[..., Any], ...] = ()
) -> str:
    """A program that tries attacks one after the other; its last line of output is JSON: attack to outcome."""
    sources = [textwrap.dedent(inspect.getsource(one)) for one in (libc, try_alone, *helpers, *attacks)]
    names = ", ".join(attack.__name__ for attack in attacks)
    return "\n".join(
        [
            *(f"import {name}" for name in MODULES),
            "from typing import Any",
            "from collections.abc import Callable",
            "Attack = Callable[[], Any]",
            f"SUCCEEDED, BROKEN, SECONDS, FACTS = {SUCCEEDED!r}, {BROKEN!r}, {SECONDS!r}, {dict(facts or {})!r}",
            *sources,
            f"print(json.dumps({{attack.__name__: try_alone(attack) for attack in ({names},)}}))",
        ]
    )


def outcomes(output: str) -> dict[str, str]:
    """The outcomes that `script` printed."""
    found = json.loads(output.splitlines()[-1])
    broken = {name: outcome for name, outcome in found.items() if outcome.startswith(BROKEN)}
    assert not broken, f"these attacks are broken, so they prove nothing: {broken}"
    return found
