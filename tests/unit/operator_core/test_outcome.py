"""What a record says of an ending can be written, whatever words a pod has put into it."""

import pytest
from factories import NOW, an_execution

from codeexec_api import ConditionType, Event, Phase, Reason
from codeexec_api.audit import status_digest
from codeexec_api.phases import Move
from codeexec_operator.core.outcome import MESSAGE_LENGTH, Ending, transition


@pytest.mark.parametrize("words", ["\ud800", "\udcff" * (MESSAGE_LENGTH + 1)], ids=["one", "many"])
def test_half_a_surrogate_in_a_message_is_replaced(words: str) -> None:
    ending = Ending(Event.FAULT, Reason.RUNNER_FAILED, f"the runner sent {words}")
    move = Move(Phase.FAILED, Reason.RUNNER_FAILED)
    status = transition(an_execution(phase=Phase.RUNNING), move, NOW, ending, ConditionType.READY, holds=True)
    assert status["message"].startswith("the runner sent ?")
    assert len(status["message"]) <= MESSAGE_LENGTH
    status_digest({"message": status["message"], "conditions": [one.dump() for one in status["conditions"]]})
