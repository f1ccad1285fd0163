"""R-01: code reads and writes only its own workspace and a bounded /tmp."""

import json
import os

import pytest
from conformance.attacks import libc

from codeexec_api import Limits

pytestmark = pytest.mark.remit("R-01")


def write_by_an_absolute_name():
    """write to /etc/passwd"""
    with open("/etc/passwd", "a") as file:
        return file.write("# codeexec\n")


def write_by_a_relative_name():
    """write to ../../../usr/local from its folder"""
    with open("../../../usr/local/codeexec", "w") as file:
        return file.write("x")


def read_what_is_root_s():
    """read /etc/shadow"""
    with open("/etc/shadow") as file:
        return file.read()


def write_through_a_symlink():
    """write to a file of the system through a symbolic link"""
    os.symlink("/usr/local", "link")
    with open("link/codeexec-link", "w") as file:
        return file.write("x")


def write_through_a_hard_link():
    """write to a file of the system through a hard link"""
    os.link("/etc/passwd", "hard")
    with open("hard", "a") as file:
        return file.write("# codeexec\n")


def write_through_proc():
    """write to the root of another process, through /proc"""
    with open("/proc/1/root/usr/local/codeexec-proc", "w") as file:
        return file.write("x")


def change_the_root():
    """change its root directory"""
    os.mkdir("root")
    os.chroot("root")
    return True


def make_a_device():
    """make a device node"""
    os.mknod("device", 0o600 | 0o060000, os.makedev(8, 0))
    return True


@pytest.mark.runtimes("runc", "gvisor")
async def test_no_name_leads_out(attack):
    """No name leads out: absolute, relative, by symbolic or hard link, by /proc, a new root or a device."""
    await attack(
        write_by_an_absolute_name,
        write_by_a_relative_name,
        read_what_is_root_s,
        write_through_a_symlink,
        write_through_a_hard_link,
        write_through_proc,
        change_the_root,
        make_a_device,
    )


def mount_a_file_system():
    """mount a file system"""
    os.mkdir("mount")
    return libc("mount", b"none", b"mount", b"tmpfs", 0, None) == 0


def bind_a_folder():
    """mount one folder over another"""
    os.mkdir("bind")
    return libc("mount", b"/etc", b"bind", None, 4096, None) == 0


def make_the_root_writable():
    """mount the root file system again, to write to it"""
    return libc("mount", None, b"/", None, 32, None) == 0


def mount_in_a_namespace_of_its_own():
    """make a user namespace and mount a file system in it"""
    libc("unshare", 0x10000000 | 0x00020000)
    os.mkdir("inner")
    return libc("mount", b"none", b"inner", b"tmpfs", 0, None) == 0


@pytest.mark.runtimes("runc", "gvisor")
async def test_nothing_is_mounted(attack, privileged_pod):
    """Code can't mount anything, nor make the root file system writable, nor do so in a user namespace of its own."""
    await attack(
        mount_a_file_system, bind_a_folder, make_the_root_writable, mount_in_a_namespace_of_its_own, at=privileged_pod
    )


SWEEP = """
import json, os, stat
def opens(path, flags):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY))
        return True
    except OSError:
        return False
found = set()
for folder, folders, files in os.walk("/"):
    if folder == "/":
        folders[:] = set(folders) - LEFT_OUT
    probe = os.path.join(folder, "codeexec-probe")
    if opens(probe, os.O_WRONLY | os.O_CREAT):
        os.unlink(probe)
        found.add(folder)
    for name in files:
        path = os.path.join(folder, name)
        if not os.path.islink(path) and opens(path, os.O_WRONLY):
            found.add(path)
print(json.dumps(sorted(found)))
"""
LEFT_OUT = {"proc"}
"""A process may write to what is its own there; see R-07 and the attacks on the runner."""
NOT_NEEDED = LEFT_OUT | {"sys", "usr", "opt", "var", "lib"}
"""The control shows that the search finds what can be written. It need not find everything."""
SCRATCH = {"/workspace", "/tmp", "/dev/shm"}
DEVICES = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts/ptmx")}


async def test_nothing_else_can_be_written(control, sandbox, unprotected_pod):
    """Of all folders and files of the sandbox only /workspace, /tmp, /dev/shm and harmless devices can be written."""
    there = set(json.loads(unprotected_pod(f"LEFT_OUT = {NOT_NEEDED}\n{SWEEP}")))
    control.succeeded(
        "in the unprotected pod the same search could write to /, /etc, /etc/passwd and the termination log",
        there >= {"/", "/etc", "/etc/passwd", "/dev/termination-log"},
    )
    result = await sandbox.run(f"LEFT_OUT = {LEFT_OUT}\n{SWEEP}", limits=Limits(cpu="1", memory="128Mi"))
    inside = {path for path in json.loads(result.stdout) if os.path.dirname(path) not in SCRATCH}
    assert inside >= SCRATCH
    assert inside <= SCRATCH | DEVICES


FILL = """
import json, os, sys
MIB = bytes(1 << 20)
def fill(folder):
    with open(f"{folder}/filler", "wb", buffering=0) as file:
        try:
            for written in range(MOST):
                file.write(MIB)
            return MOST
        except OSError as error:
            return f"{written} {error.strerror}"
        finally:
            os.unlink(file.name)
print(json.dumps({folder: fill(folder) for folder in FOLDERS}))
"""


@pytest.mark.remit("R-07")
async def test_a_full_disk_is_the_code_s_own_problem(control, sandbox, unprotected_pod):
    """/workspace and /tmp end at their size, at once; the code hears of it, and its result is complete."""
    there = unprotected_pod(f"MOST, FOLDERS = 200, ['/tmp']\n{FILL}")
    control.succeeded(
        "in the unprotected pod the same code wrote 200 MiB to the disk of the node", json.loads(there) == {"/tmp": 200}
    )
    code = f"MOST, FOLDERS = 200, ['/workspace', '/tmp']\n{FILL}\nprint('to the end', file=sys.stderr); sys.exit(3)"
    result = await sandbox.run(code, limits=Limits(cpu="500m", memory="128Mi"))
    full = "No space left on device"
    assert json.loads(result.stdout) == {"/workspace": f"64 {full}", "/tmp": f"32 {full}"}
    assert (result.exit_code, result.stderr) == (3, "to the end\n")
