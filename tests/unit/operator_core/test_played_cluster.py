"""The API server that unit tests play answers as the real one does, which tests/api holds to the same cases."""

from collections.abc import Awaitable, Callable

import pytest
from cluster_answers import CASES, SPEC, Stage
from factories import an_execution
from played_cluster import PlayedCluster


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_played_api_server_answers_as_the_real_one(case: Callable[[Stage], Awaitable[None]]) -> None:
    played = PlayedCluster(an_execution(**SPEC))

    async def forget() -> None:
        played.gone = True

    await case(Stage(played, played.execution, forget))
