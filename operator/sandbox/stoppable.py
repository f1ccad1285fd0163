"""Keeps a process that was stopped from waking itself. Standard library only.

SIGCONT lets a process go on, and a process can arrange for the system to send it one later: by a timer, or with a
message of a queue. Other ways are closed elsewhere. The signal of a descriptor's owner is refused to all code in
`confinement.py`. The end of another process may send it, so `processes.py` waits until all others have ended. The
hang-up of a terminal may send it, so that keeps nobody who has one.
"""

import os

from confinement import Filter, no_new_privileges
from syscall_filter import refusing


def stay_stopped():
    """Refuse both calls to this process and all that it starts, as a kernel without them does. Can't be undone.

    Calls of other architectures are refused by the filter of `confinement.py`.

    Raises:
        OSError: that could not be done; no user code may run then.
    """
    no_new_privileges()
    Filter(refusing(os.uname().machine, ("timer_create", "mq_notify"))).install()
