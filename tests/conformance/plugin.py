"""Gathers what the tests marked `remit` have shown, prints it as a table, and writes the page when all of them ran."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_tools import ROOT
from conformance import remit

CONTROLS = pytest.StashKey[list[str]]()
PASSED = pytest.StashKey[bool]()
SKIPPED = pytest.StashKey[str]()
FOLDER = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--conformance-page", metavar="FILE", help="write the page if every test of the remit ran")
    group.addoption("--conformance-list", metavar="FILE", help="write the tests of the remit as JSON")


class Gatherer:
    """What is known of the tests of the remit in this run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.proofs: dict[str, remit.Proof] = {}
        self.cluster: dict[str, str] = {}
        self.items: list[pytest.Item] = []
        self.complete = True
        self.ran = 0

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.complete = self.complete and not any(map(_ids, items))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = [item for item in session.items if _ids(item)]
        files = {item.path for item in self.items}
        chosen = any("::" in argument for argument in self.config.args)
        self.complete = self.complete and files == set(FOLDER.glob("test_*.py")) and not chosen
        for item in self.items:
            proof = self._proof(item)
            case = _case(item)
            if case and case not in proof.cases:
                proof.cases.append(case)
        if target := self.config.getoption("--conformance-list"):
            listed = {item.nodeid: {"ids": _ids(item), "control": _has_control(item)} for item in self.items}
            words = [proof.words for proof in self.proofs.values()]
            Path(target).write_text(json.dumps({"tests": listed, "words": words}))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
        report = yield
        if _ids(item):
            item.stash[PASSED] = item.stash.get(PASSED, True) and report.passed
            if report.skipped:
                item.stash[SKIPPED] = str(report.longrepr[-1]).removeprefix("Skipped: ")
            if call.when == "teardown":
                self._note(item)
        return report

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.items or self.config.option.collectonly:
            return
        lines = remit.lines(self.proofs.values())
        terminalreporter.section("the remit")
        terminalreporter.write_line(remit.table(lines if self.complete else [one for one in lines if one.proofs]))
        if target := self.config.getoption("--conformance-page"):
            if self.complete and self.ran == len(self.items):
                (ROOT / target).write_text(remit.page(lines, self.cluster))
                terminalreporter.write_line(f"wrote {target}")
            else:
                terminalreporter.write_line(f"{target} is not written: not all tests of the remit ran")

    def _proof(self, item: pytest.Item) -> remit.Proof:
        name = item.nodeid.split("[")[0]
        if name not in self.proofs:
            file = item.path.relative_to(ROOT).as_posix()
            self.proofs[name] = remit.Proof(name, file, _words(item), _ids(item))
        return self.proofs[name]

    def _note(self, item: pytest.Item) -> None:
        """Take down how a test has ended."""
        proof = self._proof(item)
        self.ran += 1
        if SKIPPED in item.stash:
            proof.skipped.append(item.stash[SKIPPED])
            return
        proof.passed += item.stash[PASSED]
        proof.failed += not item.stash[PASSED]
        for control in item.stash.get(CONTROLS, []):
            if control not in proof.controls:
                proof.controls.append(control)
        runtime = _runtime(item)
        if runtime and runtime not in proof.runtimes:
            proof.runtimes.append(runtime)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Gatherer(config), "conformance-gatherer")


def _ids(item: pytest.Item) -> tuple[str, ...]:
    return tuple(dict.fromkeys(id_ for marker in item.iter_markers("remit") for id_ in marker.args))


def _words(item: pytest.Item) -> str:
    function = item.function  # type: ignore[attr-defined]
    return (function.__doc__ or function.__name__.removeprefix("test_").replace("_", " ")).splitlines()[0]


def _has_control(item: pytest.Item) -> bool:
    return "control" in getattr(item, "fixturenames", ())


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _runtime(item: pytest.Item) -> str | None:
    return _parameters(item).get("runtime")


def _case(item: pytest.Item) -> str:
    """The name of a case of a table, in words; empty if there is no table but the runtimes."""
    names = [str(value) for name, value in _parameters(item).items() if name != "runtime"]
    return ", ".join(names).replace("_", " ")
