"""The client finds its cluster: by kubeconfig, context and environment, and through a proxy. From a pod: see e2e."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from cluster_tools import SANDBOX

from executor_client import (
    ClusterRef,
    ClusterUnreachable,
    CodeExecutionClient,
    Limits,
    OutputChunk,
    PreparedBlock,
    Request,
)

pytestmark = pytest.mark.usefixtures("operator")

REQUEST = Request(agent="clusters", timeout_seconds=20, limits=Limits(cpu="100m", memory="96Mi"))
BLOCKS = (PreparedBlock("python", b'print("42")'),)
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "NO_PROXY", "no_proxy")


async def run_on(cluster: ClusterRef) -> str:
    """What a small program prints that is run there, with its output followed."""
    client, seen = CodeExecutionClient(cluster), list[OutputChunk]()
    try:
        result = await client.execute(BLOCKS, REQUEST, on_output=seen.append)
    finally:
        await client.close()
    assert "".join(chunk.text for chunk in seen) == result.output
    return result.output


@pytest.fixture
def agent_kubeconfig(stage) -> str:
    return stage.agent_kubeconfig()


@pytest.fixture
def changed(agent_kubeconfig, tmp_path) -> Callable[..., str]:
    """Writes a copy of the agent's kubeconfig with changes to its one cluster."""

    def write(**cluster: str) -> str:
        raw = yaml.safe_load(Path(agent_kubeconfig).read_text())
        raw["clusters"][0]["cluster"] |= cluster
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(raw))
        return str(path)

    return write


@pytest.fixture
def two_contexts(agent_kubeconfig, tmp_path) -> str:
    """A kubeconfig whose current context leads nowhere; the one named `good` is the agent's."""
    raw = yaml.safe_load(Path(agent_kubeconfig).read_text())
    [context] = raw["contexts"]
    nowhere = {"name": "nowhere", "cluster": {"server": "https://127.0.0.1:1"}}
    raw["clusters"].append(nowhere)
    raw["contexts"] = [
        {"name": "bad", "context": {**context["context"], "cluster": "nowhere"}},
        {"name": "good", "context": context["context"]},
    ]
    raw["current-context"] = "bad"
    path = tmp_path / "two-contexts"
    path.write_text(yaml.safe_dump(raw))
    return str(path)


async def test_kubeconfig_by_path_wins_over_the_environment(agent_kubeconfig, two_contexts, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", two_contexts)
    assert await run_on(ClusterRef(SANDBOX, kubeconfig=agent_kubeconfig)) == "42\n"


async def test_context_by_name(two_contexts):
    assert await run_on(ClusterRef(SANDBOX, kubeconfig=two_contexts, context="good")) == "42\n"
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:1"):  # the control: it is not the current one
        await run_on(ClusterRef(SANDBOX, kubeconfig=two_contexts))
    with pytest.raises(ClusterUnreachable, match="absent"):
        await run_on(ClusterRef(SANDBOX, kubeconfig=two_contexts, context="absent"))


async def test_kubeconfig_of_the_environment(agent_kubeconfig, two_contexts, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", agent_kubeconfig)
    assert await run_on(ClusterRef(SANDBOX)) == "42\n"
    monkeypatch.setenv("KUBECONFIG", two_contexts)
    assert await run_on(ClusterRef(SANDBOX, context="good")) == "42\n"


# --- proxies --------------------------------------------------------------------------------------------------------


class Proxy:
    """An HTTP proxy that tunnels, on loopback. Remembers where it was asked to connect to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.url = ""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["Proxy"]:
        server = await asyncio.start_server(self._tunnel, "127.0.0.1", 0)
        self.url = "http://{}:{}".format(*server.sockets[0].getsockname())
        async with server:
            yield self

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        self.asked.append(f"{method} {target}")
        host, _, port = target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one side has gone; so will the other
    finally:
        writer.close()


@pytest.fixture
async def proxy(monkeypatch) -> AsyncIterator[Proxy]:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    async with Proxy().serve() as proxy:
        yield proxy


@pytest.fixture
def api_server(agent_kubeconfig) -> str:
    raw = yaml.safe_load(Path(agent_kubeconfig).read_text())
    return urlsplit(raw["clusters"][0]["cluster"]["server"]).netloc


async def test_proxy_of_the_kubeconfig(proxy, changed, api_server):
    assert await run_on(ClusterRef(SANDBOX, kubeconfig=changed(**{"proxy-url": proxy.url}))) == "42\n"
    assert set(proxy.asked) == {f"CONNECT {api_server}"}


@pytest.fixture
def by_number(changed, stage, api_server) -> tuple[str, str]:
    """A host that is the API server's address as a hexadecimal number, and a kubeconfig with it.

    No client takes this host for a loopback address, and each resolver finds the address.
    """
    host, port = hex(int(ipaddress.ip_address(stage.plane.address))), api_server.rpartition(":")[2]
    return host, changed(server=f"https://{host}:{port}", **{"tls-server-name": stage.plane.address})


async def test_proxy_of_the_environment(proxy, by_number, api_server, monkeypatch):
    host, kubeconfig = by_number
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    assert await run_on(ClusterRef(SANDBOX, kubeconfig=kubeconfig)) == "42\n"
    assert set(proxy.asked) == {f"CONNECT {host}:{api_server.rpartition(':')[2]}"}


@pytest.mark.parametrize("exempt", ["{host}", "*"])
async def test_no_proxy_for_what_the_environment_exempts(proxy, by_number, monkeypatch, exempt):
    host, kubeconfig = by_number
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", exempt.format(host=host))
    assert await run_on(ClusterRef(SANDBOX, kubeconfig=kubeconfig)) == "42\n"
    assert proxy.asked == []


async def test_no_proxy_of_the_environment_for_this_machine(proxy, agent_kubeconfig, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    assert await run_on(ClusterRef(SANDBOX, kubeconfig=agent_kubeconfig)) == "42\n"
    assert proxy.asked == []


async def test_proxy_that_does_not_answer_is_said(proxy, changed):
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:1"):
        await run_on(ClusterRef(SANDBOX, kubeconfig=changed(**{"proxy-url": "http://127.0.0.1:1"})))
