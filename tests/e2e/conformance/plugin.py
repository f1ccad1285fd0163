"""Gathers what the tests marked `remit` have shown, prints it as a table, and writes the page when all of them ran.

What a test has shown travels with its report, and what was collected with the worker's last word, so that it is the
same whether the tests run in this process or in several of pytest-xdist.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_tools import ROOT
from conformance import remit

CONTROLS = pytest.StashKey[list[str]]()
RUNTIMES = pytest.StashKey[list[str]]()
PASSED = pytest.StashKey[bool]()
CALLED = pytest.StashKey[bool]()
"""Whether the test itself passed, if it came to its end."""
SKIPPED = pytest.StashKey[str]()
FOLDER = Path(__file__).parent
NAME = "conformance-gatherer"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--conformance-page", metavar="FILE", help="write the page if every test of the remit ran")
    group.addoption("--conformance-list", metavar="FILE", help="write the tests of the remit as JSON")


class Gatherer:
    """What is known of the tests of the remit in this run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.cluster: dict[str, str] = {}
        self.complete = True
        """Every test of the remit was collected and none deselected."""
        self.planned: dict[str, dict[str, Any]] = {}
        """What was collected, by node id."""
        self.shown: dict[str, dict[str, Any]] = {}
        """What the tests have shown that ran, by node id."""

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.complete = self.complete and not any(map(_ids, items))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        items = [item for item in session.items if _ids(item)]
        files = {item.path for item in items}
        chosen = any("::" in argument for argument in self.config.args)
        self.complete = self.complete and files == set(FOLDER.glob("test_*.py")) and not chosen
        self.planned = {item.nodeid: _described(item) for item in items}
        if target := self.config.getoption("--conformance-list"):
            listed = {item.nodeid: {"ids": _ids(item), "control": _has_control(item)} for item in items}
            words = list(dict.fromkeys(one["words"] for one in self.planned.values()))
            Path(target).write_text(json.dumps({"tests": listed, "words": words}))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
        report = yield
        if _ids(item):
            item.stash[PASSED] = item.stash.get(PASSED, True) and report.passed
            if call.when == "call":
                item.stash[CALLED] = report.passed
            if report.skipped:
                item.stash[SKIPPED] = str(report.longrepr[-1]).removeprefix("Skipped: ")
            if call.when == "teardown":
                report.remit = {
                    "passed": item.stash[PASSED],
                    "skipped": item.stash.get(SKIPPED, ""),
                    "controls": item.stash.get(CONTROLS, []),
                    "runtimes": item.stash.get(RUNTIMES, []),
                }
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "remit"):
            self.shown[report.nodeid] = report.remit

    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workeroutput"):  # this is a worker of pytest-xdist: its last word
            self.config.workeroutput[NAME] = {
                "planned": self.planned,
                "complete": self.complete,
                "cluster": self.cluster,
            }

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker of pytest-xdist has ended. One that has crashed leaves no last word; its tests are missed."""
        word = getattr(node, "workeroutput", {}).get(NAME)
        if error or word is None:
            self.complete = False
            return
        self.planned |= word["planned"]
        self.complete = self.complete and word["complete"]
        self.cluster |= word["cluster"]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not (self.planned or self.shown) or self.config.option.collectonly:
            return
        lines = remit.lines(remit.proofs(self.planned, self.shown), complete=self.complete)
        terminalreporter.section("the remit")
        terminalreporter.write_line(remit.table(lines))
        if target := self.config.getoption("--conformance-page"):
            if self.complete and self.shown.keys() == self.planned.keys():
                (ROOT / target).write_text(remit.page(lines, self.cluster))
                terminalreporter.write_line(f"wrote {target}")
            else:
                terminalreporter.write_line(f"{target} is not written: not all tests of the remit ran")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "runtimes(name, ...): the proof is shown under each of these runtimes")
    config.pluginmanager.register(Gatherer(config), NAME)


def _ids(item: pytest.Item) -> tuple[str, ...]:
    return tuple(dict.fromkeys(id_ for marker in item.iter_markers("remit") for id_ in marker.args))


def _described(item: pytest.Item) -> dict[str, Any]:
    """What the page tells of a test before it has run."""
    function = item.function  # type: ignore[attr-defined]
    words = (function.__doc__ or function.__name__.removeprefix("test_").replace("_", " ")).splitlines()[0]
    file = Path(os.path.relpath(item.path, ROOT)).as_posix()
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    case = ", ".join(map(str, parameters)).replace("_", " ")
    return {"file": file, "words": words, "ids": _ids(item), "case": case}


def _has_control(item: pytest.Item) -> bool:
    return "control" in getattr(item, "fixturenames", ())
