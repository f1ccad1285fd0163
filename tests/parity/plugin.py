"""Gathers what the cases have shown, prints it as a table, and writes the page when every case ran and held."""

from typing import TYPE_CHECKING, Any

import pytest
from cluster_tools import ROOT

if TYPE_CHECKING:  # AutoGen costs other suites a second
    from parity.case import Case, Seen

NAME = "parity-gatherer"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("parity").addoption(
        "--parity-page", metavar="FILE", help="write the page if every case ran and held"
    )


class Gatherer:
    """What is known of the cases in this run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcome: dict[str, dict[str, Seen | None]] = {}
        self.facts: dict[str, str] = {}

    def note(self, case: "Case", seen: "dict[str, Seen | None]") -> None:
        """Take down what each executor has given."""
        self.outcome[case.id] = seen

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.outcome:
            return
        from parity import page, suite

        terminalreporter.section("parity with AutoGen's executors")
        terminalreporter.write_line(page.table(self.outcome))
        if target := self.config.getoption("--parity-page"):
            cases = suite.all_cases()
            if self.outcome.keys() == {case.id for case in cases} and all(map(self._holds, cases)):
                (ROOT / target).write_text(page.page(self.outcome, self.facts))
                terminalreporter.write_line(f"wrote {target}")
            else:
                terminalreporter.write_line(f"{target} is not written: not every case ran and held")

    def _holds(self, case: "Case") -> bool:
        seen = self.outcome[case.id]
        return all(what is None or what == case.expected(party) for party, what in seen.items())


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Gatherer(config), NAME)
