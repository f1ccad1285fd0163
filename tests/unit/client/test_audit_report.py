"""The report's numbers, groups and rows: pure functions of records."""

import re
from collections.abc import Sequence
from datetime import timedelta
from importlib.resources import files
from typing import Any

import pytest
from factories import NOW, a_session, an_execution

from codeexec_api import (
    BlockStatus,
    CodeExecution,
    CodeSession,
    EgressProof,
    EgressVerdict,
    Phase,
    Reason,
    SessionPhase,
)
from codeexec_api.audit_findings import Finding, FindingKind
from codeexec_api.v1alpha1.approval import ApprovalStatus
from executor_client.cli.auditing import Record
from executor_client.cli.report_entries import anchor_of, entries_of
from executor_client.cli.report_rows import FOLDED_FROM, Fold, Row, days_of
from executor_client.cli.report_sums import (
    LINKED,
    Share,
    flagged,
    found_in_log,
    problems_of,
    sum_up,
)
from executor_client.cli.report_words import CONCERNS, FINDINGS, WHY, Label, Tone, network_of, result_of, why_of


def proof(verdict: EgressVerdict) -> dict[str, Any]:
    return {"egress_proof": EgressProof(verdict=verdict, checked_at=NOW)}


CLOSED, OPEN = proof(EgressVerdict.CLOSED), proof(EgressVerdict.OPEN)
NEVER = {"started_at": None}
INSIDE = {"sessionRef": {"name": "work-1"}}
IMAGE_REFUSED = a_session(phase=SessionPhase.DENIED, status={"reason": "PolicyViolation", "egress_proof": None} | NEVER)
NO_ROOM = a_session(phase=SessionPhase.FAILED, status={"reason": "StartTimeout", "egress_proof": None} | NEVER)


def run(name: str = "run-1", phase: Phase = Phase.SUCCEEDED, reason: str = "Completed", **more: Any) -> CodeExecution:
    status = {"reason": reason, **more.pop("status", {})}
    return an_execution(name=name, phase=phase, status=status, **more)


def never_ran(reason: str, phase: Phase = Phase.DENIED, **more: Any) -> CodeExecution:
    return run(phase=phase, reason=reason, status=NEVER, **more)


def later(record: Any, **by: float) -> Any:
    created = record.metadata.creation_timestamp + timedelta(**by)
    return record.model_copy(update={"metadata": record.metadata.model_copy(update={"creation_timestamp": created})})


def counts(shares: Sequence[Share]) -> dict[str, int]:
    return {one.label.text: one.count for one in shares}


def sums(*records: Record):
    return sum_up(entries_of(records))


def problems(*records: Record) -> dict[str, list[str]]:
    """Names by the group that they are in."""
    groups = problems_of(entries_of(records))
    return {group.concern.title: [one.name for one in group.problems] for group in groups}


# --- each request counts once ---


def test_an_image_that_is_refused_is_one_refusal() -> None:
    found = sums(IMAGE_REFUSED, never_ran("SessionEnded", **INSIDE))
    assert (found.refused, counts(found.refusals)) == (1, {"The policy does not allow the request": 1})
    assert counts(found.outcomes) == {"Not started": 1}
    assert (found.executions, found.sessions) == (1, 1)
    assert counts(found.by_agent) == {"tester": 1}


def test_it_stays_one_refusal_if_the_execution_repeats_the_reason_of_the_session() -> None:
    found = sums(IMAGE_REFUSED, never_ran("PolicyViolation", **INSIDE))
    assert counts(found.refusals) == {"The policy does not allow the request": 1}


@pytest.mark.parametrize(
    ("phase", "reason"), [(Phase.DENIED, "SessionEnded"), (Phase.FAILED, "StartTimeout")], ids=["older", "now"]
)
def test_lack_of_room_is_no_refusal_and_one_problem(phase: Phase, reason: str) -> None:
    records = (NO_ROOM, never_ran(reason, phase, **INSIDE))
    assert (sums(*records).refused, sums(*records).refusals) == (0, ())
    [group] = problems_of(entries_of(records))
    [problem] = group.problems
    assert (group.concern.title, problem.anchor) == ("Failed to run", "session-work-1")
    assert problem.why == "Session failed. No pod became ready in time. 1 execution did not start"


def test_an_execution_that_comes_after_its_session_has_not_started() -> None:
    late = never_ran("SessionEnded", **INSIDE)
    for records in ((a_session(phase=SessionPhase.ENDED), late), (late,)):
        assert sums(*records).refused == 0
        assert counts(sums(*records).outcomes) == {"Not started": 1}
        assert problems(*records) == {"Not started": ["run-1"]}


def test_a_refusal_of_its_own_counts_in_a_session_too() -> None:
    denied = never_ran("SessionMismatch", **INSIDE)
    assert counts(sums(a_session(phase=SessionPhase.READY), denied).refusals) == {
        "It asked for other limits than its session has": 1
    }


def test_requests_are_executions_and_sessions_in_which_none_ran() -> None:
    work = a_session(phase=SessionPhase.ENDED)
    assert counts(sums(work, run("run-1", **INSIDE), run("run-2", **INSIDE)).by_agent) == {"tester": 2}
    assert counts(sums(work).by_agent) == {"tester": 1}
    assert counts(sums(IMAGE_REFUSED).by_requester) == {"not known": 1}


def test_file_transfers_are_counted_apart() -> None:
    copied = run("copy-1", blocks=[], files=[{"path": "a.csv", "sha256": "0" * 64, "sizeBytes": 1}], **INSIDE)
    listed = run("copy-2", blocks=[], payloadRef=None, **INSIDE)
    found = sums(a_session(phase=SessionPhase.ENDED), run(**INSIDE), copied, listed)
    assert (found.executions, found.transfers, found.sessions) == (1, 2, 1)
    assert counts(found.outcomes) == {"Succeeded": 1}
    [day] = days_of(entries_of((run(**INSIDE), copied, listed)))
    [row] = day.rows
    assert isinstance(row, Row)
    assert [one.what for one in row.transfers] == ["1 file copied in", "Files listed"]
    assert (len(row.rows), row.what) == (1, "1 execution, 2 file transfers")


def test_a_sandbox_counts_once_however_much_ran_in_it() -> None:
    inside = [run(f"run-{n}", status=CLOSED, **INSIDE) for n in range(3)]
    found = sums(a_session(phase=SessionPhase.ENDED), *inside, run("own", status=OPEN), never_ran("PolicyViolation"))
    assert counts(found.networks) == {"Closed": 1, "Open": 1, "Not checked: nothing ran": 1}
    assert counts(sums(*inside).networks) == {"Closed": 1}, "also if the session's record is gone"


def test_a_share_links_to_what_needs_a_look_first_and_not_to_all() -> None:
    records = [run(f"run-{n}", status=CLOSED) for n in range(LINKED)] + [run("bad", Phase.LOST, "PodLost")]
    [agent] = sums(*records).by_agent
    assert (agent.count, agent.problems, agent.more, len(agent.links)) == (LINKED + 1, 1, 1, LINKED)
    assert agent.links[0].anchor == "execution-bad"


# --- what needs a look ---


@pytest.mark.parametrize(
    ("record", "title"),
    [
        (never_ran("PolicyViolation"), "Denied or expired"),
        (never_ran("ApprovalTimeout", Phase.EXPIRED), "Denied or expired"),
        (run(phase=Phase.FAILED, reason="NonZeroExit"), "Failed"),
        (run(phase=Phase.FAILED, reason="RunnerFailed"), "Failed to run"),
        (run(phase=Phase.LOST, reason="PodLost"), "Lost"),
        (run(phase=Phase.TIMED_OUT, reason="DeadlineExceeded"), "Timed out"),
        (run(phase=Phase.OUT_OF_MEMORY, reason="OutOfMemory"), "Out of memory"),
        (run(status=OPEN), "Network open"),
        (run(status=proof(EgressVerdict.UNPROVEN)), "Network not verified"),
        (a_session(phase=SessionPhase.READY, status=OPEN), "Network open"),
        (a_session(phase=SessionPhase.LOST, status={"reason": "PodLost"}), "Lost"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_each_problem_is_listed_under_its_title(record: Record, title: str) -> None:
    assert problems(record) == {title: [record.metadata.name]}


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.CANCELLED, Phase.RUNNING, Phase.AWAITING_APPROVAL])
def test_what_went_well_or_goes_on_is_not_listed(phase: Phase) -> None:
    assert problems(run(phase=phase, status=CLOSED)) == {}


def test_the_worst_problem_comes_first_and_a_record_is_listed_once() -> None:
    both = run("both", Phase.FAILED, "NonZeroExit", status=OPEN)
    found = problems(run("a", Phase.FAILED, "NonZeroExit"), both, never_ran("PolicyViolation", name="c"))
    assert found == {"Network open": ["both"], "Denied or expired": ["c"], "Failed": ["a"]}
    assert list(found) == ["Network open", "Denied or expired", "Failed"]


def test_an_open_network_of_a_session_is_listed_once_and_says_how_much_ran() -> None:
    session = a_session(phase=SessionPhase.ENDED, status=OPEN)
    inside = [run(f"run-{n}", status=OPEN, **INSIDE) for n in range(3)]
    [group] = problems_of(entries_of((session, *inside)))
    assert [(one.name, one.why) for one in group.problems] == [("work-1", "Session ended. 3 executions ran in it")]
    assert problems(*inside) == {"Network open": ["run-0", "run-1", "run-2"]}, "without its record, one by one"


def test_findings_link_to_the_rows_that_they_name() -> None:
    entries = entries_of((run(), a_session(phase=SessionPhase.ENDED)))
    findings = (
        Finding(FindingKind.RECORD_CHANGED, "CodeExecution run-1", "exitCode is 0, but was 3 (the line: a.log:7)"),
        Finding(FindingKind.CHANGED, "a.log:6", "line 5 of chain c (CodeSession work-1, Ready) was changed"),
        Finding(FindingKind.CHANGED, "a.log:8", "line 7 of chain c (CodeExecution other, Failed) was changed"),
        Finding(FindingKind.MISSING, "a.log:9", "line 8 of chain c is missing"),
    )
    assert [one.anchor for one in found_in_log(findings, entries)] == ["execution-run-1", "session-work-1", "", ""]
    assert flagged(findings) == {"execution-run-1"}
    [day] = days_of(entries, flagged(findings))
    assert [(one.name, one.flagged) for one in day.rows if isinstance(one, Row)] == [("run-1", True), ("work-1", False)]


# --- rows ---


def test_executions_of_a_session_stand_in_its_row() -> None:
    failed = later(run("run-2", Phase.FAILED, "NonZeroExit", status={"exit_code": 3} | CLOSED, **INSIDE), days=1)
    [day] = days_of(entries_of((a_session(phase=SessionPhase.ENDED), run(**INSIDE), failed)))
    [row] = day.rows
    assert isinstance(row, Row)
    assert (row.anchor, row.what, row.problems) == ("session-work-1", "2 executions", 1)
    assert [(one.anchor, one.shown, one.why) for one in row.rows] == [
        ("execution-run-1", "12:00:00", ""),
        ("execution-run-2", "2026-11-22 12:00:00", "Exit code 3"),
    ]
    assert (day.title, day.count, day.problems) == ("Saturday, 21 November 2026", "2 executions, 1 session", 1)


def test_a_session_whose_record_is_not_there_still_has_a_row() -> None:
    [day] = days_of(entries_of((run(**INSIDE),)))
    [row] = day.rows
    assert isinstance(row, Row)
    assert (row.anchor, row.result, row.agent) == ("session-work-1", Label("No record"), "tester")


def test_an_execution_and_a_session_of_one_name_have_different_anchors() -> None:
    assert anchor_of(run("work-1")) != anchor_of(a_session())


def test_a_short_report_folds_nothing_and_a_long_one_what_went_well() -> None:
    well = [run(f"run-{n}", status=CLOSED) for n in range(742)]
    [day] = days_of(entries_of(well[: FOLDED_FROM - 1]))
    assert len(day.rows) == FOLDED_FROM - 1
    well[100] = run("bad", Phase.TIMED_OUT, "DeadlineExceeded", status=CLOSED)
    well[200] = run("open", status=OPEN)
    well[201] = run("asked", status=CLOSED | {"approval": ApprovalStatus(decision="Approve", approver="olga")})
    [day] = days_of(entries_of(well))
    texts = [one.text if isinstance(one, Fold) else one.name for one in day.rows]
    assert texts == ["100 executions", "bad", "99 executions", "open", "asked", "540 executions"]
    assert day.open


def test_a_session_that_went_well_is_folded_with_what_is_beside_it() -> None:
    records: list[Record] = []
    for n in range(FOLDED_FROM):
        session = a_session(phase=SessionPhase.ENDED)
        name = f"work-{n}"
        records.append(session.model_copy(update={"metadata": session.metadata.model_copy(update={"name": name})}))
        records += [run(f"run-{n}-{m}", status=CLOSED, sessionRef={"name": name}) for m in range(2)]
    [day] = days_of(entries_of(records))
    [fold] = day.rows
    assert isinstance(fold, Fold)
    assert (fold.text, fold.agents, len(fold.rows)) == ("80 executions, 40 sessions", "tester", 40)


def test_days_of_a_long_report_are_closed() -> None:
    bad = [later(run(f"run-{n}", Phase.LOST, "PodLost"), hours=n) for n in range(100)]
    days = days_of(entries_of(bad))
    assert [len(day.rows) for day in days] == [12, 24, 24, 24, 16]
    assert not any(day.open for day in days)
    assert all(day.open for day in days_of(entries_of(bad[:30])))


# --- words ---


def test_each_reason_phase_and_finding_has_words() -> None:
    assert set(WHY) == set(Reason)
    assert set(FINDINGS) == set(FindingKind)
    assert all(result_of(run(phase=phase)).text for phase in Phase)
    assert all(result_of(a_session(phase=phase)).text for phase in SessionPhase)
    assert len({one.key for one in CONCERNS}) == len(CONCERNS)


def test_a_reason_of_a_newer_operator_is_shown_as_it_is() -> None:
    assert why_of(run(reason="SomethingNew")) == "SomethingNew"


def test_a_phase_and_a_verdict_of_a_newer_operator_are_shown_as_they_are() -> None:
    stored = run().dump()
    stored["status"] |= {"phase": "Parked", "egressProof": {"verdict": "Guessed", "checkedAt": "2026-11-21T12:00:00Z"}}
    record = CodeExecution.read(stored)
    network = network_of(record.status.egress_proof)
    assert (result_of(record).text, network and network.text) == ("Parked", "Guessed")


def a_block(reason: str) -> dict[str, Any]:
    block = {"exit_code": 124, "started_at": NOW, "duration_ms": 1, "stdout_bytes": 0, "stderr_bytes": 0}
    return {"blocks": (BlockStatus(reason=reason, **block),)}


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (run(phase=Phase.FAILED, reason="NonZeroExit", status={"exit_code": 3}), "Exit code 3"),
        (
            run(phase=Phase.TIMED_OUT, reason="DeadlineExceeded", status=a_block("DeadlineExceeded")),
            "A block ran longer than its time limit, 60 s",
        ),
        (run(phase=Phase.TIMED_OUT, reason="DeadlineExceeded"), "A time limit was reached"),
        (run(phase=Phase.OUT_OF_MEMORY, reason="OutOfMemory"), "The code exceeded its memory limit, 256Mi"),
        (never_ran("PolicyViolation"), "The policy does not allow the request"),
        (run(status={"approval": ApprovalStatus(decision="Approve", approver="olga")}), "Approved by olga"),
        (
            run(
                phase=Phase.DENIED,
                reason="ApprovalDenied",
                status={"approval": ApprovalStatus(decision="Deny", approver="olga", reason="no ticket")},
            ),
            "olga denied it: no ticket",
        ),
        (
            run(
                phase=Phase.DENIED,
                reason="ApprovalDenied",
                status={"approval": ApprovalStatus(decision="Deny", approver="olga")},
            ),
            "olga denied it",
        ),
    ],
)
def test_the_reason_names_the_values(record: CodeExecution, why: str) -> None:
    assert why_of(record) == why


def test_messages_are_not_quoted() -> None:
    secret = run(phase=Phase.FAILED, reason="FileRefused", status={"message": "secret-plan.txt: Is a directory"})
    session: CodeSession = a_session(phase=SessionPhase.DENIED, status={"message": "secret-plan.txt"})
    entries = entries_of((secret, session))
    assert "secret-plan" not in repr((days_of(entries), problems_of(entries), sum_up(entries)))


# --- colours ---


def _colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block))


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(dark: bool) -> None:
    style = (files("executor_client.cli") / "pages" / "report.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = _colours(blocks[0]) | (_colours(blocks[1]) if dark else {})
    assert contrast("#000000", "#ffffff") == pytest.approx(21), "control"
    assert contrast("#777777", "#ffffff") < 4.5, "control"
    texts = {"text", "quiet", "link", "plain", *(tone.value for tone in Tone)}
    for text in texts:
        for ground in ("page", "panel", "plain-tint", "target"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    assert contrast(colours["bad"], colours["bad-tint"]) >= 4.5
