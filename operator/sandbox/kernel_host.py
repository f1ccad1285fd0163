"""Hands the cells of a stateful session to the IPython kernel. A program of its own, confined as user code is.

    kernel_host.py CONNECTION-FILE

For what comes on stdin and goes to stdout see `kernel.py`. The kernel itself writes what cells print.
"""

import json
import os
import socket
import sys

from jupyter_client import BlockingKernelClient

LONGEST_ORDER = 4096


class Host:
    """One kernel, which is starting or runs."""

    def __init__(self, connection):
        self._client = BlockingKernelClient(connection_file=connection)
        self._client.load_connection_file()
        self._client.start_channels(iopub=False, stdin=False, hb=False, control=False)

    def wait_until_ready(self):
        """Until the kernel answers."""
        self._reply_to(self._client.kernel_info())

    def run(self, source):
        """Run the code that a descriptor holds as a cell; returns the exit code that the kernel tells, else 1."""
        with open(source, encoding="utf-8", newline="") as file:
            code = file.read()
        content = self._reply_to(self._client.execute(code, allow_stdin=False, stop_on_error=False))
        told = content.get("exitCode")
        return told if type(told) is int and 0 <= told <= 255 else 1

    def _reply_to(self, request):
        while True:
            message = self._client.get_shell_msg()
            if message["parent_header"].get("msg_id") == request:
                return message["content"]


def main():
    """Serve until stdin, a socket, ends. Nothing else may be written to stdout."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    host = Host(sys.argv[1])
    host.wait_until_ready()
    print(json.dumps({"ready": True}), file=answers)
    with socket.socket(fileno=0) as orders:
        while True:
            order, sources, *_ = socket.recv_fds(orders, LONGEST_ORDER, 1)
            if not order:
                return
            print(json.dumps({"cell": json.loads(order)["cell"], "exitCode": host.run(sources[0])}), file=answers)


main()
