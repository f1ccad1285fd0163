"""Proxies: that of the kubeconfig and that of the environment are used, and only where they are to be."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from executor_client import ClusterRef, ClusterUnreachable, CodeExecutionClient
from executor_client.transport.kube_config import bypasses_proxy

CLUSTER = "https://10.1.2.3:6443"


@pytest.mark.parametrize(
    ("url", "no_proxy", "expected"),
    [
        (CLUSTER, "10.0.0.0/8", True),
        (CLUSTER, "example.org, 10.1.2.3 ,", True),
        (CLUSTER, "10.1.2.0/30", True),
        (CLUSTER, "192.168.0.0/16", False),
        (CLUSTER, "", False),
        (CLUSTER, "*,nonsense/99", False),
        ("https://[fd00::1]:6443", "10.0.0.0/8,fd00::/8", True),
        ("https://api.example.org", "10.0.0.0/8,.example.org", False),
        ("", "0.0.0.0/0", False),
    ],
)
@pytest.mark.parametrize("variable", ["no_proxy", "NO_PROXY"])
def test_networks_in_no_proxy(url: str, no_proxy: str, expected: bool, variable: str) -> None:
    assert bypasses_proxy(url, {variable: no_proxy}) is expected


class Proxy:
    """Takes down what it is asked for, and refuses it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


@pytest.fixture
async def proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    proxy = Proxy()
    server = await asyncio.start_server(proxy.answer, "127.0.0.1")
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield proxy


def client_of(folder: Path, **cluster: str) -> CodeExecutionClient:
    """The client of a cluster that isn't there: nothing listens on port 1."""
    path = folder / "kubeconfig"
    named = {"name": "one", "cluster": {"server": "https://127.0.0.1:1", **cluster}}
    context = {"name": "one", "context": {"cluster": "one", "user": "one"}}
    users = [{"name": "one", "user": {}}]
    path.write_text(
        yaml.safe_dump({"current-context": "one", "clusters": [named], "contexts": [context], "users": users})
    )
    return CodeExecutionClient(ClusterRef(kubeconfig=str(path)))


async def ask(folder: Path, **cluster: str) -> None:
    """Ask that cluster."""
    client = client_of(folder, **cluster)
    try:
        with pytest.raises(ClusterUnreachable):
            await client.check()
    finally:
        await client.close()


async def test_the_proxy_of_the_kubeconfig_is_used(proxy: Proxy, tmp_path: Path) -> None:
    await ask(tmp_path)
    assert proxy.asked == []
    await ask(tmp_path, **{"proxy-url": proxy.url})
    assert proxy.asked == ["CONNECT 127.0.0.1:1 HTTP/1.1"]


@pytest.mark.parametrize("no_proxy", [None, "127.0.0.1", "127.0.0.0/8", "192.168.0.0/16"])
async def test_the_proxy_of_the_environment_is_used_but_for_no_proxy(
    no_proxy: str | None, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    if no_proxy:
        monkeypatch.setenv("NO_PROXY", no_proxy)
    await ask(tmp_path)
    used = no_proxy in (None, "192.168.0.0/16")
    assert proxy.asked == (["CONNECT 127.0.0.1:1 HTTP/1.1"] if used else [])


BROKEN = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").decode()


@pytest.mark.parametrize(
    ("data", "told"),
    [(BROKEN, "can't use the certificates"), ("YWJj", "can't use the certificates"), ("abc", "its data are no base64")],
)
async def test_a_certificate_that_is_none_is_an_error_of_ours(tmp_path: Path, data: str, told: str) -> None:
    with pytest.raises(ClusterUnreachable, match=told):
        await client_of(tmp_path, **{"certificate-authority-data": data}).check()
