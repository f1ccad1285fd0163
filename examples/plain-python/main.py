"""codeexec without an agent framework: one call and its record, live output, and a session with files and variables.

`codeexec.Client` needs no extra, and does not load AutoGen.
"""

import asyncio
import sys

import codeexec

LIMITS = codeexec.Limits(cpu="250m")


async def run_once(client: codeexec.Client) -> None:
    """One call in a pod of its own, with one file in and one file back."""
    code = "text = open('in.txt').read()\nopen('out.txt', 'w').write(text.upper())\nprint(len(text))"
    result = await client.run(code, files={"in.txt": "hello"}, fetch=["out.txt"])
    assert (result.exit_code, result.stdout, result.files["out.txt"]) == (0, "5\n", b"HELLO")

    record = await client.executions.get(result.execution)
    print(f"{record.metadata.name}: {record.status.phase}, {record.status.code_digest}")
    print(f"  isolation layers: {', '.join(record.status.layers)}")
    print(f"  network: {record.status.egress_proof.verdict}")


async def follow(client: codeexec.Client) -> None:
    """Read output while the code runs."""
    pieces = []
    await client.run("echo one; echo two >&2", language="sh", on_output=pieces.append)
    assert sorted((piece.stream, piece.text) for piece in pieces) == [("stderr", "two\n"), ("stdout", "one\n")]


async def use_session(client: codeexec.Client) -> None:
    """Share files and Python variables between several calls."""
    async with client.session() as session:
        await session.files.write("data/numbers", "1\n2\n3\n")
        await session.run("numbers = sorted(open('data/numbers').read().split(), reverse=True)")
        result = await session.run("open('data/sorted', 'w').write(' '.join(numbers))\nnumbers")
        assert result.text == "['3', '2', '1']"
        assert await session.files.read("data/sorted") == b"3 2 1"
        print("  files:", ", ".join(file.path for file in await session.files.list()))


async def main() -> None:
    async with codeexec.Client(agent="plain-example", timeout=20, limits=LIMITS) as client:
        await run_once(client)
        await follow(client)
        await use_session(client)
    assert "autogen_core" not in sys.modules
    print("OK: and no framework was loaded")


asyncio.run(main())
