"""What an interpreter that ends does about the session of an executor that was never stopped."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

SCRIPT = """
import asyncio, sys
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from executor_client import ClusterRef, KubernetesCodeExecutor
from executor_client.testing import FakeCluster, FakeOutcome
from executor_client.workspace import session_finalizer

session_finalizer._READ_SECONDS, session_finalizer._CONNECT_AND_READ_SECONDS = 60, (60, 60)
client = FakeCluster(run=lambda block: FakeOutcome()).client()
client.cluster = ClusterRef("here", sys.argv[1])  # where the farewell is to go

async def main():
    {executor} = KubernetesCodeExecutor(client=client)
    await {executor}.execute_code_blocks([CodeBlock("x", "python")], CancellationToken())

asyncio.run(main())
"""


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[list[str]]:
    """What is asked of a server, of which there is a kubeconfig in the folder."""
    asked: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append(f"{self.path} {body}")
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        cluster = {"name": "one", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}
        context = {"name": "one", "context": {"cluster": "one", "user": "one"}}
        config = {"current-context": "one", "clusters": [cluster], "contexts": [context]}
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config | {"users": [{"name": "one", "user": {}}]}))
        yield asked
        server.shutdown()
        serving.join()


HANGS = """
import logging

logging.getLogger("asyncio").setLevel("ERROR")  # in this mode a loop warns on stderr of each turn that takes long

async def never():
    print("asked", flush=True)
    await asyncio.Event().wait()

session_finalizer.reader = lambda *_: never
session_finalizer._READ_SECONDS = 0.1
"""

WAYS = pytest.mark.parametrize(
    "executor", ["executor", "globals()['executor']"], ids=["collected in the loop", "alive at the end"]
)


@WAYS
def test_the_session_is_ended_at_once_or_with_the_interpreter(executor: str, heard: list[str], tmp_path: Path) -> None:
    script = SCRIPT.format(executor=executor)
    arguments = [sys.executable, "-X", "dev", "-c", script, str(tmp_path / "kubeconfig")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "Traceback" not in done.stderr
    [asked] = heard
    assert asked.startswith("/apis/codeexec.dev/v1alpha1/namespaces/here/codesessions/session-")
    assert asked.endswith(' {"spec": {"ended": true}}')


@WAYS
def test_an_interpreter_ends_whose_credentials_can_not_be_had(executor: str, tmp_path: Path) -> None:
    """A plugin may wait for somebody who logs in, in a thread that the interpreter waits for, or after all threads."""
    script = SCRIPT.format(executor=executor).replace("\nclient =", f"{HANGS}\nclient =")
    arguments = [sys.executable, "-X", "dev", "-c", script, str(tmp_path / "kubeconfig")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=110)
    assert (done.returncode, done.stdout, done.stderr) == (0, "asked\n", "")
