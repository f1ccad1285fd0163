"""A fake cluster that plays the first page."""

import pytest
from first_page import scripted

from codeexec.testing import FakeCluster


@pytest.fixture
def fake() -> FakeCluster:
    return FakeCluster(run=scripted)
