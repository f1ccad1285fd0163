"""What a record says of an ending can be written, whatever words a pod has put into it."""

import pytest
from factories import NOW, an_execution

from codeexec_api import ConditionType, Event, Phase, Reason
from codeexec_api.audit import status_digest
from codeexec_api.phases import Move
from codeexec_operator.core.outcome import MESSAGE_LENGTH, Ending, recordable, transition


@pytest.mark.parametrize("words", ["\ud800", "\udcff" * (MESSAGE_LENGTH + 1)], ids=["one", "many"])
def test_half_a_surrogate_in_a_message_is_escaped(words: str) -> None:
    ending = Ending(Event.FAULT, Reason.RUNNER_FAILED, f"the runner sent {words}")
    move = Move(Phase.FAILED, Reason.RUNNER_FAILED)
    status = transition(an_execution(phase=Phase.RUNNING), move, NOW, ending, ConditionType.READY, holds=True)
    assert status["message"].startswith(f"the runner sent \\u{ord(words[0]):04x}")
    assert len(status["message"]) <= MESSAGE_LENGTH
    status_digest({"message": status["message"], "conditions": [one.dump() for one in status["conditions"]]})


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("x/a: ok\n  Phase:\t Ready\x1b[2J\u202e", "x/a: ok\\n  Phase:\\t Ready\\x1b[2J\\u202e"),
        ("\r\x00\x7f\x9b\u00a0\u2028\U000e0041", "\\r\\x00\\x7f\\x9b\\u00a0\\u2028\\U000e0041"),
        ("a file täst 'ä' \"b\" 日本 \\n 😀", "a file täst 'ä' \"b\" 日本 \\n 😀"),
    ],
)
def test_what_nobody_sees_in_a_message_is_shown_as_its_escape_and_the_rest_stays(words: str, shown: str) -> None:
    ending = Ending(Event.FAULT, Reason.FILE_REFUSED, words)
    move = Move(Phase.FAILED, Reason.FILE_REFUSED)
    status = transition(an_execution(phase=Phase.RUNNING), move, NOW, ending, ConditionType.READY, holds=True)
    assert {status["message"], *(one.message for one in status["conditions"] if one.type == "Ready")} == {shown}
    assert recordable(shown) == shown
