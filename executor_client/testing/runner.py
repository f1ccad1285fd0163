"""What the runner of a fake pod does: it gets the output of blocks from the script, and collects files."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final, Protocol

from codeexec_api import BlockStatus, Event, OutputRef, Reason
from codeexec_api import records as said
from codeexec_api.languages import LANGUAGES, default_file_name
from codeexec_api.names import block_key, output_name
from executor_client.model.blocks import removed_by
from executor_client.testing.outcomes import FakeBlock, FakeOutcome, Script, StreamName, Workspace
from executor_client.testing.output import STREAMS, Collected, collect
from executor_client.testing.state import Run, State


class Ends(Protocol):
    """What happens around a runner."""

    def finish(self, run: Run, event: Event, message: str, reason: Reason | None = None, **more: Any) -> None:
        """End an execution."""

    def advance(self, seconds: float) -> None:
        """Set the clock forward."""

    def lose_pod(self, name: str) -> None:
        """Delete the pod of an execution."""


class Runner:
    """Runs blocks in order, at once."""

    def __init__(self, state: State, script: Script, languages: Collection[str], around: Ends) -> None:
        self._state: Final = state
        self._script, self._languages, self._around = script, languages, around

    def run(self, run: Run) -> None:
        """Run blocks in order until one fails, or does not end by itself."""
        spec = self._state.executions[run.name].spec
        for index in range(len(spec.blocks)):
            run.bytes_before = (run.output.total_bytes("stdout"), run.output.total_bytes("stderr"))
            outcome, started = self._outcome(run, index), self._state.now
            if self._over(run):  # the script has cancelled it, or ended its session
                return
            for stream, data in outcome.output():
                self._write(run, stream, data)
            if outcome.never_ends:
                run.endless_since = started
                return
            self._around.advance(min(outcome.takes, spec.timeout_seconds))
            if outcome.loses_pod:
                self._around.lose_pod(run.name)
            if self._over(run):  # its pod is lost, or its session has ended
                return
            self.end_block(run, *_end_of(outcome, spec.timeout_seconds), started)
            if run.blocks[-1].exit_code:
                break
        self.conclude(run)

    def _over(self, run: Run) -> bool:
        return self._state.executions[run.name].status.phase.terminal

    def _outcome(self, run: Run, index: int) -> FakeOutcome:
        """What the script says of a block."""
        block, code = self._state.executions[run.name].spec.blocks[index], run.payload[block_key(index)]
        command = LANGUAGES[block.language].command
        if block.language not in self._languages:
            pwsh = command[0] == "pwsh"
            theirs = "Powershell or pwsh is not installed" if pwsh else f"Unsupported language: {block.language}"
            text = f"unknown language {block.language}: the sandbox image has no {command[0]} ({theirs})"
            there = ", ".join(one for one in LANGUAGES if one in self._languages)
            return FakeOutcome(stderr=f"{text}; supported languages: {there}\n", exit_code=1)
        path = block.filename or default_file_name(block.language, block.sha256)
        try:
            run.pod.workspace.put(path, code)
        except OSError as error:
            return FakeOutcome(stderr=f"{' '.join(command)}: {error.strerror}: {path}\n", exit_code=126)
        if (removed := removed_by(block.language, code.decode())) is not None:
            return _remove(run.pod.workspace, path, removed)
        seen = FakeBlock(block.language, code.decode(), path, run.pod.workspace, self._state.session_of(run.name))
        try:
            return self._script(seen)
        except BaseException as error:  # the test hears of it; whoever waits for this execution must not wait for ever
            self._around.finish(run, Event.FAULT, f"the script of the fake raised {error!r}", Reason.RUNNER_FAILED)
            raise

    def _write(self, run: Run, stream: StreamName, data: bytes, *, final: bool = False) -> None:
        if text := run.output.write(stream, data, final=final):
            run.pod.log.add((self._state.now, run.frames.frame(stream=stream, data=text)))

    def end_block(self, run: Run, exit_code: int, reason: str, started: datetime) -> None:
        """A block has ended so."""
        written = [run.output.total_bytes(name) - old for name, old in zip(STREAMS, run.bytes_before, strict=True)]
        status = BlockStatus(
            exit_code=exit_code,
            reason=reason,
            started_at=started,
            duration_ms=round((self._state.now - started).total_seconds() * 1000),
            stdout_bytes=written[0],
            stderr_bytes=written[1],
        )
        frame = run.frames.frame(block=len(run.blocks), **status.dump() | {"startedAt": started.timestamp()})
        run.pod.log.add((self._state.now, frame))
        run.blocks.append(status)

    def conclude(self, run: Run) -> None:
        """All blocks that will run have ended: the last one tells how it went."""
        for name in STREAMS:
            self._write(run, name, b"", final=True)
        spec = self._state.executions[run.name].spec
        collected = collect(run.pod.workspace, spec.artifacts)
        done = run.frames.frame(done=True, **run.output.totals(), artifactsOmitted=collected.omitted)
        run.pod.log.add((self._state.now, done))
        event = said.BLOCK_EVENTS[run.blocks[-1].reason] if run.blocks else Event.EXITED_ZERO
        message = said.how_code_ended(event, run.blocks[-1].exit_code, spec) if run.blocks else said.FILES_TRANSFERRED
        self._around.finish(run, event, message, **self.given_out(run, collected))

    def given_out(self, run: Run, collected: Collected | None) -> dict[str, Any]:
        """Output and files for the record; what it has no room for is stored beside it. None: the end never came."""
        output, metadata = run.output, self._state.executions[run.name].metadata
        files = collected or Collected()
        parts = [] if output.small and not files.contents else output.parts(files.contents)
        names = [output_name(metadata.name, metadata.uid, (index, index + 1)) for index in range(len(parts))]
        self._state.outputs.update(zip(names, parts, strict=True))
        return {
            **{name: output.status(name, referenced=bool(parts), complete=collected is not None) for name in STREAMS},
            "output_order": () if parts else output.order(),
            "output_refs": tuple(OutputRef(name=name) for name in names),
            "artifacts": files.artifacts,
            "artifacts_omitted": files.omitted,
        }


def _remove(workspace: Workspace, own: str, path: str) -> FakeOutcome:
    """What `files.remove` does in a sandbox."""
    del workspace[own]
    if workspace.pop(path, None) is None:
        return FakeOutcome(stderr=f"rm: cannot remove '{path}': No such file or directory\n", exit_code=1)
    return FakeOutcome()


def _end_of(outcome: FakeOutcome, timeout: int) -> tuple[int, str]:
    """Exit code and reason of a block that ends by itself, or at its limit."""
    if outcome.takes > timeout:
        return 124, "DeadlineExceeded"
    if outcome.out_of_memory:
        return outcome.exit_code or 137, "OutOfMemory"
    return outcome.exit_code, "NonZeroExit" if outcome.exit_code else "Completed"
