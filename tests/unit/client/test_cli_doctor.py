"""What `codeexec doctor` makes of what it sees."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from factories import NOW, an_execution

from codeexec_api import EgressVerdict, Phase
from executor_client.cli import main
from executor_client.cli.diagnosis import (
    KINDS,
    LIVE_OUTPUT,
    RIGHTS,
    Outcome,
    failed,
    judge_clock,
    judge_kinds,
    judge_probe,
    judge_rights,
    judge_runtime_class,
    judge_versions,
)

TARGET = {"name": "api-server", "address": "10.96.0.1", "port": 443, "protocol": "TCP", "reachable": True}


def proof(verdict: EgressVerdict, *, refused: bool | None = True) -> dict:
    return {"verdict": verdict.value, "checkedAt": NOW, "targets": [{**TARGET, "refused": refused}]}


def outcomes(findings) -> dict[str, str]:
    return {finding.check: finding.outcome.value for finding in findings}


@pytest.mark.parametrize("missing", KINDS)
def test_each_kind_of_this_client_has_to_be_there(missing) -> None:
    assert judge_kinds([*KINDS, "ExecutionPolicy"]).outcome is Outcome.OK
    finding = judge_kinds([kind for kind in KINDS if kind != missing])
    assert finding.outcome is Outcome.FAILED
    assert missing in finding.found
    assert "Helm" in finding.advice


@pytest.mark.parametrize("right", RIGHTS, ids=str)
def test_each_right_is_missed(right) -> None:
    assert judge_rights(dict.fromkeys(RIGHTS, True), "here").outcome is Outcome.OK
    finding = judge_rights({**dict.fromkeys(RIGHTS, True), right: False}, "here")
    assert finding.outcome is (Outcome.WARNING if right == LIVE_OUTPUT else Outcome.FAILED)
    assert str(right) in finding.found
    assert "codeexec-agent" in finding.advice


@pytest.mark.parametrize(("exists", "outcome"), [(True, Outcome.OK), (False, Outcome.FAILED), (None, Outcome.UNKNOWN)])
def test_runtime_class(exists, outcome) -> None:
    assert judge_runtime_class("gvisor", exists).outcome is outcome


@pytest.mark.parametrize(
    ("ahead", "found"),
    [(0, "agree"), (9, "agree"), (-9, "agree"), (60, "58 s ahead of"), (-60, "59 s behind")],
)
def test_clock(ahead, found) -> None:
    local = NOW + timedelta(seconds=ahead)
    finding = judge_clock(NOW, local - timedelta(seconds=1), local + timedelta(seconds=1))
    assert found in finding.found
    assert finding.outcome is (Outcome.OK if found == "agree" else Outcome.WARNING)


def test_clock_of_a_server_that_does_not_say() -> None:
    assert judge_clock(None, NOW, NOW).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("client", "operator", "outcome"),
    [
        ("0.2.0", "0.2.0", Outcome.OK),
        ("0.2.1", "0.2.0", Outcome.OK),
        ("0.3.0", "0.2.0", Outcome.WARNING),
        ("0.2.0", "1.2.0", Outcome.WARNING),
        ("0.2.0", "", Outcome.UNKNOWN),
    ],
)
def test_versions(client, operator, outcome) -> None:
    assert judge_versions(client, operator).outcome is outcome


def test_good_probe() -> None:
    execution = an_execution(
        phase=Phase.SUCCEEDED,
        status={"egress_proof": proof(EgressVerdict.CLOSED), "layers": ("Seccomp",), "operator_version": "1.0.0"},
    )
    findings = judge_probe(execution, "1.0.0")
    assert outcomes(findings) == {"execution": "ok", "network": "ok", "isolation": "ok", "versions": "ok"}
    assert not failed(findings)


@pytest.mark.parametrize(
    ("phase", "egress_proof", "expected"),
    [
        (Phase.DENIED, proof(EgressVerdict.OPEN, refused=False), {"execution": "failed", "network": "failed"}),
        (Phase.DENIED, None, {"execution": "failed"}),
        (Phase.FAILED, None, {"execution": "failed"}),
        (Phase.SUCCEEDED, proof(EgressVerdict.OPEN, refused=False), {"execution": "ok", "network": "failed"}),
        (Phase.SUCCEEDED, proof(EgressVerdict.UNPROVEN), {"execution": "ok", "network": "warning"}),
        (Phase.SUCCEEDED, None, {"execution": "ok", "network": "unknown"}),
    ],
)
def test_probe_with_trouble(phase, egress_proof, expected) -> None:
    status = {"egress_proof": egress_proof, "reason": "QuotaExceeded", "message": "exceeded quota: ask for more"}
    found = judge_probe(an_execution(phase=phase, status=status), "1.0.0")
    assert expected.items() <= outcomes(found).items()
    assert failed(found) == ("failed" in expected.values())
    if phase is not Phase.SUCCEEDED:
        assert "QuotaExceeded: exceeded quota: ask for more" in found[0].found


@pytest.fixture(params=["<html>Log in</html>", "{}"])
def another_server(request) -> Iterator[str]:
    """The URL of a server that answers each request with the same text."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if request.param == "{}" else "text/html")
            self.end_headers()
            self.wfile.write(request.param.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_where_the_server_is_not_kubernetes_doctor_says_so_and_fails(tmp_path, another_server) -> None:
    test_without_a_cluster_doctor_says_so_and_fails(tmp_path, another_server)


@pytest.mark.parametrize("content", ["a: [", "clusters: []", "http://127.0.0.1:1"])
def test_without_a_cluster_doctor_says_so_and_fails(tmp_path, content) -> None:
    path = tmp_path / "kubeconfig"
    if content.startswith("http"):
        content = yaml.safe_dump(
            {
                "clusters": [{"name": "it", "cluster": {"server": content}}],
                "users": [{"name": "it", "user": {}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "current-context": "it",
            }
        )
    path.write_text(content)
    done = CliRunner().invoke(main, ["doctor", "--kubeconfig", str(path), "-o", "json"])
    assert done.exit_code == 1
    (finding,) = json.loads(done.stdout)
    assert (finding["check"], finding["outcome"]) == ("API server", "failed")
