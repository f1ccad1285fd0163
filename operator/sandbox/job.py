"""One job: its blocks, one after the other, and what is said of them. Standard library only.

A job of a session is followed by others on the same connection. Nothing of one gets into the next but files, and the
variables of the kernel where the session is stateful: all other processes are killed, and pipes are new for each job.
So it is with blocks, which share the pipes of their job. What a block runs is what was submitted: Python reads it from
sealed memory, another program from a file that is made once nothing else runs.

User code is a child in a session of its own, confined by `confinement.py`: its streams are pipes to the runner, its
stdin is empty.
"""

import contextlib
import time

import interpreter
import keeping
import workspace
from channel import send, text_fields
from kernel import START_SECONDS
from output import Pipe, Stream
from processes import exit_code, oom_kills
from programs import ENVIRONMENT, missing
from source import Source

COLLECT_SECONDS = 0.005
INTERRUPT_SECONDS = 1
"""How much of the processor a cell has to end after its interrupt: on a busy node a kernel in order needs long."""
CANCEL_SECONDS = 0.5
"""The same if it was cancelled."""
IDLE_SECONDS = 2
"""How long it may use none of it; and how long it has in all if it was cancelled."""
MOST_SECONDS = 5
"""How long it has in all. These two are counted in looks, so it loses nothing while the node stands still."""
LOOK_SECONDS = 0.1


class Job:
    """Runs one job."""

    def __init__(self, job, pod):
        self.job = job
        self.pod = pod
        self.confinement = pod.confinement_for(job.get("egress"))
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
            self.pod.frames.send(block=index, **result)
            if result["exitCode"] != 0 or self.pod.commands.cancelled:
                break
        for pipe in self._all_pipes():
            pipe.finish()
        try:
            send, most = self.pod.frames.send, self.job["fetchBytes"]
            if wanted["list"] == "Whole":
                keeping.report_whole(wanted["fetch"], wanted["most"], most, send)
                told = {"whole": True}
            else:
                omitted = workspace.report_artifacts(wanted["list"], wanted["fetch"], before, send, most)
                told = {"artifactsOmitted": omitted}
        except OSError as error:
            self.refuse(f"{error.filename}: {error.strerror}")
            return
        totals = {stream.name: stream.totals() for stream in self.streams}
        self.pod.frames.send(done=True, **totals, **told)

    def refuse(self, message):
        """End the job because of a file."""
        self.pod.frames.send(fault={"reason": "FileRefused", "message": message})

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
        if self.pod.commands.cancelled:
            return 130, "Cancelled"
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

        `kept`: it stands under its name in the workspace, too.
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

        if self.pod.commands.cancelled or time.monotonic() >= deadline:
            return None
        kernel.execute(block)
        in_time = self._wait(ended, deadline)
        if not in_time:
            kernel.interrupt()
            self._wait_for_kernel(ended)
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

    def _wait_for_kernel(self, ended):
        """Give an interrupted kernel a moment to end its cell: less if somebody has cancelled it."""
        kernel, cancelled = self.pod.kernel, self.pod.commands.cancelled
        share, most = (CANCEL_SECONDS, IDLE_SECONDS) if cancelled else (INTERRUPT_SECONDS, MOST_SECONDS)
        begun = used = kernel.cpu_seconds
        waited = idle = 0
        while not ended() and used - begun < share and idle < IDLE_SECONDS and waited < most:
            self.pod.loop.serve(ended, time.monotonic() + LOOK_SECONDS, COLLECT_SECONDS)
            before, used = used, kernel.cpu_seconds
            waited += LOOK_SECONDS
            idle = idle + LOOK_SECONDS if used == before else 0

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
                self.pod.frames.send(stream=stream.name, **text_fields(kept))
            return bool(kept)

        return send_output

    def _complain(self, message):
        """Say something on stderr, behind what code has written."""
        for pipe in self._all_pipes():
            pipe.drain()
        line = f"{message}\n"
        self.pipes[1].sink(len(line.encode()), line)


def run_job(job, problem, pod):
    """Run a job, or refuse it because its files could not be put. One that was begun before is not run again.

    A job of no session has its pod alone, or one that was shown to be clean. A session never gets one that was used.

    Args:
        job: the message.
        problem: why its files could not be put; empty if they could.
        pod: where it runs.

    Returns:
        Whether it was begun.
    """
    if pod.reset.any if job["session"] else pod.frames.any_begun and not pod.reset.clean:
        send(id=job["id"], seq=-1, error=f"{'an execution' if job['session'] else 'a session'} has used this pod")
        return False
    if not pod.frames.begins(job["id"]):
        send(repeated=job["id"])
        return False
    pod.reset.clean = False
    pod.commands.begin(job["id"], pod.answer)
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
        pod.frames.fail(f"{type(error).__name__}: {error}")
    pod.commands.end()
    return True
