"""The IPython kernel of a stateful session, which behaves like a script. A program by itself, confined like user code.

    kernel_app.py CONNECTION-FILE INTERRUPTED

What cells and their processes write goes to the stdout and stderr of this process, unchanged and at once. So does the
text of results and tracebacks, in the order in which they come; pictures and HTML become files in the workspace.

SIGINT is heeded while code of a cell runs. INTERRUPTED is the descriptor of a file that says at the start of a cell
whether the cell was interrupted before.
"""

import asyncio
import base64
import contextlib
import operator
import os
import re
import signal
import sys
import warnings

# The debugger would take 0.3 s and listen on a TCP socket; ipykernel does without where it can't be imported.
sys.modules["debugpy"] = None

from ipykernel import kernelapp  # noqa: E402
from ipykernel.iostream import IOPubThread  # noqa: E402
from ipykernel.ipkernel import IPythonKernel  # noqa: E402
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell, ZMQShellDisplayHook  # noqa: E402
from traitlets import Type  # noqa: E402
from traitlets.config import Config  # noqa: E402

del sys.modules["debugpy"]

CONNECTION_FILE, INTERRUPTED = sys.argv[1], int(sys.argv[2])
WORKSPACE = os.getcwd()
BINARY = {"image/png": "png", "image/jpeg": "jpg"}
TEXT = {"image/svg+xml": "svg", "text/html": "html"}
INSTEAD = "raise KeyboardInterrupt('before the cell began')"
TERMINAL_SEQUENCE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Displays(ZMQDisplayPublisher):
    """What `display()` is given, figures too."""

    cell = 0
    number = 0

    def begin(self, _info):
        """A cell begins; IPython has counted it already."""
        self.cell, self.number = self.shell.execution_count - 1, 0

    def publish(self, data, *_metadata, **_options):
        """Write the text to stdout, and to files what can be looked at."""
        for kind, extension in (BINARY | TEXT).items():
            if kind in data:
                content = data[kind]
                if isinstance(content, str):
                    content = base64.b64decode(content) if kind in BINARY else content.encode()
                self._keep(extension, content)
        if "text/plain" in data:
            _write_line(sys.stdout, data["text/plain"])

    def _keep(self, extension, content):
        """Write `output-CELL-NUMBER.EXTENSION`, with the next number that is free."""
        while True:
            self.number += 1
            path = f"{WORKSPACE}/output-{self.cell}-{self.number}.{extension}"
            try:
                with open(path, "xb") as file:
                    file.write(content)
            except FileExistsError:
                continue
            return

    def clear_output(self, wait=False):
        """Leave it: what has been written stays written."""


class Results(ZMQShellDisplayHook):
    """The value of a cell's last line."""

    def start_displayhook(self):
        """No message begins."""

    def write_output_prompt(self):
        """No `Out[1]:`."""

    def write_format_data(self, format_dict, *_metadata):
        """Treat it as what is displayed."""
        self.shell.display_pub.publish(format_dict)

    def finish_displayhook(self):
        """No message ends."""


class Shell(ZMQInteractiveShell):
    """Runs cells."""

    begun = False
    """Whether any code of the cell has."""
    displayhook_class = Type(Results)
    display_pub_class = Type(Displays)

    def init_environment(self):
        """Leave it as the runner has made it."""

    def init_user_ns(self):
        """Have `exit` end the cell with a code, as it ends a script, and not the kernel."""
        super().init_user_ns()
        self.user_ns["exit"] = self.user_ns["quit"] = sys.exit
        self.user_ns_hidden.update(exit=sys.exit, quit=sys.exit)

    async def run_code(self, code_obj, *arguments, **options):
        """Run a statement of a cell; the first one makes the kernel heed interrupts."""
        if not self.begun:
            self.begun = True
            if signal.getsignal(signal.SIGINT) is _let_pass:  # while a cell awaits, ipykernel has a handler of its own
                signal.signal(signal.SIGINT, signal.default_int_handler)
            if _was_interrupted():
                signal.signal(signal.SIGINT, _let_pass)  # the signal may come while the traceback is made
                code_obj = compile(INSTEAD, code_obj.co_filename, "exec")
        return await super().run_code(code_obj, *arguments, **options)

    def _showtraceback(self, etype, evalue, stb):
        self._last_traceback = stb
        if not issubclass(etype, SystemExit):
            _write_line(sys.stderr, TERMINAL_SEQUENCE.sub("", "\n".join(stb)))
        elif not (evalue.code is None or issubclass(type(evalue.code), int)):  # as a script does
            _write_line(sys.stderr, str(evalue.code))


class Kernel(IPythonKernel):
    """Answers the host."""

    shell_class = Type(Shell)
    result = None
    """IPython's, of the cell."""

    def pre_handler_hook(self):
        """Don't heed interrupts yet: there would be no answer if one came before the code, or after it."""

    def post_handler_hook(self):
        """No interrupt is heeded any more."""

    @contextlib.contextmanager
    def _cancel_on_sigint(self, future):
        """Cancel a cell that awaits. The handler of ipykernel does not wake the loop."""
        loop = asyncio.get_running_loop()
        with super()._cancel_on_sigint(future):
            cancel = signal.getsignal(signal.SIGINT)

            def heed(*signalled):
                cancel(*signalled)
                loop.call_soon_threadsafe(lambda: None)

            signal.signal(signal.SIGINT, heed)
            yield

    async def do_execute(self, *arguments, **options):
        """Run a cell; the reply has its exit code, and nothing of the code that could not be sent.

        There is a reply, whatever code raises, and whenever an interrupt comes.
        """
        self.shell.begun, self.result = False, None
        status, number = "error", 1
        try:
            try:
                status = (await super().do_execute(*arguments, **options))["status"]
            finally:
                signal.signal(signal.SIGINT, _let_pass)
            number = 0 if status == "ok" else self._exit_code()
        except (Exception, KeyboardInterrupt, asyncio.CancelledError):
            signal.signal(signal.SIGINT, _let_pass)
        _mend_streams()
        return {"status": status, "ename": "", "exitCode": number}  # ipykernel looks at the first two

    def keep(self, result):
        """A cell has ended; the last one to do so is that of the host, and not one that code has run inside it."""
        self.result = result

    def _exit_code(self):
        error = getattr(self.result, "error_in_exec", None)
        return _number_of(error.code) if isinstance(error, SystemExit) else 1


class Publisher(IOPubThread):
    """Sends messages for this process alone; for its children it would listen on a TCP socket, which is refused."""

    def __init__(self, socket, *, session, **_pipe):
        super().__init__(socket, pipe=False, session=session)


class App(kernelapp.IPKernelApp):
    """The process."""

    kernel_class = Type(Kernel)
    outstream_class = ""
    """None: the process's own streams stay, and no messages are made of what is written to them."""

    def init_signal(self):
        """Heed no interrupt until code runs."""
        signal.signal(signal.SIGINT, _let_pass)


def _write_line(stream, text):
    stream.write(f"{text}\n")
    stream.flush()


def _number_of(code):
    """The exit code of a script that ends with a SystemExit of this code."""
    if code is None:
        return 0
    if not issubclass(type(code), int):
        return 1
    number = operator.index(code)
    return number & 0xFF if -(2**63) <= number < 2**63 else 0xFF


def _mend_streams():
    """Put the process's own streams in the place of those that can't be flushed: ipykernel flushes before a reply."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:
            setattr(sys, name, getattr(sys, f"__{name}__"))


def _let_pass(*_signal):
    """Take an interrupt, and do nothing. Unlike SIG_IGN it doesn't get into the programs that code starts."""


def _was_interrupted():
    with contextlib.suppress(OSError):  # code has closed it
        return os.pread(INTERRUPTED, 1, 0) == b"1"
    return False


def main():
    """Serve for ever."""
    # gVisor sends it, and lets the process go on, when the runner has stopped it and then kills a child of it. The
    # runner stops it again.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.set_inheritable(INTERRUPTED, False)
    kernelapp.IOPubThread = Publisher
    config = Config()
    config.IPKernelApp.connection_file = CONNECTION_FILE
    config.IPKernelApp.log_level = "CRITICAL"
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    # IPython's advice to who calls sys.exit in a terminal.
    warnings.filterwarnings("ignore", message="To exit: use")
    app = App.instance(config=config)
    app.initialize([])
    app.shell.events.register("pre_run_cell", app.shell.display_pub.begin)
    app.shell.events.register("post_run_cell", app.kernel.keep)
    sys.argv = [""]
    app.start()


main()
