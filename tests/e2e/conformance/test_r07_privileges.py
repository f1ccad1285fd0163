"""R-07: code has no privilege on the node, and what it uses is bounded."""

import asyncio
import ctypes
import errno
import json
import os

import pytest
from conformance.attacks import libc, system_call

from codeexec_api import Limits

pytestmark = pytest.mark.remit("R-07")

LOOK = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(),
    "capabilities": sum(int(status[key], 16) for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")),
    "no new privileges": int(status["NoNewPrivs"]), "seccomp": int(status["Seccomp"]),
}))
"""


@pytest.mark.runtimes("runc", "gvisor")
async def test_code_is_nobody(control, everywhere, unprotected_pod):
    """Code runs as an ordinary user, without a capability, under seccomp, and can't gain privileges."""
    there = json.loads(unprotected_pod(LOOK))
    control.succeeded(
        "in the unprotected pod code was root with capabilities, without seccomp",
        there["uid"] == 0 and there["capabilities"] and not there["seccomp"],
    )

    async def probe(sandbox):
        inside = json.loads((await sandbox.call(LOOK)).stdout)
        assert inside["uid"] == 65532 or inside["uid"] >= 1_000_000_000
        assert inside["gid"] == 65532
        assert set(inside["groups"]) <= {65532}
        assert (inside["capabilities"], inside["no new privileges"], inside["seccomp"]) == (0, 1, 2)

    await everywhere(probe)


def has_user_namespaces(admin):
    """What the node says of its default runtime; the kubelet has asked it."""
    [node, *_] = admin.list("node")
    [features] = [one["features"] for one in node["status"]["runtimeHandlers"] if not one.get("name")]
    return features.get("userNamespaces", False)


async def test_root_in_the_pod_is_nobody_on_the_node(control, sandbox, admin, unprotected_pod):
    """The ids of the sandbox are mapped to ids of the node that own nothing there, and the record names the layer."""
    if not has_user_namespaces(admin):
        pytest.skip("the node's runtime has no user namespaces")
    code = "print(open('/proc/self/uid_map').read().split()[1])"
    control.succeeded("in the unprotected pod root is root of the node", unprotected_pod(code) == "0\n")
    result = await sandbox.call(code)
    assert int(result.stdout) >= 65536
    assert "UserNamespace" in sandbox.record(result)["status"]["layers"]


def unshare_namespaces():
    """make namespaces of its own"""
    return libc("unshare", 0x00020000 | 0x04000000 | 0x08000000) == 0


def become_root_in_a_user_namespace():
    """make a user namespace, to be root in it"""
    return libc("unshare", 0x10000000) == 0


def enter_a_namespace():
    """enter a namespace of the first process"""
    namespace = os.open("/proc/1/ns/mnt", os.O_RDONLY)
    return libc("setns", namespace, 0) == 0


def load_a_bpf_program():
    """load a program into the kernel by bpf"""
    # An array map of one entry: BPF_MAP_CREATE of BPF_MAP_TYPE_ARRAY.
    attributes = (ctypes.c_uint32 * 20)(2, 4, 4, 1)
    return system_call("bpf", 0, ctypes.byref(attributes), ctypes.sizeof(attributes)) >= 0


def use_the_keyrings_of_the_kernel():
    """put a key into the kernel's keyring"""
    return system_call("add_key", b"user", b"codeexec", b"x", 1, -2) >= 0


def count_events_of_the_processor():
    """watch the processor by perf_event_open"""
    attributes = (ctypes.c_uint32 * 32)(1, 128)
    return system_call("perf_event_open", ctypes.byref(attributes), 0, -1, -1, 0) >= 0


def read_the_log_of_the_kernel():
    """read the log of the node's kernel"""
    text = ctypes.create_string_buffer(1 << 16)
    size = system_call("syslog", 3, text, len(text))
    return size > 0 and b"gVisor" not in text.raw  # whose own kernel has a log, too


def name_the_host():
    """change the name of the host"""
    return libc("sethostname", b"codeexec", 8) == 0


def become_root():
    """become another user"""
    os.setresuid(1, 1, 1)
    return True


def give_files_away():
    """give a file to another user"""
    with open("mine", "w"):
        os.chown("mine", 1, 1)
    return True


@pytest.mark.runtimes("runc", "gvisor")
async def test_nothing_privileged_can_be_done(attack, privileged_pod):
    """What needs a privilege fails: namespaces, bpf, keyrings, perf, the kernel's log, another user or host name."""
    await attack(
        unshare_namespaces,
        become_root_in_a_user_namespace,
        enter_a_namespace,
        load_a_bpf_program,
        use_the_keyrings_of_the_kernel,
        count_events_of_the_processor,
        read_the_log_of_the_kernel,
        name_the_host,
        become_root,
        give_files_away,
        at=privileged_pod,
    )


def share_memory_by_its_number():
    """share memory by a number of System V"""
    return libc("shmget", 0, 4096, 0o1600) >= 0


def make_memory_a_file():
    """make a file that is in memory only"""
    return os.memfd_create("codeexec") >= 0


def handle_page_faults():
    """handle the page faults of the kernel by userfaultfd"""
    return system_call("userfaultfd", 1) >= 0


def copy_between_pipes_in_the_kernel():
    """copy between pipes inside the kernel"""
    reader, writer = os.pipe()
    os.write(writer, b"x")
    return libc("tee", reader, os.pipe()[1], 1, 0) == 1


def have_itself_traced():
    """have itself traced"""
    return libc("ptrace", 0, 0, 0, 0) == 0


def choose_a_line_discipline():
    """choose the line discipline of a terminal"""
    return libc("ioctl", os.openpty()[1], 0x5423, ctypes.byref(ctypes.c_int(0))) == 0


@pytest.mark.runtimes("runc", "gvisor")
async def test_only_listed_system_calls_can_be_made(attack):
    """What ordinary programs don't need is refused, though it takes no privilege: our own list of system calls."""
    await attack(
        share_memory_by_its_number,
        make_memory_a_file,
        handle_page_faults,
        copy_between_pipes_in_the_kernel,
        have_itself_traced,
        choose_a_line_discipline,
    )


async def test_memory_is_bounded_and_the_end_is_named(control, sandbox, unprotected_pod):
    """Code that takes more memory than its limit ends as OutOfMemory, with what it has printed; files count too."""
    takes = "print('before', flush=True); x = b'x' * (300 << 20); print(len(x))"
    control.succeeded("in the unprotected pod the same code took 300 MiB", "314572800" in unprotected_pod(takes))
    result = await sandbox.run(takes)
    assert (result.exit_code, result.reason) == (137, "OutOfMemory")
    assert result.output.startswith("before\n")
    assert 'more memory than Limits(memory="' in result.output
    assert sandbox.record(result)["status"]["phase"] == "OutOfMemory"
    filling = await sandbox.run("open('/dev/shm/x', 'wb').write(bytes(60 << 20)); x = bytearray(b'x') * (90 << 20)")
    assert (filling.exit_code, filling.reason) == (137, "OutOfMemory")


SPIN = """
import os, signal, time
def used():
    fields = [open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split() for pid in children]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")
children = []
for _ in range(3):
    children.append(os.fork())
    while children[-1] == 0:
        pass
most, end = 0.0, time.monotonic() + SECONDS
while time.monotonic() < end and most < ENOUGH:
    begin, before = time.monotonic(), used()
    time.sleep(2)
    most = max(most, (used() - before) / (time.monotonic() - begin))
for child in children:
    os.kill(child, signal.SIGKILL)
print(most)
"""


@pytest.mark.suspect
async def test_processor_time_is_bounded(control, sandbox, unprotected_pod):
    """However many processes compute, together they get the processor time of the limit at most."""
    there = float(unprotected_pod(f"SECONDS, ENOUGH = 100, 0.2\n{SPIN}"))
    control.succeeded("in the unprotected pod the same processes got more than twice the limit", there > 0.2)
    result = await sandbox.run(f"SECONDS, ENOUGH = 6, 1\n{SPIN}", limits=Limits(cpu="100m", memory="64Mi"))
    # The kernel holds them back: a busy node can only make it less.
    assert 0 < float(result.stdout) < 0.15


MULTIPLY = """
import os, signal
count = 0
try:
    for count in range(1000):
        if os.fork() == 0:
            signal.pause()
except OSError as error:
    print(type(error).__name__)
print(count, flush=True)
"""
IN_A_GROUP_OF_ITS_OWN = """
import os, signal, subprocess, sys
def run(code):
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    print(child.stdout.readline().decode())
    os.killpg(child.pid, signal.SIGKILL)
"""


async def test_processes_are_bounded_and_a_neighbour_is_unharmed(control, sandbox, unprotected_pod):
    """A fork bomb stops at limits.pids; an execution beside it still starts as many processes as it may."""
    there = unprotected_pod(f"{IN_A_GROUP_OF_ITS_OWN}run({MULTIPLY!r})")
    control.succeeded("in the unprotected pod the same code started a thousand processes", there.split() == ["999"])
    limits = Limits(cpu="100m", memory="256Mi", pids=100)
    results = await asyncio.gather(*[sandbox.run(MULTIPLY, limits=limits) for _ in range(2)])
    for result in results:
        name, count = result.stdout.split()
        assert (name, result.exit_code) == ("BlockingIOError", 0)
        assert 90 <= int(count) <= 100


def start_threads_without_end():
    """start 1000 threads"""
    import threading

    stop = threading.Event()
    started = []
    try:
        for _ in range(1000):
            started.append(threading.Thread(target=stop.wait))
            started[-1].start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"{len(started)} were started: {error}") from error
    finally:
        stop.set()
    return True


async def test_threads_count_as_processes(attack):
    """Threads count towards limits.pids, too."""
    await attack(start_threads_without_end, limits=Limits(cpu="100m", memory="256Mi", pids=100))
