"""R-13: code never runs on the host of the caller."""

import socket
from pathlib import Path

import pytest
import yaml
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor

from executor_client import ClusterUnreachable

pytestmark = [pytest.mark.e2e, pytest.mark.remit("R-13")]


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
