r"""For tests of what uses codeexec: a cluster in memory, which runs no code.

    from executor_client.testing import FakeCluster, FakeOutcome

    fake = FakeCluster()
    fake.answers({"print(1)": FakeOutcome(stdout="1\n")})
    client = fake.client()

Records, policy, phases, sessions, files, limits and errors are as on a cluster; what the code does is what the test
says. See docs/testing.md.
"""

from executor_client.testing.cluster import FakeCluster
from executor_client.testing.outcomes import FakeBlock, FakeOutcome
from executor_client.testing.records import FAKE_IMAGE

__all__ = ["FAKE_IMAGE", "FakeBlock", "FakeCluster", "FakeOutcome"]
