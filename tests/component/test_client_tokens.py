"""A token that is refused while code runs: the client gets another one from its plugin, and goes on."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from api_calls import Match
from cluster_tools import SANDBOX, wait_for
from component_stage import in_thread
from faults import Answer

from codeexec_api import Phase
from codeexec_api.names import EXECUTION_PLURAL
from executor_client import ClusterRef, CodeExecutionClient, PreparedBlock

WATCH, CANCEL = Match("watch", EXECUTION_PLURAL), Match("patch", EXECUTION_PLURAL, subresource="")
VERSION = "client.authentication.k8s.io/v1"


class Plugin:
    """A credential plugin, and a kubeconfig through the client's proxy that names it."""

    def __init__(self, folder: Path, stage, token: Callable[[], str]) -> None:
        self._answer, self._runs, self._token = folder / "answer", folder / "runs", token
        script = folder / "plugin"
        script.write_text(f'#!/bin/sh\necho >> "{self._runs}"\ncat "{self._answer}"\n')
        script.chmod(0o755)
        path = stage.client_proxy.write_kubeconfig(folder / "kubeconfig", token="unused")
        config = yaml.safe_load(path.read_text())
        config["users"][0]["user"] = {
            "exec": {"apiVersion": VERSION, "command": str(script), "interactiveMode": "Never"}
        }
        path.write_text(yaml.safe_dump(config))
        self.kubeconfig, self._year = str(path), 2090
        self.renew()

    @property
    def runs(self) -> int:
        return self._runs.read_text().count("\n")

    def renew(self) -> None:
        """From now on the plugin has another token."""
        self._year += 1
        status = {"token": self._token(), "expirationTimestamp": f"{self._year}-01-01T00:00:00Z"}
        self._answer.write_text(json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": status}))


@pytest.mark.parametrize("renewed", [True, False], ids=["renewed", "refused for good"])
async def test_a_token_that_runs_out_while_code_runs_and_when_it_is_cancelled(
    operator, stage, asking, agent, admin, tmp_path, one_watch, renewed
):
    plugin = Plugin(tmp_path, stage, lambda: admin.token("codeexec-agent"))
    blocks, cancelled = (PreparedBlock("python", f'print("begun")\nwait("{agent}")'.encode()),), asyncio.Event()
    async with CodeExecutionClient(ClusterRef(SANDBOX, kubeconfig=plugin.kubeconfig)) as client:
        running = asyncio.create_task(client.execute(blocks, asking(), cancelled=cancelled))
        await stage.script.reached(agent, running)
        assert plugin.runs == 1
        plugin.renew()
        with stage.client_proxy.fault(WATCH, Answer(401), times=1) as refused:
            assert stage.client_proxy.cut_open(WATCH) == 1
            await refused.hit()
        await in_thread(wait_for, "the watch", lambda: stage.client_proxy.open_streams(WATCH))
        assert plugin.runs == 2
        if renewed:
            plugin.renew()
        with stage.client_proxy.fault(CANCEL, Answer(401), times=1) as refused:
            cancelled.set()
            await refused.hit()
            if not renewed:
                await in_thread(wait_for, "the plugin", lambda: plugin.runs == 3)
        if renewed:
            assert (await running).phase is Phase.CANCELLED
        else:
            assert not running.done(), "control: with the token that was refused it is not cancelled"
            stage.script.open(agent)
            assert (await running).output == "begun\n"
    assert plugin.runs == 3
