"""The order of the end-to-end tests; their fixtures are in `cluster_fixtures.py`."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Last but one the comparison of rights with calls, so that all other tests have made theirs; last the tests of the
    installation, which take away the operator and the accounts that others use."""
    last = ("test_rbac.py", "test_install.py")
    items.sort(key=lambda item: last.index(item.path.name) if item.path.name in last else -1)
