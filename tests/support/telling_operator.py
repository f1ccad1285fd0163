"""The operator, as its image starts it, which also writes into its log what each of its tasks waits for: at SIGUSR2.

It does so from a thread of its own, so that an event loop that hangs is seen, too. Where TIMING names limits of its
patience, it has these: one whose clock runs fast has as little time as the clock says, and the machine takes as long as
ever. What reads code has ten times as long as in production.
"""

import asyncio
import faulthandler
import functools
import gc
import json
import os
import runpy
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

TELL: Final = signal.SIGUSR2
ALL_TOLD: Final = "--- these were all tasks ---"
TIMING: Final = "CODEEXEC_TESTS_TIMING"
"""Fields of `Timing` and their seconds, as JSON."""


def tell_at_each_signal() -> None:
    """For as long as the process runs."""
    while signal.sigwait({TELL}):
        faulthandler.dump_traceback(sys.stderr)
        for task in [one for one in gc.get_objects() if isinstance(one, asyncio.Task) and not one.done()]:
            print(f"{task.get_name()}: {' > '.join(_places(task.get_coro()))}", file=sys.stderr)
        print(ALL_TOLD, file=sys.stderr, flush=True)


def _places(waiting: Any) -> Iterator[str]:
    """Where it waits, from the outermost function to the innermost; Python doesn't tell what a generator waits for."""
    while waiting is not None:
        if (frame := getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)) is not None:
            yield f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)


def be_patient(seconds: Mapping[str, float]) -> None:
    """From now on these are the operator's limits."""
    from codeexec_operator.adapters import operation  # here: what only reads TELL doesn't need it

    operation.Timing = functools.partial(operation.Timing, **seconds)


def read_code_patiently() -> None:
    """From now on the child that reads code has as long as a busy machine takes: its priority is a low one."""
    from codeexec_operator.adapters import code_reader  # as above

    code_reader.WALL_SECONDS = 100


def main() -> None:
    """Be the operator, by what the environment says."""
    read_code_patiently()
    if TIMING in os.environ:
        be_patient(json.loads(os.environ[TIMING]))
    signal.pthread_sigmask(signal.SIG_BLOCK, {TELL})  # by all threads to come: only one waits for it
    threading.Thread(target=tell_at_each_signal, name="teller", daemon=True).start()
    runpy.run_module("codeexec_operator", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
