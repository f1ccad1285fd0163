"""A control pod waits inside of itself: one exec, however often it looks, and a wait in vain says what was awaited."""

import subprocess
import sys

import pytest
from cluster_fixtures import ControlPod


class Here(ControlPod):
    """This machine in place of a pod."""

    def __init__(self) -> None:
        self.execs = 0

    def __call__(self, code: str) -> str:
        self.execs += 1
        command = [sys.executable, "-I", "-"]
        return subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout


LOOKS = """
looks = []
def look():
    looks.append("looked")
    return looks if len(looks) > 2 else []
"""


def test_it_looks_again_until_there_is_something() -> None:
    pod = Here()
    assert pod.wait_for("three looks", "look()", LOOKS, every=0) == ["looked"] * 3
    assert pod.execs == 1


def test_a_wait_in_vain_says_what_was_awaited() -> None:
    pod = Here()
    with pytest.raises(AssertionError, match=r"waited 0\.2 s in vain for a miracle"):
        pod.wait_for("a miracle", "None", seconds=0.2)
    assert pod.execs == 1
