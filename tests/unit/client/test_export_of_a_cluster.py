"""`codeexec audit export` and an API server: which records are read, and what a namespace that fails does to others.

The API server is played here; `tests/component/test_record_retention.py` exports from the real one.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from played_api_server import PlayedApiServer

from codeexec_api.audit_export import Header, records_in
from executor_client.cli import main
from executor_client.cli.export import Export

VERSION = 9
"""Of all lists."""


class ApiServer(PlayedApiServer):
    """Has CodeExecutions by namespace, and takes what the export confirms. A number is the status of each answer."""

    def __init__(self) -> None:
        super().__init__()
        self.executions: dict[str, int | dict[str, dict[str, Any]]] = {}
        self.confirmed: dict[str, dict[str, str]] = {}

    def add(self, namespace: str, name: str, status: dict[str, Any] | None) -> None:
        meta = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "5"}
        record = {"metadata": meta, "spec": {}, **({} if status is None else {"status": status})}
        executions = self.executions.setdefault(namespace, {})
        assert isinstance(executions, dict)
        executions[name] = record

    def answer(self, path: str, query: Mapping[str, str], body: Any) -> tuple[int, str]:
        namespace, plural, name = re.findall(r"/namespaces/([^/]+)/([^/]+)/?([^/]*)", path)[0]
        status, answer = self.of(namespace, plural, name, body)
        return status, json.dumps(answer)

    def of(self, namespace: str, plural: str, name: str, body: Any) -> tuple[int, dict[str, Any]]:
        executions = self.executions[namespace]
        if isinstance(executions, int):
            return executions, {"kind": "Status", "code": executions, "message": "not this one"}
        if plural == "configmaps":
            if body is not None:
                self.confirmed[namespace] = body["data"]
            return 200, {"data": self.confirmed.get(namespace, {})}
        if name:
            return 200, executions[name]
        found = list(executions.values()) if plural == "codeexecutions" else []
        return 200, {"metadata": {"resourceVersion": str(VERSION)}, "items": found}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as one:
        yield one


@pytest.fixture
def kubeconfig(api: ApiServer, tmp_path: Path) -> Path:
    return api.kubeconfig(tmp_path)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    folder = tmp_path / "kept"
    folder.mkdir()
    return folder


def export(kubeconfig: Path, kept: Path, *namespaces: str, confirm: bool = True) -> Result:
    options = [text for one in namespaces for text in ("-n", one)]
    command = [
        "audit",
        "export",
        "--kubeconfig",
        str(kubeconfig),
        "--to",
        str(kept),
        *(["--confirm"] * confirm),
        *options,
    ]
    return CliRunner().invoke(main, command)


def exported(kept: Path) -> dict[str, list[str]]:
    """Names of records by namespace."""
    return {
        folder.name: [
            one["metadata"]["name"] for file in sorted(folder.iterdir()) for one in records_in(file.read_bytes())
        ]
        for folder in sorted(kept.iterdir())
    }


def test_a_record_without_a_phase_is_not_finished(api, kubeconfig, kept) -> None:
    """The API server lists such a record: its phase is none of the unfinished ones."""
    api.add("red", "new", None)
    api.add("red", "with-an-empty-status", {})
    api.add("red", "ended", {"phase": "Succeeded"})
    done = export(kubeconfig, kept, "red")
    assert (done.exit_code, exported(kept)) == (0, {"red": ["ended"]}), done.output


@pytest.mark.parametrize(
    "content",
    [
        '{"export":' + "[" * 100_000,
        Header("strange", time="", own=("0000000001.jsonl", "")).text + "\n",  # it follows itself
    ],
    ids=["nested", "its own successor"],
)
def test_no_file_of_a_stranger_ends_the_export_of_all(content: str, api, kubeconfig, kept) -> None:
    for namespace in ("red", "strange"):
        api.add(namespace, "ended", {"phase": "Succeeded"})
    (kept / "strange").mkdir()
    (kept / "strange" / "0000000001.jsonl").write_text(content)
    export(kubeconfig, kept, "strange", "red", confirm=False)
    assert [one["metadata"]["name"] for one in records_in((kept / "red" / "0000000001.jsonl").read_bytes())] == [
        "ended"
    ]


def test_a_namespace_that_can_not_be_exported_keeps_no_other_from_its_export(api, kubeconfig, kept) -> None:
    api.executions["gone"] = 403
    for namespace in ("blue", "red", "strange"):
        api.add(namespace, "ended", {"phase": "Succeeded"})
    (kept / "strange").mkdir()
    (kept / "strange" / "9999999999.jsonl").write_text("of somebody else")
    done = export(kubeconfig, kept, "gone", "blue", "strange", "red")
    assert done.exit_code == 1
    assert exported(kept) == {"blue": ["ended"], "red": ["ended"], "strange": []}
    assert set(api.confirmed) == {"blue", "red"}
    told = dict(line.split(": ", 1) for line in done.stderr.splitlines())
    assert list(told) == ["gone", "blue", "strange", "red", "Error"]
    assert "403 not this one" in told["gone"]
    assert "no file can follow 9999999999.jsonl" in told["strange"]
    assert told["blue"].startswith("1 record and 0 audit lines in 1 new file")
    assert told["Error"] == "2 of 4 namespaces could not be exported: gone, strange"


def test_an_unexpected_error_ends_the_export(api, kubeconfig, kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    api.add("blue", "ended", {"phase": "Succeeded"})
    monkeypatch.setattr(Export, "add", broken)
    done = export(kubeconfig, kept, "blue", "red")
    assert isinstance(done.exception, ZeroDivisionError)
    assert done.stderr == ""
