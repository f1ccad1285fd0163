"""Gathers what the cases have shown, prints it as a table, and writes the page when every case ran and held."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from cluster_tools import ROOT

if TYPE_CHECKING:  # AutoGen costs other suites a second
    from parity.case import Case, Seen

NAME = "parity-gatherer"
SEEN = pytest.StashKey["dict[str, Seen | None]"]()
"""What each executor has given in a case."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("parity").addoption(
        "--parity-page",
        metavar="FILE",
        help="run AutoGen's executors, too, and write the page if every case ran and held; not with pytest-xdist",
    )


class Gatherer:
    """What is known of the cases in this run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcome: dict[str, dict[str, Seen | None]] = {}
        self.facts: dict[str, str] = {}
        self.note = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
        report = yield
        if call.when == "call" and SEEN in item.stash:
            # It travels with the report: the test may have run in a worker of pytest-xdist.
            case = item.callspec.params["case"]  # type: ignore[attr-defined]
            report.parity = [case.id, json.dumps(item.stash[SEEN]), self.note]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "parity"):
            id_, seen, self.note = report.parity
            self.outcome[id_] = json.loads(seen)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.outcome:
            return
        from parity import observed, page, suite

        terminalreporter.section("parity with AutoGen's executors")
        terminalreporter.write_line(page.table(self.outcome))
        if self.note:
            terminalreporter.write_line(self.note)
        if target := self.config.getoption("--parity-page"):
            cases = suite.all_cases()
            if self.outcome.keys() == {case.id for case in cases} and all(map(self._holds, cases)):
                (ROOT / target).write_text(page.page(self.outcome, self.facts))
                terminalreporter.write_line(f"wrote {target}")
                if all(None not in seen.values() for seen in self.outcome.values()):
                    observed.RECORD.write_text(observed.here().written())
                    terminalreporter.write_line(f"wrote {observed.RECORD.relative_to(ROOT)}")
            else:
                terminalreporter.write_line(f"{target} is not written: not every case ran and held")

    def _holds(self, case: "Case") -> bool:
        seen = self.outcome[case.id]
        return all(what is None or what == case.expected(party) for party, what in seen.items())


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--parity-page") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--parity-page needs a run without pytest-xdist: leave out -n")
    config.pluginmanager.register(Gatherer(config), NAME)
