"""`python -m codeexec_operator`. It can be stopped from its first moment.

The kernel drops a signal that process 1 of a container has no handler for, and until kopf has set its own, the imports
take a second or more. A replica that was stopped in that second would stay, and might lead, until Kubernetes kills it.
"""

import os
import signal

for _one in (signal.SIGINT, signal.SIGTERM):
    signal.signal(_one, lambda number, _: os._exit(128 + number))

from codeexec_operator.process import main  # noqa: E402 after the handlers

main()
