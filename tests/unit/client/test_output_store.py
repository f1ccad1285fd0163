"""Output in the platform owner's store: read from the store that the user has named, whatever the record says."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from factories import UID, an_execution

from codeexec_api import ArtifactStatus, CodeExecution, OutputStoreRef, Phase, StreamStatus
from codeexec_api.digests import sha256_hex
from codeexec_api.output_store import STORE_VARIABLE, dump_part
from codeexec_api.packing import pack
from codeexec_api.v1alpha1.bounds import MAX_STORED_PARTS
from executor_client import OutputUnavailable
from executor_client.client.execution import read_contents
from executor_client.client.request import ClusterRef
from executor_client.model.results import artifact_content, result_of
from executor_client.transport import output_store
from executor_client.transport.outage import Retries
from executor_client.transport.output_store import OutputStore

TEXT, FILE = b"x" * 300_000, os.urandom(2000)
RECORDED = "s3://bucket/codeexec"
PARTS = ("0-7", "7-8")


class Reader:
    """A connection to a cluster, as far as parts are read by it."""

    def __init__(self, url: str | None) -> None:
        self.read_output = OutputStore(url).read
        self.patiently = Retries().patiently


def a_record(parts: tuple[str, ...] = PARTS, url: str = RECORDED) -> CodeExecution:
    stream = {"text": "x", "sha256": sha256_hex(TEXT), "keptBytes": len(TEXT), "totalBytes": len(TEXT)}
    stdout = StreamStatus.model_validate({**stream, "truncated": False, "referenced": True})
    file = ArtifactStatus(path="a.bin", size_bytes=len(FILE), sha256=sha256_hex(FILE), fetched=True)
    stored = OutputStoreRef.model_construct(url=url, parts=parts)
    status = {"stdout": stdout, "artifacts": (file,), "output_store": stored, "exit_code": 0}
    return an_execution(phase=Phase.SUCCEEDED, status=status)


async def read(url: str | None, record: CodeExecution) -> Any:
    reader: Any = Reader(url)
    return await read_contents(reader, record)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the two parts of the record."""
    folder = tmp_path / "store"
    objects = folder / "codeexec-sandbox" / UID
    objects.mkdir(parents=True)
    (objects / PARTS[0]).write_bytes(dump_part({"stdout.gz": pack(TEXT[:200_000])}))
    (objects / PARTS[1]).write_bytes(dump_part({"stdout.gz": pack(TEXT[200_000:]), "artifact-0.gz": pack(FILE)}))
    return folder


async def test_parts_are_read_from_the_store_that_the_user_has_named(store: Path) -> None:
    contents = await read(store.as_uri(), a_record())
    assert result_of(a_record(), contents).stdout == TEXT.decode()
    assert artifact_content(a_record(), "a.bin", contents) == FILE


async def test_the_store_can_be_named_in_the_environment(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, f"{store.as_uri()}/")
    assert (await read(ClusterRef().output_store, a_record())).values["stdout"] == TEXT


async def test_without_a_store_nothing_is_opened_and_the_error_says_what_to_set(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    record = a_record(url=store.as_uri())
    opened: list[str] = []
    monkeypatch.setattr("fsspec.url_to_fs", opened.append)
    with pytest.raises(OutputUnavailable) as caught:
        await read(None, record)
    assert opened == []
    assert f"is in the output store {store.as_uri()!r}, but this client has no output store" in str(caught.value)
    assert "set CODEEXEC_OUTPUT_STORE, or output_store of ClusterRef, to this URL" in str(caught.value)


async def test_a_record_can_not_make_the_client_open_another_store(store: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    record = a_record(url=store.as_uri())
    assert (await read(store.as_uri(), record)).values["stdout"] == TEXT, "control: the content is there"
    with pytest.raises(OutputUnavailable) as caught:
        await read(mine.as_uri(), record)
    assert f"can't be read from the output store {mine.as_uri()!r} (the record names {store.as_uri()!r})" in str(
        caught.value
    )
    assert "it is not there: the store's lifecycle rules have deleted it" in str(caught.value)


@pytest.mark.parametrize(("field", "value"), [("namespace", "../codeexec-sandbox"), ("uid", f"../{UID}"), ("uid", "")])
async def test_a_record_can_not_lead_out_of_the_store(store: Path, field: str, value: str) -> None:
    record = a_record()
    metadata = record.metadata.model_copy(update={field: value})
    with pytest.raises(OutputUnavailable, match="no object of an output store has the name"):
        await read(store.as_uri(), record.model_copy(update={"metadata": metadata}))


@pytest.mark.parametrize("part", ["../0-7", "..", "", "0-7/../0-7", "7-9"])
async def test_a_record_can_not_name_an_object_of_its_own(store: Path, part: str) -> None:
    with pytest.raises(OutputUnavailable, match=r"no object of an output store has the name|it is not there"):
        await read(store.as_uri(), a_record(parts=(part,)))


async def test_a_record_with_too_many_parts_is_not_read(store: Path) -> None:
    with pytest.raises(
        OutputUnavailable, match=f"parts has {MAX_STORED_PARTS + 1} entries; at most {MAX_STORED_PARTS} are possible"
    ):
        await read(store.as_uri(), a_record(parts=("0-1",) * (MAX_STORED_PARTS + 1)))


@pytest.mark.parametrize("content", [b"", b"garbage", dump_part({"stdout.gz": b"no gzip"})])
async def test_a_part_that_nobody_wrote_is_unavailable(store: Path, content: bytes) -> None:
    (store / "codeexec-sandbox" / UID / PARTS[1]).write_bytes(content)
    with pytest.raises(OutputUnavailable, match=r"part 1 of the output|the stored stdout is not readable"):
        await read(store.as_uri(), a_record())


async def test_output_that_was_changed_does_not_match_the_record(store: Path) -> None:
    changed = dump_part({"stdout.gz": pack(b"y" * 200_000)})
    (store / "codeexec-sandbox" / UID / PARTS[0]).write_bytes(changed)
    contents = await read(store.as_uri(), a_record())
    with pytest.raises(OutputUnavailable, match="the stored stdout does not match the record"):
        result_of(a_record(), contents)


async def test_a_wrong_name_of_a_store_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutputUnavailable, match="Check CODEEXEC_OUTPUT_STORE") as caught:
        await read("s3://key:secret@bucket", a_record())
    assert "is not the URL of an output store" in str(caught.value)


async def test_a_store_that_hangs_has_a_time_limit(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_store, "_SECONDS", 0.05)
    gate = threading.Event()
    monkeypatch.setattr(OutputStore, "_read", lambda *_: gate.wait(30))
    with pytest.raises(OutputUnavailable, match=r"it did not answer within 0\.05 s"):
        await read(store.as_uri(), a_record())
    gate.set()
