"""R-09: file names stay inside the workspace, after all links are resolved; more in tests/e2e/test_file_names.py."""

import json

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.remit("R-09")]

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
os.symlink("/tmp", "folder")
os.symlink("/tmp/through-link", "file")
print("planted", flush=True)
"""


@pytest.mark.parametrize("runtime", ["runc", "gvisor"], indirect=True)
async def test_names_and_links_do_not_lead_out(control, sandbox, unprotected_pod):
    """A block is refused whose name is absolute, goes up, or leads through a link that an earlier block planted."""
    there = json.loads(unprotected_pod(f"NAMES = {NAMES!r}\n{WRITE}"))
    control.succeeded(
        "in the unprotected pod plain writes to such names left the folder, by .., absolute, through both links",
        there == [False] * 4,
    )
    results = await sandbox.run_all({name: [PLANT, f"# filename: {name}\nprint('ran')"] for name in NAMES})
    for name, result in results.items():
        assert result.exit_code != 0, name
        assert result.stdout == "planted\n", name
        assert "Filename is not in the workspace" in result.output or result.stderr, name
