"""The order of the end-to-end tests, and no pods that start beside theirs; their fixtures are in `support`."""

import os
from pathlib import Path

import pytest
from cluster_tools import Admin

_POOLS = pytest.StashKey[list[tuple[str, int]]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First the look at the log of an operator that no test has restarted yet. Last but one the comparison of rights
    with calls, so that all other tests have made theirs; last the tests of the installation, which take away the
    operator and the accounts that others use."""
    places = {"test_unexpected.py": -1, "test_rbac.py": 1, "test_install.py": 2}
    items.sort(key=lambda item: places.get(item.path.name, 0))


def pytest_sessionstart(session: pytest.Session) -> None:
    """The default pools are empty meanwhile: the node starts a few pods at a time only."""
    if hasattr(session.config, "workerinput") or session.config.option.collectonly or not _kubeconfig():
        return
    admin = Admin(_kubeconfig())
    pools = [one for one in admin.list("sandboxpool", None) if one["metadata"]["name"] == "default"]
    session.config.stash[_POOLS] = [(one["metadata"]["namespace"], one["spec"]["replicas"]) for one in pools]
    for namespace, _ in session.config.stash[_POOLS]:
        _scale(admin, namespace, 0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    for namespace, replicas in session.config.stash.get(_POOLS, []):
        _scale(Admin(_kubeconfig()), namespace, replicas)


def _kubeconfig() -> str:
    """Where there is none, the fixture of this name says so."""
    path = os.environ.get("KUBECONFIG", "")
    return path if Path(path).is_file() else ""


def _scale(admin: Admin, namespace: str, replicas: int) -> None:
    if admin.exists("sandboxpool", "default", namespace):  # tests of the installation take pools away
        admin.patch("sandboxpool", "default", {"spec": {"replicas": replicas}}, namespace, subresource="scale")
