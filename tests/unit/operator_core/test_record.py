"""What is recorded when the whole result doesn't fit into the object."""

import hashlib

from factories import NOW, a_finished_transcript

from codeexec_api import CodeExecutionStatus, Phase
from codeexec_operator.core.record import without_output


def test_output_is_left_out_visibly_and_everything_else_is_kept() -> None:
    stdout = a_finished_transcript(text="much").stream("stdout")
    status = CodeExecutionStatus(phase=Phase.SUCCEEDED, message="done", exit_code=0, finished_at=NOW, stdout=stdout)
    result = without_output(status)
    assert result.stdout
    assert (result.stdout.text, result.stdout.total_bytes, result.stdout.truncated) == ("", 4, True)
    assert (result.stdout.kept_bytes, result.stdout.sha256) == (0, hashlib.sha256(b"").hexdigest())
    assert result.stderr is None
    assert (result.phase, result.exit_code, result.finished_at) == (Phase.SUCCEEDED, 0, NOW)
    assert result.message.startswith("done; the output was left out")


def test_what_is_kept_elsewhere_stays_as_it_was_described() -> None:
    transcript = a_finished_transcript(text="much" * 100_000)
    transcript.finish()
    stdout = transcript.stream("stdout")
    assert stdout.referenced
    result = without_output(CodeExecutionStatus(phase=Phase.SUCCEEDED, message="done", stdout=stdout))
    assert result.stdout == stdout.model_copy(update={"text": ""})


def test_a_long_message_stays_within_what_a_record_takes() -> None:
    status = without_output(CodeExecutionStatus(phase=Phase.SUCCEEDED, message="x" * 4096))
    assert CodeExecutionStatus.model_validate(status.dump()).message == "x" * 4096
