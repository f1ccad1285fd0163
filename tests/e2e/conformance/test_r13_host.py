"""R-13: code never runs on the host of the caller, and nothing that it made is acted on there."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from cluster_tools import SANDBOX
from conformance.sandbox import BESIDE_OTHERS
from planted import acts_on, for_a_repository, for_any_folder, git

from executor_client import ClusterUnreachable

pytestmark = pytest.mark.remit("R-13")


@pytest.mark.filterwarnings("ignore:Using LocalCommandLineCodeExecutor")
async def test_nothing_runs_on_the_caller_s_host(control, sandbox, agent_kubeconfig, tmp_path):
    """Without a cluster the call fails and no code runs; with one the code runs there, not here."""
    marker = tmp_path / "marker"
    code = f"import pathlib; pathlib.Path({str(marker)!r}).write_text('ran here')"
    local = LocalCommandLineCodeExecutor(work_dir=tmp_path)
    await local.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())
    control.succeeded("AutoGen's local executor ran the same code on the caller's host", marker.exists())
    marker.unlink()

    config = yaml.safe_load(Path(agent_kubeconfig).read_text())
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{unused.getsockname()[1]}"
        nowhere = tmp_path / "nowhere"
        nowhere.write_text(yaml.safe_dump(config))
        with pytest.raises(ClusterUnreachable):
            await sandbox.run(code, kubeconfig=nowhere)
    assert not marker.exists()
    result = await sandbox.call(code)
    assert "No such file or directory" in result.stderr
    assert not marker.exists()


PLANT = """
import pathlib
for name, content in {files!r}.items():
    path = pathlib.Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
"""


@pytest.mark.filterwarnings("ignore:Using LocalCommandLineCodeExecutor")
async def test_nothing_that_code_made_is_acted_on(control, sandbox, agent_kubeconfig, tmp_path):
    """Files that code plants for git and other programs of the caller never reach the caller's disk."""
    marker, token = tmp_path / "marker", CancellationToken()
    places = {"repository": (("init",), for_a_repository(marker)), "empty": ((), for_any_folder(marker))}

    def folder(place, way):
        made = tmp_path / way / place
        made.mkdir(parents=True)
        if command := places[place][0]:
            git(made, *command)
        return made

    for place, (_, files) in places.items():
        unprotected, code = folder(place, "control"), PLANT.format(files=files)
        local = LocalCommandLineCodeExecutor(work_dir=unprotected)
        await local.execute_code_blocks([CodeBlock(code, "python")], token)
        control.succeeded(
            f"after the code ran with AutoGen's local executor in a folder ({place}), `git status` ran its command",
            acts_on(unprotected, marker),
        )

        shared = folder(place, "work_dir")
        executor = sandbox.session(work_dir=shared, limits=BESIDE_OTHERS)
        made = await sandbox.run(code, at=executor)
        assert {one.path for one in made.artifacts} == set(files)
        await executor.download_files([*await executor.get_file_list(token)], token)
        for name in {".git/config", "HEAD"} & set(files):
            with pytest.raises(ValueError, match="programs act on the name"):
                await executor.download_files([name], token)

        saved = folder(place, "artifacts")
        command = ("run", "-n", SANDBOX, "--cpu", "100m", "--memory", "96Mi", "-c", code, "--artifacts", str(saved))
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(agent_kubeconfig)}
        program = [sys.executable, "-m", "executor_client", *command]
        done = await asyncio.to_thread(subprocess.run, program, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "was not saved: programs act on the name" in done.stderr

        for target in (shared, saved):
            assert (target / "result.txt").read_text() == "honest"
            assert not acts_on(target, marker)
            assert not [name for name in (".envrc", ".vscode", "sub/CLAUDE.md", "HEAD") if (target / name).exists()]
