"""A watch that says nothing any more, also when it is opened again: what it would have told is found in time.

Both sides have their own clock here, and it runs as it should: the patience of the client and of the operator is what
counts. kopf gives such a watch up after 70 s, and here the next one is silent, too.
"""

import time

import pytest
from api_calls import Match
from cluster_tools import SANDBOX, wait_for
from component_stage import in_thread
from faults import Stall

from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL
from codeexec_operator.adapters.operation import UNTOLD_SECONDS
from executor_client import PreparedBlock

HELLO = (PreparedBlock("python", b'print("hello")'),)


@pytest.fixture
def silent(operator, stage, stack):
    """Silences the watch of a kind, and those that are opened after it, until the test is over."""

    def silence(resource: str) -> None:
        watch = Match("watch", resource, namespace=SANDBOX)
        wait_for("the watch", lambda: stage.proxy.open_streams(watch))
        stack.callback(stage.proxy.cut_open, watch)
        stack.enter_context(stage.proxy.fault(watch, Stall()))
        assert stage.proxy.silence_open(watch) >= 1

    return silence


async def test_an_execution_that_no_watch_tells_of_is_taken_up(silent, client, asking, stage, agent):
    await in_thread(silent, EXECUTION_PLURAL)
    begun = time.monotonic()
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    stage.ran_once(stage.record(agent))
    print(f"taken up and run after {time.monotonic() - begun:.1f} s; looked for every {UNTOLD_SECONDS} s")


async def test_a_pod_that_no_watch_tells_of_is_looked_for(silent, client, asking, stage, agent):
    await in_thread(silent, "pods")
    assert (await client.execute(HELLO, asking())).output == "hello\n"
    stage.ran_once(stage.record(agent))


async def test_a_session_and_its_pod_that_no_watch_tells_of(silent, client, asking):
    await in_thread(silent, SESSION_PLURAL)
    await in_thread(silent, "pods")
    async with await client.open_session(asking(), wait=True) as session:
        assert (await session.execute(HELLO)).output == "hello\n"
