"""The programs of docs/api.md, on the fake: `tests/support/first_page.py` runs on a cluster and locally, too."""

import re
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from first_page import DATA, LOAD, PNG, first_page

import codeexec
from codeexec import sync
from codeexec.testing import FakeCluster

PAGE: Final = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
PEERS: Final = PAGE.split("\n## Beside its peers\n")[1].split("\n## ")[0]


def programs(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


async def test_the_first_page(fake: FakeCluster) -> None:
    async with codeexec.Client(agent="analyst", backend=fake.client()) as client:
        plot = await first_page(client)
    assert plot == PNG
    assert [record.spec.source.agent for record in fake.executions] == ["analyst"] * len(fake.executions)
    assert [(one.spec.stateful, one.status.reason) for one in fake.sessions] == [(True, "EndRequested")]


@pytest.mark.parametrize("program", [programs(PAGE)[0], programs(PEERS)[0]], ids=["at the top", "beside its peers"])
def test_the_programs_of_the_page_run(
    program: str, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (codeexec, sync):
        monkeypatch.setattr(module, "Client", partial(module.Client, backend=fake.client()))
    exec(compile(program, "docs/api.md", "exec"), {})
    assert (tmp_path / "plot.png").read_bytes() == PNG
    assert capsys.readouterr().out == "42\n\n"
    assert [one.status.reason for one in fake.sessions] == ["EndRequested"]


def test_the_programs_of_the_peers_do_the_same_job_in_so_many_lines() -> None:
    ours, *theirs = programs(PEERS)
    for program in theirs:
        compile(program, "docs/api.md", "exec")
        assert repr(DATA)[1:-1] in program
        assert "plot.png" in program
    assert LOAD in ours
    [counts] = re.findall(r"^\| lines of the program, .*? \| (.*) \|$", PEERS, re.MULTILINE)
    lines = [sum(1 for line in program.splitlines() if line.strip()) for program in (ours, *theirs)]
    assert counts.split(" | ") == [str(count) for count in lines]
