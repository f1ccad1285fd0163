"""What the operator says of its health costs the API server little, however often it is asked."""

import asyncio

import pytest

from codeexec_operator.adapters.health import KNOWN_SECONDS, once_in_a_while


class Question:
    """Counts how often it is asked. It is answered when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.now = 0.0
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.known = once_in_a_while(self.ask, KNOWN_SECONDS, clock=lambda: self.now)

    async def ask(self) -> None:
        self.asked += 1
        await asyncio.shield(self.answer)


async def test_many_who_ask_at_once_get_one_answer() -> None:
    question = Question()
    many = [asyncio.create_task(question.known()) for _ in range(1000)]
    await asyncio.sleep(0)
    question.now += 10 * KNOWN_SECONDS
    many.append(asyncio.create_task(question.known()))
    await asyncio.sleep(0)
    many.pop(0).cancel()
    question.answer.set_result(None)
    await asyncio.gather(*many)
    assert question.asked == 1, "slow as it is, it isn't asked again meanwhile"


async def test_an_answer_counts_for_some_seconds() -> None:
    question = Question()
    question.answer.set_result(None)
    for _ in range(1000):
        await question.known()
    assert question.asked == 1
    question.now += KNOWN_SECONDS
    await question.known()
    assert question.asked == 2


async def test_a_no_is_a_no_for_all_and_is_taken_back() -> None:
    question = Question()
    question.answer.set_exception(OSError("away"))
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            await question.known()
    question.answer = asyncio.get_running_loop().create_future()
    question.answer.set_result(None)
    question.now += KNOWN_SECONDS
    await question.known()
    assert question.asked == 2
