"""A CSV goes into the sandbox, code analyses it, and a table and a plot come back into a local folder.

`upload_files`, `get_file_list` and `download_files` are called as with AutoGen's own executors that have them. What
code makes or changes needs no call: it is copied into `work_dir`.
"""

import asyncio
import hashlib
import tempfile
from pathlib import Path

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from executor_client import KubernetesCodeExecutor, Limits

LIMITS = Limits(cpu="250m")
SALES = "region,month,amount\nnorth,1,10\nnorth,2,30\nsouth,1,5\nsouth,2,20\n"
ANALYSIS = """\
import matplotlib.pyplot as plt
import pandas as pd

totals = pd.read_csv("sales.csv").groupby("region")["amount"].sum()
totals.to_csv("totals.csv")
totals.plot.bar()
plt.savefig("totals.png")
print(totals.to_string(header=False))
"""


async def analyse(work_dir: Path) -> None:
    token = CancellationToken()
    (work_dir / "sales.csv").write_text(SALES)
    async with KubernetesCodeExecutor(work_dir=work_dir, limits=LIMITS, agent="files-example") as executor:
        await executor.upload_files(["sales.csv"], token)  # as work_dir has it
        result = await executor.execute_code_blocks([CodeBlock(ANALYSIS, "python")], token)
        print(result.output)
        assert result.exit_code == 0

        for artifact in result.artifacts:
            content = (work_dir / artifact.path).read_bytes()
            assert hashlib.sha256(content).hexdigest() == artifact.sha256
            print(f"{artifact.path}: {artifact.size_bytes} bytes, SHA-256 {artifact.sha256[:12]}…")
        assert (work_dir / "totals.csv").read_text() == "region,amount\nnorth,40\nsouth,25\n"
        assert (work_dir / "totals.png").read_bytes().startswith(b"\x89PNG")

        there = await executor.get_file_list(token)
        assert {"sales.csv", "totals.csv", "totals.png"} <= set(there)
        (work_dir / "totals.csv").unlink()
        [again] = await executor.download_files(["totals.csv"], token)
        assert again == str(work_dir / "totals.csv")
        assert (work_dir / "totals.csv").exists()
    print("OK: one file went in, two came back")


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(analyse(Path(folder).resolve()))
