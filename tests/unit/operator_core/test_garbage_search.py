"""Python's search for garbage stops the operator's thread: it leaves out what lasts as long as the process."""

import os
import subprocess
import sys

PROGRAM = """
import gc, kopf
kopf.run = lambda **_: print(gc.get_freeze_count(), len(gc.get_objects()))
from codeexec_operator.process import main
main()
"""
NAMES = ("CONFIG_MAP", "SEALING_SECRET", "CANARY_SERVICE", "LEADER_LEASE")


def test_a_search_for_garbage_leaves_out_what_the_imports_made() -> None:
    settings = {f"CODEEXEC_{name}": "codeexec-system/one" for name in NAMES}
    told = subprocess.check_output([sys.executable, "-c", PROGRAM], env=os.environ | settings, text=True)
    frozen, searched = map(int, told.split())
    assert frozen > 20 * searched
