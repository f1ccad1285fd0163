"""`codeexec audit verify --from-cluster`: which logs are read, in which order, and what is made of them.

The API server is played here; `tests/api/test_operator_log.py` asks the real one.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from audit_world import recomputed
from click.testing import CliRunner, Result
from played_api_server import PlayedApiServer

from executor_client.cli import main, operator_log
from executor_client.cli.operator_log import ContainerLog
from executor_client.client.request import Request
from executor_client.model.blocks import PreparedBlock
from executor_client.testing import FakeCluster, FakeOutcome

EXECUTIONS = 8
Text = str | int | Callable[[], str]
"""The log of a container, the status that the answer has in its place, or what makes it."""


class ApiServer(PlayedApiServer):
    """Knows pods of the operator, oldest last, and what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, dict[str, Any]] = {}
        self.logs: dict[tuple[str, bool], Text] = {}
        self.asked: list[tuple[str, bool]] = []
        self.may_list = True

    def add(self, name: str, log: Text, created: str, previous: Text | None = None) -> None:
        status = {"name": "operator", "restartCount": int(previous is not None), "ready": True, "image": "x"}
        status |= {"imageID": "x"}
        self.pods[name] = {
            "metadata": {"name": name, "creationTimestamp": created},
            "status": {"containerStatuses": [status]},
        }
        self.logs[name, False] = log
        if previous is not None:
            self.logs[name, True] = previous

    def answer(self, path: str, query: Mapping[str, str], body: Any) -> tuple[int, str]:
        pods = "/api/v1/namespaces/codeexec-system/pods"
        if path == pods:
            labels = "app.kubernetes.io/part-of=codeexec,app.kubernetes.io/component=operator"
            assert query["labelSelector"] == labels
            if not self.may_list:
                return 403, json.dumps({"kind": "Status", "code": 403, "message": "pods is forbidden"})
            return 200, json.dumps({"kind": "PodList", "apiVersion": "v1", "items": list(self.pods.values())})
        if not (found := re.fullmatch(f"{pods}/([^/]+)/log", path)):
            return 200, json.dumps({"kind": "PodList", "apiVersion": "v1", "items": []})
        which = (found[1], query.get("previous") == "true")
        assert query["container"] == "operator"
        self.asked.append(which)
        text = self.logs.get(which, 400)
        if text == 204:
            return text, ""
        if isinstance(text, int):
            return text, json.dumps({"kind": "Status", "code": text, "message": "not this one"})
        return 200, text() if callable(text) else text


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as one:
        yield one


@pytest.fixture
def kubeconfig(api: ApiServer, tmp_path: Path) -> Path:
    return api.kubeconfig(tmp_path)


@pytest.fixture
def fake() -> FakeCluster:
    """A few executions, and their lines."""
    fake = FakeCluster(run=lambda block: FakeOutcome())

    async def work() -> None:
        for _ in range(EXECUTIONS):
            await fake.client().execute([PreparedBlock("python", b"1")], Request(agent="me"))

    asyncio.run(work())
    assert len(fake.audit_log) > 20
    return fake


@pytest.fixture
def verify(fake: FakeCluster, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setattr(operator_log, "_SETTLE_SECONDS", 0.0)

    def call(*arguments: str) -> Result:
        command = ["audit", "verify", "--kubeconfig", str(kubeconfig), *arguments]
        return CliRunner().invoke(main, command, obj=lambda ref: fake.client())

    return call


def text_of(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in ['{"message": "a line of somebody else"}', *lines])


def test_the_logs_of_all_pods_are_read_oldest_first_and_what_was_before_a_restart(fake, api, verify) -> None:
    lines = fake.audit_log
    api.add("operator-new", text_of(lines[20:]), "2026-01-02T00:00:00Z", previous=text_of(lines[10:20]))
    api.add("operator-old", text_of(lines[:10]), "2026-01-01T00:00:00Z")
    done = verify("--from-cluster", "--complete")
    assert done.exit_code == 0, done.output
    assert f"{EXECUTIONS} records agree with the log" in done.stdout
    assert done.stdout.splitlines()[-1] == "ok: 0 findings"
    assert done.stderr == "codeexec: reading the operator's log in namespace 'codeexec-system'\n"
    once = [("operator-old", False), ("operator-new", True), ("operator-new", False)]
    assert api.asked == once * 2, "before the records, and after them"


def test_what_was_done_to_a_log_is_found_and_said_where(fake, api, verify) -> None:
    lines = fake.audit_log
    del lines[5]
    api.add("operator-1", text_of(lines), "2026-01-01T00:00:00Z")
    done = verify("--from-cluster", "-o", "json")
    found = json.loads(done.stdout)
    assert (done.exit_code, [one["kind"] for one in found["findings"]]) == (1, ["Missing"])
    assert found["findings"][0]["where"] == "operator-1:7"


def test_lines_that_come_while_it_reads_are_no_trouble(fake, api, verify) -> None:
    """The control is that of a log that was read once."""
    lines = fake.audit_log
    answers = iter([text_of(lines[:-4]), text_of(lines)])
    api.add("operator-1", lambda: next(answers), "2026-01-01T00:00:00Z")
    done = verify("--from-cluster", "--complete")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "ok: 0 findings"), done.output
    api.logs["operator-1", False] = text_of(lines[:-4])
    assert verify("--from-cluster", "--complete").exit_code == 1, "control"


def test_a_status_that_is_just_being_written_is_looked_at_again(fake, api, verify) -> None:
    lines = fake.audit_log
    store, [newest] = fake._simulation.state.executions, [one for one in fake.executions if one.status.audit][-1:]
    older = newest.model_copy(update={"status": newest.status.model_copy(update={"audit": None})})
    reads = []

    def log() -> str:
        reads.append(len(reads))
        store.put(older if len(reads) < 3 else newest)
        return text_of(lines)

    api.add("operator-1", log, "2026-01-01T00:00:00Z")
    done = verify("--from-cluster", "--complete")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "ok: 0 findings"), done.output
    assert len(reads) == 4
    store.put(older)
    api.logs["operator-1", False] = text_of(lines)
    assert verify("--from-cluster").exit_code == 1, "control: what stays is found"


def test_lines_that_the_node_rotates_away_between_two_reads_are_not_missing(fake, api, verify) -> None:
    lines = fake.audit_log
    whole, rest = text_of(lines[:7]), text_of(lines[10:])
    answers = iter([whole, rest, rest, rest])
    api.add("operator-1", lambda: next(answers), "2026-01-01T00:00:00Z")
    done = verify("--from-cluster")
    assert done.exit_code == 0, done.output
    assert "lines 1 to 10 of chain" in done.stdout, "a note says what the node has not kept"
    assert next(answers, None) is None
    answers = iter([whole, rest] * 3)
    assert verify("--from-cluster").exit_code == 1, "control: a gap in each attempt is found"
    assert next(answers, None) is None


def test_logs_that_were_kept_are_checked_together_with_it(fake, api, verify, tmp_path: Path) -> None:
    lines, kept = fake.audit_log, tmp_path / "kept.log"
    api.add("operator-1", text_of(lines[10:]), "2026-01-01T00:00:00Z")
    kept.write_text(text_of(lines[:12]))
    assert verify("--from-cluster", "--complete", str(kept)).exit_code == 0
    alone = verify("--from-cluster", "--complete")
    assert alone.exit_code == 1, "control"
    assert "are not in the" in alone.stdout


def test_a_container_that_has_no_log_is_left_out(fake, api, verify) -> None:
    api.add("operator-1", text_of(fake.audit_log), "2026-01-01T00:00:00Z", previous=400)
    api.add("operator-2", 400, "2026-01-02T00:00:00Z")
    api.add("operator-3", 404, "2026-01-03T00:00:00Z")
    api.add("operator-4", 204, "2026-01-04T00:00:00Z")
    assert verify("--from-cluster", "--complete").exit_code == 0


NEEDS = "it needs `list` on pods and `get` on pods/log there. Ask the platform owner, or pass log files"


def test_what_this_identity_may_not_do_is_said(api, verify) -> None:
    api.add("operator-1", 403, "2026-01-01T00:00:00Z")
    done = verify("--from-cluster")
    assert done.exit_code == 1
    assert "this identity may not get pods/log in namespace 'codeexec-system'" in done.stderr
    assert NEEDS in done.stderr
    api.may_list = False
    done = verify("--from-cluster")
    assert done.exit_code == 1
    assert "this identity may not list pods in namespace 'codeexec-system'" in done.stderr
    assert NEEDS in done.stderr


def test_other_trouble_is_one_message(api, verify) -> None:
    api.add("operator-1", 500, "2026-01-01T00:00:00Z")
    done = verify("--from-cluster")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        "Error: could not read the operator's log in namespace 'codeexec-system': 500 not this one"
    )


def test_where_no_operator_is_the_namespace_is_asked_for(verify) -> None:
    done = verify("--from-cluster", "--operator-namespace", "elsewhere")
    assert done.exit_code == 1
    assert "found no operator pod in namespace 'elsewhere'; pass the operator's namespace" in done.stderr


def test_without_a_log_it_says_where_there_is_one(verify, tmp_path: Path) -> None:
    done = verify()
    assert done.exit_code == 2
    assert (
        "Use --from-cluster to read the operator's log from the cluster, or give log files (- is stdin)" in done.stderr
    )
    done = verify("--from-cluster", "--no-cluster")
    assert done.exit_code == 2


def test_a_log_that_was_rotated_meanwhile_is_taken_whole() -> None:
    line = '{"audit": {}}'
    before, after = ContainerLog("one", ("x", line, line)), ContainerLog("one", (line,))
    assert [one.where for one in after.added_to([before])] == ["one, rotated:1"]
    longer = ContainerLog("one", (*before.text, "y", line))
    assert [one.where for one in longer.added_to([ContainerLog("other", ()), before])] == ["one:5"]
    assert [one.where for one in longer.added_to([])] == ["one:2", "one:3", "one:5"]


def test_checkpoints_are_made_of_the_cluster_s_log_and_compared_with_it(
    fake, api, verify, kubeconfig, tmp_path
) -> None:
    api.add("operator-1", text_of(fake.audit_log), "2026-01-01T00:00:00Z")
    key, place = tmp_path / "key", tmp_path / "kept"
    place.mkdir()
    public = CliRunner().invoke(main, ["audit", "keygen", "prod", str(key)]).stdout
    command = ["audit", "checkpoint", "--to", str(place), "--signing-key", str(key), "--kubeconfig", str(kubeconfig)]
    done = CliRunner().invoke(main, command, obj=lambda ref: fake.client())
    assert (done.exit_code, done.stdout) == (0, f"signed 0000000001.checkpoint: 1 chain, at {place}\n"), done.output
    options = ["--from-cluster", "--checkpoint", str(place), "--key", public]
    assert verify(*options).exit_code == 0
    forged, _ = recomputed(fake.audit_log, lambda body: body.update(operator="9.9.9"))
    api.logs["operator-1", False] = text_of([*forged])
    assert "Rewritten" not in verify("--from-cluster").stdout, "control"
    assert "Rewritten" in verify(*options).stdout
    assert CliRunner().invoke(main, command, obj=lambda ref: fake.client()).exit_code == 1
    api.may_list = False
    assert "this identity may not list pods" in CliRunner().invoke(main, command, obj=lambda ref: fake.client()).stderr
