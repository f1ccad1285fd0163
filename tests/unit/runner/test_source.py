"""What was submitted is what runs: nothing that ran before can put other code in its place.

Each attack has its control: where the block doesn't look at the door, or the protection is taken out, it succeeds.
"""

import hashlib
import json
from typing import Any

import pytest

SUBMITTED = {"path": "two.py", "code": "print('as submitted')"}
PLANTED = "print('planted')"


def bash(code: str, path: str = "block.sh") -> dict[str, Any]:
    return {"path": path, "command": ["bash"], "language": "bash", "code": code}


WITHOUT_KILLING = "job.Job._end_processes = lambda self: None"
RACE = f"""
import os, time
ready, told = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        end = time.monotonic() + 5
        while time.monotonic() < end:
            for name, code in (("two.py", {PLANTED!r}), ("two.sh", "echo planted")):
                with open(name + ".new", "w") as file:
                    file.write(code)
                os.rename(name + ".new", name)
            os.write(told, b"x")
    os._exit(0)
os.wait()
os.read(ready, 1)
"""


@pytest.mark.parametrize("second", [SUBMITTED, bash("echo as submitted", "two.sh")], ids=["python", "bash"])
def test_a_process_that_a_block_leaves_behind_is_dead_before_the_next_starts(second: Any, run: Any) -> None:
    for _ in range(4):
        assert run(RACE, second).text() == "as submitted\n"


LOST_RACE = """
replace_file = workspace.replace_file
def lose(path, block):
    kept = replace_file(path, block)
    with open(f"{workspace.WORKSPACE}/{path}", "w") as file: file.write(PLANTED)
    return kept
workspace.replace_file = lose
"""
"""Somebody writes to the file of a block after its last check, which takes a process that was not killed."""


def test_python_does_not_read_the_file_and_the_control_a_shell_does(run: Any) -> None:
    assert run(SUBMITTED, before=LOST_RACE.replace("PLANTED", repr(PLANTED))).text() == "as submitted\n"
    lost = LOST_RACE.replace("PLANTED", "'echo planted'")
    assert run(bash("echo as submitted"), before=lost).text() == "planted\n"


@pytest.mark.parametrize("before", [LOST_RACE.replace("PLANTED", repr(PLANTED))])
def test_nor_does_the_kernel(stateful: Any) -> None:
    assert stateful(SUBMITTED).text() == "as submitted\n"


SPAWNERS = {
    "double fork": """
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    time.sleep(60)""",
    "child that collects its own orphans": """
if os.fork() == 0:
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    if os.fork(): os.wait()
    time.sleep(60)""",
    "child that is stopped": """
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSTOP)""",
    "child that ignores signals": """
if os.fork() == 0:
    for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
    time.sleep(60)""",
    "child with another signal at its end": """
if ctypes.CDLL(None).syscall(56 if os.uname().machine == "x86_64" else 220, signal.SIGUSR1, 0, 0, 0, 0) == 0:
    time.sleep(60)""",
    "fork bomb": """
if os.fork() == 0:
    while True:
        try: os.fork()
        except OSError: pass""",
}


@pytest.mark.parametrize("spawner", SPAWNERS)
def test_no_process_of_a_block_is_there_in_the_next(spawner: str, run: Any) -> None:
    left = f"import ctypes, os, signal, time{SPAWNERS[spawner]}"
    look = "import os; print([name for name in os.listdir('/proc') if name.isdecimal() and name != str(os.getpid())])"
    assert run(left, look, pids=32).text() == "['1']\n"
    if spawner != "fork bomb":
        seen = json.loads(run(left, look, before=WITHOUT_KILLING).text().replace("'", '"'))
        assert len(seen) > 1  # the control


HIJACK = "import os; os.write(1, b'hijacked\\n'); os._exit(0)"
IN_SITE = """
import os, site
os.makedirs(site.getusersitepackages(), exist_ok=True)
with open(f"{site.getusersitepackages()}/NAME", "w") as file: file.write(HIJACK)
"""
IN_WORKSPACE = """
import os
for name in NAMES:
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "w") as file: file.write(HIJACK)
    os.chmod(name, 0o755)
"""


def planted(*names: str, code: str = HIJACK) -> str:
    return IN_WORKSPACE.replace("NAMES", repr(names)).replace("HIJACK", repr(code))


CONFIGURATIONS = ("ipython_config.py", "ipython_kernel_config.py", "jupyter_config.py", "startup/00-x.py")
STARTUP = {
    "pth": IN_SITE.replace("NAME", "x.pth").replace("HIJACK", repr(HIJACK)),
    "usercustomize": IN_SITE.replace("NAME", "usercustomize.py").replace("HIJACK", repr(HIJACK)),
    "sitecustomize": planted("sitecustomize.py", ".pythonstartup", ".pythonrc.py"),
    "files of shells": planted(
        ".bashrc", ".bash_profile", ".profile", ".shrc", ".bash_env", code="echo hijacked; exit"
    ),
    "programs": planted("python3", "bash", "sh", code="#!/bin/sh\necho hijacked"),
    "settings of IPython": planted(
        *(f"{folder}{name}" for folder in ("", ".ipython/profile_default/", ".jupyter/") for name in CONFIGURATIONS)
    ),
    "settings of a virtual environment": planted("pyvenv.cfg", code="home = /workspace"),
}


@pytest.mark.parametrize("what", STARTUP)
def test_files_that_programs_look_for_when_they_start_are_not_heeded(what: str, session: Any) -> None:
    session.say({"report": True, "kernel": False, "pids": 64, "memoryBytes": 256 * 2**20})  # so that there is a standby
    session.hear("ready")
    blocks = (SUBMITTED, bash("echo in bash; python3 -c 'print(1)'; sh -c 'echo 2'"))
    assert session.run(STARTUP[what], *blocks).text() == "as submitted\nin bash\n1\n2\n"
    assert session.run(*blocks).text() == "as submitted\nin bash\n1\n2\n"


@pytest.mark.parametrize("what", ["pth", "usercustomize"])
def test_the_control_a_python_that_heeds_its_users_packages_is_hijacked(what: str, run: Any) -> None:
    heeds = bash("unset PYTHONNOUSERSITE; python3 -c 'print(1)'")
    assert run(STARTUP[what], heeds).text() == "hijacked\n"


@pytest.mark.parametrize("what", STARTUP)
def test_nor_by_the_kernel_of_a_stateful_session(what: str, stateful: Any) -> None:
    assert stateful(bash(f"python3 - <<'E'\n{STARTUP[what]}\nE"), "print('as submitted')").text() == "as submitted\n"


SUBINTERPRETER = """
try:
    import _interpreters as sub
except ImportError:  # before Python 3.13
    import _xxsubinterpreters as sub
sub.run_string(sub.create(), "import sys, site; print(sys.flags.no_user_site, site.ENABLE_USER_SITE, flush=True)")
"""


def test_subinterpreters_start_without_them_too(stateful: Any, run: Any) -> None:
    for start in (stateful, run):
        assert start(SUBINTERPRETER).text() == "1 False\n"


SEALED = """
import ctypes, mmap, os
def tried(what):
    try:
        what()
    except OSError:
        return "refused"
    return "done"
def attempts(path):
    yield tried(lambda: open(path, "r+b", buffering=0).write(b"x"))
    yield tried(lambda: os.truncate(path, 0))
    yield tried(lambda: os.truncate(path, 1 << 20))
    yield tried(lambda: mmap.mmap(os.open(path, os.O_RDWR), 1))
print(*attempts(f"/proc/self/fd/{os.open('fill', os.O_RDWR)}"))
print(*attempts(f"/proc/{os.getppid()}/fd/{SOURCE}"))
"""
FILL = """
import contextlib
with open("fill", "wb", buffering=0) as file, contextlib.suppress(OSError):
    while True: file.write(bytes(4096))
"""


def a_full_disk(sandbox: Any) -> None:
    sandbox.workspace_bytes = 64 * 1024


def test_sealed_source_can_not_be_written_by_those_who_have_it_open(sandbox: Any) -> None:
    """A shell on a full disk is the one program that has its source open while code runs."""
    a_full_disk(sandbox)
    find = "for fd in /proc/$$/fd/*; do case $(readlink $fd) in *memfd:source*) found=${fd##*/};; esac; done\n"
    attack = SEALED.replace("{SOURCE}", "{os.environ['FOUND']}")
    report = sandbox.run(FILL, bash(f"{find}export FOUND=$found\npython3 - <<'E'\n{attack}\nE\necho as submitted"))
    assert report.text() == "done done done done\nrefused refused refused refused\nas submitted\n"


@pytest.mark.parametrize(
    "second", [SUBMITTED, bash("echo as submitted"), {**bash("echo as submitted"), "command": ["sh"]}]
)
def test_a_full_disk_does_not_stop_the_next_block_or_call(second: dict[str, Any], sandbox: Any) -> None:
    a_full_disk(sandbox)
    deep = {**second, "path": f"deep/er/{second['path']}"}
    with sandbox.connect() as connection:
        assert connection.run(FILL, second).text() == "as submitted\n"
        assert connection.run(second).text() == "as submitted\n"
        assert connection.run(deep).text() == "as submitted\n"
        report = connection.run("import os; os.remove('fill')", SUBMITTED, artifacts={"list": "All", "fetch": []})
        assert "two.py" in report.artifacts  # there is room for its copy again


def test_on_a_full_disk_nothing_that_was_planted_is_left_under_the_name(sandbox: Any) -> None:
    """Processes that Python spawns load the main script again, by its name."""
    a_full_disk(sandbox)
    spawns = (
        "import multiprocessing as m\nif __name__ == '__main__':\n"
        "    p = m.get_context('spawn').Process(target=print, args=('child',)); p.start(); p.join(); print(p.exitcode)"
    )
    report = sandbox.run(
        f"open('two.py', 'w').write({PLANTED!r})\n{FILL}", {"path": "two.py", "code": spawns + " " * 9000}
    )
    assert "planted" not in report.text()


def test_other_code_than_was_announced_is_not_run(session: Any) -> None:
    for other in (SUBMITTED, bash("echo ran")):
        report = session.run({**other, "sha256": hashlib.sha256(b"announced").hexdigest()})
        assert report.text() == ""
        assert "was submitted; the block was not run" in report.frames[-1]["error"]
        assert report.frames[-1]["seq"] == -1
    assert session.run(SUBMITTED).text() == "as submitted\n"


NEVER_READY = """
kernel._HERE = kernel.FOLDERS
for name in ("kernel_app", "kernel_host"):
    with open(f"{kernel.FOLDERS}/{name}.py", "w") as file: file.write("import time; time.sleep(60)")
"""


def test_the_start_of_a_kernel_counts_against_the_limit(sandbox: Any) -> None:
    with sandbox.connect(before=NEVER_READY) as connection:
        report = connection.run("print('never')", stateful=True, timeoutSeconds=1)
    assert report.endings == [(124, "DeadlineExceeded")]
    assert report.blocks[0]["durationMs"] >= 1000
    assert report.text() == ""
