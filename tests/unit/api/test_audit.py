"""Audit lines: what they hold, and that no log and no record can be changed without it being found."""

import contextlib
import copy
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from audit_world import World, a_world, envelope, kinds, named
from factories import AGENT, APPROVER, NOW, a_raw_block, a_raw_file, an_execution, seconds
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import (
    ApprovalStatus,
    AuditAnchor,
    CodeExecution,
    CodeFinding,
    CodeSession,
    Grant,
    Phase,
    StreamStatus,
)
from codeexec_api.audit import (
    GENESIS,
    AuditEvent,
    Line,
    Segment,
    canonical,
    digest,
    facts_of,
    in_utc,
    log_entry,
    of_a_deletion,
    of_a_write,
    of_the_last_one,
    status_digest,
)
from codeexec_api.audit_check import Verification, audit_line, read_log, verify
from codeexec_api.audit_findings import FindingKind
from codeexec_api.checkpoints import Checkpoint
from codeexec_api.v1alpha1.bounds import MAX_CODE_GRANTS

Record = CodeExecution | CodeSession
MARKER = "PLANTED-IN-CODE-AND-OUTPUT"


# --- what lines hold ---


def test_the_canonical_form_is_the_one_that_the_documents_define() -> None:
    assert (
        canonical({"b": [1, True], "a": {"é": 'x"\n', "A": ""}}) == '{"a":{"A":"","é":"x\\"\\n"},"b":[1,true]}'.encode()
    )


def test_the_hash_of_a_line_is_of_all_of_it_but_the_hash() -> None:
    segment, line = Segment("0" * 32, "sandbox", "1").append(AuditEvent.OPERATOR_STARTED, NOW, {})
    assert (line.body["sequence"], line.body["previous"]) == (1, GENESIS)
    assert line.body["hash"] == digest(line.body) == segment.head
    _, second = segment.append(AuditEvent.CONTINUES, NOW, {})
    assert second.body["previous"] == line.body["hash"]


def test_a_line_tells_who_asked_for_what_and_what_became_of_it() -> None:
    approval = ApprovalStatus(
        grants=(Grant(field="spec.limits.memory", value="4Gi"),), decision="Approve", approver=APPROVER, name="ok"
    )
    record = an_execution(
        phase=Phase.FAILED,
        requestedBy=AGENT,
        blocks=[a_raw_block(), a_raw_block(language="bash")],
        files=[a_raw_file(f"{MARKER}.txt")],
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        status={"approval": approval, "exit_code": 3, "reason": "NonZeroExit", "message": MARKER},
    )
    facts = facts_of(record)
    assert facts["approval"] == {
        "grants": ["spec.limits.memory=4Gi"],
        "decision": "Approve",
        "approver": APPROVER,
        "name": "ok",
    }
    assert (facts["requestedBy"], facts["agent"], facts["digest"]) == (AGENT, "tester", record.spec.code_digest)
    assert (facts["languages"], facts["files"], facts["exitCode"]) == (["python", "bash"], 1, 3)
    assert (facts["traceId"], facts["phase"]) == ("0af7651916cd43dd8448eb211c80319c", "Failed")
    assert facts["limits"]["memory"] == record.spec.limits.memory


def test_a_line_tells_what_was_found_in_the_code_as_far_as_there_is_room() -> None:
    def listed(count: int, name: str = "m") -> list[str]:
        found = tuple(
            CodeFinding(found=f"import {name}{index}", action="Note", places=("spec.blocks[0]",), count=index + 1)
            for index in range(count)
        )
        return facts_of(an_execution(status={"code_findings": found})).get("codeFindings", [])

    assert listed(0) == []
    assert listed(2) == ["Note: import m0", "Note: import m1 (and in 1 more)"]
    assert len(listed(33)) == 33
    assert [one[:11] for one in listed(66, "m" * 50)] == ["66, sha256 "]


def test_a_line_holds_no_code_no_output_and_no_name_of_a_file() -> None:
    output = StreamStatus(text=MARKER, sha256="0" * 64, kept_bytes=9, total_bytes=9, truncated=False)
    record = an_execution(
        phase=Phase.FAILED,
        blocks=[a_raw_block(filename=f"{MARKER}.py")],
        files=[a_raw_file(f"{MARKER}.txt")],
        artifacts={"fetch": [f"{MARKER}.csv"]},
        source={"agent": "tester", "conversation": MARKER},
        status={"message": MARKER, "stdout": output, "stderr": output},
    )
    assert MARKER in json.dumps(record.spec.dump()), "control"
    _, line = Segment("0" * 32, "sandbox", "1").append(AuditEvent.STATUS_WRITE, NOW, of_a_write(record.status, record))
    assert MARKER not in envelope(line)
    assert line.body["record"]["stdoutBytes"] == 9


def test_an_exit_code_of_nought_is_not_the_same_as_none() -> None:
    assert facts_of(an_execution(phase=Phase.SUCCEEDED, status={"exit_code": 0}))["exitCode"] == 0
    assert "exitCode" not in facts_of(an_execution(phase=Phase.DENIED))


def test_defaults_that_the_api_server_adds_change_nothing_and_anything_else_does() -> None:
    status = {"phase": "Failed", "blocks": [{"exitCode": 1}]}
    added = {"phase": "Failed", "blocks": [{"exitCode": 1, "x": 0}], "artifacts": [], "audit": {"chain": "0"}, "y": ""}
    assert status_digest(status) == status_digest(added)
    assert status_digest(status) != status_digest(status | {"blocks": [{"exitCode": 2}]})


def a_long_permit(port: int) -> dict[str, Any]:
    labels = {f"{'k' * 60}{index}": "v" * 63 for index in range(3)}
    return {"podSelector": {"matchLabels": labels}, "port": port + 1}


def test_the_largest_line_is_not_cut_in_two_by_a_container_runtime() -> None:
    """Which happens at 16 KiB. Names are as long as the schema allows, and of letters that take most room."""
    permits = [a_long_permit(index) for index in range(16)]
    grants = tuple(Grant(field=f"spec.blocks[{index}].language", value="javascript") for index in range(64))
    grants += tuple(Grant(field=f"spec.egress[{index}]", value="v" * 1024) for index in range(16))
    found = tuple(
        CodeFinding(found=f"import {'m' * 62}{index:02}", action="NeedApproval", places=("spec.blocks[63]",), count=128)
        for index in range(MAX_CODE_GRANTS)
    )
    grants += tuple(Grant(field=one.places[0], value=str(one)) for one in found)
    image = "r" * 200 + "@sha256:" + "a" * 64
    record = an_execution(
        phase=Phase.FAILED,
        blocks=[a_raw_block(language="javascript", sizeBytes=999_999) for _ in range(64)],
        source={"agent": "é" * 128, "executor": "é" * 128},
        requestedBy="u" * 512,
        egress=permits,
        mounts=[
            {"name": f"m{index}", "mountPath": f"/mnt/{'p' * 60}{index}", "configMap": {"name": "n" * 253}}
            for index in range(8)
        ],
        status={
            "approval": ApprovalStatus(grants=grants, decision="Approve", approver="é" * 512, name="n" * 253),
            "code_findings": found,
            "image": image,
            "image_id": image,
            "pod_name": "p" * 253,
            "node_name": "n" * 253,
            "pool_name": "p" * 253,
        },
    )
    _, line = Segment("0" * 32, "s" * 63, "1").append(AuditEvent.STATUS_WRITE, NOW, of_a_write(record.status, record))
    assert len(envelope(line).encode()) < 16 * 1024


# --- honest logs ---


def test_an_honest_log_verifies_and_agrees_with_the_records() -> None:
    found = a_world().check()
    assert (found.findings, found.notes, found.gone) == ((), (), ())
    assert found.records == 7
    assert [(one.namespace, one.first, one.last) for one in found.chains] == [
        ("codeexec-sandbox", 1, 9),
        ("codeexec-sandbox", 1, 6),
        ("other", 1, 3),
        ("other", 1, 3),
    ]


def test_logs_may_overlap_come_in_any_order_and_with_times_before_them() -> None:
    world = a_world()
    world.logs = {
        "second": [f"2026-11-21T12:00:00Z stdout F {text}\n" for text in world.logs["log-2"]],
        "first": world.logs["log-1"],
        "again": world.logs["log-1"][2:9],
    }
    assert world.check().findings == ()


def test_a_shipper_may_write_the_json_in_another_way() -> None:
    world = a_world()
    for texts in world.logs.values():
        texts[:] = [json.dumps(json.loads(text), indent=None, sort_keys=True, ensure_ascii=False) for text in texts]
    assert world.check().findings == ()


def test_without_a_cluster_only_the_chains_are_checked() -> None:
    found = a_world().check(records=False)
    assert (found.findings, found.records) == ((), 0)


@pytest.mark.parametrize("record", [{"x": 1}, [1], "x", {"kind": "a", "name": "b", "phase": "c", "uid": ["d"]}])
@pytest.mark.parametrize("event", ["OperatorStarted", "StatusWrite", "RecordDeleted"])
def test_a_line_whose_record_is_none_is_a_finding(event: str, record: Any) -> None:
    world = a_world()
    body = json.loads(world.logs["log-1"][-1])["audit"] | {"event": event, "record": record}
    for more in ({}, {"hash": digest(body)}):
        world.logs["log-9"] = [json.dumps({"audit": body | more})]
        assert FindingKind.UNREADABLE in kinds(world.check())


@pytest.mark.parametrize("record", [{}, None])
def test_a_deletion_of_no_record_is_a_finding(record: Any) -> None:
    world = a_world()
    world.start()
    world.say("codeexec-sandbox", AuditEvent.RECORD_DELETED, {"why": "Age", "record": record})
    assert FindingKind.UNREADABLE in kinds(world.check())


def test_logs_without_any_line_that_can_be_read_prove_nothing() -> None:
    assert kinds(verify([], now=NOW)) == {FindingKind.MISSING}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"audit": 1}', '{"audit": {"chain": 1}}', "null", "[" * 100_000])
def test_lines_of_others_are_ignored(text: str) -> None:
    assert audit_line(text) is None
    assert verify(read_log("log", [text + "audit"]), now=NOW).lines == 0


# --- what was done to a log ---

Numbers = st.integers(0, 10**6)


def audit_lines(world: World, log: str) -> list[int]:
    return [index for index, text in enumerate(world.logs[log]) if '"chain"' in text]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [one for name, child in value.items() for one in leaves(child, (*path, name))]
    if isinstance(value, list) and value:
        return [one for index, child in enumerate(value) for one in leaves(child, (*path, index))]
    return [path]


def altered(body: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    body = copy.deepcopy(body)
    holder = body
    for step in path[:-1]:
        holder = holder[step]
    old = holder[path[-1]]
    holder[path[-1]] = old + 1 if isinstance(old, int) else [*old, "x"] if isinstance(old, list) else f"{old}x"
    return body


@given(st.sampled_from(["log-1", "log-2"]), Numbers, Numbers)
def test_any_change_of_a_line_is_found(log: str, which: int, leaf: int) -> None:
    world = a_world()
    index = audit_lines(world, log)[which % len(audit_lines(world, log))]
    outer = json.loads(world.logs[log][index])
    paths = leaves(outer["audit"])
    outer["audit"] = altered(outer["audit"], paths[leaf % len(paths)])
    world.logs[log][index] = json.dumps(outer)
    found = world.check()
    assert found.findings
    assert any(f"{log}:{index + 1}" in f"{one.where} {one.message}" for one in found.findings), "and where"


@given(st.sampled_from(["log-1", "log-2"]), Numbers, Numbers)
def test_a_changed_line_whose_hash_was_made_anew_is_found(log: str, which: int, leaf: int) -> None:
    """Whoever changes a line can compute its hash; the next line, or a record, has the old one."""
    world = a_world()
    index = audit_lines(world, log)[which % len(audit_lines(world, log))]
    outer = json.loads(world.logs[log][index])
    paths = [path for path in leaves(outer["audit"]) if path != ("hash",)]
    outer["audit"] = altered(outer["audit"], paths[leaf % len(paths)])
    outer["audit"]["hash"] = digest(outer["audit"])
    world.logs[log][index] = json.dumps(outer)
    assert world.check().findings


@given(st.sampled_from(["log-1", "log-2"]), Numbers)
def test_a_dropped_line_is_found(log: str, which: int) -> None:
    world = a_world()
    del world.logs[log][audit_lines(world, log)[which % len(audit_lines(world, log))]]
    assert FindingKind.MISSING in kinds(world.check())


@given(st.sampled_from(["log-1", "log-2"]), Numbers, Numbers)
def test_lines_that_have_changed_places_are_found(log: str, one: int, other: int) -> None:
    world = a_world()
    texts, places = world.logs[log], audit_lines(world, log)
    first, second = places[one % len(places)], places[other % len(places)]
    chains = {json.loads(texts[place])["audit"]["chain"] for place in (first, second)}
    between = [
        json.loads(texts[one])["audit"]["chain"] for one in places if min(first, second) < one < max(first, second)
    ]
    texts[first], texts[second] = texts[second], texts[first]
    # Lines of two chains that have nothing of either between them are in no order.
    told = first != second and (len(chains) == 1 or bool(chains & set(between)))
    assert (FindingKind.REORDERED in kinds(world.check())) == told


@given(st.sampled_from(["log-1", "log-2"]), Numbers, Numbers)
def test_a_line_that_comes_twice_is_found(log: str, which: int, where: int) -> None:
    world = a_world()
    text = world.logs[log][audit_lines(world, log)[which % len(audit_lines(world, log))]]
    world.logs[log].insert(where % (len(world.logs[log]) + 1), text)
    assert kinds(world.check()) & {FindingKind.REPEATED, FindingKind.REORDERED}


@given(st.sampled_from(["log-1", "log-2"]), Numbers)
def test_an_invented_line_is_found(log: str, which: int) -> None:
    """With a place, a predecessor and a hash that fit."""
    world = a_world()
    place = audit_lines(world, log)[which % len(audit_lines(world, log))]
    before = json.loads(world.logs[log][place])["audit"]
    segment = Segment(before["chain"], before["namespace"], "1.2.3", before["sequence"], before["hash"])
    invented = an_execution(phase=Phase.SUCCEEDED)
    _, line = segment.append(AuditEvent.STATUS_WRITE, NOW + seconds(60), of_a_write(invented.status, invented))
    world.logs[log].insert(place + 1, envelope(line))
    found = world.check()
    last = before["sequence"] == max(one.last for one in a_world().check().chains if one.chain == before["chain"])
    if last and before["namespace"] == "codeexec-sandbox":
        assert found.gone == ("CodeExecution run-1",), (
            "nothing follows that could contradict it, and there is no record"
        )
    elif not last:
        assert FindingKind.CONFLICTING in kinds(found)


def the_end_of(world: World, log: str, namespace: str) -> Segment:
    """The chain of a namespace in this log, to be gone on with by somebody who may append to the log."""
    texts = [text for text in world.logs[log] if f'"namespace": "{namespace}"' in text]
    body = json.loads(texts[-1])["audit"]
    return Segment(body["chain"], namespace, body["operator"], body["sequence"], body["hash"])


def test_a_chain_that_goes_on_long_after_another_operator_has_begun_is_found() -> None:
    world = World()
    world.start()
    world.write(named("run-1"), Phase.FAILED)
    world.now += timedelta(hours=2)
    taken_over = world.now
    world.start()
    world.now += timedelta(days=20)
    world.write(named("run-2"), Phase.DENIED)
    ended, log = the_end_of(world, "log-1", "codeexec-sandbox"), world.logs["log-1"]
    for at, findings in ((taken_over + timedelta(minutes=59), set()), (world.now, {FindingKind.MISDATED})):
        _, line = ended.append(AuditEvent.CONTINUES, at, of_the_last_one(world.records["run-1"].status.audit))
        world.logs["log-1"] = [*log, envelope(line)]
        assert kinds(world.check()) == findings
    found = world.check(complete=False)
    assert found.findings == ()
    assert [(one.kind, one.where) for one in found.notes] == [(FindingKind.MISDATED, "log-1:3")]
    assert "but another operator has served namespace codeexec-sandbox since 2026-11-21T14:00" in found.notes[0].message


@pytest.mark.parametrize("event", [AuditEvent.OPERATOR_STARTED, AuditEvent.RECORD_DELETED])
@pytest.mark.parametrize("time", ["0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"])
def test_a_forged_time_may_be_the_first_or_the_last_that_there_is(time: str, event: AuditEvent) -> None:
    world = a_world()
    deletion = of_a_deletion(world.records.pop("run-3"), "Age")
    _, line = Segment("f" * 32, "codeexec-sandbox", "1.2.3").append(event, datetime.fromisoformat(time), deletion)
    world.logs["log-9"] = [envelope(line)]
    assert world.check().findings


def test_an_operator_that_is_made_up_amid_the_time_of_another_is_found() -> None:
    world = World()
    world.start()
    world.write(named("run-1"), Phase.FAILED)
    world.now += timedelta(days=9)
    world.write(named("run-2"), Phase.FAILED)
    deletion = of_a_deletion(world.records.pop("run-1"), "Age")
    invented = Segment("f" * 32, "codeexec-sandbox", "1.2.3")
    invented, started = invented.append(AuditEvent.OPERATOR_STARTED, NOW + timedelta(days=4), {})
    _, deleted = invented.append(AuditEvent.RECORD_DELETED, NOW + timedelta(days=4), deletion)
    world.logs["log-9"] = [envelope(started), envelope(deleted)]
    assert kinds(world.check()) == {FindingKind.MISDATED}


@pytest.mark.parametrize(
    "time",
    [
        "",
        "yesterday",
        "2026-11-21T12:00:00",
        "2026-11-21T12:00:00Z",
        "2026-11-21T13:00:00.000000+01:00",
        "0001-01-01T00:00:00.000000",
        "0001-01-01T00:00:00.000000+14:00",
        "9999-12-31T23:59:59.999999-14:00",
    ],
)
def test_a_time_that_no_operator_writes_is_found(time: str) -> None:
    world = a_world()
    body = json.loads(world.logs["log-2"][-1])["audit"] | {"time": time}
    world.logs["log-2"][-1] = json.dumps({"audit": body | {"hash": digest(body)}})
    found = world.check(complete=False)
    assert any(one.kind is FindingKind.UNREADABLE and "audit.time is" in one.message for one in found.findings)


@pytest.mark.parametrize("namespace", ["", "a b", "a\nb", "a\u2028b", "a\x1fb", " ", "red", "größe", "a\x7f"])
def test_whatever_namespace_a_line_may_have_a_checkpoint_can_name_it(namespace: str) -> None:
    world = World()
    world.start(namespace)
    found = world.check(records=False)
    heads = tuple(chain.head for chain in found.chains)
    if namespace and not re.search(r"\s", namespace):
        checkpoint = Checkpoint("prod", 1, in_utc(world.now), GENESIS, heads)
        assert Checkpoint.parse(checkpoint.text) == checkpoint
    else:
        assert any("audit.namespace is" in one.message for one in found.findings)
        assert heads == ()


def test_a_member_that_comes_twice_is_found() -> None:
    world = a_world()
    world.logs["log-1"][2] = world.logs["log-1"][2].replace('"phase": "', '"phase": "Denied", "phase": "')
    assert FindingKind.UNREADABLE in kinds(world.check())


@pytest.mark.parametrize("depth", [500, 900, 950, 1000, 5000, 100_000])
def test_a_line_that_is_nested_deeply_is_a_finding_or_a_line_of_somebody_else(depth: int) -> None:
    world = a_world()
    deep = f'{{"audit": {{"chain": "a", "sequence": 1, "x": {"[" * depth}{"]" * depth}}}}}'
    with contextlib.suppress(ValueError):
        audit_line(deep)
    world.logs["log-1"].append(deep)
    assert kinds(world.check()) <= {FindingKind.UNREADABLE}


def test_a_chain_that_was_cut_off_and_deleted_records_are_found_by_what_the_next_process_saw() -> None:
    world = a_world()
    for name in ("run-1", "run-3", "work-1"):
        world.records.pop(name, None)
    texts = world.logs["log-1"]
    del texts[-2:]
    assert FindingKind.MISSING in kinds(world.check(complete=False))


def test_what_was_not_given_is_a_note_unless_the_logs_are_complete() -> None:
    world = a_world()
    del world.logs["log-1"]
    found = world.check(complete=False)
    assert found.findings == ()
    assert {one.kind for one in found.notes} == {FindingKind.MISSING}
    assert world.check(complete=True).findings


def test_a_log_that_ends_early_is_a_note_where_records_are_newer() -> None:
    world = a_world()
    del world.logs["log-2"][-1]
    found = world.check(complete=False)
    assert found.findings == ()
    assert "newer than the given logs" in " ".join(one.message for one in found.notes)


def test_the_copy_of_one_shard_s_log_may_be_older_than_that_of_another() -> None:
    world = World()
    world.start_shard("shard-0", "codeexec-sandbox", "quiet")
    world.start_shard("shard-1", "other")
    world.write(named("run-1"), Phase.DENIED)
    copy = list(world.logs["shard-0"])
    world.write(named("run-2"), Phase.DENIED)
    world.write(named("run-3", "other"), Phase.DENIED)
    world.logs["shard-0"] = copy
    found = world.check(complete=False)
    assert found.findings == ()
    assert [(one.where, one.message[:40]) for one in found.notes] == [
        ("CodeExecution run-2", "its line is newer than the given logs: l")
    ]
    world.say("quiet", AuditEvent.NOT_WRITTEN, {})
    found = world.check(complete=False)
    assert [(one.kind, one.where) for one in found.findings] == [(FindingKind.MISSING, "CodeExecution run-2")], (
        "cut out"
    )


class TestLogsThatAreReadBeforeAndAfterTheRecords:
    """Of an operator that goes on writing while somebody reads."""

    @pytest.fixture
    def world(self) -> World:
        world = World()
        world.start()
        for name in ("run-1", "run-2", "run-3"):
            world.write(named(name), Phase.RUNNING)
        for name in ("run-1", "run-2"):
            world.write(world.records[name], Phase.SUCCEEDED, exit_code=0)
        return world

    @staticmethod
    def check(world: World, before: int, records: list[dict[str, Any]]) -> Verification:
        [(name, texts)] = world.logs.items()
        lines = list(read_log(name, texts))
        return verify(
            lines[:before],
            records,
            now=world.now,
            namespace="codeexec-sandbox",
            complete=True,
            later=lines[before:],
        )

    def test_a_record_may_be_newer_than_what_was_read_first(self, world: World) -> None:
        [texts] = world.logs.values()
        for before in range(len(texts) + 1):
            found = self.check(world, before, world.stored())
            assert (found.findings, found.notes) == ((), ())
            assert found.records == len(world.records)

    def test_a_record_may_be_older_than_what_was_read_last(self, world: World) -> None:
        [texts] = world.logs.values()
        before, old = len(texts), world.stored()
        new = named("run-new")
        world.write(world.records["run-3"], Phase.LOST)
        world.write(new, Phase.STARTING)
        assert (self.check(world, before, old).findings, self.check(world, before, old).gone) == ((), ())
        unread = {one["metadata"]["name"]: one for one in world.stored()}["run-new"]
        unread["status"] = {}
        assert self.check(world, before, [*old, unread]).findings == (), "it was created, and had no status yet"
        together = self.check(world, len(texts), old)
        control = {FindingKind.RECORD_OUTDATED, FindingKind.RECORD_MISSING}
        assert kinds(together) == control, "control: who reads the log once, and last"
        assert together.gone == ("CodeExecution run-new",)

    def test_a_record_that_was_set_back_before_is_found(self, world: World) -> None:
        old = world.stored()
        world.write(world.records["run-3"], Phase.LOST)
        [texts] = world.logs.values()
        assert kinds(self.check(world, len(texts), old)) == {FindingKind.RECORD_OUTDATED}

    def test_a_record_that_was_changed_is_found_by_a_line_that_was_read_later(self, world: World) -> None:
        forged = world.stored()
        forged[0]["status"]["exitCode"] = 77
        for before in (0, 1):
            assert kinds(self.check(world, before, forged)) == {FindingKind.RECORD_CHANGED}


def test_lines_of_a_newer_make_are_not_judged() -> None:
    world = a_world()
    world.logs["log-2"] = [text.replace('"format": 1', '"format": 2') for text in world.logs["log-2"]]
    found = world.check(complete=False)
    assert found.findings == ()
    assert FindingKind.UNREADABLE in {one.kind for one in found.notes}


@pytest.mark.parametrize(
    ("name", "form", "judged"),
    [("statusForm", None, 7), ("statusForm", 2, 0), ("digestForm", 3, 1)],
)
def test_a_digest_of_another_form_is_not_judged_and_lines_of_old_name_none(
    name: str, form: int | None, judged: int
) -> None:
    def change(body: dict[str, Any]) -> None:
        if body.pop(name, None) and form:
            body[name] = form

    world = a_world()
    world.rewrite(change)
    found = world.check(complete=False)
    assert (found.findings, found.records) == ((), judged)
    assert {one.kind for one in found.notes} == ({FindingKind.UNREADABLE} if form else set())


def test_an_old_line_has_the_digest_of_its_time() -> None:
    """codeexec 0.1 did not count names of blocks, and did not tell files from blocks."""
    world = World()
    world.start()
    record = an_execution(blocks=[a_raw_block(b"x") | {"filename": "x.py"}], files=[a_raw_file("bash", b"y")])
    world.write(record, Phase.SUCCEEDED)

    def old(body: dict[str, Any]) -> None:
        if body.pop("digestForm", None):
            assert body["record"]["digest"] == record.spec.code_digest != record.spec.earlier_code_digest
            body["record"]["digest"] = record.spec.earlier_code_digest

    world.rewrite(old)
    assert world.check().findings == ()
    world.rewrite(lambda body: body.get("record", {}).update(digest="sha256:" + "0" * 64))
    assert kinds(world.check()) == {FindingKind.RECORD_CHANGED}, "control"


@pytest.mark.parametrize(("old", "found"), [(False, {FindingKind.RECORD_CHANGED}), (True, set())])
def test_a_name_that_a_block_was_given_later_is_found(old: bool, found: set[FindingKind]) -> None:
    """Lines of codeexec 0.1 can't show that: their digests don't cover names."""
    world = World()
    world.start()
    world.write(an_execution(blocks=[a_raw_block(b"x")]), Phase.SUCCEEDED)
    if old:
        world.rewrite(lambda body: body.pop("digestForm", None))
    [stored], [texts] = world.stored(), world.logs.values()
    stored["spec"]["blocks"][0]["filename"] = "y.py"
    lines = read_log("log", texts)
    assert kinds(verify(lines, [stored], now=world.now, namespace="codeexec-sandbox", complete=True)) == found


# --- what was done to a record ---


OUT_OF_RANGE = {
    "0001-01-01T00:00:00+14:00": "0001-01-01T00:00:00.000000+14:00",
    "9999-12-31T23:59:59-14:00": "9999-12-31T23:59:59.000000-14:00",
    "0001-01-01T00:00:00": "0001-01-01T00:00:00.000000",
}
"""Times that have no equivalent in UTC, and how findings show them."""


def tampered(change: Callable[[dict[str, Any]], None], *, complete: bool = True) -> Verification:
    world = a_world()
    stored = world.stored()
    change(next(one for one in stored if one["metadata"]["name"] == "run-1"))
    lines = [line for name, texts in world.logs.items() for line in read_log(name, texts)]
    return verify(lines, stored, now=world.now, namespace="codeexec-sandbox", complete=complete)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda one: one["status"].update(phase="Failed"), FindingKind.RECORD_CHANGED, 'phase is "Failed", but was'),
        (lambda one: one["status"].update(exitCode=1), FindingKind.RECORD_CHANGED, "exitCode is 1, but was 0"),
        (lambda one: one["status"].pop("exitCode"), FindingKind.RECORD_CHANGED, "exitCode is absent, but was 0"),
        (lambda one: one["status"].update(message="all fine"), FindingKind.RECORD_CHANGED, "output or messages"),
        (lambda one: one["spec"].update(requestedBy="root"), FindingKind.RECORD_CHANGED, 'requestedBy is "root"'),
        (lambda one: one["spec"]["blocks"].clear(), FindingKind.RECORD_CHANGED, "digest is"),
        (lambda one: one["status"].update(phase="Great"), FindingKind.RECORD_CHANGED, 'phase is "Great", but was'),
        (
            lambda one: one["status"].pop("audit"),
            FindingKind.RECORD_UNANCHORED,
            "but the line at log-1:",
        ),
        (lambda one: one.pop("status"), FindingKind.RECORD_UNANCHORED, "but the line at log-1:"),
        (
            lambda one: one["status"]["audit"].update(hash="0" * 64),
            FindingKind.RECORD_UNANCHORED,
            "with another hash",
        ),
        (
            lambda one: one["status"]["audit"].update(time="2027-01-01T00:00:00Z"),
            FindingKind.RECORD_UNANCHORED,
            "with another hash",
        ),
        *(
            (lambda one, time=time: one["status"].update(startedAt=time), FindingKind.RECORD_CHANGED, f'"{shown}"')
            for time, shown in OUT_OF_RANGE.items()
        ),
        *(
            (
                lambda one, time=time: one["status"]["audit"].update(time=time),
                FindingKind.RECORD_UNANCHORED,
                "with another hash or time",
            )
            for time in OUT_OF_RANGE
        ),
        (
            lambda one: one["status"]["audit"].update(sequence=10**6, time="9999-12-31T23:59:59-14:00"),
            FindingKind.RECORD_UNANCHORED,
            "says that it became",
        ),
        (lambda one: one["status"]["audit"].update(sequence=10), FindingKind.RECORD_UNANCHORED, "says that it became"),
        (
            lambda one: one["status"]["audit"].update(sequence=10**6, time="2099-01-01T00:00:00Z"),
            FindingKind.RECORD_UNANCHORED,
            "says that it became",
        ),
        (lambda one: one["metadata"].update(uid="other"), FindingKind.RECORD_UNANCHORED, "with another UID"),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_a_record_that_was_changed_is_found(
    change: Callable[..., None], kind: FindingKind, text: str, complete: bool
) -> None:
    found = tampered(change, complete=complete)
    assert kind in kinds(found)
    assert any(one.where == "CodeExecution run-1" and text in one.message for one in found.findings), found.findings


def test_a_line_that_a_record_names_and_nobody_can_have_written_yet_is_found() -> None:
    world = World()
    world.start()
    world.write(named("run-1"), Phase.RUNNING)
    record = world.records["run-1"]
    for hours, findings in ((0.5, set()), (2, {FindingKind.RECORD_UNANCHORED})):
        anchor = AuditAnchor(chain="f" * 32, sequence=9, hash="0" * 64, time=world.now + timedelta(hours=hours))
        world.records["run-1"] = record.model_copy(
            update={"status": record.status.model_copy(update={"audit": anchor})}
        )
        assert kinds(world.check(complete=False)) == findings


@pytest.mark.parametrize(("seconds", "findings"), [(61, {FindingKind.RECORD_UNANCHORED}), (1, set())])
def test_a_record_that_names_a_chain_that_is_not_there_is_found_when_its_own_went_on(
    seconds: int, findings: set[FindingKind]
) -> None:
    world = World()
    world.start()
    world.write(named("run-1"), Phase.FAILED)
    world.now += timedelta(seconds=seconds)
    world.write(named("run-2"), Phase.RUNNING)
    record = world.records["run-1"]
    anchor = AuditAnchor(chain="f" * 32, sequence=9, hash="0" * 64, time=world.now)
    status = record.status.model_copy(update={"audit": anchor, "phase": Phase.SUCCEEDED})
    world.records["run-1"] = record.model_copy(update={"status": status})
    found = world.check(complete=False)
    assert kinds(found) == findings
    assert findings or "not in the given logs" in found.notes[0].message


def test_a_process_that_died_before_it_could_write_what_it_has_told_is_honest() -> None:
    """The next one has recorded something else, and its log is not given."""
    world = World()
    world.start()
    world.write(named("run-1"), Phase.RUNNING)
    running = world.records["run-1"]
    world.write(named("run-1"), Phase.SUCCEEDED)
    world.records["run-1"] = running
    world.start()
    world.now -= timedelta(seconds=90)  # the clock of another node
    world.write(running, Phase.LOST)
    assert kinds(world.check()) == set()
    del world.logs["log-2"]
    assert kinds(world.check(complete=False)) == set()


def test_what_an_execution_may_reach_and_read_is_in_its_lines_and_can_not_be_changed() -> None:
    raw = {
        "egress": [{"cidr": "10.1.2.3/32", "port": 443}],
        "mounts": [{"name": "data", "mountPath": "/mnt/data", "persistentVolumeClaim": {"claimName": "payroll"}}],
    }
    record = an_execution(**raw)
    facts = facts_of(record)
    assert (facts["permits"], facts["mounts"]) == (["10.1.2.3/32:443/TCP"], ["pvc:payroll:/mnt/data"])
    without = record.model_copy(update={"spec": record.spec.model_copy(update={"mounts": None})})
    assert facts_of(without) != facts


def test_a_record_that_was_set_back_to_what_it_was_before_is_found() -> None:
    world = World()
    world.start()
    world.write(named("run-1"), Phase.RUNNING)
    before = world.records["run-1"]
    world.write(named("run-1"), Phase.FAILED, exit_code=3)
    world.records["run-1"] = before
    [finding] = world.check().findings
    assert (finding.kind, finding.where) == (FindingKind.RECORD_OUTDATED, "CodeExecution run-1")
    assert "it became Failed later" in finding.message


def test_a_record_that_was_set_back_to_a_write_whose_answer_was_lost_is_found() -> None:
    world = World()
    world.start()
    lost = world.write(named("run-1"), Phase.RUNNING, None)
    status = named("run-1").status.model_copy(update={"phase": Phase.RUNNING, "reason": "Running"})
    anchored = named("run-1").model_copy(update={"status": status.model_copy(update={"audit": lost.anchor})})
    world.records["run-1"] = anchored
    assert world.check().findings == (), "it was written all the same"
    world.write(named("run-1"), Phase.FAILED)
    assert world.check().findings == ()
    world.records["run-1"] = anchored
    assert kinds(world.check()) == {FindingKind.RECORD_OUTDATED}


def test_a_write_that_was_refused_or_got_lost_is_no_later_status() -> None:
    world = World()
    world.start()
    world.write(named("run-1"), Phase.RUNNING)
    for answer in (409, None):
        world.write(named("run-1"), Phase.FAILED, answer)
        assert world.check().findings == ()


def test_a_record_that_was_deleted_by_hand_is_told_of() -> None:
    world = a_world()
    del world.records["run-3"]
    found = world.check(complete=False)
    assert (found.findings, found.gone) == ((), ("CodeExecution run-3",))
    assert [(one.kind, one.where) for one in found.notes] == [(FindingKind.RECORD_MISSING, "CodeExecution run-3")]
    assert kinds(world.check()) == {FindingKind.RECORD_MISSING}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (200, set()),
        (None, set()),
        (404, set()),
        (500, set()),
        (409, {FindingKind.RECORD_MISSING}),
        (403, {FindingKind.RECORD_MISSING}),
    ],
)
def test_a_record_that_the_operator_deleted_is_none_that_is_missing(
    answer: int | None, found: set[FindingKind]
) -> None:
    world = a_world()
    world.start()
    line = world.delete("run-3", answer)
    assert json.loads(log_entry(line))["message"] == "codeexec-sandbox/run-3: RecordDeleted (Age)"
    checked = world.check()
    assert (kinds(checked), checked.notes) == (found, ())
    assert checked.gone == ("CodeExecution run-3",)


def last_of(line: Line) -> dict[str, Any]:
    return {"last": {name: line.body[name] for name in ("chain", "sequence", "hash")}}


FORGED_DELETIONS: dict[str, Callable[[World, Line], dict[str, Any]]] = {
    "no last line": lambda _world, _end: {"last": None},
    "a last line that is none": lambda _world, _end: {"last": {"chain": [], "sequence": {}, "hash": 1}},
    "the line before the last": lambda world, _end: last_of(audit_line_of(world, "run-3", Phase.RUNNING)),
    "another hash": lambda _world, end: {"last": last_of(end)["last"] | {"hash": "0" * 64}},
    "a line that isn't there": lambda _world, end: {"last": last_of(end)["last"] | {"sequence": 99}},
    "a line of another record": lambda world, _end: last_of(audit_line_of(world, "run-5", Phase.DENIED)),
    "a line that is not of a status": lambda world, _end: last_of(Line(audit_bodies(world)[0])),
    "another status": lambda _world, _end: {"statusSHA256": "0" * 64},
}


def audit_bodies(world: World) -> list[Any]:
    return [body for line in world.lines() if (body := audit_line(line.text))]


def audit_line_of(world: World, name: str, phase: Phase) -> Line:
    told = [one for one in audit_bodies(world) if one.get("record", {}).get("name") == name]
    return Line(next(one for one in told if one["record"]["phase"] == phase.value))


@pytest.mark.parametrize("forged", FORGED_DELETIONS.values(), ids=FORGED_DELETIONS.keys())
def test_a_line_says_that_the_operator_deleted_a_record_only_if_it_fits_the_last_line_about_it(
    forged: Callable[[World, Line], dict[str, Any]],
) -> None:
    """Who deletes a record and may append to a log can compute hashes, and knows the UID."""
    world = a_world()
    ended, end = the_end_of(world, "log-1", "codeexec-sandbox"), audit_line_of(world, "run-3", Phase.SUCCEEDED)
    honest = of_a_deletion(world.records.pop("run-3"), "Age")
    _, line = ended.append(AuditEvent.RECORD_DELETED, world.now, {**honest, **forged(world, end)})
    world.logs["log-1"].append(envelope(line))
    found = world.check(complete=False)
    assert [(one.kind, one.where) for one in found.notes] == [(FindingKind.RECORD_MISSING, "CodeExecution run-3")]
    assert "the line of its deletion, at log-1:" in found.notes[0].message
    assert kinds(world.check()) == {FindingKind.RECORD_MISSING}
    _, line = ended.append(AuditEvent.RECORD_DELETED, world.now, honest)
    world.logs["log-1"][-1] = envelope(line)
    found = world.check()
    assert (found.findings, found.notes) == ((), ()), "control"


def test_a_line_of_another_namespace_does_not_say_that_the_operator_deleted_a_record() -> None:
    world = a_world()
    world.start("codeexec-sandbox", "other")
    record = world.records.pop("run-3")
    world.say("other", AuditEvent.RECORD_DELETED, of_a_deletion(record, "Age"))
    assert kinds(world.check()) == {FindingKind.RECORD_MISSING}


def test_a_record_may_be_deleted_as_a_write_without_an_answer_left_it() -> None:
    world = World()
    world.start()
    world.write(named("run-1"), Phase.RUNNING)
    lost = world.write(named("run-1"), Phase.FAILED, None)
    status = world.records["run-1"].status.model_copy(update={"phase": Phase.FAILED, "reason": "Failed"})
    anchored = status.model_copy(update={"audit": lost.anchor})
    world.records["run-1"] = named("run-1").model_copy(update={"status": anchored})
    assert world.check().findings == (), "it was written all the same"
    world.delete("run-1")
    assert world.check().findings == ()


def test_an_operator_of_another_version_may_know_other_fields_of_a_status() -> None:
    world = a_world()
    world.start()
    world.segments = {name: replace(one, operator="1.3.0") for name, one in world.segments.items()}
    record = world.records.pop("run-3")
    told = {**of_a_deletion(record, "Age"), "statusSHA256": "0" * 64}
    world.say("codeexec-sandbox", AuditEvent.RECORD_DELETED, told)
    assert world.check().findings == ()


def test_a_record_that_the_operator_has_yet_to_delete_agrees_with_its_line() -> None:
    world = a_world()
    kept = world.records["run-3"]
    world.start()
    world.delete("run-3", None)
    world.records["run-3"] = kept
    found = world.check()
    assert (found.findings, found.notes, found.gone) == ((), (), ())


def test_the_line_of_a_deletion_names_the_record_s_last_line() -> None:
    world = a_world()
    world.start()
    anchor, status = world.records["run-3"].status.audit, world.records["run-3"].status
    body = world.delete("run-3").body
    assert body["last"] == {"chain": anchor.chain, "sequence": anchor.sequence, "hash": anchor.hash}
    assert body["statusSHA256"] == status_digest(status.dump())
    assert body["record"] == {
        "kind": "CodeExecution",
        "name": "run-3",
        "uid": named("run-3").metadata.uid,
        "phase": "Succeeded",
    }


def test_a_record_of_an_operator_without_audit_lines_is_a_note() -> None:
    world = a_world()
    world.records["old"] = named("old").model_copy(update={"status": an_execution(phase=Phase.FAILED).status})
    found = world.check(complete=False)
    assert found.findings == ()
    assert [(one.kind, one.where) for one in found.notes] == [(FindingKind.RECORD_UNANCHORED, "CodeExecution old")]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([200, 409, None]), st.booleans()), max_size=30))
def test_whatever_an_operator_does_its_log_verifies(steps: Sequence[tuple[int, int | None, bool]]) -> None:
    world = World()
    world.start("codeexec-sandbox", "other")
    for index, answer, restart in steps:
        if restart:
            world.start("codeexec-sandbox", "other")
        world.write(named(f"run-{index}", "other" if index == 3 else "codeexec-sandbox"), Phase.RUNNING, answer)
    found = world.check()
    assert (found.findings, found.notes) == ((), ())
