"""Timeout, cancellation, and calls at the same time."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from autogen_core import CancellationToken
from cluster_tools import a_name
from parity.case import Case, Group, Scenario, Seen, raises
from parity.parties import Party, held, living, whether_it_lives

KILLED = "Code is killed with SIGKILL, all of its processes, whatever session or handler they have."
LIMIT = 5
"""Seconds: enough for what has to run before them on a busy machine."""
TIMED_OUT = f"Timeout: the block ran longer than timeout={LIMIT} and was killed"
NAMES_LIMIT = "The text says which limit it was."
EARLIER = "What the running block has printed is kept, too."


async def _alive(party: Party, executor: Any, mark: str) -> str:
    """Whether a process that was `living(mark)` is `alive` or `dead`; then it is released."""
    try:
        return (await party.run(("sh", whether_it_lives(mark)), at=executor)).output.strip()
    finally:
        party.release(executor, mark)


def _seen(result: Any, party: Party) -> Seen:
    return {"exit code": result.exit_code, "output": party.normalised(result.output)}


def _limited(*blocks: str | tuple[str, str]) -> Scenario:
    async def scenario(party: Party) -> Seen:
        return _seen(await party.run(*blocks, at=await party.shared(timeout=LIMIT)), party)

    return scenario


async def _deaf(party: Party) -> Seen:
    executor = await party.shared(timeout=LIMIT)
    result = await party.run(("bash", "trap '' TERM; sleep 10; echo lasted"), at=executor)
    return {"exit code": result.exit_code, "ran to its end": "lasted" in result.output}


async def _descendants(party: Party) -> Seen:
    executor, mark = await party.shared(timeout=LIMIT), a_name("child")
    result = await party.run(("bash", f"setsid {living(mark)} >/dev/null 2>&1 & sleep 15"), at=executor)
    return {"exit code": result.exit_code, "child": await _alive(party, executor, mark)}


async def _usable_after_timeout(party: Party) -> Seen:
    executor = await party.shared(timeout=LIMIT)
    first = await party.run(("sh", "sleep 15"), at=executor)
    second = await party.run(("sh", "echo again"), at=executor)
    return {"exit codes": [first.exit_code, second.exit_code], "output": second.output}


def _refuses(timeout: float) -> Scenario:
    async def scenario(party: Party) -> Seen:
        try:
            party.make(timeout=timeout)
        except ValueError:
            return {"raises": "ValueError"}
        return {}

    return scenario


async def _property(party: Party) -> Seen:
    return {"timeout": party.make(timeout=7).timeout}  # type: ignore[attr-defined]


TIMEOUT = Group(
    "Timeout",
    (
        Case(
            id="timeout",
            about="a block that prints a line and lasts beyond its limit",
            scenario=_limited(("sh", "echo before; sleep 15; echo after")),
            local={"exit code": 124, "output": "\nTimeout"},
            docker={"exit code": 124, "output": "before\n\n Timeout"},
            ours={
                "exit code": 124,
                "output": f"before\n{TIMED_OUT}",
            },
            why=NAMES_LIMIT,
        ),
        Case(
            id="timeout-of-python",
            about="the same in Python, without a final newline",
            scenario=_limited("import time\nprint('before', end='', flush=True)\ntime.sleep(15)"),
            local={"exit code": 124, "output": "\nTimeout"},
            docker={"exit code": 124, "output": "before\n Timeout"},
            ours={
                "exit code": 124,
                "output": f"before\n{TIMED_OUT}",
            },
            why=NAMES_LIMIT,
        ),
        Case(
            id="timeout-of-second-block",
            about="the second of three blocks lasts beyond its limit",
            scenario=_limited(("sh", "echo 1"), ("sh", "echo 2; sleep 15"), ("sh", "echo 3")),
            local={"exit code": 124, "output": "1\n\nTimeout"},
            docker={"exit code": 124, "output": "1\n2\n\n Timeout"},
            ours={
                "exit code": 124,
                "output": f"1\n2\n{TIMED_OUT}",
            },
            why=NAMES_LIMIT,
        ),
        Case(
            id="timeout-of-each-block",
            about=f"five blocks of 1.5 s with a limit of {LIMIT} s: the limit is that of a block",
            scenario=_limited(*[("sh", "sleep 1.5; echo done")] * 5),
            docker={"exit code": 0, "output": "done\n" * 5},
        ),
        Case(
            id="timeout-ignored",
            about=f"code that ignores SIGTERM, 10 s long, with a limit of {LIMIT} s",
            scenario=_deaf,
            local={"exit code": 124, "ran to its end": False},
            docker={"exit code": 124, "ran to its end": True},
            ours={"exit code": 124, "ran to its end": False},
            why=KILLED,
        ),
        Case(
            id="timeout-of-descendants",
            about="a child in a session of its own, after its block has run out of time",
            scenario=_descendants,
            docker={"exit code": 124, "child": "alive"},
            ours={"exit code": 124, "child": "dead"},
            why=KILLED,
        ),
        Case(
            id="usable-after-timeout",
            about="a call after one that ran out of time",
            scenario=_usable_after_timeout,
            docker={"exit codes": [124, 0], "output": "again\n"},
        ),
        Case(id="timeout-0", about="`timeout=0`", scenario=_refuses(0), docker={"raises": "ValueError"}),
        Case(id="timeout-half", about="`timeout=0.5`", scenario=_refuses(0.5), docker={"raises": "ValueError"}),
        Case(id="timeout-property", about="property `timeout`", scenario=_property, docker={"timeout": 7}),
    ),
)


async def _cancelled_before(party: Party) -> Seen:
    token = CancellationToken()
    token.cancel()
    return _seen(await party.run("print(1)", token=token), party)


def _from_loop(token: CancellationToken) -> None:
    token.cancel()


def _from_thread(token: CancellationToken) -> None:
    thread = threading.Thread(target=token.cancel)
    thread.start()
    thread.join()


def _cancelled(*before: tuple[str, str], cancel: Callable[[CancellationToken], None] = _from_loop) -> Scenario:
    async def scenario(party: Party) -> Seen:
        executor, token, mark = await party.shared(), CancellationToken(), a_name("mark")
        call = asyncio.create_task(party.run(*before, ("sh", f"{held(mark)}; echo end"), at=executor, token=token))
        await party.until_running(executor, mark)
        cancel(token)
        party.release(executor, mark)
        result = await call
        return {"exit code": result.exit_code, "output": result.output.replace(mark, "running")}

    return scenario


async def _dead_after_cancel(party: Party) -> Seen:
    executor, token, mark = await party.shared(), CancellationToken(), a_name("mark")
    call = asyncio.create_task(party.run(("sh", f"echo {mark}; {living(mark)}"), at=executor, token=token))
    await party.until_running(executor, mark)
    token.cancel()
    if party.waits_when_cancelled:
        party.release(executor, mark)
    await call
    return {"code": await _alive(party, executor, mark)}


async def _usable_after_cancel(party: Party) -> Seen:
    executor, token, mark = await party.shared(), CancellationToken(), a_name("mark")
    call = asyncio.create_task(party.run(("sh", held(mark)), at=executor, token=token))
    await party.until_running(executor, mark)
    token.cancel()
    party.release(executor, mark)
    await call
    return _seen(await party.run("print('again')", at=executor), party)


async def _cancelled_after(party: Party) -> Seen:
    token = CancellationToken()
    result = await party.run("print(1)", token=token)
    token.cancel()
    return _seen(result, party)


async def _one_token_for_two(party: Party) -> Seen:
    token = CancellationToken()
    marked = {a_name("mark"): executor for executor in (await party.shared(), await party.started())}
    await asyncio.gather(*(party.run(("sh", "true"), at=executor) for executor in marked.values()))  # both are there
    calls = [
        asyncio.create_task(party.run(("sh", f"{held(mark)}; echo end"), at=executor, token=token))
        for mark, executor in marked.items()
    ]
    for mark, executor in marked.items():
        await party.until_running(executor, mark)
    token.cancel()
    for mark, executor in marked.items():
        party.release(executor, mark)
    results = await asyncio.gather(*calls)
    return {
        "exit codes": [result.exit_code for result in results],
        "say cancelled": all("cancelled" in result.output for result in results),
    }


async def _later_call_cancelled(party: Party) -> Seen:
    executor, token, first, second = await party.shared(), CancellationToken(), a_name("mark"), a_name("mark")
    # Where calls wait for each other nothing can release the earlier one, so it ends by itself.
    code = f"echo {first}; sleep 15" if party.one_call_at_a_time else held(first)
    earlier = asyncio.create_task(party.run(("sh", f"{code}; echo end"), at=executor))
    await party.until_running(executor, first)
    later = asyncio.create_task(party.run(("sh", held(second)), at=executor, token=token))
    if not party.one_call_at_a_time:
        await party.until_running(executor, second)
    assert not earlier.done(), "the earlier call has ended before the later one was cancelled: this shows nothing"
    token.cancel()
    party.release(executor, first)
    party.release(executor, second)
    return {
        "exit codes": [(await earlier).exit_code, (await later).exit_code],
        "later says": (await later).output.replace(second, "running"),
    }


async def _task_cancelled(party: Party) -> Seen:
    executor, mark = await party.shared(), a_name("mark")
    call = asyncio.create_task(party.run(("sh", held(mark)), at=executor))
    await party.until_running(executor, mark)
    call.cancel()
    party.release(executor, mark)
    try:
        result = await call
    except asyncio.CancelledError:
        return raises("CancelledError", "")
    return {"exit code": result.exit_code}


CANCELLATION = Group(
    "Cancellation",
    (
        Case(
            id="cancelled-before",
            about="a token that is cancelled already",
            scenario=_cancelled_before,
            local={"exit code": 125, "output": "\nCancelled"},
            docker={"exit code": 1, "output": "Code execution was cancelled."},
        ),
        Case(
            id="cancelled-while-running",
            about="a token that is cancelled while code runs",
            scenario=_cancelled(),
            local={"exit code": 0, "output": "running\nend\n"},
            docker={"exit code": 1, "output": "Code execution was cancelled."},
            ours={"exit code": 1, "output": "running\nCode execution was cancelled."},
            why=EARLIER,
        ),
        Case(
            id="cancelled-in-second-block",
            about="the same while the second block runs",
            scenario=_cancelled(("sh", "echo first")),
            local={"exit code": 0, "output": "first\nrunning\nend\n"},
            docker={"exit code": 1, "output": "first\nCode execution was cancelled."},
            ours={"exit code": 1, "output": "first\nrunning\nCode execution was cancelled."},
            why=EARLIER,
        ),
        Case(
            id="cancelled-from-thread",
            about="a token that another thread cancels",
            scenario=_cancelled(cancel=_from_thread),
            local={"exit code": 0, "output": "running\nend\n"},
            docker={"exit code": 1, "output": "Code execution was cancelled."},
            ours={"exit code": 1, "output": "running\nCode execution was cancelled."},
            why=EARLIER,
        ),
        Case(
            id="dead-after-cancel",
            about="whether code still runs when the cancelled call has returned",
            scenario=_dead_after_cancel,
            local={"code": "dead"},
            docker={"code": "alive"},
            ours={"code": "dead"},
            why="Cancelling stops the code itself. The Docker executor needs `pkill` in the image for it, which this "
            "one hasn't; the Local executor waits for the end.",
        ),
        Case(
            id="usable-after-cancel",
            about="a call after a cancelled one",
            scenario=_usable_after_cancel,
            docker={"exit code": 0, "output": "again\n"},
        ),
        Case(
            id="cancelled-after",
            about="a token that is cancelled after the call",
            scenario=_cancelled_after,
            docker={"exit code": 0, "output": "1\n"},
        ),
        Case(
            id="one-token-for-two-calls",
            about="one token for calls of two executors at the same time",
            scenario=_one_token_for_two,
            local={"exit codes": [0, 0], "say cancelled": False},
            docker={"exit codes": [1, 1], "say cancelled": True},
        ),
        Case(
            id="later-call-cancelled",
            about="two calls of one executor, of which the later one is cancelled",
            scenario=_later_call_cancelled,
            local={"exit codes": [0, 0], "later says": "running\n"},
            docker={"exit codes": [0, 1], "later says": "Code execution was cancelled."},
        ),
        Case(
            id="task-cancelled",
            about="the task that awaits the call is cancelled, the token is not",
            scenario=_task_cancelled,
            local={"exit code": 125},
            docker={"exit code": 1},
            ours=raises("CancelledError", ""),
            why="A task that is cancelled ends as cancelled: `asyncio.timeout` and task groups rely on it. The code is "
            "stopped as well.",
        ),
    ),
)


async def _not_mixed(party: Party) -> Seen:
    executor = await party.shared()
    results = await asyncio.gather(*(party.run(f"print('call {number}')", at=executor) for number in range(4)))
    return {"outputs": [result.output.strip() for result in results]}


async def _own_outcomes(party: Party) -> Seen:
    executor = await party.shared()
    codes = ("import sys; sys.exit(3)", "print('fine')", "1 / 0")
    results = await asyncio.gather(*(party.run(code, at=executor) for code in codes))
    return {"exit codes": [result.exit_code for result in results]}


async def _other_call_goes_on(party: Party) -> Seen:
    executor, token, mark = await party.shared(), CancellationToken(), a_name("mark")
    doomed = asyncio.create_task(party.run(("sh", held(mark)), at=executor, token=token))
    await party.until_running(executor, mark)
    other = asyncio.create_task(party.run(("sh", "sleep 0.5; echo other"), at=executor))
    token.cancel()
    party.release(executor, mark)
    await doomed
    return _seen(await other, party)


async def _other_executor_goes_on(party: Party) -> Seen:
    one, other = await party.started(timeout=1), await party.shared()
    first, second = await asyncio.gather(
        party.run(("sh", "sleep 3"), at=one), party.run(("sh", "sleep 1.5; echo other"), at=other)
    )
    return {"exit codes": [first.exit_code, second.exit_code], "output": second.output}


def _in_a_loop_of_its_own(party: Party, executor: Any, word: str) -> str:
    return asyncio.run(party.run(("sh", f"echo {word}"), at=executor)).output


async def _two_loops(party: Party) -> Seen:
    executor = await party.started()
    here = (await party.run(("sh", "echo here"), at=executor)).output
    there = [await asyncio.to_thread(_in_a_loop_of_its_own, party, executor, word) for word in ("there", "and there")]
    return {"outputs": [here, *there]}


async def _two_threads(party: Party) -> Seen:
    executor = await party.started()
    calls = (asyncio.to_thread(_in_a_loop_of_its_own, party, executor, word) for word in ("one", "two"))
    return {"outputs": list(await asyncio.gather(*calls))}


CONCURRENCY = Group(
    "Calls at the same time",
    (
        Case(
            id="not-mixed",
            about="four calls of one executor at the same time: each gets its own output",
            scenario=_not_mixed,
            docker={"outputs": ["call 0", "call 1", "call 2", "call 3"]},
        ),
        Case(
            id="own-outcomes",
            about="three calls at the same time that end differently",
            scenario=_own_outcomes,
            docker={"exit codes": [3, 0, 1]},
        ),
        Case(
            id="other-call-goes-on",
            about="a call beside one that is cancelled",
            scenario=_other_call_goes_on,
            docker={"exit code": 0, "output": "other\n"},
        ),
        Case(
            id="other-executor-goes-on",
            about="a call of one executor beside one of another that runs out of time",
            scenario=_other_executor_goes_on,
            docker={"exit codes": [124, 0], "output": "other\n"},
        ),
        Case(
            id="event-loops",
            about="one executor in three event loops, one after the other",
            scenario=_two_loops,
            docker={"outputs": ["here\n", "there\n", "and there\n"]},
        ),
        Case(
            id="threads",
            about="one executor in two threads at the same time, each with its event loop",
            scenario=_two_threads,
            docker={"outputs": ["one\n", "two\n"]},
        ),
    ),
)

GROUPS = (TIMEOUT, CANCELLATION, CONCURRENCY)
