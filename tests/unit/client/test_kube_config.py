"""What a kubeconfig says: proxies, contexts, credential plugins, and files that are being written."""

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.config.kube_config import ConfigNode, KubeConfigMerger
from polling import clock_jumps_once

from executor_client import ClusterRef, ClusterUnreachable, CodeExecutionClient
from executor_client.transport import kube_config
from executor_client.transport.kube_config import find
from executor_client.workspace import session_finalizer


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
    assert set(proxy.asked) == {"CONNECT 127.0.0.1:1 HTTP/1.1"}


@pytest.mark.parametrize("no_proxy", [None, "0.0.0.0", "0.0.0.0/8", "192.168.0.0/16,nonsense/99"])
async def test_the_proxy_of_the_environment_is_used_except_for_no_proxy(
    no_proxy: str | None, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.0.0.0 is this machine, too, but no loopback address."""
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    if no_proxy:
        monkeypatch.setenv("NO_PROXY", no_proxy)
    await ask(tmp_path, server="https://0.0.0.0:1")
    used = no_proxy is None or no_proxy.startswith("192")
    assert set(proxy.asked) == ({"CONNECT 0.0.0.0:1 HTTP/1.1"} if used else set())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST", "[::1]"])
async def test_no_proxy_of_the_environment_is_asked_for_this_machine(
    host: str, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in kubectl: an API server of kind or of a tunnel listens there."""
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", "192.168.0.0/16")
    await ask(tmp_path, server=f"https://{host}:1")
    assert proxy.asked == []


@pytest.mark.parametrize("no_proxy", ["", "0.0.0.0"])
@pytest.mark.parametrize(("host", "loopback"), [("127.0.0.1", True), ("0.0.0.0", False)])
@pytest.mark.parametrize("named", [True, False], ids=["of the kubeconfig", "of the environment"])
async def test_the_farewell_of_a_session_takes_the_same_way(
    no_proxy: str, host: str, loopback: bool, named: bool, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", no_proxy)
    if not named:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    cluster = client_of(tmp_path, server=f"https://{host}:1", **({"proxy-url": proxy.url} if named else {})).cluster
    assert cluster
    await asyncio.to_thread(session_finalizer._end, "session-1", cluster)
    used = named or not (loopback or no_proxy)
    assert {one.split(" HTTP/")[0] for one in proxy.asked} == ({f"CONNECT {host}:1"} if used else set())


async def test_no_request_takes_the_proxy_of_all_schemes(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubectl does not either, and it is often a SOCKS proxy, for which a library is missing."""
    monkeypatch.setenv("ALL_PROXY", proxy.url)
    await ask(tmp_path, server="https://0.0.0.0:1")
    cluster = client_of(tmp_path, server="https://0.0.0.0:1").cluster
    assert cluster
    await asyncio.to_thread(session_finalizer._end, "session-1", cluster)
    assert proxy.asked == []


BROKEN = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").decode()


@pytest.mark.parametrize(
    ("data", "told"),
    [(BROKEN, "kubeconfig can't be used"), ("YWJj", "kubeconfig can't be used"), ("abc", "is not base64")],
)
async def test_a_certificate_that_is_none_is_an_error_of_ours(tmp_path: Path, data: str, told: str) -> None:
    with pytest.raises(ClusterUnreachable, match=told):
        await client_of(tmp_path, **{"certificate-authority-data": data}).check()


def write_two_contexts(path: Path, current: str) -> None:
    names = "ab"
    config: dict[str, Any] = {
        "current-context": current,
        "clusters": [{"name": one, "cluster": {"server": f"https://{one}.example:6443"}} for one in names],
        "users": [{"name": one, "user": {"token": f"token-of-{one}"}} for one in names],
        "contexts": [{"name": one, "context": {"cluster": one, "user": one}} for one in names],
    }
    path.write_text(yaml.safe_dump(config))


async def test_a_connection_stays_with_the_context_that_it_began_with(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    write_two_contexts(path, "a")
    configuration, credentials = await find(str(path), None)
    write_two_contexts(path, "b")
    os.utime(path, (1, 1))
    assert (await credentials.current()).authorization == "Bearer token-of-a"
    assert configuration.host == "https://a.example:6443"
    _, of_b = await find(str(path), None)
    assert (await of_b.current()).authorization == "Bearer token-of-b"


async def test_what_was_read_last_goes_on_while_the_file_is_written_until_it_expires(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    write_two_contexts(path, "a")
    _, credentials = await find(str(path), None)
    path.write_text("")
    assert (await credentials.current()).authorization == "Bearer token-of-a"
    credentials.identity = replace(credentials.identity, expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(ClusterUnreachable, match="is not a kubeconfig"):
        await credentials.current()
    write_two_contexts(path, "a")
    assert (await credentials.current()).authorization == "Bearer token-of-a"


class Plugin:
    """A kubeconfig with a credential plugin that tells its process id, and then does something."""

    def __init__(self, folder: Path, does: str) -> None:
        self.kubeconfig, self._script, self._fifo = folder / "kubeconfig", folder / "plugin", folder / "pid"
        os.mkfifo(self._fifo)
        self._script.write_text(f'#!/bin/sh\necho $$ > "{self._fifo}"\n{does}\n')
        self._script.chmod(0o755)
        write_two_contexts(self.kubeconfig, "a")
        config = yaml.safe_load(self.kubeconfig.read_text())
        version = "client.authentication.k8s.io/v1"
        named = {"apiVersion": version, "command": str(self._script), "interactiveMode": "Never"}
        config["users"][0]["user"] = {"exec": named}
        self.kubeconfig.write_text(yaml.safe_dump(config))

    async def began(self) -> int:
        """Its process id."""
        return int(await asyncio.to_thread(self._fifo.read_text))


@pytest.mark.parametrize("does", ["sleep 600", "sleep 600 & wait"], ids=["itself", "what it has started"])
async def test_a_plugin_that_hangs_is_ended_and_named(tmp_path: Path, does: str) -> None:
    plugin = Plugin(tmp_path, does)
    finding = asyncio.create_task(find(str(plugin.kubeconfig), None))
    process = await plugin.began()
    clock_jumps_once(lambda: True, kube_config._PLUGIN_SECONDS)
    with pytest.raises(ClusterUnreachable, match=r"plugin '.*/plugin' .* has not answered within 60 s, and was ended"):
        await finding
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


async def test_a_plugin_ends_when_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, "sleep 600")
    finding = asyncio.create_task(find(str(plugin.kubeconfig), None))
    process = await plugin.began()
    os.kill(process, 0)
    finding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finding
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


ANSWER = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}'


async def test_a_program_without_stdout_has_plugins_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    plugin = Plugin(tmp_path, f"echo '{ANSWER}'")
    reader = os.open(tmp_path / "pid", os.O_RDONLY | os.O_NONBLOCK)
    _, credentials = await find(str(plugin.kubeconfig), None)
    os.close(reader)
    assert credentials


async def test_a_plugin_may_say_much_beside_its_answer(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, f"head -c 1000000 /dev/zero >&2; echo '{ANSWER}'")
    (_, credentials), _ = await asyncio.gather(find(str(plugin.kubeconfig), None), plugin.began())
    assert credentials.identity.authorization == "Bearer t"


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("echo no login >&2; exit 3", "process returned 3. no login"),
        ("echo nothing", "the plugin's answer is no ExecCredential"),
        ("echo '{}'", "the plugin's answer is no ExecCredential"),
        (f"echo '{ANSWER.replace('/v1', '/v2')}'", "the plugin's apiVersion is client.authentication.k8s.io/v2, and"),
    ],
)
async def test_a_plugin_that_fails_or_answers_something_else_is_an_error_of_ours(
    tmp_path: Path, does: str, told: str
) -> None:
    plugin = Plugin(tmp_path, does)
    finding = asyncio.create_task(find(str(plugin.kubeconfig), None))
    await plugin.began()
    with pytest.raises(ClusterUnreachable, match=told):
        await finding


TELLING = f"""#!/bin/sh
printf %s "$KUBERNETES_EXEC_INFO" > "$TOLD"
echo '{ANSWER}'
"""


def write_with_telling_plugin(folder: Path, command: str, cluster: dict[str, Any], **more: Any) -> Path:
    """A kubeconfig in the folder, whose plugin writes down what the plugin is told."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "plugin").write_text(TELLING)
    (folder / "bin" / "plugin").chmod(0o755)
    write_two_contexts(folder / "kubeconfig", "a")
    config = yaml.safe_load((folder / "kubeconfig").read_text())
    named = {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "interactiveMode": "Never"}
    environment = [{"name": "TOLD", "value": str(folder / "told")}]
    config["users"][0]["user"] = {"exec": {**named, "env": environment, **more}}
    config["clusters"][0]["cluster"] |= cluster
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return folder / "kubeconfig"


@pytest.mark.parametrize("command", ["bin/plugin", "./bin/plugin"])
async def test_a_plugin_with_a_relative_path_is_beside_the_kubeconfig_as_in_kubectl(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    _, credentials = await find(str(write_with_telling_plugin(tmp_path / "home", command, {})), None)
    assert credentials.identity.authorization == "Bearer t"
    assert "cluster" not in json.loads((tmp_path / "home" / "told").read_text())["spec"]


async def test_a_plugin_without_a_path_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_with_telling_plugin(tmp_path / "home", "plugin", {})
    monkeypatch.setenv("PATH", f"{tmp_path}/home/bin:{os.environ['PATH']}")
    _, credentials = await find(str(path), None)
    assert credentials.identity.authorization == "Bearer t"


@pytest.mark.parametrize("as_file", [True, False])
async def test_a_plugin_that_asks_for_the_cluster_is_told_of_it(tmp_path: Path, as_file: bool) -> None:
    told = {"server": "https://a.example:6443", "tls-server-name": "b", "insecure-skip-tls-verify": True}
    told |= {"proxy-url": "http://c:1", "certificate-authority-data": "YWJj"}
    ours = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "d", "since": date(2024, 1, 2)}}
    extensions = [{"name": "other", "extension": {"x": 1}}, ours]
    cluster = {**told, "extensions": extensions}
    if as_file:
        (tmp_path / "ca.crt").write_bytes(b"abc")
        cluster["certificate-authority"] = "../ca.crt"
        del cluster["certificate-authority-data"]
    path = write_with_telling_plugin(tmp_path / "home", "./bin/plugin", cluster, provideClusterInfo=True)
    await find(str(path), None)
    spec = json.loads((tmp_path / "home" / "told").read_text())["spec"]
    assert spec["cluster"] == {**told, "config": {"audience": "d", "since": "2024-01-02"}}


# --- parsing ---


def dumped(node: Any) -> Any:
    """What a node of the library holds, and from which file each part is."""
    if isinstance(node, ConfigNode):
        return node.name, node.path, dumped(node.value)
    if isinstance(node, dict):
        return {key: dumped(value) for key, value in node.items()}
    return [dumped(one) for one in node] if isinstance(node, list) else node


@pytest.mark.parametrize(("contexts", "chosen"), [(("a", "b"), "a"), (("a", ""), "a"), (("", "b"), "b")])
async def test_of_several_files_the_first_that_names_a_context_counts_as_in_kubectl(
    tmp_path: Path, contexts: Sequence[str], chosen: str
) -> None:
    paths = [tmp_path / "first", tmp_path / "second"]
    for path, context in zip(paths, contexts, strict=True):
        write_two_contexts(path, context)
    configuration, _ = await find(os.pathsep.join(map(str, paths)), None)
    assert configuration.host == f"https://{chosen}.example:6443"


def test_several_files_are_merged_as_the_library_merges_them(tmp_path: Path) -> None:
    """Except for the current context: the library takes that of the last file."""
    first, second = tmp_path / "first", tmp_path / "second"
    write_two_contexts(first, "a")
    more = [{"name": one, "cluster": {"server": f"https://other-{one}"}} for one in "bc"]
    second.write_text(
        yaml.safe_dump({"current-context": "a", "clusters": more, "users": None, "preferences": {"x": 1}})
    )
    for files in ([first], [first, second], [second, first], [first, tmp_path / "absent"]):
        where = os.pathsep.join(map(str, files))
        ours, theirs = kube_config._Merger(where), KubeConfigMerger(where)
        assert dumped(ours.config) == dumped(theirs.config)
        assert (ours.paths, ours.config_files) == (theirs.paths, theirs.config_files)


@pytest.mark.skipif(not hasattr(yaml, "CSafeLoader"), reason="PyYAML was built without libyaml")
async def test_a_kubeconfig_is_not_parsed_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That took two of the milliseconds of each start."""
    path = tmp_path / "kubeconfig"
    write_two_contexts(path, "a")
    monkeypatch.setattr(yaml.scanner.Scanner, "fetch_more_tokens", lambda _: pytest.fail("parsed in Python"))
    configuration, _ = await find(str(path), None)
    assert configuration.host == "https://a.example:6443"


@pytest.mark.parametrize("content", [b"", b"text", b"- a", b"\xff\xfe", b"a: [", b"clusters: 1"])
async def test_what_is_no_kubeconfig_is_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    with pytest.raises(ClusterUnreachable, match=str(path)):
        await find(str(path), None)
