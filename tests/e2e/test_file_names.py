"""File names in the pod: what code or a caller names stays in the workspace, whatever was planted there before.

The client refuses a name that leads out by itself: unit/client/test_executor.py.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster_tools import TERMINAL, Admin, a_name, a_secret, a_session, an_execution, policies

LIMITS = {"cpu": "100m", "memory": "128Mi"}  # small: other tests have pods, too
RunBlocks = Callable[..., dict[str, Any]]

# A session has the files of the test before.
CLEAN = """
import os, shutil
for top in ("/workspace", "/tmp"):
    for entry in os.scandir(top):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry, 0o700)
            shutil.rmtree(entry)
        else:
            os.remove(entry)
"""


def runs_blocks(admin: Admin, session: str | None = None) -> RunBlocks:
    """Submits blocks (file name or None, Python code) as a client of any make can, and waits for the end."""

    def run(*blocks: tuple[str | None, str]) -> dict[str, Any]:
        name = a_name("names")
        payload = {f"block-{index}": code.encode() for index, (_, code) in enumerate(blocks)}
        announced = [
            {
                "language": "python",
                "sha256": hashlib.sha256(code.encode()).hexdigest(),
                "sizeBytes": len(code.encode()),
                **({"filename": filename} if filename else {}),
            }
            for filename, code in blocks
        ]
        where = {"sessionRef": {"name": session}} if session else {}
        admin.create(a_secret(name, payload), an_execution(name, announced, limits=LIMITS, **where))
        return admin.wait_for_phase(name, *TERMINAL)["status"]

    return run


@pytest.fixture
def run_blocks(admin: Admin) -> RunBlocks:
    """In a pod of their own."""
    return runs_blocks(admin)


@pytest.fixture(scope="module", params=["", "gvisor"], ids=["default runtime", "gVisor"])
def workspace(request: pytest.FixtureRequest, admin: Admin) -> Iterator[RunBlocks]:
    """Blocks in one session for each runtime, with nothing in the workspace at first."""
    name, runtime = a_name("names"), {"runtimeClassName": request.param} if request.param else {}
    if runtime and not admin.exists("runtimeclass", request.param):
        pytest.skip(f"the cluster has no RuntimeClass {request.param}")
    with policies(admin) as put:
        if runtime:
            put(runtimeClassNames=[request.param])
        yield from _session_of_blocks(admin, name, runtime)


def _session_of_blocks(admin: Admin, name: str, runtime: dict[str, str]) -> Iterator[RunBlocks]:
    admin.create(a_session(name, limits=LIMITS, **runtime))
    run = runs_blocks(admin, name)

    def run_clean(*blocks: tuple[str | None, str]) -> dict[str, Any]:
        assert run((None, CLEAN))["phase"] == "Succeeded", "the workspace can be emptied"
        return run(*blocks)

    yield run_clean
    admin.delete("codesession", name)


# --- what earlier code has planted ---------------------------------------------------------------------------------

# Name: (code, file name of the next block, what a write under that name reaches)
PLANTS = {
    "link to a file": ("os.symlink('/tmp/victim', 'x.py')", "x.py", "/tmp/victim"),
    "link to a folder": ("os.symlink('/tmp', 'd')", "d/victim", "/tmp/victim"),
    "link to a folder, one deeper": ("os.mkdir('e'); os.symlink('/tmp', 'e/d')", "e/d/victim", "/tmp/victim"),
    "second name of a file": ("os.link('victim', 'x.py')", "x.py", "victim"),
    "link to its own output": ("os.symlink('/proc/self/fd/1', 'x.py')", "x.py", "stdout"),
    "link to its own descriptors": ("os.symlink('/proc/self/fd', 'd')", "d/1", "stdout"),
}
PLANT = """
import os, tempfile
os.chdir({workspace})
for victim in ("/tmp/victim", "victim"):
    with open(victim, "w") as file:
        file.write("before")
{plant}
"""
WRITE = """
with open({name!r}, "w") as file:
    file.write("through")
print()
for victim in ("/tmp/victim", "victim"):
    print(victim, open(victim).read())
"""


@pytest.mark.parametrize(("plant", "name", "reached"), PLANTS.values(), ids=PLANTS)
def test_a_block_is_not_written_through_what_was_planted(workspace, unprotected_pod, plant, name, reached):
    elsewhere = PLANT.format(workspace="tempfile.mkdtemp()", plant=plant) + WRITE.format(name=name)
    lines = unprotected_pod(elsewhere).splitlines()
    assert ("through" if reached == "stdout" else f"{reached} through") in lines

    forged = json.dumps({"id": "x", "seq": 0, "error": "forged"})
    code = PLANT.format(workspace="'/workspace'", plant=plant)
    victims = "print(open('/tmp/victim').read(), open('/workspace/victim').read())"
    status = workspace((None, code), (name, f"# {forged}\nprint('ran')"), (None, victims))
    if "/" not in name:  # what stands under the name itself is replaced
        assert (status["phase"], status["stdout"]["text"]) == ("Succeeded", "ran\nbefore before\n")
        return
    assert (status["phase"], [block["exitCode"] for block in status["blocks"]]) == ("Failed", [0, 126])
    assert status["stderr"]["text"].startswith("python3: ")
    assert status["stderr"]["text"].endswith(f": {name}\n")
    assert status.get("stdout", {}).get("text", "") == ""


READ_A_FIFO = """
import os, tempfile, threading
os.chdir({workspace})
os.mkfifo("x.py")
if os.fork() == 0:
    os.write(1, open("x.py").read().encode())
    os._exit(0)
"""


def test_a_fifo_is_not_given_the_code(workspace, unprotected_pod):
    elsewhere = READ_A_FIFO.format(workspace="tempfile.mkdtemp()") + "open('x.py', 'w').write('through'); os.wait()"
    assert unprotected_pod(elsewhere) == "through"

    status = workspace((None, READ_A_FIFO.format(workspace="'/workspace'")), ("x.py", "print('ran')"))
    assert (status["phase"], status["stdout"]["text"]) == ("Succeeded", "ran\n")


MAKE_A_DEVICE = """
import os, stat, tempfile
os.chdir({workspace})
os.mknod("x.py", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
with open("x.py", "w") as file:
    print(file.write("into nothing"))
"""


def test_code_can_not_make_a_device(run_blocks, unprotected_pod):
    assert unprotected_pod(MAKE_A_DEVICE.format(workspace="tempfile.mkdtemp()")) == "12\n"
    status = run_blocks((None, MAKE_A_DEVICE.format(workspace="'/workspace'")))
    assert status["exitCode"] == 1
    assert "PermissionError" in status["stderr"]["text"]


# --- names that are odd but stay inside ----------------------------------------------------------------------------

ODD = [
    "Case.py",
    "case.py",
    "t\u00e4st.py",
    "ta\u0308st.py",
    "\u2025/x.py",
    "\uff0e\uff0e\uff0fx.py",
    "C:x.py",
    "a b.py",
]
ODD += ["-c", "$(id).py", "😀.py", "é" * 127]


def test_odd_names_are_files_of_exactly_these_names(run_blocks):
    where = "import os; print(os.path.realpath(__file__))"
    tell = (
        "import os; print(sorted(os.path.relpath(f'{top}/{one}') for top, _, files in os.walk('.') for one in files))"
    )
    status = run_blocks(*((name, where) for name in ODD), ("tell", tell))
    assert (status["phase"], status.get("stderr", {}).get("text", "")) == ("Succeeded", "")
    *places, there = status["stdout"]["text"].splitlines()
    assert places == [f"/workspace/{name}" for name in ODD]
    assert there == repr(sorted([*ODD, "tell"]))


# --- a workspace that is damaged -----------------------------------------------------------------------------------

RUIN = """
import os, shutil, tempfile
os.chdir({workspace})
workspace = os.getcwd()
for entry in os.scandir("."):
    shutil.rmtree(entry) if entry.is_dir() else os.remove(entry)
for ruin in (os.rmdir, lambda path: os.rename(path, path + "-2"), lambda path: os.chmod(path, 0)):
    try:
        ruin(workspace)
        print("ruined")
        os.mkdir(workspace)
    except OSError:
        pass
"""


def test_the_workspace_outlives_what_earlier_code_does_to_it(run_blocks, unprotected_pod):
    assert unprotected_pod(RUIN.format(workspace="tempfile.mkdtemp()")) == "ruined\n" * 3
    status = run_blocks((None, RUIN.format(workspace="'/workspace'")), ("d/x.py", "print('ran')"))
    assert (status["phase"], status["stdout"]["text"]) == ("Succeeded", "ran\n")


@pytest.mark.parametrize("plant", ["os.mkdir('d', 0)", "os.mkfifo('d')"])
def test_a_folder_that_is_none_any_more_is_a_result_that_names_the_file(run_blocks, plant):
    status = run_blocks((None, f"import os; {plant}"), ("d/x.py", "print('ran')"))
    assert (status["phase"], [block["exitCode"] for block in status["blocks"]]) == ("Failed", [0, 126])
    assert status["stderr"]["text"].startswith("python3: ")
    assert status["stderr"]["text"].endswith(": d/x.py\n")
    assert status.get("stdout", {}).get("text", "") == ""
