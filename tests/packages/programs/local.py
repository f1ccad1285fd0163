"""The local sandbox, where the kernel has what it needs; otherwise it says that the kernel has it not."""

import asyncio

import sandlock

import codeexec
from codeexec.local import Sandbox


async def outcome() -> str:
    """The output, or why there is none."""
    async with codeexec.Client(agent="analyst", backend=Sandbox()) as client:
        try:
            return (await client.run("print(6 * 7)")).stdout
        except codeexec.Error as error:
            return str(error)


said = asyncio.run(outcome())
if sandlock.landlock_abi_version() >= sandlock.min_landlock_abi():
    assert said == "42\n", said
else:
    assert "Landlock" in said, said
