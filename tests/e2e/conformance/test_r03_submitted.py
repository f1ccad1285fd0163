"""R-03: what was submitted is what runs, whatever ran before in the same call or session."""

import pytest
from conformance.sandbox import BESIDE_OTHERS

pytestmark = pytest.mark.remit("R-03")

SUBMITTED = "# filename: two.py\nprint('as submitted')"
TIMES = 4
RACE = """
import os, time
reader, writer = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            with open("two.new", "w") as file: file.write("print('planted')")
            os.rename("two.new", "two.py")
            if writer is not None: os.close(writer)
            writer = None
    os._exit(0)
os.wait()
os.close(writer)
os.read(reader, 1)
"""
"""Ends once a process that it leaves behind has written its own code under the name of the next block, and goes on."""
SITE = """
import os, site
folder = site.getusersitepackages()
os.makedirs(folder, exist_ok=True)
code = "import os; os.write(1, b'planted\\\\n'); os._exit(0)"
for name in ("usercustomize.py", "planted.pth"):
    with open(f"{folder}/{name}", "w") as file: file.write(code)
"""
FILL = """
import contextlib
with open("fill", "wb", buffering=0) as file, contextlib.suppress(OSError):
    while True: file.write(bytes(1 << 16))
"""
ORDINARY = """
import os, subprocess, sys, tempfile
os.chdir(tempfile.mkdtemp())
environment = {**os.environ, "HOME": os.getcwd()}
for code in (EARLIER, SUBMITTED):
    with open("two.py", "w") as file: file.write(code)
    done = subprocess.run([sys.executable, "two.py"], env=environment, stdout=subprocess.PIPE, text=True)
print(done.stdout)
"""
"""Writes a block to a file and runs it, and then the next one."""


def ordinary(earlier: str) -> str:
    return f"EARLIER, SUBMITTED = {earlier!r}, {SUBMITTED!r}\n{ORDINARY}"


@pytest.mark.runtimes("runc", "gvisor")
async def test_a_process_that_a_block_leaves_behind_can_not_replace_the_next(control, everywhere, unprotected_pod):
    """A process that block 1 leaves behind can't replace the code of block 2."""
    there = [unprotected_pod(ordinary(RACE)).strip() for _ in range(TIMES)]
    control.succeeded(
        "in the unprotected pod a process that an earlier program had left behind replaced the next one's file",
        "planted" in there,
    )

    async def probe(sandbox):
        for _ in range(TIMES):
            result = await sandbox.call(RACE, SUBMITTED)
            assert (result.stdout, len(result.blocks)) == ("as submitted\n", 2)

    await everywhere(probe)


@pytest.mark.runtimes("runc", "gvisor")
async def test_files_of_an_earlier_call_do_not_run_in_the_next(control, everywhere, unprotected_pod):
    """Packages that code installs for its user don't run in a later block, nor in a later call of the session."""
    control.succeeded(
        "in the unprotected pod a file in the user's folder of packages ran instead of the next program",
        unprotected_pod(ordinary(SITE)).strip() == "planted",
    )

    async def probe(sandbox):
        assert (await sandbox.call(SITE, SUBMITTED)).stdout == "as submitted\n"
        session = sandbox.session(limits=BESIDE_OTHERS)
        await sandbox.run(SITE, at=session)
        for language, code in (("python", SUBMITTED), ("bash", f"python3 -c {SUBMITTED.splitlines()[1]!r}")):
            assert (await sandbox.run((language, code), at=session)).output == "as submitted\n"

    await everywhere(probe)


@pytest.mark.runtimes("runc", "gvisor")
async def test_a_full_disk_does_not_stop_the_next_call(control, everywhere, unprotected_pod):
    """A session whose workspace is full still runs the next call."""
    small = "import os, subprocess\nos.chdir('/dev/shm')\n"
    there = unprotected_pod(
        f"{small}{FILL}\ntry: open('two.py', 'w').write('#' * 70_000)\nexcept OSError: print('full')\n"
        "finally: os.remove('fill')"
    )
    control.succeeded("in the unprotected pod a program could not be written to a full folder", there == "full\n")

    async def probe(sandbox):
        session = sandbox.session(limits=BESIDE_OTHERS)
        await sandbox.run(FILL, at=session)
        for block in (SUBMITTED, ("bash", "echo as submitted"), ("sh", "echo as submitted")):
            assert (await sandbox.run(block, at=session)).output == "as submitted\n"
        assert (await sandbox.run("import os; os.remove('fill')", at=session)).exit_code == 0
        assert (await sandbox.run("print(len(open(__file__).read()) > 0)", at=session)).output == "True\n"

    await everywhere(probe)
