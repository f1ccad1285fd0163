"""How the runner starts: its memory is closed to others, then the network is shown to be closed. Standard library only.

The rest is loaded while targets have time to answer, so this module and what it imports are all that comes before.

Environment: CODEEXEC_EGRESS_TARGETS, JSON: what must not answer, see `egress.py`. Code can't read it here.
"""

import ctypes
import json
import os
import sys

from egress import prove_closed

EGRESS_SECONDS = 10
PR_SET_DUMPABLE = 4


def main():
    """Prove that the network is closed, then serve."""
    if os.getpid() != 1:
        sys.exit("runner: must be PID 1 of a container, because it kills every process that it can see")
    # Not dumpable: code of the same user can't read this process's memory or open its descriptors.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.exit(f"runner: prctl(PR_SET_DUMPABLE): {os.strerror(ctypes.get_errno())}")
    targets = json.loads(os.environ.get("CODEEXEC_EGRESS_TARGETS", "[]"))
    loaded = []
    answered = prove_closed(targets, EGRESS_SECONDS, lambda: loaded.append(_load()))
    [(runner, confinement, seen)] = loaded
    egress = [{**target, "answered": one} for target, one in zip(targets, answered, strict=True)]
    runner.run(confinement, {**seen, "egress": egress})


def _load():
    """The rest, which takes longer to load than all before."""
    import runner

    return runner, *runner.prepare()
