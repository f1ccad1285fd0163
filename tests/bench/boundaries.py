"""Times the same calls under runc and under gVisor, in turn: what the kernel boundary costs.

Run by `make bench-boundaries`, which prints a table; `PAGE=1` also writes it into docs/performance.md.
"""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from kubernetes.aio import client, config

from executor_client import KubernetesCodeExecutor, Limits

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from bench import GVISOR, has_gvisor
from cluster_tools import ROOT
from contenders import CODE
from facts import machine
from measuring import WARM_UP, Contender, measure
from page import as_markdown, write_between
from stage import without_the_default_pool
from tables import Row, milliseconds

RUNS = int(os.environ.get("RUNS", "12"))
SMALL = Limits(cpu="250m", memory="96Mi")
"""Limits of each pod that is timed."""
NEW, LATER = "new pod for each call", "later call of a session"
IN_A_SESSION = {
    LATER: CODE,
    "the same, with 20,000 system calls": f"import os\nfor _ in range(20_000): os.stat('/')\n{CODE}",
    "the same, with 200 files written": f"for n in range(200): open(f'{{n}}', 'w').write('x')\n{CODE}",
    "the same, with 3 million steps of Python": f"sum(range(3_000_000))\n{CODE}",
}


def call(executor: KubernetesCodeExecutor, code: str) -> Contender:
    async def run() -> None:
        result = await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())
        assert (result.exit_code, result.output) == (0, "1\n"), result

    return run


async def main() -> None:
    await config.load_kube_config(os.environ["KUBECONFIG"])
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(client.ApiClient())
        if not await has_gvisor(api):
            sys.exit("the cluster has no RuntimeClass gvisor")
        await stack.enter_async_context(without_the_default_pool(api))
        contenders: dict[str, Contender] = {}
        for runtime in ("runc", GVISOR):
            options = {"agent": "bench", "limits": SMALL, "runtime_class_name": runtime}
            session = await stack.enter_async_context(KubernetesCodeExecutor(**options))
            alone = await stack.enter_async_context(KubernetesCodeExecutor(session="per-call", **options))
            contenders |= {f"{runtime}: {NEW}": call(alone, CODE)}
            contenders |= {f"{runtime}: {name}": call(session, code) for name, code in IN_A_SESSION.items()}
        times = await measure(contenders, RUNS)
        facts = await machine(api)
    lines = [("one call", "runc: p50", "p95", "gVisor: p50", "p95", "gVisor / runc")]
    for name in (NEW, *IN_A_SESSION):
        runc, gvisor = (Row(name, times[f"{runtime}: {name}"]) for runtime in ("runc", GVISOR))
        figures = map(milliseconds, (runc.p50, runc.p95, gvisor.p50, gvisor.p95))
        lines.append((name, *figures, f"{gvisor.p50 / runc.p50:.2f}"))
    print(as_markdown(lines[0], lines[1:]))
    if os.environ.get("PAGE"):
        told = (
            f"Measured on {facts}; {datetime.now(UTC).date()}. {RUNS} runs each after {WARM_UP} warm-up runs, in turn."
        )
        text = f"{told}\n\n{as_markdown(lines[0], lines[1:])}"
        write_between(ROOT / "docs" / "performance.md", "boundaries", text)


asyncio.run(main())
