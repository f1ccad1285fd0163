"""Signed checkpoints: what hashes alone can't show, because whoever forges can compute them, too."""

import itertools
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import pytest
from audit_world import World, a_world, envelope, kinds, named
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import Phase
from codeexec_api.audit import GENESIS, AuditEvent, in_utc, of_a_deletion
from codeexec_api.audit_check import Verification, verify
from codeexec_api.audit_coverage import Coverage, Place, Span
from codeexec_api.audit_export import Header, render
from codeexec_api.audit_findings import FindingKind
from codeexec_api.checkpoints import Checkpoint, Head, Witness, checkpoint_files, following
from codeexec_api.signed_note import SigningKey

KEY = SigningKey("prod", bytes(range(32)))
OTHER = SigningKey("prod", bytes(32))
FORGED = {"exit_code": 3}


def sign(world: World, files: dict[str, bytes], key: SigningKey = KEY) -> str:
    """What the job does. Returns the name of the new checkpoint."""
    newest = {name: files[name] for name in checkpoint_files(files)[-1:]}
    found = verify(world.lines(), now=world.now, witness=Witness(newest, key.public) if newest else None)
    assert found.findings == ()
    last = next(((one, files[one.file]) for one in found.checkpoints), None)
    made = following(last, key.name, (one.head for one in found.chains), world.now)
    files[made.file] = key.sign(made.text)
    return made.file


def a_witnessed_world() -> tuple[World, Witness]:
    """Checkpoints after the first process has ended, in the middle of the second, and at its end."""
    world, files = a_world(), {}
    logs = world.logs
    for second in (0, 4, 99):
        world.logs = {"log-1": logs["log-1"], "log-2": logs["log-2"][:second]}
        sign(world, files)
    return world, Witness(files, KEY.public)


@pytest.fixture
def world() -> World:
    return a_witnessed_world()[0]


@pytest.fixture
def witness() -> Witness:
    return a_witnessed_world()[1]


# --- honest logs ---


def test_an_honest_log_agrees_with_its_checkpoints(world, witness) -> None:
    found = world.check(witness=witness)
    assert (found.findings, found.notes) == ((), ())
    assert [one.number for one in found.checkpoints] == [1, 2, 3]
    first, *_, last = found.checkpoints
    assert [head.sequence for head in first.heads] == [9, 3]
    assert [head.sequence for head in last.heads] == [9, 6, 3, 3]
    assert {(one.chain, one.last, one.hash) for one in found.chains} == {head[1:4] for head in last.heads}


def test_a_log_may_go_on_after_the_newest_checkpoint(world, witness) -> None:
    world.start("codeexec-sandbox", "other")
    world.write(named("run-7"), Phase.DENIED)
    assert world.check(witness=witness).findings == ()


@given(st.integers(0, 12), st.integers(0, 8), st.booleans())
def test_whatever_the_node_still_keeps_of_an_honest_log_has_no_finding(first: int, second: int, both: bool) -> None:
    """A node drops the beginning of a log, and the log of a container whose successor has ended, too."""
    world, witness = a_witnessed_world()
    kept = {"log-2": world.logs["log-2"][second:]}
    world.logs = {"log-1": world.logs["log-1"][first:], **kept} if both else kept
    assert verify(world.lines(), now=world.now, witness=witness).findings == ()


@given(st.lists(st.tuples(st.sampled_from(["sign", "write", "start"]), st.integers(0, 300)), max_size=20))
def test_whatever_is_signed_and_written_at_whatever_times_an_honest_log_has_no_finding(
    steps: Sequence[tuple[str, int]],
) -> None:
    world, files = World(), {}
    world.start("codeexec-sandbox", "other")
    for count, (step, minutes) in enumerate([*steps, ("sign", 0)]):
        world.now += timedelta(minutes=minutes)
        if step == "sign":
            sign(world, files)
        elif step == "write":
            world.write(named(f"run-{count}", "other" if minutes % 2 else "codeexec-sandbox"), Phase.DENIED)
        else:
            world.start("codeexec-sandbox", "other")
    found = world.check(witness=Witness(files, KEY.public))
    assert (found.findings, found.notes) == ((), ())


def test_lines_that_the_node_had_dropped_before_they_were_signed_are_no_finding() -> None:
    """The next checkpoint repeats the head that it knows, hours later."""
    world, files = World(), {}
    world.start("codeexec-sandbox", "other")
    sign(world, files)
    for namespace in ("other", "codeexec-sandbox"):
        world.now += timedelta(hours=3)
        world.write(named(f"run-{namespace}", namespace), Phase.DENIED)
    world.now += timedelta(hours=3)
    whole = world.logs["log-1"]
    world.logs["log-1"] = whole[-1:]
    sign(world, files)
    world.logs["log-1"] = whole
    found = world.check(witness=Witness(files, KEY.public))
    assert [[head.sequence for head in one.heads] for one in found.checkpoints] == [[1, 1], [2, 1]]
    assert (found.findings, found.notes) == ((), ())


def test_a_namespace_of_which_the_log_shows_nothing_keeps_its_head(world) -> None:
    files: dict[str, bytes] = {}
    sign(world, files)
    whole = world.check(witness=Witness(files, KEY.public)).checkpoints[-1].heads
    world.start("codeexec-sandbox")
    world.logs = {"log-3": world.logs["log-3"]}  # the node has dropped what is older
    sign(world, files)
    rest = world.check(complete=False, records=False, witness=Witness(files, KEY.public)).checkpoints[-1].heads
    assert [head for head in rest if head.namespace == "other"] == [one for one in whole if one.namespace == "other"]


# --- several shards, and exports ---


def a_world_of_shards() -> tuple[World, dict[str, bytes]]:
    """Two logs, each with a busy and a quiet namespace, and a checkpoint of both. The second shard runs on."""
    world, files = World(), {}
    world.start_shard("shard-0", "busy", "quiet")
    world.start_shard("shard-1", "other", "another")
    for index in range(4):
        world.write(named(f"run-{index}", "busy"), Phase.DENIED)
    sign(world, files)
    world.now += timedelta(minutes=10)
    world.write(named("run-other", "other"), Phase.DENIED)
    return world, files


def test_the_pod_of_one_shard_may_be_replaced_while_another_shard_runs_on() -> None:
    world, files = a_world_of_shards()
    del world.logs["shard-0"]
    world.start_shard("shard-0, a new pod", "busy", "quiet")
    for _ in range(2):
        world.now += timedelta(hours=1)
        world.write(named("run-7", "busy"), Phase.DENIED)
        sign(world, files)


def test_a_node_may_drop_the_beginning_of_one_shard_s_log_and_all_lines_of_a_quiet_namespace() -> None:
    world, files = a_world_of_shards()
    for index in range(4, 8):
        world.write(named(f"run-{index}", "busy"), Phase.DENIED)
    world.logs["shard-0"] = world.logs["shard-0"][-2:]
    sign(world, files)


Steps = st.lists(
    st.tuples(st.sampled_from(["sign", "write", "replace", "drop"]), st.integers(0, 3), st.integers(1, 9)), max_size=12
)


@given(Steps)
def test_whatever_happens_to_pods_and_logs_of_shards_an_honest_log_has_no_finding(
    steps: Sequence[tuple[str, int, int]],
) -> None:
    world, files = a_world_of_shards()
    shards = {"shard-0": ("busy", "quiet"), "shard-1": ("other", "another")}
    for count, (step, which, lines) in enumerate(steps):
        log = f"shard-{which % 2}"
        if step == "sign":
            sign(world, files)
        elif step == "write":
            namespace = [one for both in shards.values() for one in both][which]
            world.write(named(f"run-{count}-{which}", namespace), Phase.DENIED)
        elif step == "replace":
            del world.logs[log]
            world.start_shard(log, *shards[log])
        else:  # a node's file is far longer than the lines of a start, so these don't begin it
            kept = itertools.dropwhile(lambda text: AuditEvent.OPERATOR_STARTED in text, world.logs[log][lines:])
            world.logs[log] = list(kept) or world.logs[log]
    sign(world, files)
    found = world.check(complete=False, records=False, witness=Witness(files, KEY.public))
    assert found.findings == ()


def lines_of(texts: Sequence[str], *namespaces: str) -> list[str]:
    return [text for text in texts if json.loads(text)["audit"]["namespace"] in namespaces]


@pytest.mark.parametrize(
    ("log", "kept"),
    [
        pytest.param("shard-0", lambda log: lines_of(log, "quiet"), id="a namespace, which the shard's other shows"),
        pytest.param("shard-0", lambda log: lines_of(log, "busy"), id="the other one"),
        pytest.param("shard-1", lambda log: lines_of(log, "other"), id="one of the other shard"),
        pytest.param("shard-0", lambda _: [], id="all of a shard"),
        pytest.param("shard-0", lambda log: log[:-2], id="the end"),
        pytest.param("shard-0", lambda log: [*log[:2], *log[4:]], id="the middle"),
    ],
)
def test_lines_that_were_taken_out_of_the_log_of_a_shard_are_found(
    log: str, kept: Callable[[list[str]], list[str]]
) -> None:
    world, files = a_world_of_shards()
    world.logs[log] = kept(world.logs[log])
    found = world.check(complete=False, records=False, witness=Witness(files, KEY.public))
    assert kinds(found) == {FindingKind.MISSING}


def test_the_beginning_of_a_chain_that_was_taken_out_of_a_shard_s_log_is_found() -> None:
    world, files = a_world_of_shards()
    for index in range(4, 8):
        world.write(named(f"run-{index}", "busy"), Phase.DENIED)
    log = world.logs["shard-0"]
    world.logs["shard-0"] = [*lines_of(log, "quiet"), *lines_of(log, "busy")[-2:]]
    found = world.check(complete=False, records=False, witness=Witness(files, KEY.public))
    assert [(one.kind, one.where) for one in found.findings] == [(FindingKind.MISSING, "shard-0:2")]


def exported(world: World, namespace: str) -> dict[str, bytes]:
    """One file, with all lines of this namespace that the logs have now."""
    header = Header(namespace, time=in_utc(world.now), up_to={})
    texts = [text for log in world.logs.values() for text in lines_of(log, namespace)]
    return {header.file: render(header, [], texts)}


def test_an_export_shows_one_namespace_and_says_nothing_of_the_chains_of_others() -> None:
    world, files = World(), {}
    world.start("codeexec-sandbox", "other")
    for namespace in ("codeexec-sandbox", "other", "codeexec-sandbox"):
        world.write(named(f"run-{namespace}", namespace), Phase.DENIED)
    export = exported(world, "codeexec-sandbox")
    sign(world, files)

    def check() -> Verification:
        return verify(world.lines(), now=world.now, witness=Witness(files, KEY.public), export=export)

    world.logs.clear()
    assert check().findings == (), "without the cluster"
    world.start("other", "codeexec-sandbox")
    assert check().findings == (), "an upgrade took the log of the first pod"
    sign(world, files)
    assert check().findings == ()
    world.logs["log-2"] = lines_of(world.logs["log-2"], "other")
    assert kinds(check()) == {FindingKind.MISSING}, "but a chain that was taken out of the log is still missing"


def test_a_chain_that_was_taken_out_of_the_middle_of_an_exported_file_is_missing() -> None:
    world, files = World(), {}
    for number in range(3):
        world.start()
        world.write(named(f"run-{number}"), Phase.DENIED)
        sign(world, files)
        world.now += timedelta(minutes=5)
    [(name, content)] = exported(world, "codeexec-sandbox").items()
    second = json.loads(world.logs["log-2"][0])["audit"]["chain"].encode()
    cut = b"\n".join(line for line in content.split(b"\n") if b'"format": 1, "chain": "%b"' % second not in line)

    def check(content: bytes) -> Verification:
        return verify([], now=world.now, witness=Witness(files, KEY.public), export={name: content})

    assert check(content).findings == (), "control"
    assert FindingKind.MISSING in kinds(check(cut))


def test_twice_as_many_logs_and_namespaces_take_twice_as_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    widened = Span.widened
    monkeypatch.setattr(Span, "widened", lambda one, other: (steps.append(1), widened(one, other))[1])

    def steps_of(many: int) -> int:
        steps.clear()
        span = Span("a", "b", 1)
        Coverage(
            {
                Place(f"log-{log}", f"ns-{namespace}", f"chain-{log}-{namespace}", exported): span
                for log in range(10)
                for namespace in range(many)
                for exported in (False, True)
            }
        )
        return len(steps)

    assert steps_of(200) <= 2.2 * steps_of(100)


# --- what was done to log and records ---


def test_a_chain_that_was_recomputed_whole_is_found_by_a_checkpoint_and_by_nothing_else(world, witness) -> None:
    """The attack: a record, its line, all hashes after it and all anchors are made anew."""
    world.forge("run-1", **FORGED)
    found = world.check()
    assert (found.findings, found.notes, found.records) == ((), (), 7), "control: without a checkpoint it verifies"
    found = world.check(witness=witness)
    assert kinds(found) == {FindingKind.REWRITTEN}
    assert found.findings[0].where.startswith("log-1:")
    assert "is not the one that 0000000001.checkpoint" in found.findings[0].message


def test_a_recomputed_chain_under_another_id_is_found_too(world, witness) -> None:
    chains = {one.chain: f"{number:032x}" for number, one in enumerate(world.check().chains, 77)}
    world.forge("run-1", chains, **FORGED)
    found = world.check()
    assert (found.findings, found.notes) == ((), ()), "control"
    found = world.check(complete=False, witness=witness)
    assert kinds(found) == {FindingKind.MISSING}
    assert {one.where for one in found.findings} <= set(witness.files)
    assert "a time that the logs cover" in found.findings[0].message


@pytest.mark.parametrize("lines", [1, 2, 3])
def test_a_chain_whose_end_was_cut_off_is_found(world, witness, lines: int) -> None:
    gone = [json.loads(text)["audit"] for text in world.logs["log-2"][-lines:]]
    del world.logs["log-2"][-lines:]
    for body in gone:
        world.records = {
            name: one for name, one in world.records.items() if one.metadata.uid != body.get("record", {}).get("uid")
        }
    assert world.check(complete=False).findings == (), "control"
    found = world.check(complete=False, witness=witness)
    assert kinds(found) == {FindingKind.MISSING}
    assert "or its end was cut off" in found.findings[0].message


def test_a_chain_that_is_gone_with_all_its_records_is_found(world, witness) -> None:
    chain = json.loads(world.logs["log-2"][0])["audit"]["chain"]
    world.logs["log-2"] = [text for text in world.logs["log-2"] if chain not in text]
    world.records = {name: one for name, one in world.records.items() if one.status.audit.chain != chain}
    assert world.check(complete=False).findings == (), "control"
    assert kinds(world.check(complete=False, witness=witness)) == {FindingKind.MISSING}


def test_a_line_before_the_first_that_is_left_is_still_known_by_its_hash(world, witness) -> None:
    world.forge("run-1", **FORGED)
    numbers = {text: json.loads(text).get("audit") for text in world.logs["log-1"]}
    last = {"codeexec-sandbox": 9, "other": 3}
    world.logs["log-1"] = [
        text for text, body in numbers.items() if body is not True and body["sequence"] == last[body["namespace"]]
    ]
    files: dict[str, bytes] = {}
    honest = a_world()
    honest.logs = {"log-1": honest.logs["log-1"][:-1]}
    sign(honest, files)
    found = world.check(complete=False, records=False, witness=Witness(files, KEY.public))
    assert kinds(found) == {FindingKind.REWRITTEN}
    assert "it does not follow line 8" in found.findings[0].message


def test_a_beginning_that_was_taken_out_of_a_log_is_found() -> None:
    """A node drops all that is older, and not the lines of one namespace."""
    world, files = World(), {}
    world.start("other", "codeexec-sandbox")
    world.write(named("run-1"), Phase.RUNNING)
    sign(world, files)
    for phase in (Phase.SUCCEEDED, Phase.LOST):
        world.write(named("run-2"), phase)
    witness, log = Witness(files, KEY.public), world.logs["log-1"]
    world.logs["log-1"] = log[-1:]
    assert world.check(complete=False, witness=witness).findings == (), "control: what the node drops"
    world.logs["log-1"] = [log[0], *log[-1:]]
    assert world.check(complete=False).findings == (), "control: without a checkpoint"
    found = world.check(complete=False, witness=witness)
    assert (kinds(found), found.findings[0].where) == ({FindingKind.MISSING}, "log-1:2")


def test_a_deletion_that_is_told_of_afterwards_in_the_chain_of_an_operator_that_ended_is_found() -> None:
    """The attack: a record is deleted, and a line of its deletion is put at the end of a shipped log of weeks ago."""
    world, files = World(), {}
    world.start()
    world.write(named("run-1"), Phase.FAILED)
    written, ended = world.now, world.segments["codeexec-sandbox"]
    world.now += timedelta(hours=9)
    sign(world, files)
    world.now += timedelta(hours=1)
    world.start()
    logs = world.logs
    for log in ({"log-2": logs["log-2"]}, logs):
        world.now += timedelta(weeks=2)
        world.logs = log
        sign(world, files)
    witness = Witness(files, KEY.public)
    forget = of_a_deletion(world.records.pop("run-1"), "Age")
    found = world.check(witness=witness)
    assert kinds(found) == {FindingKind.RECORD_MISSING}, "control: it was deleted"

    def append(at: datetime) -> Verification:
        _, line = ended.append(AuditEvent.RECORD_DELETED, at, forget)
        world.logs = {**logs, "log-1": [*logs["log-1"], envelope(line)]}
        return world.check(witness=witness)

    backdated = append(written + timedelta(hours=7))
    assert kinds(world.check()) == set(), "control: without a checkpoint it verifies"
    assert [(one.kind, one.where) for one in backdated.findings] == [(FindingKind.MISDATED, "log-1:3")]
    assert "but 0000000001.checkpoint, of 2026-11-21T21:00" in backdated.findings[0].message
    assert backdated.findings[0].message.endswith("saw line 2 as the last one")
    assert kinds(append(world.now)) == {FindingKind.MISDATED}, "nor is it told of today"
    assert kinds(append(written + timedelta(hours=9, minutes=30))) == set(), "control: this may have happened"


def test_a_chain_that_moved_to_another_namespace_is_found(world, witness) -> None:
    [*_, newest] = world.check(witness=witness).checkpoints
    moved = tuple(head._replace(namespace="elsewhere") for head in newest.heads)
    made = Checkpoint("prod", 1, newest.time, GENESIS, moved)
    found = world.check(witness=Witness({made.file: KEY.sign(made.text)}, KEY.public))
    assert kinds(found) == {FindingKind.REWRITTEN}


def test_the_next_checkpoint_is_not_signed_over_a_rewritten_log(world, witness) -> None:
    world.forge("run-1", **FORGED)
    newest = {name: witness.files[name] for name in checkpoint_files(witness.files)[-1:]}
    found = verify(world.lines(), now=world.now, witness=Witness(newest, KEY.public))
    assert kinds(found) == {FindingKind.REWRITTEN}


# --- what was done to checkpoints ---


def first_of(world: World, files: dict[str, bytes]) -> str:
    found = world.check(complete=False, witness=Witness(files, KEY.public))
    assert kinds(found) <= {FindingKind.CHECKPOINT_INVALID, FindingKind.MISSING}
    [one, *_] = found.findings
    return f"{one.kind.value} {one.where} {one.message}"


def test_checkpoints_of_an_unknown_key_are_worth_nothing(world) -> None:
    files: dict[str, bytes] = {}
    sign(world, files, OTHER)
    told = first_of(world, files)
    assert told.startswith("CheckpointInvalid 0000000001.checkpoint it is signed by the unknown key prod+")
    assert world.check(complete=False, witness=Witness(files, KEY.public)).checkpoints == ()


def test_a_changed_checkpoint_is_found_and_not_believed(world, witness) -> None:
    name = "0000000002.checkpoint"
    files = {**witness.files, name: witness.files[name].replace(b"number 2", b"number 3")}
    assert first_of(world, files).startswith(f"CheckpointInvalid {name} its signature by prod+")
    assert [one.number for one in world.check(witness=Witness(files, KEY.public)).checkpoints] == [1, 3]


def test_checkpoints_that_have_changed_places_are_found(world, witness) -> None:
    two, three = "0000000002.checkpoint", "0000000003.checkpoint"
    files = {**witness.files, two: witness.files[three], three: witness.files[two]}
    assert first_of(world, files) == f"CheckpointInvalid {two} it is checkpoint 3, whose name is {three}"


def test_a_missing_checkpoint_is_found(world, witness) -> None:
    files = {name: one for name, one in witness.files.items() if "2." not in name}
    assert first_of(world, files) == "Missing 0000000003.checkpoint checkpoint 2 is missing before it"
    del files["0000000001.checkpoint"]
    found = world.check(complete=False, witness=Witness(files, KEY.public))
    assert (found.findings, [one.message for one in found.notes]) == ((), ["checkpoints 1 to 2 are not there"])
    assert first_of(world, {"readme": b""}).startswith("Missing the checkpoints there is none")


def test_a_checkpoint_that_was_signed_beside_the_others_is_found(world, witness) -> None:
    """By somebody who has the key, and can replace one checkpoint."""
    two = Checkpoint.parse(KEY.public.open(witness.files["0000000002.checkpoint"]))
    lower = tuple(head._replace(sequence=head.sequence - 1) for head in two.heads)
    forged = Checkpoint(two.origin, 2, two.time, two.previous, lower)
    told = world.check(witness=Witness({**witness.files, forged.file: KEY.sign(forged.text)}, KEY.public))
    messages = [f"{one.where} {one.message}" for one in told.findings]
    assert "0000000003.checkpoint it does not follow 0000000002.checkpoint" in messages
    assert any("contradicts line" in one and "in 0000000001.checkpoint" in one for one in messages)


def test_a_checkpoint_of_another_origin_is_found(world, witness) -> None:
    one = Checkpoint.parse(KEY.public.open(witness.files["0000000001.checkpoint"]))
    other = Checkpoint("test", 1, one.time, one.previous, one.heads)
    assert "its origin is 'test', but its key is that of 'prod'" in first_of(world, {other.file: KEY.sign(other.text)})


# --- the form ---

HEADS = st.builds(
    Head,
    st.text("abc-019", min_size=1, max_size=63),
    st.integers(0, 2**128 - 1).map("{:032x}".format),
    st.integers(1, 2**53),
    st.integers(0, 2**256 - 1).map("{:064x}".format),
    st.just("2026-11-21T12:00:00.000000Z"),
)


@given(st.integers(1, 9_999_999_999), st.lists(HEADS, min_size=1, max_size=4))
def test_a_checkpoint_is_read_as_it_was_written(number: int, heads: list[Head]) -> None:
    made = Checkpoint("prod/codeexec", number, "2026-11-21T12:00:00.000000Z", "0" * 64, tuple(heads))
    assert Checkpoint.parse(made.text) == made
    assert checkpoint_files(["x", made.file, "0.checkpoint", f"a/{made.file}"]) == [made.file]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("checkpoint 1", "checkpoint 2"),
        ("number 1", "number 01"),
        ("head", "tail"),
        ("\nhead", "\n\nhead"),
        (" 9 ", " +9 "),
    ],
)
def test_a_text_has_one_form_and_one_meaning(world, old: str, new: str) -> None:
    files: dict[str, bytes] = {}
    sign(world, files)
    text = KEY.public.open(files["0000000001.checkpoint"])
    assert Checkpoint.parse(text).text == text
    with pytest.raises(ValueError, match="not a checkpoint that this codeexec knows: 'codeexec audit checkpoint"):
        Checkpoint.parse(text.replace(old, new, 1))


def test_each_checkpoint_has_the_hash_of_the_one_before_it(world) -> None:
    files: dict[str, bytes] = {}
    first, second = sign(world, files), sign(world, files)
    world.now += timedelta(hours=1)
    third = sign(world, files)
    parsed = [Checkpoint.parse(KEY.public.open(files[name])) for name in (first, second, third)]
    assert [one.previous == GENESIS for one in parsed] == [True, False, False]
    assert len({one.previous for one in parsed}) == 3
