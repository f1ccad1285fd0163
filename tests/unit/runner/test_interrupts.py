"""A cell is interrupted at any time, before it begins and after its end, too, and the variables of its session stay."""

import signal
from typing import Any

import pytest

# For what heeds an interrupt: it may take as long as it takes.
HEEDS_AN_INTERRUPT = "job.INTERRUPT_SECONDS = job.IDLE_SECONDS = job.MOST_SECONDS = 60"
HEEDS_A_CANCELLATION = f"{HEEDS_AN_INTERRUPT}; job.CANCEL_SECONDS = 60"
patient = pytest.mark.parametrize("before", [HEEDS_AN_INTERRUPT])


@patient
def test_a_cell_past_its_limit_is_interrupted_and_variables_stay(stateful: Any) -> None:
    stateful("z = 5")
    late = "import sys; print('so far', end=''); f = open('later', 'w'); print(file=sys.stderr)\nwhile True: pass"
    report = stateful(late, timeoutSeconds=60)
    assert report.endings == [(124, "DeadlineExceeded")]
    assert report.text() == "so far"
    assert "KeyboardInterrupt" in report.text("stderr")
    assert report.blocks[0]["durationMs"] >= 75_000  # the clock went on by 75 s at once
    assert stateful("z").text() == "5\n"


@patient
def test_an_interrupt_ends_what_the_cell_waits_for(stateful: Any) -> None:
    stateful("z = 5")
    report = stateful("import os; os.system('touch later; echo; sleep 600')", timeoutSeconds=60)
    assert report.endings == [(124, "DeadlineExceeded")]
    assert (report.text().split(), report.text("stderr")) == ([str(int(signal.SIGINT))], "")  # how the shell ended
    assert stateful("z").text() == "5\n"


LATE = """
import signal, time
def late(*_):
    time.sleep(0.8)
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, late)
print("begun")
while True: time.sleep(0.01)  # Python does not run a handler while it waits for a signal that came just before
"""
"""It heeds the interrupt when it has long been over, without the processor meanwhile: as on a busy node."""


@pytest.mark.parametrize("before", ["job.INTERRUPT_SECONDS = 2; job.IDLE_SECONDS = job.MOST_SECONDS = 60"])
def test_a_cell_has_its_time_of_the_processor_however_long_that_takes(stateful: Any) -> None:
    stateful("z = 5")
    late = LATE.replace("0.8", "2.5").replace('print("begun")', "f = open('later', 'w'); print()")
    assert stateful(late, timeoutSeconds=60).endings == [(124, "DeadlineExceeded")]
    assert stateful("z").text() == "5\n"


STUBBORN = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('so far')\nwhile True: pass"


def test_a_cell_that_does_not_heed_the_interrupt_ends_with_the_kernel(stateful: Any) -> None:
    stateful("z = 5")
    late = STUBBORN.replace("while", "f = open('later', 'w'); print()\nwhile")
    report = stateful(late, timeoutSeconds=60)
    assert report.endings == [(124, "DeadlineExceeded")]
    assert report.text() in ("so far\n", "so far\n\n")  # the end may come before the line that wakes the runner
    assert report.text("stderr") == "the Python kernel did not stop in time and was killed; its variables are gone\n"
    report = stateful("'z' in globals()")
    assert (report.text(), report.text("stderr")) == ("False\n", "")


@pytest.mark.parametrize(
    ("code", "before"),
    [
        pytest.param("print('begun')\nwhile True: pass", HEEDS_A_CANCELLATION, id="at once"),
        pytest.param("print('begun')\nimport asyncio; await asyncio.sleep(600)", HEEDS_A_CANCELLATION, id="awaits"),
        pytest.param(LATE, HEEDS_A_CANCELLATION, id="late"),
        pytest.param(STUBBORN, HEEDS_AN_INTERRUPT, id="never"),
    ],
)
def test_cancelling_ends_a_cell(code: str, stateful: Any, job: Any) -> None:
    stateful("z = 5")
    connection = stateful.func.__self__
    connection.say(job(code, session=True, stateful=True, id="long", timeoutSeconds=90))
    connection.hear("stream")  # an interrupt that comes before its handler is set would end any of them at once
    connection.say({"cancel": "long"})
    report = connection.hear("done")
    assert report.endings == [(130, "Cancelled")]
    assert stateful("'z' in globals()").text() == ("False\n" if code == STUBBORN else "True\n")


def test_a_cell_that_was_cancelled_before_it_begins_does_not_begin(stateful: Any, job: Any, sandbox: Any) -> None:
    stateful("z = 5")
    connection = stateful.func.__self__
    for code in ("f = open('ran', 'w')", "f = open('ran', 'w'); await __import__('asyncio').sleep(0)"):
        one = job(code, session=True, stateful=True)
        connection.say(one, {"cancel": one["id"]})
        report = connection.hear("done")
        assert (report.endings, report.text("stderr")) == ([(130, "Cancelled")], "")
    assert not (sandbox.workspace / "ran").exists()
    assert stateful("'z' in globals()").text() == "True\n"


OVER_BEFORE = """
from {module} import {kind}
begun = {kind}.{method}
def begin_when_the_limit_is_over(self, block, *rest):
    if "while" in block["code"]:
        time.monotonic = lambda: clock() + 75
    return begun(self, block, *rest)
{kind}.{method} = begin_when_the_limit_is_over
"""


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(
            HEEDS_AN_INTERRUPT + OVER_BEFORE.format(module="job", kind="Job", method="_run_cell"), id="hand-over"
        ),
        pytest.param(
            HEEDS_AN_INTERRUPT + OVER_BEFORE.format(module="kernel", kind="Kernel", method="execute"), id="start"
        ),
    ],
)
def test_a_limit_that_is_over_before_a_cell_begins_costs_no_variables(stateful: Any) -> None:
    stateful("z = 5")
    late = stateful("import time\nwhile True: time.sleep(0.01)", timeoutSeconds=60)
    assert late.endings == [(124, "DeadlineExceeded")]
    assert "the Python kernel" not in late.text("stderr")
    assert stateful("'z' in globals()").text() == "True\n"


AT_THE_HAND_OVER = """
execute, kill = kernel.Kernel.execute, os.kill
def hand_over_and_interrupt(self, block):
    def interrupt_and_let_go_on(*signal):
        os.kill = kill
        self.interrupt()
        time.monotonic = lambda: clock() + 75  # the limit is over
        kill(*signal)
    if "600" in block["code"]:
        os.kill = interrupt_and_let_go_on
    execute(self, block)
kernel.Kernel.execute = hand_over_and_interrupt
"""
SLEEPS = "f = open('ran', 'w')\nimport time; time.sleep(600)"
AWAITS = "f = open('ran', 'w')\nimport asyncio; await asyncio.sleep(600)"


@pytest.mark.parametrize("code", [SLEEPS, AWAITS], ids=["plain", "async"])
@pytest.mark.parametrize("before", [f"{HEEDS_AN_INTERRUPT}\n{AT_THE_HAND_OVER}"])
def test_an_interrupt_right_after_the_hand_over_reaches_the_cell(code: str, stateful: Any, sandbox: Any) -> None:
    """The kernel is still stopped, so it has not even heard of the cell."""
    stateful("z = 5")
    report = stateful(code, timeoutSeconds=60)
    assert report.endings == [(124, "DeadlineExceeded")]
    assert report.text("stderr").endswith("KeyboardInterrupt: before the cell began\n")
    assert not (sandbox.workspace / "ran").exists()
    assert stateful("z").text() == "5\n"  # it is for that cell, and not for the next
    assert stateful(SLEEPS.replace("600", "0")).endings == [(0, "Completed")]


HEARS_IT_IN_ITS_TRACEBACK = """
import signal
from IPython import get_ipython
shows = get_ipython().InteractiveTB
structured = shows.structured_traceback
def interrupt_and_show(*error, **options):
    signal.raise_signal(signal.SIGINT)
    return structured(*error, **options)
shows.structured_traceback = interrupt_and_show
"""


@pytest.mark.parametrize("code", [SLEEPS, AWAITS], ids=["plain", "async"])
@pytest.mark.parametrize("before", [f"{HEEDS_AN_INTERRUPT}\n{AT_THE_HAND_OVER}"])
def test_an_interrupt_in_the_traceback_of_a_cell_that_does_not_begin_takes_nothing_of_it(
    code: str, stateful: Any
) -> None:
    assert stateful(HEARS_IT_IN_ITS_TRACEBACK).endings == [(0, "Completed")]
    report = stateful(code, timeoutSeconds=60)
    assert report.endings == [(124, "DeadlineExceeded")]
    assert report.text("stderr").endswith("KeyboardInterrupt: before the cell began\n")


HEARS_IT_AFTER_ITS_END = """
import signal
from IPython import get_ipython
def late(*_): signal.raise_signal(signal.SIGINT)
get_ipython().kernel.finish_metadata = lambda parent, metadata, reply: [late(), metadata][1]
"""


def test_an_interrupt_behind_the_end_of_a_cell_takes_nothing(stateful: Any) -> None:
    assert stateful(HEARS_IT_AFTER_ITS_END).endings == [(0, "Completed")]
    assert stateful("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); z = 5").endings == [(0, "Completed")]
    report = stateful("import signal, time\nsignal.raise_signal(signal.SIGINT)", "print('never')")
    assert report.endings == [(1, "NonZeroExit")]
    assert "KeyboardInterrupt" in report.text("stderr")
    assert stateful("z").text() == "5\n"
