"""R-05: no state passes between executions, one after the other or at the same time."""

import os
import socket

import pytest
from cluster_tools import SANDBOX
from conformance.attacks import SUCCEEDED, libc, outcomes, script
from conformance.sandbox import BESIDE_OTHERS

pytestmark = pytest.mark.remit("R-05")

MARK = "codeexec-planted"

PLANT = f"""
import contextlib, ctypes, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
os.makedirs("/workspace", exist_ok=True)
for folder in ("/workspace", "/tmp", "/dev/shm"):
    with open(f"{{folder}}/{MARK}", "w") as file:
        file.write("planted")
planted = ["files"]
if libc.shmget(0x6d61726b, 4096, 0o1666) != -1:
    planted.append("System V shared memory")
if libc.mq_open(b"/{MARK}", os.O_CREAT | os.O_RDWR, 0o666, None) != -1:
    planted.append("message queue")
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0{MARK}")
listener.listen()
planted.append("abstract socket")
print("planted:", ", ".join(planted), flush=True)
time.sleep(HOLD)
"""


def find_a_file_in_the_workspace():
    """find a file in /workspace"""
    return os.path.exists("/workspace/codeexec-planted")


def find_a_file_in_tmp():
    """find a file in /tmp"""
    return os.path.exists("/tmp/codeexec-planted")


def find_a_file_in_shared_memory():
    """find a file in /dev/shm"""
    return os.path.exists("/dev/shm/codeexec-planted")


def find_system_v_shared_memory():
    """attach to its System V shared memory"""
    return libc("shmget", 0x6D61726B, 4096, 0) >= 0


def find_a_message_queue():
    """open its message queue"""
    return libc("mq_open", b"/codeexec-planted", os.O_RDWR) >= 0


def connect_to_an_abstract_socket():
    """connect to its abstract socket"""
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\0codeexec-planted")
        return True


def see_a_process():
    """see its process"""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            found.append(b"codeexec-planter" in file.read())
    return any(found)


FIND = [
    find_a_file_in_the_workspace,
    find_a_file_in_tmp,
    find_a_file_in_shared_memory,
    find_system_v_shared_memory,
    find_a_message_queue,
    connect_to_an_abstract_socket,
    see_a_process,
]
START = """
import subprocess, sys, time
command = [sys.executable, "-c", CODE, "codeexec-planter"]
planter = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
print(planter.stdout.readline().decode())
"""
PLANTED = "planted: files"
WHO_FINDS = "two processes in the unprotected pod found each other's files, shared memory, queue, socket and process"


def planter(hold):
    """Code that has planted everything, and says so, and lives on for so many seconds."""
    return PLANT.replace("HOLD", str(hold))


@pytest.fixture(scope="module")
def found_in_the_control(unprotected_pod):
    """What a process of the unprotected pod finds of another one, which has planted everything."""
    started = unprotected_pod(f"CODE = {planter(100)!r}\n{START}")
    assert "message queue, abstract socket" in started
    return outcomes(unprotected_pod(script(*FIND)))


@pytest.mark.runtimes("runc", "gvisor")
async def test_nothing_passes_between_executions(control, found_in_the_control, everywhere):
    """Code finds nothing of executions before and beside it: no file, shared memory, queue, socket or process."""
    control.succeeded(WHO_FINDS, set(found_in_the_control.values()) == {SUCCEEDED})

    async def probe(sandbox):
        before = await sandbox.run(planter(0))
        assert before.stdout.startswith(PLANTED), before.output
        async with sandbox.beside(planter(300), PLANTED):
            found = outcomes((await sandbox.run(script(*FIND))).stdout)
        assert SUCCEEDED not in found.values(), found

    await everywhere(probe)


@pytest.mark.runtimes("runc", "gvisor")
async def test_nothing_passes_between_sessions(control, found_in_the_control, everywhere):
    """Code finds nothing of another session, nor, after `restart()`, of its own; no process outlives its call."""
    control.succeeded(WHO_FINDS, set(found_in_the_control.values()) == {SUCCEEDED})

    async def probe(sandbox):
        session = sandbox.session(limits=BESIDE_OTHERS)
        planted = await sandbox.run(f"CODE = {planter(300)!r}\n{START}", at=session)
        assert PLANTED in planted.stdout, planted.output
        own = outcomes((await sandbox.run(script(*FIND), at=session)).stdout)
        assert own["find_a_file_in_the_workspace"] == SUCCEEDED  # it is the same workspace
        assert SUCCEEDED not in {own["see_a_process"], own["connect_to_an_abstract_socket"]}, own

        async with sandbox.beside(planter(300), PLANTED, at=session):
            found = outcomes((await sandbox.call(script(*FIND))).stdout)
        assert SUCCEEDED not in found.values(), found
        await session.restart()
        found = outcomes((await sandbox.run(script(*FIND), at=session)).stdout)
        assert SUCCEEDED not in found.values(), found

    await everywhere(probe)


ANSWERS = """
import socket
def answers(address, port):
    try:
        socket.create_connection((address, port), 3).close()
    except ConnectionRefusedError:  # by the pod itself: so it can be reached
        return True
    except OSError:
        return False
    return True
"""


@pytest.mark.remit("R-12")
async def test_nothing_reaches_a_sandbox_over_the_network(control, sandbox, admin, unprotected_pod):
    """No pod of the cluster reaches the pod of an execution."""
    opens = f"{ANSWERS}print(answers({unprotected_pod.ip!r}, 8000), answers({unprotected_pod.ip!r}, 9))"
    control.succeeded(
        "the unprotected pod reached an open and a closed port of an ordinary pod",
        unprotected_pod(opens) == "True True\n",
    )
    pod = sandbox.record(await sandbox.call("print('ran')"))["status"]["podName"]
    address = admin.pod(SANDBOX, pod)["status"]["podIP"]
    assert unprotected_pod(f"{ANSWERS}print(answers({address!r}, 9))") == "False\n"
    assert admin.pod(SANDBOX, pod)["status"]["podIP"] == address, "the pod was there meanwhile"
