"""Attacks: plain functions whose source is sent to where they are tried, in the sandbox and in a control pod.

An attack returns a true value if it got what it was after. Two ends count as defended: it was refused, by an OSError
with one of the numbers in `REFUSALS`, or it returned a false value, because it looked and there was nothing to be had.

Every other end proves nothing, in the sandbox as in the control pod, and fails the test. Such ends are an exception of
another kind, an error number that tells of a wrong call, a signal, and no answer within `SECONDS`. An attack on
something that may answer with silence has a clock of its own, so that it comes back with a TimeoutError. That counts as
a refusal only where a test asks for it, because a NetworkPolicy drops what it doesn't permit; its control shows that
the same call is answered in time where nothing protects against it. Seccomp answers at once.

Each attack runs in a process and a folder of its own. The first line of its docstring says what it does, in the
infinitive.
"""

import ctypes
import errno
import inspect
import json
import os
import platform
import signal
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

SUCCEEDED = "succeeded"
REFUSED = "refused"
NOTHING = "came to nothing"
BROKEN = "broken"
NO_ANSWER = "no answer"
ENDED = "ended by a signal"
DEFENDED = (REFUSED, NOTHING)
"""How an outcome begins that shows a defence."""
SECONDS = 30
"""After which an attack is ended that has not come back. No attack is expected to take as long."""

REFUSALS = (
    "EPERM",
    "EACCES",
    "EROFS",
    "ENOSYS",
    "ENOENT",
    "ESRCH",
    "ENODEV",
    "EXDEV",
    "EAGAIN",
    "EAFNOSUPPORT",
    "ECONNREFUSED",
)
"""Errors by which the kernel refuses something, or says that it isn't there or is in another file system.

Those of a wrong call, such as EINVAL, EFAULT and EBADF, are not among them.
"""
SILENCE = "ETIMEDOUT"
"""What a TimeoutError counts as."""

SYSTEM_CALLS = {
    "x86_64": {
        "syslog": 103,
        "add_key": 248,
        "perf_event_open": 298,
        "bpf": 321,
        "userfaultfd": 323,
        "pidfd_send_signal": 424,
        "io_uring_setup": 425,
        "pidfd_getfd": 438,
    },
    "aarch64": {
        "syslog": 116,
        "add_key": 217,
        "perf_event_open": 241,
        "bpf": 280,
        "userfaultfd": 282,
        "pidfd_send_signal": 424,
        "io_uring_setup": 425,
        "pidfd_getfd": 438,
    },
}
"""Numbers of the system calls that the C library has no function for, by machine."""

MODULES = (
    "ctypes",
    "errno",
    "json",
    "os",
    "platform",
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
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def system_call(name: str, *arguments: Any) -> int:
    """Make a system call by its number on this machine."""
    return libc("syscall", SYSTEM_CALLS[platform.machine()][name], *arguments)


def refusal(error: OSError) -> str:
    """The outcome that an error of an attack stands for."""
    while isinstance(getattr(error, "reason", None), OSError):
        error = error.reason  # of urllib: what it was
    if type(error).__name__ == "gaierror":
        return f"{REFUSED}: name resolution: {error}"
    name = SILENCE if isinstance(error, TimeoutError) else errno.errorcode.get(error.errno, "no number")
    return f"{REFUSED if name in REFUSALS else BROKEN}: {name}: {error}"


def try_alone(attack: Attack) -> str:
    """What became of an attack, tried in a process of its own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        os.chdir(tempfile.mkdtemp())
        try:
            outcome = SUCCEEDED if attack() else NOTHING
        except OSError as error:
            outcome = refusal(error)
        except BaseException as error:
            outcome = f"{BROKEN}: {error!r}"
        os.write(writer, outcome.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        outcome = pipe.read()
    _, status = os.waitpid(pid, 0)
    if outcome:
        return outcome
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return f"{NO_ANSWER} within {SECONDS} s"
    return f"{ENDED}: {os.waitstatus_to_exitcode(status)}"


def words(attack: Attack) -> str:
    """What an attack is after."""
    assert attack.__doc__, f"{attack.__name__} has to say in its docstring what it is after"
    return attack.__doc__.splitlines()[0].rstrip(".")


def script(
    *attacks: Attack,
    facts: Mapping[str, Any] | None = None,
    helpers: tuple[Callable[..., Any], ...] = (),
    seconds: int = SECONDS,
    silence: bool = False,
) -> str:
    """A program that tries attacks one after the other; its last line of output is JSON: attack to outcome.

    With `silence`, an attack that nobody answers in time counts as refused.
    """
    parts = (libc, system_call, refusal, try_alone, *helpers, *attacks)
    sources = [textwrap.dedent(inspect.getsource(one)) for one in parts]
    names = ", ".join(attack.__name__ for attack in attacks)
    values = {
        **{name: globals()[name] for name in ("SUCCEEDED", "REFUSED", "NOTHING", "BROKEN", "NO_ANSWER", "ENDED")},
        "SILENCE": SILENCE,
        "REFUSALS": (*REFUSALS, SILENCE) if silence else REFUSALS,
        "SYSTEM_CALLS": SYSTEM_CALLS,
        "SECONDS": seconds,
        "FACTS": dict(facts or {}),
    }
    return "\n".join(
        [
            *(f"import {name}" for name in MODULES),
            "from typing import Any",
            "from collections.abc import Callable",
            "Attack = Callable[[], Any]",
            *(f"{name} = {value!r}" for name, value in values.items()),
            *sources,
            f"print(json.dumps({{attack.__name__: try_alone(attack) for attack in ({names},)}}))",
        ]
    )


def outcomes(output: str) -> dict[str, str]:
    """The outcomes that `script` printed: each is a success, or shows a defence."""
    found: dict[str, str] = json.loads(output.splitlines()[-1])
    shows = (SUCCEEDED, *DEFENDED)
    unclear = {name: outcome for name, outcome in found.items() if not outcome.startswith(shows)}
    assert not unclear, f"these attacks neither succeeded nor were they refused, so they prove nothing: {unclear}"
    return found
