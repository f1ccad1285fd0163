"""R-09: file names stay inside the workspace, after all links are resolved; more in tests/e2e/test_file_names.py."""

import json

import pytest
from autogen_core import CancellationToken
from conformance.sandbox import BESIDE_OTHERS

from executor_client import FileTransferError

pytestmark = pytest.mark.remit("R-09")

WRITE = """
import json, os, pathlib
os.makedirs("/tmp/root/workspace", exist_ok=True)
os.makedirs("/tmp/root/outside", exist_ok=True)
os.chdir("/tmp/root/workspace")
for link in ("folder", "file"):
    pathlib.Path(link).unlink(missing_ok=True)
os.symlink("/tmp/root/outside", "folder")
os.symlink("/tmp/root/outside/through-link", "file")
reached = []
for name in NAMES:
    path = pathlib.Path(name)
    path.write_text("x")
    reached.append(path.resolve().as_posix().startswith("/tmp/root/workspace/"))
print(json.dumps(reached))
"""
NAMES = ["../outside/up", "/tmp/root/outside/absolute", "folder/through-folder", "file"]
PLANT = """
import os
for link, target in {"folder": "/tmp", "file": "/tmp/through-link"}.items():
    if not os.path.islink(link):
        os.symlink(target, link)
print("planted", flush=True)
"""


@pytest.mark.runtimes("runc", "gvisor")
async def test_names_and_links_do_not_lead_out(control, everywhere, unprotected_pod):
    """A block whose name leads out, by a planted link too, is refused. What is planted under the name is replaced."""
    there = json.loads(unprotected_pod(f"NAMES = {NAMES!r}\n{WRITE}"))
    control.succeeded(
        "in the unprotected pod plain writes to such names left the folder, by .., absolute, through both links",
        there == [False] * 4,
    )

    async def probe(sandbox):
        session = sandbox.session(limits=BESIDE_OTHERS)
        *leads_out, replaced = NAMES
        for name in leads_out:
            result = await sandbox.run(PLANT, f"# filename: {name}\nprint('ran')", at=session)
            assert result.exit_code != 0, name
            assert result.stdout == "planted\n", name
            assert "Filename is not in the workspace" in result.output or result.stderr, name
        reached = "import os; print(os.path.lexists('/tmp/through-link'))"
        result = await sandbox.run(PLANT, f"# filename: {replaced}\nprint('ran')", reached, at=session)
        assert result.stdout == "planted\nran\nFalse\n"

    await everywhere(probe)


HOSTILE = """
import os
for name, target in {"passwd": "/etc/passwd", "etc": "/etc", "up": ".."}.items():
    os.symlink(target, name)
os.mkfifo("fifo")
open("honest", "w").write("honest")
"""
FOLLOW = """
import json, os, shutil
os.makedirs("/tmp/hostile", exist_ok=True)
os.chdir("/tmp/hostile")
if not os.path.lexists("passwd"):
    os.symlink("/etc/passwd", "passwd")
    os.symlink("/etc", "etc")
print(json.dumps(["root:" in open(name).read() for name in ("passwd", "etc/passwd")]))
"""


@pytest.mark.runtimes("runc", "gvisor")
async def test_links_of_the_workspace_are_not_given_out(control, everywhere, unprotected_pod, tmp_path):
    """Neither listing nor fetching files follows a link that code has made in its workspace, nor waits for a pipe."""
    control.succeeded(
        "in the unprotected pod a plain copy followed such links to /etc/passwd",
        json.loads(unprotected_pod(FOLLOW)) == [True, True],
    )

    async def probe(sandbox):
        folder = tmp_path / sandbox.runtime
        folder.mkdir()
        session, token = sandbox.session(work_dir=folder, limits=BESIDE_OTHERS), CancellationToken()
        made = await sandbox.run(HOSTILE, at=session)
        assert [one.path for one in made.artifacts] == ["honest"]
        assert "honest" in await session.get_file_list(token)
        for name in ("passwd", "etc/passwd", "up/etc/passwd", "/etc/passwd", "../etc/passwd", "fifo"):
            with pytest.raises(FileTransferError):
                await session.download_files([name], token)
        brought = {path.name for path in folder.iterdir() if not path.name.startswith("tmp_code_")}
        assert brought == {"honest"}

    await everywhere(probe)
