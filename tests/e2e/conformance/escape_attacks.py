"""What published escapes from containers need, tried in ways that change nothing: files are opened and not written to.

`any_of` is a helper that has to be sent along.
"""

import ctypes
import errno
import os
import socket
import struct
import tempfile

from conformance.attacks import FACTS, REFUSALS, libc, system_call


def any_of(action, candidates):
    """Whether an action succeeds with any of the candidates; if it is refused with each, the last refusal is raised."""
    refused = None
    for one in candidates:
        try:
            if action(one):
                return True
        except OSError as error:
            if errno.errorcode.get(error.errno) not in REFUSALS:
                raise
            refused = error
    if refused:
        raise refused
    return False


# --- what belongs to the node ---------------------------------------------------------------------------------------


def connect_to_a_container_engine():
    """connect to the container engine of its node"""

    def connect(path):
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(path)
            return True

    engines = ("docker.sock", "containerd/containerd.sock", "crio/crio.sock", "podman/podman.sock")
    return any_of(connect, [f"{run}/{engine}" for run in ("/run", "/var/run", "/host/run") for engine in engines])


def write_to_a_folder_of_the_node():
    """write to a folder of its node"""
    own_places = {"/", "/workspace", "/tmp", "/dev/shm"}
    own_kinds = {"tmpfs", "proc", "sysfs", "devpts", "devtmpfs", "mqueue", "cgroup", "cgroup2"}
    with open("/proc/self/mountinfo") as file:
        mounts = {line.split()[4]: line.split(" - ")[1].split()[0] for line in file}
    folders = [place for place, kind in mounts.items() if kind not in own_kinds and os.path.isdir(place)]

    def write(folder):
        with tempfile.TemporaryFile(dir=folder) as file:
            return file.write(b"x")

    return any_of(write, [place for place in folders if place not in own_places])


def look_into_a_process_of_the_node():
    """look into the files of the kubelet's process"""

    def look(pid):
        with open(f"/proc/{pid}/comm") as file:
            return file.read() == "kubelet\n" and os.listdir(f"/proc/{pid}/root/etc")

    return any_of(look, filter(str.isdigit, os.listdir("/proc")))


def see_the_sockets_of_the_node():
    """see the sockets of its node's container engine"""
    with open("/proc/net/unix") as file:
        return "containerd" in file.read()


def open_a_disk_of_the_node():
    """open a block device of its node"""

    def look(device):
        os.mknod(f"device-{device}", 0o060400, os.makedev(*map(int, device.split(":"))))
        os.close(os.open(f"device-{device}", os.O_RDONLY))
        return True

    return any_of(look, os.listdir("/sys/dev/block"))


def read_a_token_of_the_api_server():
    """read a token for the API server"""
    with open("/var/run/secrets/kubernetes.io/serviceaccount/token") as file:
        return file.read()


def reach_the_localhost_of_the_node():
    """reach a service on the loopback address of its node"""
    return socket.create_connection(FACTS["localhost"], 3)


def address_the_metadata_of_a_cloud():
    """get a way to the metadata address of clouds"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("169.254.169.254", 80))  # of UDP: looks for a route, and sends nothing
        return True


# --- privileges -----------------------------------------------------------------------------------------------------


def have_a_capability():
    """have a capability, in whatever set"""
    with open("/proc/self/status") as file:
        return any(int(line.split()[1], 16) for line in file if line.startswith("Cap"))


def be_allowed_to_load_a_kernel_module():
    """have the capability to load a module into the kernel"""
    with open("/proc/self/status") as file:
        [held] = [int(line.split()[1], 16) for line in file if line.startswith("CapEff")]
    return held & 1 << 16


def mount_and_unmount():
    """mount a file system"""
    os.mkdir("mount")
    libc("mount", b"none", b"mount", b"tmpfs", 0, None)
    return libc("umount2", b"mount", 0) == 0


def mount_a_hierarchy_of_cgroups():
    """mount a hierarchy of cgroups, to look for a release agent"""
    with open("/proc/cgroups") as file:
        first = [name for name, hierarchy, *_ in map(str.split, file) if hierarchy.isdigit() and hierarchy != "0"]
    kinds = [(b"cgroup", name.encode()) for name in first] or [(b"cgroup2", None)]

    def mount(kind):
        os.makedirs("cgroup", exist_ok=True)
        libc("mount", b"none", b"cgroup", kind[0], 0, kind[1])
        return libc("umount2", b"cgroup", 0) == 0

    return any_of(mount, kinds)


def open_a_file_by_its_handle():
    """open a file by its handle, past all folders"""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
        try:
            libc("name_to_handle_at", -100, file.name.encode(), handle, ctypes.byref(ctypes.c_int()), 0)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return False  # gVisor has no handles
            raise
        return libc("open_by_handle_at", file.fileno(), handle, os.O_RDONLY) >= 0


def be_root_of_the_node():
    """be the user 0 of its node"""
    with open("/proc/self/uid_map") as file:
        inside, outside, count = map(int, file.readline().split())
    return 0 <= os.getuid() - inside < count and os.getuid() - inside + outside == 0


def belong_to_another_group():
    """belong to a group besides its own"""
    return set(os.getgroups()) - {os.getgid()}


def gain_privileges_by_a_program():
    """start a setuid program that gains privileges"""
    return libc("prctl", 39, 0, 0, 0, 0) == 0  # PR_GET_NO_NEW_PRIVS


def open_what_the_kernel_acts_on():
    """open for writing what the kernel starts programs by, or restarts by"""

    def opens(path):
        os.close(os.open(path, os.O_WRONLY))
        return True

    system = "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/fs/binfmt_misc/register"
    return any_of(opens, [*system, "/proc/sysrq-trigger", "/sys/kernel/uevent_helper"])


# --- the container runtime ------------------------------------------------------------------------------------------


def find_an_open_folder_outside():
    """find an open folder outside of its container"""
    if "leak" in FACTS:
        os.open(FACTS["leak"], os.O_PATH)  # the control leaks one
    top, found = os.stat("/"), []
    for name in [*(f"/proc/self/fd/{one}" for one in os.listdir("/proc/self/fd")), f"/proc/{os.getppid()}/cwd"]:
        if not os.path.isdir(name):
            continue
        folder, above = -1, os.open(name, os.O_PATH)
        while folder < 0 or not os.path.samestat(os.fstat(folder), os.fstat(above)):
            folder, above = above, os.open("..", os.O_PATH, dir_fd=above)
        found.append(not os.path.samestat(os.fstat(folder), top))
    return any(found)


def replace_what_others_start():
    """open for writing a program that an exec into its pod starts"""

    def opens(path):
        os.close(os.open(path, os.O_WRONLY))
        return True

    return any_of(opens, ["/bin/sh", "/bin/tar"])


def put_a_link_where_the_runtime_mounts():
    """put a link into a folder in which the runtime mounts"""

    def link(folder):
        name = os.path.join(folder, f"codeexec-{os.getpid()}")
        os.symlink("/proc/sys/kernel/core_pattern", name)
        os.unlink(name)
        return True

    return any_of(link, ["/", "/dev", "/dev/pts", "/sys"])


def read_what_the_runtime_masks():
    """read a file or folder of the kernel's that the runtime masks"""

    def reads(path):
        if os.path.isdir(path):
            return os.listdir(path)
        with open(path, "rb") as file:
            return file.read(1)

    files = [
        f"/proc/{name}" for name in ("kcore", "keys", "timer_list", "sched_debug", "latency_stats", "scsi", "acpi")
    ]
    return any_of(reads, [*files, "/sys/firmware", "/sys/devices/virtual/powercap"])


def make_a_cgroup():
    """make a cgroup"""
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split()[4] for line in file if line.split(" - ")[1].split()[0] in ("cgroup", "cgroup2")]

    def make(folder):
        name = os.path.join(folder, f"codeexec-{os.getpid()}")
        os.mkdir(name)
        os.rmdir(name)
        return True

    return any_of(make, mounts)


def be_without_a_limit_of_memory():
    """run without a limit of memory"""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def unlimited(path):
        with open(path) as file:
            limit = file.read().strip()
        return limit == "max" or int(limit) > memory

    return any_of(unlimited, ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"])


# --- the kernel -----------------------------------------------------------------------------------------------------


def make_a_user_namespace():
    """make a user namespace"""
    return libc("unshare", 0x10000000) == 0


def configure_a_file_system():
    """open a file system to configure it, by fsopen"""
    return libc("syscall", 430, b"tmpfs", 0) >= 0  # the same number on every machine


def talk_to_the_packet_filter():
    """talk to the kernel's packet filter by netlink"""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)


def load_a_program_into_the_kernel():
    """load a program into the kernel by bpf"""
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0))  # return 0
    license = ctypes.create_string_buffer(b"GPL")
    where = ctypes.addressof(code), ctypes.addressof(license)
    attributes = ctypes.create_string_buffer(struct.pack("=IIQQIIQII", 1, 2, *where, 0, 0, 0, 0, 0))
    return system_call("bpf", 5, attributes, len(attributes)) >= 0


def use_a_keyring():
    """put a key into a keyring of the kernel"""
    return system_call("add_key", b"user", b"codeexec", b"x", 1, -2) >= 0


def count_events():
    """count events of the processor by perf_event_open"""
    attributes = (ctypes.c_uint32 * 32)(1, 128)
    return system_call("perf_event_open", ctypes.byref(attributes), 0, -1, -1, 0) >= 0


def open_a_rare_socket():
    """open a socket of a family that few programs use"""

    def opens(family):
        socket.socket(family[0], family[1]).close()
        return True

    return any_of(opens, [(socket.AF_ALG, socket.SOCK_SEQPACKET), (socket.AF_VSOCK, socket.SOCK_STREAM)])


def speak_to_the_kernel_of_the_node():
    """make its system calls to the kernel of its node"""
    return os.uname().release == FACTS["kernel"]
