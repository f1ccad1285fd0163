"""Python variables persist between calls, and figures and tables come back as files.

With `stateful=True`, the Python blocks of a session run in one interpreter, like the cells of a notebook. A block that
exceeds its time limit is interrupted, and the variables remain.
"""

import asyncio
import tempfile
from pathlib import Path

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from executor_client import KubernetesCodeExecutor, KubernetesCodeResult, Limits

LIMITS = Limits(memory="512Mi")
LOAD = """\
import pandas as pd

table = pd.DataFrame({"x": [1, 2, 3], "y": [1, 4, 9]})
"""
SHOW = """\
import matplotlib.pyplot as plt

plt.plot(table["x"], table["y"])
plt.show()
table
"""
FOR_EVER = """\
started = True
while True:
    pass
"""


async def use_notebook(work_dir: Path) -> None:
    async with KubernetesCodeExecutor(
        stateful=True, timeout=20, work_dir=work_dir, limits=LIMITS, agent="stateful-example"
    ) as executor:

        async def run(code: str) -> KubernetesCodeResult:
            return await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())

        loaded = await run(LOAD)
        assert loaded.exit_code == 0, loaded.output

        shown = await run(SHOW)
        print("The value of the last line is output:", shown.output, sep="\n")
        files = {Path(artifact.path).suffix: artifact.path for artifact in shown.artifacts}
        image, page = files[".png"], files[".html"]
        print("The plot and the table are files:", image, page)
        assert (work_dir / image).read_bytes().startswith(b"\x89PNG")
        assert "<table" in (work_dir / page).read_text()

        stopped = await run(FOR_EVER)
        print("The limit:", stopped.output.splitlines()[-1])
        assert stopped.exit_code == 124
        assert (await run("print(started, len(table))")).output == "True 3\n"
    print("OK: the variables have survived the time limit")


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(use_notebook(Path(folder).resolve()))
