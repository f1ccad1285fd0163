"""Credentials that expire, are refused or are replaced while a client uses them, and what stays of them on disk."""

import base64
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_tools import SANDBOX

from executor_client import ClusterUnreachable, NotPermitted
from executor_client.transport.cluster import Transport

AGENT = f"system:serviceaccount:{SANDBOX}:codeexec-agent"
CREDENTIAL = (
    '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", '
    '"status": {"token": "%s", "expirationTimestamp": "%s"}}'
)
FAR, PAST = "2099-01-01T00:00:00Z", "2020-01-01T00:00:00Z"


@pytest.fixture
def kubeconfig_for(plane: Any, admin: Any, tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """Writes a kubeconfig with this user."""

    def write(user: dict[str, Any]) -> Path:
        config = yaml.safe_load(Path(plane.kubeconfig).read_text())
        config["users"][0]["user"] = user
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        return tmp_path / "kubeconfig"

    return write


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[Path], Any]]:
    made: list[Transport] = []

    async def connect(path: Path) -> Transport:
        made.append(await Transport.connect(kubeconfig=str(path), context=None, namespace=SANDBOX))
        return made[-1]

    yield connect
    for one in made:
        await one.close()


class Plugin:
    """A credential plugin that answers with the content of a file, and counts how often it is run."""

    def __init__(self, folder: Path) -> None:
        self._answer, self._runs, self._script = folder / "answer", folder / "runs", folder / "plugin"
        self._runs.touch()
        self._script.write_text(f'#!/bin/sh\necho >> "{self._runs}"\ncat "{self._answer}"\n')
        self._script.chmod(0o755)

    @property
    def user(self) -> dict[str, Any]:
        version = "client.authentication.k8s.io/v1"
        return {"exec": {"apiVersion": version, "command": str(self._script), "interactiveMode": "Never"}}

    @property
    def runs(self) -> int:
        return self._runs.read_text().count("\n")

    def answers(self, token: str, until: str = FAR) -> None:
        self._answer.write_text(CREDENTIAL % (token, until))


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


async def test_a_plugin_is_asked_once_and_again_when_its_token_runs_out(plugin, admin, kubeconfig_for, connect) -> None:
    plugin.answers(admin.token("codeexec-agent"))
    transport = await connect(kubeconfig_for(plugin.user))
    await transport.check()
    await transport.check()
    assert plugin.runs == 1
    plugin.answers(admin.token("codeexec-agent"), until=PAST)
    short = await connect(kubeconfig_for(plugin.user))
    assert plugin.runs == 2
    await short.whoami()
    assert plugin.runs == 3


async def test_a_token_that_is_refused_is_replaced_and_the_call_succeeds(
    plugin, admin, kubeconfig_for, connect
) -> None:
    plugin.answers("of.no.use")
    transport = await connect(kubeconfig_for(plugin.user))
    plugin.answers(admin.token("codeexec-agent"))
    assert await transport.whoami() == AGENT
    assert plugin.runs == 2


async def test_a_token_that_is_refused_for_good_is_an_error_after_one_more_try(plugin, kubeconfig_for, connect) -> None:
    plugin.answers("of.no.use")
    transport = await connect(kubeconfig_for(plugin.user))
    with pytest.raises(NotPermitted, match="credentials in the kubeconfig are not valid, or have expired"):
        await transport.check()
    assert plugin.runs == 2


async def test_a_plugin_that_fails_is_named(kubeconfig_for, connect) -> None:
    user = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/no/such", "interactiveMode": "Never"}
    }
    with pytest.raises(ClusterUnreachable, match="can't run the credential plugin '/no/such'"):
        await connect(kubeconfig_for(user))


async def test_a_token_file_that_is_replaced_counts_for_the_next_call(
    admin, kubeconfig_for, connect, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(admin.token("codeexec-agent"))
    transport = await connect(kubeconfig_for({"tokenFile": "token"}))
    assert await transport.whoami() == AGENT
    (tmp_path / "new").write_text(f"{admin.token('default')}\n")
    (tmp_path / "new").replace(tmp_path / "token")
    with pytest.raises(NotPermitted, match=f"system:serviceaccount:{SANDBOX}:default"):
        await transport.check()


async def test_a_client_certificate_that_is_replaced_counts_for_the_next_call(
    plane, kubeconfig_for, connect, tmp_path: Path
) -> None:
    def issue(user: str) -> None:
        made = yaml.safe_load(Path(plane.kubeconfig_for(user, "system:masters")).read_text())["users"][0]["user"]
        for name in ("client-certificate", "client-key"):
            (tmp_path / f"{name}.new").write_bytes(Path(made[name]).read_bytes())
            (tmp_path / f"{name}.new").replace(tmp_path / name)

    issue("anna")
    files = {name: str(tmp_path / name) for name in ("client-certificate", "client-key")}
    transport = await connect(kubeconfig_for(files))
    assert await transport.whoami() == "anna"
    issue("berta")
    await transport.check()
    assert await transport.whoami() == "berta"


SCRIPT = """
import asyncio, logging, sys
from executor_client import ClusterRef, CodeExecutionClient
from executor_client.workspace import session_finalizer

async def main():
    # A busy machine may take longer for the farewell than an interpreter that ends should.
    session_finalizer._READ_SECONDS, session_finalizer._CONNECT_AND_READ_SECONDS = 60, (60, 60)
    client = CodeExecutionClient(ClusterRef(kubeconfig=sys.argv[1], namespace=sys.argv[2]))
    print(await (await client.connect()).whoami(), flush=True)
    await asyncio.to_thread(session_finalizer._end, "no-such-session", client.cluster)
    await asyncio.Event().wait()

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
asyncio.run(main())
"""


def test_a_client_that_is_killed_leaves_no_key_behind(plane, kubeconfig_for, tmp_path: Path) -> None:
    files = yaml.safe_load(Path(plane.kubeconfig_for("anna", "system:masters")).read_text())["users"][0]["user"]
    path = kubeconfig_for({f"{key}-data": base64.b64encode(Path(file).read_bytes()) for key, file in files.items()})
    (tmp_path / "tmp").mkdir()
    arguments = [sys.executable, "-c", SCRIPT, str(path), SANDBOX]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "anna\n"
        assert "(404)" in process.stdout.readline(), "the farewell, which knows this user, too"
        process.send_signal(signal.SIGKILL)
    assert list((tmp_path / "tmp").iterdir()) == []
