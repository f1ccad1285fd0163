"""PID 1 of every sandbox pod: runs jobs of code blocks and reports on stdout, one JSON object a line.

Started by the image with `python3 -I` on this folder; uses the standard library only. The operator attaches to the
container and talks to it over stdin and stdout; nothing else may be written to stdout. `start.py` comes first.

In:   each message has "epoch": [leader, connection]; after one of a higher epoch, those of lower epochs are refused
      {"report": true, "kernel": bool, "pids", "memoryBytes", "egress"?}
          asks for the first line below; kernel: start the IPython kernel first, within these limits (it starts with
          the first cell otherwise). While a job runs, it is answered at once, and nothing is started
      {"put": path, "data": base64, "append": bool, "mode"?}   a piece of a file, ahead of the job; append: of the one
          begun last. A path that ends with a slash is that of a folder
      {"id", "session": bool, "stateful": bool, "blocks": [{"path", "command": [...], "language", "code", "sha256"}],
       "timeoutSeconds", "outputBytes", "fetchBytes", "memoryBytes", "pids",
       "artifacts": {"list": "None"|"Changed"|"All", "fetch": [pattern...]}, "egress"?}   the job
          artifacts may be {"list": "Whole", "fetch": bool, "most": n}: all files and folders, at most n, or a fault
          egress: {"tcp": [port...], "udp": [port...]}, what is permitted; absent: no sockets, see `confinement.py`
          fetchBytes: how many bytes of files are sent, at most
      {"resume": id, "from": n}   asks for the frames of a job again, from number n on, and for those that follow
      {"ping": any}    is answered at once
      {"cancel": id}   ends the job with this id; {"cancel": true} whichever runs
      {"ack": id, "reuse": bool}   the frames of the job are safe; ends the runner after a job that is of no session,
          unless the pod is to be used again: see `reset.py`
Out:  {"ready": true, "layers": [...], "egress": [{"name", "address", "port", "protocol", "answered"}], "kernel": bool,
       "bootId", "userNamespace": bool, "job": id|null, "used": bool}
          what the pod sees of its isolation; job: the one that runs, or that was not acknowledged; used: any was begun,
          or a file was put
      {"resumed": id}                        the frames that were asked for follow
      {"resumed": id, "missing": "NeverBegun"|"Forgotten"|"Overflowed"}        or not, and why: the job was never begun
          here, another was begun since, or there were more than `frames.py` keeps
      {"refused": epoch}                     a message of an epoch before the one that counts
      {"repeated": id}                       a job that was begun before
      {"reset": id, "clean": bool, "checked": [row...], "found": {row: words}, "ms"}   after an ack with reuse: whether
          the pod is as it was before any code; rows of `first_day.py`. The runner ends if it is not clean
      {"pong": any}
      {"id", "seq", "stream": "stdout"|"stderr", "data" | "data64" | "gzip64"}    output as it comes;
          data64: base64 of the UTF-8; gzip64: base64 of that in one gzip member
      {"id", "seq", "block", "exitCode", "reason", "startedAt", "durationMs", "stdoutBytes", "stderrBytes"}
      {"id", "seq", "artifact": index, "path", "size", "sha256", "mode"?}      in order of path; sha256 may be null;
          mode: where the list is Whole. Then the path of a folder ends with a slash
      {"id", "seq", "file": index, "data64" | "gzip64"}                        a piece of the artifact before it
      {"id", "seq", "done": true, "stdout": {"bytes", "sha256", "truncated"}, "stderr": {...}, "artifactsOmitted"}
          sha256 is of the text sent; after a list that is Whole, "whole": true stands instead of artifactsOmitted
      {"id", "seq", "fault": {"reason": "FileRefused", "message"}}             instead of done: a file stood in the way
      {"id", "seq": -1, "error"}                                               the job could not be run

A job goes on when the connection ends. No job is begun twice.

The runner has to be PID 1 of its own PID namespace, because it ends a job by killing every other process that it sees.
"""

import os
import signal
import sys
import time

import isolation
import workspace
from channel import Input, Loop, send
from confinement import Confinement
from frames import Frames
from job import run_job
from kernel import START_SECONDS, Kernel
from processes import Children
from programs import ENVIRONMENT
from reset import Reset
from standby import Standby

ACK_SECONDS = 120


class Pod:
    """What all jobs share.

    Args:
        confinement: what code is put under for which nothing is permitted.
        report: what was found out about the pod.
    """

    def __init__(self, confinement, report):
        self.loop = Loop()
        self.commands = Input(self.loop)
        self.frames = Frames()
        self.children = Children(self.loop)
        self.confinement = confinement
        self.kernel = Kernel(self.loop, self.children, confinement, ENVIRONMENT)
        self.nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.standby = Standby(self.children, confinement, ENVIRONMENT, self.nothing)
        self.reset = Reset(self.children, self.nothing)
        self.used = False
        """Whether a file was put, or a job was begun: the pod is for nobody else."""
        self._report = report

    def confinement_for(self, egress):
        """What code is put under for which this is permitted."""
        return Confinement(egress) if egress else self.confinement

    def start_kernel(self, pids, file_bytes, stopped, seconds=START_SECONDS):
        """See to it that there is a kernel. Returns whether there is, and what a failed start has written.

        One that was stopped stays so: it goes on with its next cell only.
        """
        self.children.reap()
        if not self.kernel.gone:
            return True, ""
        if self.kernel.pids:
            self.kernel.drop()
        return self.kernel.start(pids, file_bytes, stopped, seconds)

    def get_ready(self, message):
        """Start what the next job will need, and report."""
        kernel = message.get("kernel", False) and "pids" in message
        if kernel:
            kernel = self.start_kernel(message["pids"], message["memoryBytes"], lambda: self.commands.cancels)[0]
        self._say_ready(message, kernel, None)
        if not self.used and not message.get("kernel") and not self.standby.waits:
            self.reset.remember()
        if "pids" in message and not message.get("kernel") and not message.get("egress"):
            self.standby.prepare(message["pids"], message["memoryBytes"])

    def answer(self, message):
        """Answer what can be answered while a job runs, or right after it. Returns whether it was that."""
        if "report" in message:
            self._say_ready(message, bool(self.kernel.pids) and not self.kernel.gone, self.frames.job)
        elif "resume" in message:
            self.frames.replay(message["resume"], message["from"])
        elif "ping" in message:
            send(pong=message["ping"])
        else:
            return False
        return True

    def _say_ready(self, message, kernel, job):
        egress = message.get("egress")
        layers = {"layers": self.confinement_for(egress).layers()} if egress else {}
        send(ready=True, **{**self._report, **layers}, kernel=kernel, job=job, used=self.used)


def serve(pod):
    """Do what the operator says, until a job of no session has been run or stdin ends. Returns whether any job came."""
    upload = workspace.Upload()
    while (message := pod.commands.next()) is not None:
        if "report" in message:
            upload.abandon()
            upload = workspace.Upload()  # whoever asks begins anew
            pod.get_ready(message)
        elif "put" in message:
            pod.used = True
            upload.put(message["put"], message["data"], message["append"], message.get("mode"))
        elif "blocks" in message:
            pod.used = True
            upload.finish()
            if run_job(message, upload.problem, pod) and not message["session"] and not _goes_on(message, pod):
                break
            upload = workspace.Upload()
            if not message["stateful"]:
                pod.standby.prepare(message["pids"], message["memoryBytes"])
        elif "ack" in message:
            pod.frames.forget()
        elif "garbled" in message:
            send(id=None, seq=-1, error="a line that is not a JSON object")
        else:
            pod.answer(message)
    return pod.frames.any_begun


def _goes_on(job, pod):
    """Whether another job may come, after the operator has the frames of this one.

    They are safe with an operator only once it says so; but no longer than ACK_SECONDS.
    """
    deadline = time.monotonic() + ACK_SECONDS
    while (message := pod.commands.next(deadline)) is not None and "ack" not in message:
        pod.answer(message)
    if not message or not message.get("reuse"):
        return False
    pod.frames.forget()
    return pod.reset.run(job["id"])


def prepare():
    """What code is put under for which nothing is permitted, and what the pod sees of its isolation.

    Raises:
        OSError: see `Confinement.layers`.
    """
    confinement = Confinement()
    return confinement, {"layers": confinement.layers(), **isolation.facts()}


def run(confinement, report):
    """Serve until the end."""
    # The kernel drops every signal that PID 1 has no handler for, so user code can't end the runner by one. The price:
    # the runner doesn't hear the kubelet's SIGTERM either, and a deleted pod ends by the SIGKILL after it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.chdir(workspace.WORKSPACE)
    if not serve(Pod(confinement, report)):
        sys.exit("runner: stdin ended before a job arrived")
