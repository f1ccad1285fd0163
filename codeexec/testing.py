r"""For tests of what uses codeexec: a cluster in memory, which runs no code.

    import codeexec
    from codeexec.testing import FakeCluster, FakeOutcome

    fake = FakeCluster()
    fake.answers({"print(1)": FakeOutcome(stdout="1\n")})
    async with codeexec.Client(agent="tester", backend=fake.client()) as client:
        assert (await client.run("print(1)")).stdout == "1\n"

See docs/testing.md.
"""

from executor_client.testing import FAKE_IMAGE, FakeBlock, FakeCluster, FakeOutcome

__all__ = ["FAKE_IMAGE", "FakeBlock", "FakeCluster", "FakeOutcome"]
