"""PID 1 of every sandbox pod: runs jobs of code blocks and reports on stdout, one JSON object a line.

Started by the image with `python3 -I` on this folder; uses the standard library only. The operator attaches to the
container and talks to it over stdin and stdout; nothing else may be written to stdout.

Environment: CODEEXEC_EGRESS_TARGETS, JSON: what must not answer, see `egress.py`. Code can't read it here.

In:   {"report": true, "kernel": bool, "pids", "memoryBytes", "egress"?}
          asks for the first line below, between jobs; kernel: start the IPython kernel first, within these limits
          (it starts with the first cell otherwise)
      {"put": path, "data": base64, "append": bool}   a piece of a file, ahead of the job; append: of the one begun last
      {"id", "session": bool, "stateful": bool, "blocks": [{"path", "command": [...], "language", "code", "sha256"}],
       "timeoutSeconds", "outputBytes", "memoryBytes", "pids",
       "artifacts": {"list": "None"|"Changed"|"All", "fetch": [pattern...]}, "egress"?}   the job
          egress: {"tcp": [port...], "udp": [port...]}, what is permitted; absent: no sockets, see `confinement.py`
      {"ping": any}    is answered between jobs
      {"cancel": id}   ends the job with this id; {"cancel": true} whichever runs
      {"ack": id}      ends the runner after a job that is of no session
Out:  {"ready": true, "layers": [...], "egress": [{"name", "address", "port", "protocol", "answered"}], "kernel": bool,
       "bootId", "userNamespace": bool}   what the pod sees of its isolation
      {"pong": any}
      {"id", "seq", "stream": "stdout"|"stderr", "data" | "data64"}    output as it comes; data64: base64 of the UTF-8
      {"id", "seq", "block", "exitCode", "reason", "startedAt", "durationMs", "stdoutBytes", "stderrBytes"}
      {"id", "seq", "artifact": index, "path", "size", "sha256"}               in order of path; sha256 may be null
      {"id", "seq", "file": index, "data64"}                                   a piece of the artifact before it
      {"id", "seq", "done": true, "stdout": {"bytes", "sha256", "truncated"}, "stderr": {...}, "artifactsOmitted"}
          sha256 is of the text sent
      {"id", "seq", "fault": {"reason": "FileRefused", "message"}}             instead of done: a file stood in the way
      {"id", "seq": -1, "error"}                                               the job could not be run

A job of a session is followed by others on the same connection. Nothing of one gets into the next but files, and the
variables of the kernel where the session is stateful: all other processes are killed, and pipes are new for each job.
So it is with blocks, which share the pipes of their job. What a block runs is what was submitted: Python reads it from
sealed memory, another program from a file that is made once nothing else runs.

It has to be PID 1 of its own PID namespace, because it ends a job by killing every other process that it can see.
User code is a child in a session of its own, confined by `confinement.py`: its streams are pipes to the runner, its
stdin is empty.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time

import interpreter
import isolation
import workspace
from channel import Input, Loop, send, text_fields
from confinement import Confinement
from egress import prove_closed
from kernel import START_SECONDS, Kernel
from output import Pipe, Stream
from processes import Children, exit_code, oom_kills
from programs import ENVIRONMENT, missing
from source import Source
from standby import Standby

EGRESS_SECONDS = 10
ACK_SECONDS = 10
COLLECT_SECONDS = 0.005
INTERRUPT_SECONDS = 2
CANCEL_SECONDS = 0.5
PR_SET_DUMPABLE = 4


class Pod:
    """What all jobs share."""

    def __init__(self, confinement):
        self.loop = Loop()
        self.commands = Input(self.loop)
        self.children = Children(self.loop)
        self.confinement = confinement
        self.kernel = Kernel(self.loop, self.children, confinement, ENVIRONMENT)
        self.nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.standby = Standby(self.children, confinement, ENVIRONMENT, self.nothing)

    def confinement_for(self, egress):
        """What code is put under for which this is permitted."""
        return Confinement(egress) if egress else self.confinement

    def start_kernel(self, pids, file_bytes, stopped, seconds=START_SECONDS):
        """See to it that a kernel runs. Returns whether one does, and what a failed start has written."""
        self.children.reap()
        if not self.kernel.gone:
            self.kernel.go_on()
            return True, ""
        if self.kernel.pids:
            self.kernel.drop()
        return self.kernel.start(pids, file_bytes, stopped, seconds)


class Job:
    """Runs one job."""

    def __init__(self, job, pod):
        self.job = job
        self.pod = pod
        self.confinement = pod.confinement_for(job.get("egress"))
        self.sequence = 0
        self.streams = [Stream(name, job["outputBytes"]) for name in ("stdout", "stderr")]
        self._standby, self.pipes = self._take_standby() or (None, (Pipe(), Pipe()))
        for pipe, stream in zip(self.pipes, self.streams, strict=True):
            pipe.sink = self._sink(stream)
            pod.loop.add(pipe.reader, pipe.read)
        self._direct_kernel()
        self._announced = False

    def _take_standby(self):
        """The Python that waits, if the first block is for it; otherwise it must not be there while others run."""
        first = self.job["blocks"][0] if self.job["blocks"] else {}
        plain = first.get("command") == interpreter.COMMAND
        # It was confined before anything was permitted.
        if plain and not self.job["stateful"] and not self.job.get("egress"):
            return self.pod.standby.take(self.job["pids"], self.job["memoryBytes"])
        self.pod.standby.drop()
        return None

    def run(self):
        """Run the blocks in order until one fails, end every process, and report the files and the totals."""
        wanted = self.job["artifacts"]
        before = workspace.Snapshot(workspace.Survey().files() if wanted["list"] == "Changed" else ())
        for index, block in enumerate(self.job["blocks"]):
            result = self._run_block(block, before)
            self._send(block=index, **result)
            if result["exitCode"] != 0 or self.pod.commands.cancelled:
                break
        for pipe in self._all_pipes():
            pipe.finish()
        try:
            omitted = workspace.report_artifacts(wanted["list"], wanted["fetch"], before, self._send)
        except OSError as error:
            self.refuse(f"{error.filename}: {error.strerror}")
            return
        totals = {stream.name: stream.totals() for stream in self.streams}
        self._send(done=True, **totals, artifactsOmitted=omitted)

    def refuse(self, message):
        """End the job because of a file."""
        self._send(fault={"reason": "FileRefused", "message": message})

    def close(self):
        """Let go of the pipes, of a Python that was not needed, and of a kernel that has ended."""
        if self._standby:
            self._standby.release()
            self.pod.children.kill_all()
            self.pod.children.forget(self._standby.pid)
        for pipe in self.pipes:
            self.pod.loop.remove(pipe.reader)
            pipe.close()
        kernel = self.pod.kernel
        if kernel.pids and kernel.gone:
            kernel.drop()
            kernel.unannounced = not self._announced

    def _run_block(self, block, before):
        counted = [stream.total for stream in self.streams]
        started, clock = time.time(), time.monotonic()
        code, reason = self._run_source(block, before, clock + self.job["timeoutSeconds"])
        for pipe in self._all_pipes():
            pipe.drain()
        return {
            "exitCode": code,
            "reason": reason,
            "startedAt": started,
            "durationMs": round((time.monotonic() - clock) * 1000),
            "stdoutBytes": self.streams[0].total - counted[0],
            "stderrBytes": self.streams[1].total - counted[1],
        }

    def _run_source(self, block, before, deadline):
        if refusal := missing(block):
            self._complain(refusal)
            return 1, "NonZeroExit"
        ooms = oom_kills()
        try:
            kept = workspace.replace_file(block["path"], block)
            before.add(block["path"])
            if self.job["stateful"] and block["language"] == "python":
                code = self._run_cell(block, deadline)
            else:
                code = self._run_program(block, kept, deadline)
        except OSError as error:
            self._complain(f"{' '.join(block['command'])}: {error.strerror}: {error.filename or block['path']}")
            return 126, "NonZeroExit"
        if code is None:
            return (130, "Cancelled") if self.pod.commands.cancelled else (124, "DeadlineExceeded")
        if code == 0:
            return 0, "Completed"
        return code, "OutOfMemory" if oom_kills() > ooms else "NonZeroExit"

    def _run_program(self, block, kept, deadline):
        """Exit code; None if the limit was reached or the job was cancelled."""
        children = self.pod.children
        pid = self._start(block, kept)
        try:
            in_time = self._wait(lambda: children.status(pid) is not None, deadline)
            self._end_processes()
            return exit_code(children.status(pid)) if in_time else None
        finally:
            children.forget(pid)

    def _start(self, block, kept):
        """Start the program of a block and return its process number. Nothing else runs meanwhile.

        Args:
            block: what was submitted.
            kept: whether it stands under its name in the workspace, too.
        """
        # A name that starts with a dash is a file, too.
        path = f"./{block['path']}" if block["path"].startswith("-") else block["path"]
        children, streams = self.pod.children, (self.pod.nothing, *(pipe.writer for pipe in self.pipes))
        if block["command"] == interpreter.COMMAND:
            python = self._standby or interpreter.Interpreter(children, ENVIRONMENT, streams, self._confine)
            self._standby = None
            python.run(path, block)
            return python.pid
        if kept:
            return children.start([*block["command"], path], ENVIRONMENT, streams, self._confine)
        with contextlib.closing(Source()) as source:
            source.seal(block)
            command = [*block["command"], f"/proc/self/fd/{source.descriptor}"]
            return children.start(command, ENVIRONMENT, streams, self._confine, [source.descriptor])

    def _confine(self):
        self.confinement.apply(pids=self.job["pids"], file_bytes=self.job["memoryBytes"])

    def _prepare_kernel(self, deadline):
        """Whether there is a kernel to run a cell."""
        kernel, commands = self.pod.kernel, self.pod.commands
        seconds = min(START_SECONDS, deadline - time.monotonic())
        limits = (self.job["pids"], self.job["memoryBytes"])
        ready, words = self.pod.start_kernel(*limits, lambda: commands.cancelled, seconds)
        if not ready:
            if not commands.cancelled:
                self._complain(f"{words}the Python kernel could not be started")
            return False
        self._direct_kernel()
        if kernel.unannounced:
            self._complain("the Python kernel had ended; the variables of earlier executions are gone")
            kernel.unannounced = False
        return True

    def _run_cell(self, block, deadline):
        """Exit code; None if the limit was reached or the job was cancelled."""
        kernel = self.pod.kernel
        if not self._prepare_kernel(deadline):
            return None if self.pod.commands.cancelled or time.monotonic() >= deadline else 1

        def ended():
            return kernel.answer is not None or kernel.gone

        kernel.execute(block)
        in_time = self._wait(ended, deadline)
        if not in_time:
            kernel.interrupt()
            grace = CANCEL_SECONDS if self.pod.commands.cancelled else INTERRUPT_SECONDS
            self.pod.loop.serve(ended, time.monotonic() + grace, COLLECT_SECONDS)
        code = kernel.answer
        if code is None:
            code = kernel.exit_code()
            how = f"ended (exit code {code})" if kernel.gone else "did not stop in time and was killed"
            self.pod.children.kill_all()
            self._complain(f"the Python kernel {how}; its variables are gone")
            self._announced = True
        self._end_processes()
        return code if in_time else None

    def _wait(self, ended, deadline):
        """Serve the pipes until the code has ended; False if the limit or a cancellation comes before."""
        self.pod.loop.serve(lambda: ended() or self.pod.commands.cancelled, deadline, COLLECT_SECONDS)
        return ended()

    def _end_processes(self):
        """End all that code has started; a kernel in order is stopped, and ends with the rest if it is not."""
        kernel, children = self.pod.kernel, self.pod.children
        children.reap()
        if kernel.gone or not children.kill_all_but(kernel.pids):
            children.kill_all()

    def _all_pipes(self):
        return (*self.pod.kernel.pipes, *self.pipes)

    def _direct_kernel(self):
        self.pod.kernel.direct([pipe.sink for pipe in self.pipes])

    def _sink(self, stream):
        def send_output(size, text):
            kept = stream.take(size, text)
            if kept:
                self._send(stream=stream.name, **text_fields(kept))

        return send_output

    def _complain(self, message):
        """Say something on stderr, behind what code has written."""
        for pipe in self._all_pipes():
            pipe.drain()
        line = f"{message}\n"
        self.pipes[1].sink(len(line.encode()), line)

    def _send(self, **fields):
        send(id=self.job["id"], seq=self.sequence, **fields)
        self.sequence += 1


def run_job(job, problem, pod):
    """Run a job, or refuse it because its files could not be put."""
    pod.commands.begin(job["id"])
    try:
        running = Job(job, pod)
        try:
            if problem:
                running.refuse(problem)
            else:
                running.run()
        finally:
            running.close()
    except Exception as error:  # whatever it is, the operator has to hear of it
        pod.children.kill_all()
        send(id=job["id"], seq=-1, error=f"{type(error).__name__}: {error}")
    pod.commands.end()


def serve(pod, report):
    """Do what the operator says, until a job of no session has been run or stdin ends. Returns whether any job came."""
    any_job = False
    upload = workspace.Upload()
    while (message := pod.commands.next()) is not None:
        if "report" in message:
            upload = workspace.Upload()  # whoever asks begins anew
            egress = message.get("egress")
            layers = {"layers": pod.confinement_for(egress).layers()} if egress else {}
            send(ready=True, **{**report, **layers}, kernel=_ready_kernel(message, pod))
            if "pids" in message and not message.get("kernel") and not egress:
                pod.standby.prepare(message["pids"], message["memoryBytes"])
        elif "put" in message:
            upload.put(message["put"], message["data"], message["append"])
        elif "blocks" in message:
            any_job = True
            upload.finish()
            run_job(message, upload.problem, pod)
            if not message["session"]:
                _await_ack(pod.commands)
                break
            upload = workspace.Upload()
            if not message["stateful"]:
                pod.standby.prepare(message["pids"], message["memoryBytes"])
        elif "ping" in message:
            send(pong=message["ping"])
        elif "garbled" in message:
            send(id=None, seq=-1, error="a line that is not a JSON object")
    return any_job


def _ready_kernel(message, pod):
    if not message.get("kernel") or "pids" not in message:
        return False
    return pod.start_kernel(message["pids"], message["memoryBytes"], lambda: pod.commands.ended)[0]


def _await_ack(commands):
    """The frames are safe with the operator only once it says so; but no longer than ACK_SECONDS."""
    deadline = time.monotonic() + ACK_SECONDS
    while (message := commands.next(deadline)) is not None and "ack" not in message:
        pass


def main():
    """Prove that the network is closed, then serve."""
    if os.getpid() != 1:
        sys.exit("runner: must be PID 1 of a container, because it kills every process that it can see")
    # Not dumpable: code of the same user can't read this process's memory or open its descriptors.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.exit(f"runner: prctl(PR_SET_DUMPABLE): {os.strerror(ctypes.get_errno())}")
    targets = json.loads(os.environ.get("CODEEXEC_EGRESS_TARGETS", "[]"))
    confinement = Confinement()
    answered = prove_closed(targets, EGRESS_SECONDS)
    report = {
        "layers": confinement.layers(),
        "egress": [{**target, "answered": one} for target, one in zip(targets, answered, strict=True)],
        **isolation.facts(),
    }
    # The kernel drops every signal that PID 1 has no handler for, so user code can't end the runner by one. The price:
    # the runner doesn't hear the kubelet's SIGTERM either, and a deleted pod ends by the SIGKILL after it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.chdir(workspace.WORKSPACE)
    if not serve(Pod(confinement), report):
        sys.exit("runner: stdin ended before a job arrived")
