"""A SIMULATOR of the runner (`operator/sandbox/runner.py`): the lines it would say, without a container around it.

No code is run. Of a job, a block that is one `print("...")` with a literal is answered as if it had been run; any other
fails and says why. The egress proof is a recital: it says of each target that nothing answered, and nothing was tried.
Used by `simulated_kubelets.py`.
"""

import ast
import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from codeexec_operator.core.frames import Lines
from codeexec_operator.core.readiness import LAYERS

Frame = dict[str, Any]
_REFUSAL: Final = "simulated runner: nothing is run here; all that is understood is one print of a literal string\n"


class SimulatedRunner:
    """The runner of one pod, from its start to its end; connections may come and go.

    Args:
        targets: of the egress proof, as the pod's environment names them.
        run_seconds: how long each block takes.
    """

    def __init__(self, targets: Sequence[Mapping[str, Any]], *, run_seconds: float) -> None:
        self.jobs = 0
        """How many it was given; more than one is a fault of the operator's."""
        self.exited = False
        """The pod's only container has ended."""
        self._targets, self._run_seconds = targets, run_seconds
        self._lines = Lines()

    async def answers(self, data: bytes) -> AsyncIterator[Frame]:
        """What it says to what comes on its stdin, in pieces of any size.

        Raises:
            ValueError: a line is too long, or no JSON.
        """
        for line in filter(None, self._lines.feed(data)):
            async for frame in self._answer(json.loads(line)):
                yield frame

    async def _answer(self, message: Mapping[str, Any]) -> AsyncIterator[Frame]:
        if "report" in message:
            egress = [{**target, "answered": False} for target in self._targets]
            used = {"job": None, "used": self.jobs > 0}
            yield {"ready": True, "layers": sorted(LAYERS), "egress": egress, "kernel": False, **used}
        elif "resume" in message:
            yield {"resumed": message["resume"], "missing": "Forgotten" if self.jobs else "NeverBegun"}
        elif "blocks" in message:
            self.jobs += 1
            async for frame in self._run(message):
                yield frame
        elif "ping" in message:
            yield {"pong": message["ping"]}
        elif "ack" in message and self.jobs:
            self.exited = True

    async def _run(self, job: Mapping[str, Any]) -> AsyncIterator[Frame]:
        streams = {"stdout": b"", "stderr": b""}
        frames: list[Frame] = []
        for index, block in enumerate(job["blocks"]):
            begun = time.time()
            await asyncio.sleep(self._run_seconds)
            printed = printed_by(block["code"])
            stream, text = ("stdout", printed) if printed is not None else ("stderr", _REFUSAL)
            streams[stream] += text.encode()
            frames.append({"stream": stream, "data": text})
            frames.append(_end_of(index, begun, stream, len(text.encode())))
            if printed is None:
                break
        totals = {
            name: {"bytes": len(said), "sha256": hashlib.sha256(said).hexdigest(), "truncated": False}
            for name, said in streams.items()
        }
        frames.append({"done": True, **totals, "artifactsOmitted": 0})
        for sequence, frame in enumerate(frames):
            yield {"id": job["id"], "seq": sequence, **frame}


def _end_of(index: int, begun: float, stream: str, size: int) -> Frame:
    well = stream == "stdout"
    return {
        "block": index,
        "exitCode": 0 if well else 1,
        "reason": "Completed" if well else "NonZeroExit",
        "startedAt": begun,
        "durationMs": round((time.time() - begun) * 1000),
        "stdoutBytes": size if well else 0,
        "stderrBytes": 0 if well else size,
    }


def printed_by(code: str) -> str | None:
    """What `print("...")` prints, its newline included; None if the code is anything else. Nothing is evaluated."""
    try:
        [statement] = ast.parse(code).body
    except (SyntaxError, ValueError):
        return None
    match statement:
        case ast.Expr(ast.Call(ast.Name("print"), [ast.Constant(str(text))], [])):
            return text + "\n"
    return None
