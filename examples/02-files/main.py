"""Code in the sandbox analyses a local CSV file and returns a table and a plot.

Each call first copies files from `work_dir` into the workspace, and afterwards copies files that the code created or
changed back. `upload_files`, `get_file_list` and `download_files` do the same for single files.
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
REGIONS = "region,name\nnorth,Nord\nsouth,Sud\n"
ANALYSIS = """\
import matplotlib.pyplot as plt
import pandas as pd

sales = pd.read_csv("sales.csv").merge(pd.read_csv("regions.csv"))
totals = sales.groupby("name")["amount"].sum()
totals.to_csv("totals.csv")
totals.plot.bar()
plt.savefig("totals.png")
print(totals.to_string(header=False))
"""


async def analyse(work_dir: Path, elsewhere: Path) -> None:
    token = CancellationToken()
    (work_dir / "sales.csv").write_text(SALES)
    (elsewhere / "regions.csv").write_text(REGIONS)
    async with KubernetesCodeExecutor(work_dir=work_dir, limits=LIMITS, agent="files-example") as executor:
        await executor.upload_files([elsewhere / "regions.csv"], token)
        result = await executor.execute_code_blocks([CodeBlock(ANALYSIS, "python")], token)
        print(result.output)
        assert result.exit_code == 0

        for artifact in result.artifacts:
            content = (work_dir / artifact.path).read_bytes()
            assert hashlib.sha256(content).hexdigest() == artifact.sha256
            print(f"{artifact.path}: {artifact.size_bytes} bytes, SHA-256 {artifact.sha256[:12]}…")
        assert (work_dir / "totals.csv").read_text() == "name,amount\nNord,40\nSud,25\n"
        assert (work_dir / "totals.png").read_bytes().startswith(b"\x89PNG")

        there = await executor.get_file_list(token)
        assert {"sales.csv", "regions.csv", "totals.csv", "totals.png"} <= set(there)
        (work_dir / "totals.csv").unlink()
        [again] = await executor.download_files(["totals.csv"], token)
        assert again == str(work_dir / "totals.csv")
        assert (work_dir / "totals.csv").exists()
    print("OK: two files went in, two came back")


with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as elsewhere:
    asyncio.run(analyse(Path(folder).resolve(), Path(elsewhere)))
