"""An independent scanner has no objection, neither to the rendered chart nor to pods that run (`make scan`)."""

import json
import subprocess
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart.helm import CI_VALUES, manifest
from cluster_tools import ROOT, SANDBOX, SYSTEM, Admin, a_name

SCANNER = ROOT / ".codeexec" / "scan" / "bin" / "python"
EXCEPTIONS = yaml.safe_load((Path(__file__).parent / "exceptions.yaml").read_text())
SANDBOX_POD, OPERATOR_POD = "a live sandbox pod", "the live operator pod"
CHARTS = [f"chart with {path.name}" for path in CI_VALUES]
CONTROL = "control: a weak pod"
TARGETS = [*CHARTS, SANDBOX_POD, OPERATOR_POD]

WEAK_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "weak", "namespace": "weak"},
    "spec": {
        "hostNetwork": True,
        "hostPID": True,
        "containers": [{"name": "main", "image": "python:latest", "securityContext": {"privileged": True}}],
    },
}
WEAKNESSES = {
    "CKV_K8S_11": "no CPU limit",
    "CKV_K8S_13": "no memory limit",
    "CKV_K8S_16": "privileged",
    "CKV_K8S_17": "host PID",
    "CKV_K8S_19": "host network",
    "CKV_K8S_20": "privilege escalation",
    "CKV_K8S_22": "writable root",
    "CKV_K8S_23": "root",
    "CKV_K8S_31": "no seccomp profile",
    "CKV_K8S_37": "capabilities",
    "CKV_K8S_38": "token",
    "CKV_K8S_43": "no digest",
    "CKV2_K8S_6": "no NetworkPolicy",
}

Report = Mapping[str, Any]


def excepted(finding: Mapping[str, str], exception: Mapping[str, str]) -> bool:
    return finding["check"] == exception["check"] and fnmatchcase(finding["resource"], exception["resource"])


def unexcused(report: Report) -> list[str]:
    return [
        f"{one['check']} {one['resource']}: {one['title']}"
        for one in report["failed"]
        if not any(excepted(one, exception) for exception in EXCEPTIONS)
    ]


def print_table(by_target: Mapping[str, Report], terminal: pytest.TerminalReporter) -> None:
    terminal.ensure_newline()
    terminal.write_line(f"{'scanned':45}{'passed':>8}{'excepted':>10}{'failed':>8}")
    for target, report in by_target.items():
        failed = len(unexcused(report))
        passed, exceptions = len(report["passed"]), len(report["failed"]) - failed
        terminal.write_line(f"{target:45}{passed:8}{exceptions:10}{failed:8}")


@pytest.fixture(scope="session")
def live_sandbox_pod(admin: Admin) -> dict[str, Any]:
    """The pod of an execution, as it was while the code was running."""
    name = a_name("scan")
    admin.submit(name, "import time; time.sleep(60)", timeoutSeconds=60, limits={"cpu": "100m", "memory": "64Mi"})
    try:
        return admin.pod(SANDBOX, admin.wait_for_phase(name, "Running")["status"]["podName"])
    finally:
        admin.patch("codeexecution", name, {"spec": {"cancelled": True}})


@pytest.fixture(scope="session")
def reports(admin: Admin, live_sandbox_pod, tmp_path_factory, request: pytest.FixtureRequest) -> dict[str, Report]:
    """What the scanner says of each target, each in a folder of its own. Prints the table."""

    def objects(kind: str, namespace: str, labels: str = "") -> str:
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": admin.list(kind, namespace, labels=labels)})

    operator = objects("pod", SYSTEM, "app.kubernetes.io/component=operator")
    targets = {
        **{target: [manifest(values=path)] for target, path in zip(CHARTS, CI_VALUES, strict=True)},
        SANDBOX_POD: [json.dumps(live_sandbox_pod), objects("networkpolicy", SANDBOX)],
        OPERATOR_POD: [operator, objects("networkpolicy", SYSTEM)],
        CONTROL: [json.dumps(WEAK_POD)],
    }
    folders = {}
    for target, texts in targets.items():
        folders[target] = tmp_path_factory.mktemp("target")
        for index, text in enumerate(texts):
            (folders[target] / f"{index}.{'json' if text.startswith('{') else 'yaml'}").write_text(text)
    command = [SCANNER, Path(__file__).parent / "checkov_report.py", *folders.values()]
    # Nothing of the caller's environment: a key for the vendor's service would make the scanner talk to it.
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    by_target = {target: found[str(folder)] for target, folder in folders.items()}

    plugins = request.config.pluginmanager
    with plugins.get_plugin("capturemanager").global_and_fixture_disabled():
        print_table(by_target, plugins.get_plugin("terminalreporter"))
    return by_target


def test_the_scanner_finds_the_weaknesses_of_a_weak_pod(reports) -> None:
    """The positive control: the same scanner, in the same run, fails what is wrong."""
    found = {one["check"] for one in reports[CONTROL]["failed"]}
    assert not {check: weakness for check, weakness in WEAKNESSES.items() if check not in found}


@pytest.mark.parametrize("target", TARGETS)
def test_no_check_fails_without_a_reason(reports, target: str) -> None:
    assert unexcused(reports[target]) == []


@pytest.mark.parametrize("target", TARGETS)
def test_the_scanner_has_read_what_it_should(reports, target: str) -> None:
    """Nothing failed because nothing was looked at? Each check of the control was carried out here, too."""
    report = reports[target]
    checked = {one["check"] for one in (*report["passed"], *report["failed"])}
    assert not report["unread"]
    assert checked >= set(WEAKNESSES)


def test_the_pod_that_runs_code_was_looked_at(reports, live_sandbox_pod) -> None:
    resource = f"Pod.{SANDBOX}.{live_sandbox_pod['metadata']['name']}"
    passed = {one["check"] for one in reports[SANDBOX_POD]["passed"] if one["resource"] == resource}
    assert passed >= set(WEAKNESSES)


@pytest.mark.parametrize("exception", EXCEPTIONS, ids=lambda one: f"{one['check']} {one['resource']}")
def test_each_exception_is_needed(reports, exception: Mapping[str, str]) -> None:
    assert exception["reason"]
    assert any(excepted(one, exception) for target in TARGETS for one in reports[target]["failed"])
