"""Runs checkov on folders of manifests; started with the scanner's own Python, which doesn't have our packages.

usage: checkov_report.py FOLDER...

Prints one JSON object: for each folder its `passed` and `failed` checks, as lists of {"check", "title", "resource"},
and `unread`, the files that checkov could not parse. Each folder is scanned by itself: checkov looks for the
NetworkPolicies and Roles beside a pod, and must not take those of another installation for them. Checkov's command line
is not used: it takes seconds a call, and asks the network for updates and guidelines. What is called here reads files.
"""

import json
import sys
from collections.abc import Iterable
from typing import Any

from checkov.common.output.record import Record
from checkov.kubernetes.runner import Runner
from checkov.runner_filter import RunnerFilter


def records(checks: Iterable[Record]) -> list[dict[str, str]]:
    return [{"check": one.check_id, "title": one.check_name, "resource": one.resource} for one in checks]


def scan(folder: str) -> dict[str, Any]:
    report = Runner().run(root_folder=folder, runner_filter=RunnerFilter(framework=["kubernetes"]))
    return {
        "passed": records(report.passed_checks),
        "failed": records(report.failed_checks),
        "unread": report.parsing_errors,
    }


if __name__ == "__main__":
    json.dump({folder: scan(folder) for folder in sys.argv[1:]}, sys.stdout)
