"""The example of the local sandbox runs as it is written."""

import os
import subprocess
import sys

import pytest
from cluster_tools import ROOT

from .conftest import SIGNS_OF_PRODUCTION


@pytest.mark.usefixtures("landlock")
def test_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "07-local-sandbox" / "main.py")],
        env={name: value for name, value in os.environ.items() if name not in SIGNS_OF_PRODUCTION},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "read the key\nsent it away\n" in done.stdout
    assert done.stdout.endswith("OK: the key stayed where it was, and the thief heard nothing\n")
    assert "Warning" not in done.stderr
