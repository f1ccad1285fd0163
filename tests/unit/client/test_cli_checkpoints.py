"""`codeexec audit keygen`, `checkpoint` and `verify --checkpoint`: what is kept, what is refused and what is said."""

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from audit_world import World, a_world
from click import ClickException
from click.testing import CliRunner, Result
from object_storage import ObjectStorage

from executor_client.cli import main
from executor_client.cli.evidence_store import EvidenceStore

Codeexec = Callable[..., Result]
FIRST, SECOND = "0000000001.checkpoint", "0000000002.checkpoint"


@pytest.fixture
def codeexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Codeexec:
    """In a folder with a log, `operator.log`, a key, `private`, and a folder for checkpoints, `kept`."""
    monkeypatch.chdir(tmp_path)
    write(a_world())
    (tmp_path / "kept").mkdir()

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["audit", *arguments])

    made = call("keygen", "prod-eu/codeexec", "private")
    assert made.exit_code == 0, made.output
    (tmp_path / "public").write_text(made.stdout)
    return call


def write(world: World) -> None:
    Path("operator.log").write_text("\n".join(text for texts in world.logs.values() for text in texts) + "\n")


def sign(codeexec: Codeexec, place: str = "kept", key: str = "private") -> Result:
    return codeexec("checkpoint", "--to", place, "--signing-key", key, "operator.log")


def verify(codeexec: Codeexec, place: str = "kept", *options: str) -> Result:
    public = Path("public").read_text()
    return codeexec("verify", "--no-cluster", "operator.log", "--checkpoint", place, "--key", public, *options)


# --- keys ---


def test_a_key_is_the_callers_alone_and_never_replaced(codeexec) -> None:
    assert stat.S_IMODE(Path("private").stat().st_mode) == 0o600
    before = Path("private").read_text()
    again = codeexec("keygen", "prod-eu/codeexec", "private")
    assert (again.exit_code, "can't write a new file private: File exists" in again.stderr) == (1, True)
    assert Path("private").read_text() == before
    assert Path("public").read_text().startswith("prod-eu/codeexec+")
    assert codeexec("keygen", "two words", "other").exit_code == 2


def test_a_private_key_in_the_place_of_the_public_one_is_not_repeated(codeexec) -> None:
    secret = Path("private").read_text().strip()
    done = codeexec("verify", "--no-cluster", "operator.log", "--checkpoint", "kept", "--key", secret)
    assert (done.exit_code, "the value of --key can't be used: it is not a public key" in done.stderr) == (2, True)
    assert secret.split("+", 4)[4] not in done.output


# --- checkpoints in a folder ---


def test_each_checkpoint_is_a_new_file(codeexec, tmp_path: Path) -> None:
    assert sign(codeexec).stdout == f"signed {FIRST}: 4 chains, at kept\n"
    before = (tmp_path / "kept" / FIRST).read_bytes()
    assert sign(codeexec).stdout == f"signed {SECOND}: 4 chains, at kept\n"
    assert (tmp_path / "kept" / FIRST).read_bytes() == before
    done = verify(codeexec)
    assert done.exit_code == 0, done.output
    assert "2 signed checkpoints of prod-eu/codeexec, the newest of 20" in done.stdout
    assert [one["file"] for one in json.loads(verify(codeexec, "kept", "-o", "json").stdout)["checkpoints"]] == [
        FIRST,
        SECOND,
    ]


def test_a_recomputed_chain_is_found_and_not_signed(codeexec, tmp_path: Path) -> None:
    sign(codeexec)
    world = a_world()
    world.forge("run-1", exit_code=3)
    write(world)
    assert codeexec("verify", "--no-cluster", "operator.log").exit_code == 0, "control"
    done = verify(codeexec)
    assert (done.exit_code, "Rewritten" in done.stdout) == (1, True)
    done = sign(codeexec)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (1, "FAILED: 2 findings; nothing was signed")
    assert [one.name for one in (tmp_path / "kept").iterdir()] == [FIRST]


def test_a_shorter_log_is_not_signed(codeexec) -> None:
    sign(codeexec)
    world = a_world()
    del world.logs["log-2"][-2:]
    write(world)
    done = sign(codeexec)
    assert (done.exit_code, "or its end was cut off" in done.stdout) == (1, True)


def test_a_log_with_a_finding_is_not_signed(codeexec, tmp_path: Path) -> None:
    world = a_world()
    del world.logs["log-1"][4]
    write(world)
    assert sign(codeexec).exit_code == 1
    assert list((tmp_path / "kept").iterdir()) == []


def test_another_key_does_not_go_on_where_the_first_one_stopped(codeexec) -> None:
    sign(codeexec)
    codeexec("keygen", "prod-eu/codeexec", "stranger")
    done = sign(codeexec, key="stranger")
    assert (done.exit_code, "CheckpointInvalid" in done.stdout, "unknown key" in done.stdout) == (1, True, True)


def test_what_cannot_be_used_is_said(codeexec) -> None:
    for done, told in (
        (sign(codeexec, "nowhere"), "can't find the checkpoints at nowhere"),
        (sign(codeexec, "nowhere"), "(allowed: a folder that exists, or a URL with file://, s3://, gs:// or az://)"),
        (sign(codeexec, "s4://bucket"), "can't find the checkpoints at s4://bucket"),
        (sign(codeexec, key="nix"), "can't read the signing key nix: No such file or directory"),
        (sign(codeexec, key="public"), "the signing key public can't be used: it is not a signing key"),
        (verify(codeexec), "the checkpoints   there is none"),
        (
            codeexec("verify", "--no-cluster", "operator.log", "--checkpoint", "kept"),
            "give both --checkpoint and --key",
        ),
    ):
        assert done.exit_code in (1, 2)
        assert told in done.output


# --- an object storage ---


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStorage]:
    with ObjectStorage() as one:
        for name, value in one.environment.items():
            monkeypatch.setenv(name, value)
        yield one


def test_an_object_storage_keeps_them_as_well(codeexec, storage) -> None:
    for number in (1, 2):
        assert sign(codeexec, "s3://evidence/prod").exit_code == 0, number
    assert sorted(storage.objects) == [f"/evidence/prod/{name}" for name in (FIRST, SECOND)]
    assert storage.conditions == ["*", "*"], "an object is never replaced"
    assert verify(codeexec, "s3://evidence/prod").exit_code == 0


def test_a_checkpoint_that_another_writer_has_made_is_not_replaced(storage, tmp_path: Path) -> None:
    for place in ("s3://evidence", str(tmp_path)):
        store = EvidenceStore(place, "checkpoints")
        store.add(FIRST, b"one")
        with pytest.raises(
            ClickException, match=f"can't write {FIRST} to the checkpoints at {place}: .*already exists"
        ):
            store.add(FIRST, b"other")
        assert store.read(store.names()) == {FIRST: b"one"}
