"""The first page of docs/api.md as a program, and what the fake has to be told to play it."""

from typing import Final

import codeexec
from executor_client.testing import FakeBlock, FakeOutcome

DATA: Final = "day,visitors\n1,3\n2,5\n"
LOAD: Final = "import pandas as pd; df = pd.read_csv('data.csv')"
PNG: Final = b"\x89PNG\r\n\x1a\n of a kind"


async def first_page(client: codeexec.Client) -> bytes | None:
    """Play it; returns the plot."""
    assert (await client.run("print(6 * 7)")).stdout == "42\n"
    async with client.session() as session:
        await session.files.write("data.csv", DATA)
        (await session.run(LOAD)).raise_for_error()
        result = await session.run("df.plot()")
        return result.displays[0].png


def scripted(block: FakeBlock) -> FakeOutcome:
    """What a cluster does with the code above."""
    if block.code == "print(6 * 7)":
        return FakeOutcome(stdout="42\n")
    if block.code == LOAD:
        assert block.files["data.csv"] == DATA.encode()
        return FakeOutcome()
    assert block.code == "df.plot()"
    block.files["output-2-1.png"] = PNG
    return FakeOutcome(stdout="<Axes: >\n<Figure size 640x480 with 1 Axes>\n")
