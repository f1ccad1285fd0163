"""A connection that breaks while code runs costs nothing but the time to open it again."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import a_name

pytestmark = pytest.mark.e2e


@asynccontextmanager
async def a_proxy(host: str, port: int):
    """Passes bytes between loopback and the API server. Yields its port, and a function that cuts every connection."""
    writers: set[asyncio.StreamWriter] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(host, port)
        writers.update((writer, up_writer))
        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))

    def cut() -> int:
        count = len(writers)
        for writer in writers:
            writer.transport.abort()
        writers.clear()
        return count

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], cut
        cut()


async def test_broken_watch_is_resumed(agent_kubeconfig, make_executor, admin, tmp_path):
    config = yaml.safe_load(Path(agent_kubeconfig).read_text())
    cluster = config["clusters"][0]["cluster"]
    real = urlsplit(cluster["server"])
    async with a_proxy(real.hostname, real.port) as (port, cut):
        cluster |= {"server": f"https://127.0.0.1:{port}", "tls-server-name": real.hostname}
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        agent = a_name("outage")
        executor = make_executor(kubeconfig=path, agent=agent)
        block = CodeBlock("sleep 2; echo done", "sh")
        running = asyncio.create_task(executor.execute_code_blocks([block], CancellationToken()))
        await asyncio.to_thread(admin.running_execution, agent)
        assert cut() > 0
        result = await running
        await executor.stop()
    assert (result.exit_code, result.output) == (0, "done\n")
