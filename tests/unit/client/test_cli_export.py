"""`codeexec audit export`: nothing is lost and nothing comes twice, wherever a run ends; verify reads what it wrote."""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from audit_world import World, a_world, kinds, named, recomputed
from click import ClickException
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import Phase, Source
from codeexec_api.audit import GENESIS
from codeexec_api.audit_check import Verification, read_log, verify
from codeexec_api.audit_export import Cursor, Header, export_files, identity_of, records_in, render
from codeexec_api.audit_findings import FindingKind, LogLine
from codeexec_api.digests import sha256_hex
from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL
from executor_client.cli import export as module
from executor_client.cli import main
from executor_client.cli.evidence_store import EvidenceStore
from executor_client.cli.export import Export
from executor_client.cli.finished_records import Name

NAMESPACE = "codeexec-sandbox"


class Killed(Exception):
    """The process has ended."""


class Files:
    """A storage that may end a run before or after one of its files was written."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.dies: tuple[int, bool] | None = None
        """After so many more files, and whether the last of them is written."""

    def names(self) -> list[str]:
        return sorted(self.files)

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        return {name: self.files[name] for name in names}

    def add(self, name: str, content: bytes, /) -> None:
        assert name not in self.files
        if self.dies is None:
            self.files[name] = content
            return
        left, written = self.dies
        self.dies = (left - 1, written)
        if left > 0 or written:
            self.files[name] = content
        if left == 0:
            raise Killed

    def records(self) -> list[tuple[str, str]]:
        return [identity_of(one) for name in self.names() for one in records_in(self.files[name])]


class Cluster:
    """Finished records; each has the resource version of its last write."""

    def __init__(self) -> None:
        self.version = 10
        self.records: dict[str, dict[str, Any]] = {}

    def finish(self, uid: str) -> None:
        self.version += 1
        meta = {"name": f"run-{uid}", "uid": uid, "resourceVersion": str(self.version)}
        self.records[uid] = {"kind": "CodeExecution", "metadata": meta, "spec": {}, "status": {}}

    def found(self) -> list[Name]:
        metas = [one["metadata"] for one in self.records.values()]
        return [Name(one["name"], one["uid"], int(one["resourceVersion"])) for one in metas]


def run(files: Files, cluster: Cluster, lines: Iterable[LogLine] = (), confirmed: Cursor | None = None) -> Cursor:
    """One run; how far it got."""
    made = Export(NAMESPACE, files, confirmed)
    for one in made.missing(EXECUTION_PLURAL, cluster.found(), cluster.version):
        made.add([cluster.records[one.uid]])
    made.end({EXECUTION_PLURAL: cluster.version, SESSION_PLURAL: cluster.version}, lines)
    return made.cursor


def current(cluster: Cluster) -> set[tuple[str, str]]:
    return {identity_of(one) for one in cluster.records.values()}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record fills a file."""
    monkeypatch.setattr(module, "_FULL", 1)


STEPS = st.lists(
    st.tuples(
        st.sets(st.sampled_from("abcdefgh"), max_size=4),
        st.none() | st.tuples(st.integers(0, 4), st.booleans()),
        st.booleans(),
    ),
    max_size=8,
)


@given(steps=STEPS, told=st.none() | st.just(Cursor()))
def test_wherever_it_ends_nothing_is_lost(steps: list[Any], told: Cursor | None) -> None:
    """Records finish, or are changed after that; runs are cut off; what the cluster knows may lag behind.

    If the cluster knows nothing, nothing comes twice. Else the files that the cluster has not heard of do.
    """
    files, cluster = Files(), Cluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FULL", 1)
        for finishing, files.dies, confirms in steps:
            for uid in sorted(finishing):
                cluster.finish(uid)
            try:
                reached = run(files, cluster, confirmed=told)
            except Killed:
                continue
            if confirms and told:
                told = reached
            safe = told.versions.get(EXECUTION_PLURAL, 0) if told else 0
            deletable = {(uid, version) for uid, version in current(cluster) if int(version) <= safe}
            assert deletable <= set(files.records()), "what the operator may delete was written"
        files.dies = None
        run(files, cluster, confirmed=told)
    assert current(cluster) <= set(files.records())
    if told is None:
        assert len(files.records()) == len(set(files.records()))
    assert sorted(files.files) == export_files(files.files)
    found = verify([], [], now=a_world().now, export=files.files)
    assert FindingKind.EXPORT_INVALID not in kinds(found) or not files.files


def test_an_etcd_from_a_backup_is_exported_again_from_where_it_begins() -> None:
    files, cluster = Files(), Cluster()
    cluster.finish("a")
    backup = run(files, cluster)
    for uid in "bcd":
        cluster.finish(uid)
    run(files, cluster)
    restored = Cluster()
    restored.finish("a")
    for uid in "efgh":
        restored.finish(uid)
    run(files, restored, confirmed=backup)
    assert {uid for uid, _ in files.records()} == set("abcdefgh")
    assert len(files.records()) == 8, "the one that both have came once"


def test_another_destination_gets_everything() -> None:
    cluster = Cluster()
    cluster.finish("a")
    told = run(Files(), cluster)
    empty = Files()
    run(empty, cluster, confirmed=told)
    assert len(empty.records()) == 1


def test_nothing_new_makes_no_file() -> None:
    files, cluster = Files(), Cluster()
    cluster.finish("a")
    reached = run(files, cluster)
    cluster.version += 5
    assert run(files, cluster) == reached
    assert len(files.files) == 1


def test_a_file_that_is_no_export_is_not_gone_on_after() -> None:
    files = Files()
    files.files["0000000001.jsonl"] = b'{"export": {"format": 2}}\n'
    with pytest.raises(ClickException, match="it does not begin as an export"):
        run(files, Cluster())


# --- if others can add files to the store ---

CHAIN = "c" * 32
MUCH = 2**53


def forged(number: int, previous: str, *records: Mapping[str, Any], up_to: Mapping[str, int] | None = None) -> bytes:
    """A file of somebody else, which says that these records and all audit lines were written."""
    return render(Header(NAMESPACE, number, previous, "2026-01-01T00:00:00Z", up_to, {CHAIN: MUCH}), records)


def audit_lines(cluster: Cluster) -> list[LogLine]:
    body = {"chain": CHAIN, "sequence": cluster.version, "namespace": NAMESPACE}
    return [LogLine("log", 1, json.dumps({"audit": body}))]


@pytest.mark.parametrize("everything", [False, True])
def test_a_file_of_somebody_else_hides_no_record_and_no_audit_line(everything: bool) -> None:
    files, cluster = Files(), Cluster()
    cluster.finish("a")
    told = run(files, cluster, confirmed=Cursor())
    [first] = files.files.values()
    cluster.finish("evil")
    up_to = {EXECUTION_PLURAL: cluster.version, SESSION_PLURAL: cluster.version} if everything else None
    files.files["0000000002.jsonl"] = forged(2, sha256_hex(first), cluster.records["evil"], up_to=up_to)
    controls = dict(files.files)
    reached = run(files, cluster, audit_lines(cluster), told)
    assert [identity_of(one)[0] for one in records_in(files.files["0000000003.jsonl"])] == ["evil"]
    assert f'"chain":"{CHAIN}"'.encode() in files.files["0000000003.jsonl"]
    assert (reached.file, reached.versions[EXECUTION_PLURAL]) == ("0000000003.jsonl", cluster.version)
    files.files = controls
    run(files, cluster, audit_lines(cluster))
    written = files.files.get("0000000003.jsonl", b"")
    assert (list(records_in(written)), b'"chain"' in written) == ([], False), (
        "control: without the cluster, files count"
    )


def interrupted(files: Files, cluster: Cluster, confirmed: Cursor) -> Cursor:
    """A run that ends after its first full file; what the cluster knows then."""
    made = Export(NAMESPACE, files, confirmed)
    [first, *_] = made.missing(EXECUTION_PLURAL, cluster.found(), cluster.version)
    made.add([cluster.records[first.uid]])
    return Cursor.parse(made.cursor.data)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("begun", [True, False], ids=["after an export", "before the first export"])
@pytest.mark.parametrize("everything", [True, False])
def test_a_file_of_somebody_else_hides_nothing_after_an_interrupted_export(*, begun: bool, everything: bool) -> None:
    files, cluster, told = Files(), Cluster(), Cursor()
    if begun:
        cluster.finish("a")
        told = run(files, cluster, confirmed=told)
    for uid in ("b", "c", "hidden"):
        cluster.finish(uid)
    up_to = {EXECUTION_PLURAL: MUCH, SESSION_PLURAL: MUCH} if everything else None
    number, previous = len(files.files) + 1, sha256_hex(files.files[told.file]) if told.file else GENESIS
    files.files[f"{number:010}.jsonl"] = forged(number, previous, cluster.records["hidden"], up_to=up_to)
    known = told.versions
    for _ in range(2):
        told = interrupted(files, cluster, told)
        assert told.versions == known, "else the operator would delete what was not written"
    told = run(files, cluster, confirmed=told)
    assert told.versions[EXECUTION_PLURAL] == cluster.version
    del files.files[f"{number:010}.jsonl"]
    assert current(cluster) <= set(files.records())
    assert len(files.records()) == len(set(files.records())), "what the cluster has heard of comes once"


def test_files_that_were_there_before_the_first_export_do_not_count() -> None:
    files, cluster = Files(), Cluster()
    told = run(files, cluster, confirmed=Cursor())
    assert (files.files, told.file) == ({}, ""), "nothing to write yet"
    cluster.finish("evil")
    files.files["0000000001.jsonl"] = forged(1, GENESIS, up_to={EXECUTION_PLURAL: MUCH, SESSION_PLURAL: MUCH})
    told = run(files, cluster, confirmed=Cursor.parse(told.data))
    assert [uid for uid, _ in files.records()] == ["evil"]
    assert told.versions[EXECUTION_PLURAL] == cluster.version


def test_files_count_that_an_older_codeexec_has_written() -> None:
    """Its ConfigMap names no file."""
    files, cluster = Files(), Cluster()
    cluster.finish("a")
    told = run(files, cluster)
    run(files, cluster, confirmed=Cursor.parse({EXECUTION_PLURAL: str(told.versions[EXECUTION_PLURAL])}))
    assert len(files.records()) == 1


def changed(content: bytes) -> bytes:
    return content.replace(b"run-a", b"run-b")


@pytest.mark.parametrize(
    ("name", "content", "told", "error"),
    [
        ("0000000001.jsonl", changed, True, "Somebody has changed the file"),
        ("0000000002.jsonl", bytes, False, "its header says that it is 0000000001.jsonl"),
        ("0000000002.jsonl", lambda _: render(Header("other", 2), ()), False, "it is of namespace 'other'"),
        ("9999999999.jsonl", lambda _: render(Header(NAMESPACE, 9_999_999_999), ()), True, "no file can follow"),
    ],
    ids=["changed", "of another number", "of another namespace", "the last number"],
)
def test_an_export_does_not_go_on_after_a_wrong_file(
    name: str, content: Callable[[bytes], bytes], told: bool, error: str
) -> None:
    files, cluster = Files(), Cluster()
    cluster.finish("a")
    reached = run(files, cluster, confirmed=Cursor())
    files.files[name] = content(files.files["0000000001.jsonl"])
    before = dict(files.files)
    with pytest.raises(ClickException, match=error):
        run(files, cluster, confirmed=reached if told else None)
    assert files.files == before


# --- with the audit log, and as `verify` reads it ---


def exported(world: World, *parts: int) -> dict[str, bytes]:
    """The finished records and the log of a world, in as many runs as parts; each part is a number of log lines."""
    files, cluster = Files(), Cluster()
    for part in (*parts, len(world.lines())):
        for raw in world.stored():
            uid = raw["metadata"]["uid"]
            if (
                Phase(raw["status"]["phase"]).terminal
                and raw["metadata"]["namespace"] == NAMESPACE
                and uid not in cluster.records
            ):
                cluster.finish(uid)
                meta = {**raw["metadata"], "resourceVersion": str(cluster.version)}
                cluster.records[uid] = {**raw, "metadata": meta}
        run(files, cluster, world.lines()[:part])
    return files.files


def only_executions(agent: str = "analyst") -> World:
    world = World()
    world.start()
    for name in ("run-1", "run-2", "run-3"):
        record = named(name)
        spec = record.spec.model_copy(update={"source": Source(agent=agent)})
        world.write(record.model_copy(update={"spec": spec}), Phase.RUNNING)
        world.write(world.records[name], Phase.SUCCEEDED, exit_code=0)
    return world


def check(world: World, files: Mapping[str, bytes], *, cluster: bool = True) -> Verification:
    stored = world.stored() if cluster else None
    return verify([], stored, now=world.now, namespace=NAMESPACE, complete=True, export=files)


@pytest.mark.parametrize("parts", [(), (1,), (2, 3), (0, 0)])
def test_the_chain_holds_over_the_exported_lines(parts: tuple[int, ...]) -> None:
    world = only_executions()
    found = check(world, exported(world, *parts))
    assert (found.findings, found.notes, found.records, found.lines) == ((), (), 3, 7)


def test_log_files_may_come_in_any_order_and_overlap() -> None:
    world = a_world()
    lines = [line for line in world.lines() if line.log == "log-1"]
    files = Files()
    run(files, Cluster(), [*lines[8:], *lines[:8], *lines[:10]])
    found = verify([], None, now=world.now, export=files.files)
    assert (found.findings, found.lines) == ((), sum(NAMESPACE in one.text for one in lines))


def test_two_different_lines_at_one_position_are_both_exported() -> None:
    world = only_executions()
    texts, _ = recomputed([line.text for line in world.lines()], lambda body: body.update(operator="9.9.9"))
    files = Files()
    run(files, Cluster(), [*world.lines(), *read_log("another", texts)])
    assert FindingKind.CONFLICTING in kinds(verify([], None, now=world.now, export=files.files))


DEEP = "[" * 900 + "]" * 900


@pytest.mark.parametrize("value", [DEEP, '"\\ud800"', "1.5"], ids=["nested deeply", "half of a pair", "a fraction"])
def test_a_line_that_has_no_canonical_form_is_left_out(value: str) -> None:
    world, files = only_executions(), Files()
    strange = f'{{"audit":{{"chain":"{CHAIN}","sequence":1,"namespace":"{NAMESPACE}","x":{value}}}}}'
    run(files, Cluster(), [*world.lines(), LogLine("log", 9, strange)])
    found = verify([], None, now=world.now, export=files.files)
    assert (found.findings, found.lines) == ((), 7)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x1e"])
def test_an_agent_whose_name_ends_lines_elsewhere_ends_none_here(separator: str) -> None:
    world = only_executions(agent=f"two{separator}lines")
    found = check(world, exported(world))
    assert (found.findings, found.records, found.lines) == ((), 3, 7)


def test_an_exported_record_whose_time_is_over_agrees_with_its_line() -> None:
    world = only_executions()
    files = exported(world)
    world.delete("run-1")
    log = list(read_log("log", [text for texts in world.logs.values() for text in texts]))
    found = verify(log, world.stored(), now=world.now, namespace=NAMESPACE, complete=True, export=files)
    assert (found.findings, found.records) == ((), 3)
    assert check(world, files, cluster=False).records == 3


def test_a_record_that_was_changed_in_the_export_is_found() -> None:
    world = only_executions()
    files = exported(world)
    [name] = files
    forged = {name: files[name].replace(b'"exitCode":0', b'"exitCode":3', 1)}
    assert kinds(check(world, forged, cluster=False)) == {FindingKind.RECORD_CHANGED}


def test_files_that_are_not_those_that_were_written_are_found() -> None:
    world = only_executions()
    files = exported(world, 1, 2)
    first, second, third = files
    for changed in (
        {first: files[first], third: files[third]},
        {**files, second: files[second] + b"\n"},
        {**files, second: files[third]},
        {**files, second: b"{}\n"},
        {**files, second: files[second] + b'{"record":{"metadata":{"uid":"u","resourceVersion":"1"}}}\n'},
        {**files, second: files[second].replace(b'"number":2', b'"number":1e999')},
        {},
    ):
        assert FindingKind.EXPORT_INVALID in kinds(check(world, changed, cluster=False)), changed.keys()
    older = verify([], None, now=world.now, export={third: files[third]})
    assert FindingKind.EXPORT_INVALID in {one.kind for one in older.notes}, "the older ones may be kept elsewhere"


def test_a_header_says_what_it_was_made_of() -> None:
    header = Header("team-red", 3, "a" * 64, "2026-11-21T12:00:00Z", {EXECUTION_PLURAL: 5}, {"c" * 32: 7})
    assert Header.parse(f"{header.text}\n{{}}\n".encode()) == header
    assert header.file == "0000000003.jsonl"
    assert json.loads(header.text)["export"]["upTo"] == {EXECUTION_PLURAL: 5}


# --- the command ---


def codeexec(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["audit", *arguments])


def test_the_folder_of_a_namespace_is_verified(tmp_path: Path) -> None:
    world = only_executions()
    store = EvidenceStore(str(tmp_path), "records", NAMESPACE)
    for name, content in exported(world, 2).items():
        store.add(name, content)
    done = codeexec("verify", "--no-cluster", "--export", str(tmp_path), "-n", NAMESPACE)
    assert done.exit_code == 0, done.output
    assert "3 records agree with the log" in done.stdout
    done = codeexec("verify", "--no-cluster", "--export", str(tmp_path), "-n", "other")
    assert (done.exit_code, "there is no file" in done.stdout) == (1, True)


def test_a_file_is_on_disk_before_the_operator_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the folders that name it, which may be new."""
    synced: list[tuple[int, int]] = []
    sync = os.fsync

    def noting(descriptor: int) -> None:
        sync(descriptor)
        found = os.fstat(descriptor)
        synced.append((found.st_ino, found.st_size if stat.S_ISREG(found.st_mode) else 0))

    monkeypatch.setattr(os, "fsync", noting)
    EvidenceStore(tmp_path.as_uri(), "records", NAMESPACE).add("0000000001.jsonl", b"four")
    folder = tmp_path / NAMESPACE
    assert synced == [
        ((folder / "0000000001.jsonl").stat().st_ino, len(b"four")),
        (folder.stat().st_ino, 0),
        (tmp_path.stat().st_ino, 0),
    ]


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_that_syncs_no_folders_will_do(
    number: int, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refused)
    store = EvidenceStore(str(tmp_path), "records")
    with pytest.raises(ClickException, match=r"can't write 1\.jsonl to the records") if fails else nullcontext():
        store.add("1.jsonl", b"")


def test_what_cannot_be_used_is_said(tmp_path: Path) -> None:
    for done, told in (
        (codeexec("export"), "Missing option '--to'"),
        (codeexec("export", "--to", "-", "--confirm"), "--confirm needs files that stay"),
        (codeexec("export", "--to", str(tmp_path / "nowhere")), "can't find the records at"),
        (codeexec("verify"), "or an --export"),
    ):
        assert done.exit_code in (1, 2)
        assert told in done.output
