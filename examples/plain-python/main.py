"""codeexec without an agent framework: one call and its record, live output, and a session with files.

`CodeExecutionClient` needs no extra, and does not load AutoGen.
"""

import asyncio
import sys

from executor_client import CodeExecutionClient, Limits, Request, SourceBlock, WorkspaceFile

REQUEST = Request(agent="plain-example", timeout_seconds=20, limits=Limits(cpu="250m"))


async def run_once(client: CodeExecutionClient) -> None:
    """One call in a pod of its own, with one file in and one file back."""
    code = "text = open('in.txt').read()\nopen('out.txt', 'w').write(text.upper())\nprint(len(text))"
    blocks = [SourceBlock("python", code)]
    result = await client.execute(blocks, REQUEST, files=[WorkspaceFile("in.txt", b"hello")], fetch=["out.txt"])
    assert (result.exit_code, result.stdout, result.files["out.txt"]) == (0, "5\n", b"HELLO")

    record = await client.get(result.name)
    print(f"{record.metadata.name}: {record.status.phase}, {record.status.code_digest}")
    print(f"  isolation layers: {', '.join(record.status.layers)}")
    print(f"  network: {record.status.egress_proof.verdict}")


async def follow(client: CodeExecutionClient) -> None:
    """Read output while the code runs."""
    execution = await client.submit([SourceBlock("sh", "echo one; echo two >&2")], REQUEST)
    chunks = [chunk async for chunk in execution.output()]
    assert sorted((chunk.stream, chunk.text) for chunk in chunks) == [("stderr", "two\n"), ("stdout", "one\n")]


async def use_session(client: CodeExecutionClient) -> None:
    """Share one workspace between several executions."""
    async with await client.open_session(REQUEST) as session:
        await session.upload({"data/numbers": b"1\n2\n3\n"})
        added = await session.execute([SourceBlock("sh", "sort -r data/numbers > data/sorted")])
        assert [artifact.path for artifact in added.artifacts] == ["data/sorted"]
        assert await session.download(["data/s*"]) == {"data/sorted": b"3\n2\n1\n"}
        print("  files:", ", ".join(file.path for file in await session.list_files()))


async def main() -> None:
    async with CodeExecutionClient() as client:
        await client.check()
        await run_once(client)
        await follow(client)
        await use_session(client)
    assert "autogen_core" not in sys.modules
    print("OK: and no framework was loaded")


asyncio.run(main())
