"""The first page of docs/api.md, on the fake: `tests/support/first_page.py` runs on a cluster and locally, too."""

from first_page import PNG, first_page

import codeexec
from codeexec.testing import FakeCluster


async def test_the_first_page(fake: FakeCluster) -> None:
    async with codeexec.Client(agent="analyst", backend=fake.client()) as client:
        plot = await first_page(client)
    assert plot == PNG
    assert [record.spec.source.agent for record in fake.executions] == ["analyst"] * len(fake.executions)
    assert [(one.spec.stateful, one.status.reason) for one in fake.sessions] == [(True, "EndRequested")]
