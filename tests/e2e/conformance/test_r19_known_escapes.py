"""R-19: what published escapes from containers need isn't in the sandbox. escapes.py has their ids."""

import json

import pytest
from cluster_tools import SANDBOX
from conformance.attacks import words
from conformance.escape_attacks import any_of
from conformance.escapes import LAYERS, ONLY_ANOTHER_KERNEL, PODS
from weaker_pods import WEAKER, a_hardened_pod

pytestmark = pytest.mark.remit("R-19")


@pytest.fixture(scope="session")
def careless_pod(make_control_pod):
    """A pod with all that platforms are warned of: privileged, with processes, network and folders of its node."""
    folders = ("run", "etc")
    container = {
        "command": ["sleep", "infinity"],
        "securityContext": {"privileged": True, "runAsUser": 0},
        "volumeMounts": [{"name": name, "mountPath": f"/host/{name}"} for name in folders],
    }
    return make_control_pod(
        "careless",
        container,
        hostPID=True,
        hostNetwork=True,
        hostIPC=True,
        securityContext={"supplementalGroups": [4242]},
        volumes=[{"name": name, "hostPath": {"path": f"/{name}"}} for name in folders],
    )


@pytest.fixture
def escape(attack, careless_pod, addresses, admin):
    """Take the first step of each escape, in the careless pod and in the sandbox."""
    [node, *_] = admin.list("node")
    facts = {**addresses, "localhost": ("127.0.0.1", 10248), "kernel": node["status"]["nodeInfo"]["kernelVersion"]}

    async def run(*escapes):
        ids = {one.step.__name__: one.ids for one in escapes}
        await attack(
            *(one.step for one in escapes),
            at=careless_pod,
            facts=facts | {"leak": "/proc/1/root"},
            facts_inside=facts,
            helpers=(any_of,),
            called=lambda step: f"{words(step)} ({ids[step.__name__]})",
        )

    return run


@pytest.mark.runtimes("runc", "gvisor")
@pytest.mark.parametrize("layer", LAYERS)
async def test_no_escape_can_begin(escape, layer):
    """The first step of each escape fails, because what the escape needs isn't in the sandbox."""
    await escape(*LAYERS[layer])


@pytest.mark.runtimes("gvisor")
async def test_code_speaks_to_another_kernel(escape, sandboxes):
    """Under gVisor, ordinary system calls don't reach the kernel of the node, whose vulnerabilities they could use."""
    if not sandboxes:
        pytest.skip("the cluster has no RuntimeClass gvisor")
    await escape(ONLY_ANOTHER_KERNEL)


def test_pods_that_escapes_need_are_refused(control, admin, unprotected_pod):
    """A pod with a setting that an escape needs is refused, even to an administrator."""
    for setting, ids in PODS.items():
        field, change = WEAKER[setting]
        pod = a_hardened_pod()
        change(pod)
        pod["metadata"]["namespace"] = unprotected_pod.namespace
        control.succeeded(
            f"a pod with the setting {setting!r} ({ids}) was accepted in a namespace that nothing protects",
            admin.create(pod, dry_run=True),
        )
        pod["metadata"]["namespace"] = SANDBOX
        refusal = admin.try_create(pod, dry_run=True)
        assert refusal, f"{field}: a pod with the setting {setting!r} was accepted"
        assert "violates PodSecurity" in refusal.message or f"denied request: {field}" in refusal.message


CALLS = {
    # System call: numbers on x86-64 and on arm64. All arguments are -1, which none of them takes.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount_setattr": (442, 442),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "quotactl": (179, 60),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "syslog": (103, 116),
}
CONTAINED = f"""
import ctypes, errno, json, os, platform
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
libc, column = ctypes.CDLL(None, use_errno=True), ["x86_64", "aarch64"].index(platform.machine())
blocked, unknown = [], []
for name, numbers in {CALLS!r}.items():
    ctypes.set_errno(0)
    libc.syscall(numbers[column], *[ctypes.c_long(-1)] * 6)
    if ctypes.get_errno() in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        (unknown if ctypes.get_errno() == errno.ENOSYS else blocked).append(name)
def comm(pid):
    try:
        return open(f"/proc/{{pid}}/comm").read().strip()
    except OSError:
        return ""
print(json.dumps({{
    "processes of the node": any(comm(pid) == "kubelet" for pid in os.listdir("/proc") if pid.isdigit()),
    "capabilities": sum(int(status[key], 16) for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")),
    "seccomp": int(status["Seccomp"]),
    "blocked": blocked,
    "unknown": unknown,
}}))
"""


async def test_what_amicontained_reports(control, sandbox, careless_pod):
    """As the tool amicontained reports it: own processes, no capabilities, seccomp, dangerous system calls blocked."""
    there = json.loads(careless_pod(CONTAINED))
    control.succeeded(
        "in the careless pod there were processes of the node and capabilities, no seccomp, and no system call blocked",
        there["processes of the node"] and there["capabilities"] and not there["seccomp"] and not there["blocked"],
    )
    inside = json.loads((await sandbox.call(CONTAINED)).stdout)
    assert not inside["processes of the node"]
    assert (inside["capabilities"], inside["seccomp"]) == (0, 2)
    assert CALLS.keys() - there["unknown"] <= {*inside["blocked"], *inside["unknown"]}
