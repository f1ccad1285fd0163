"""Names of objects in an output store come from the API server alone, and what is in them is read with suspicion."""

import pytest
from factories import UID
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api.output_store import check_store_url, dump_part, load_part, object_path

keys = st.from_regex(r"(stdout|stderr|order|artifact-[0-9]{1,3})(\.gz)?", fullmatch=True)


@given(st.dictionaries(keys, st.binary(max_size=300)))
def test_what_is_put_into_an_object_comes_out_of_it(contents: dict[str, bytes]) -> None:
    assert load_part(dump_part(contents)) == contents


@given(st.binary(max_size=200))
def test_any_other_object_is_a_value_error(data: bytes) -> None:
    try:
        load_part(data)
    except ValueError:
        return
    assert dump_part(load_part(data)).partition(b"\n")[2] == data.partition(b"\n")[2]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}x",
        b'{"stdout":1}\n',
        b'{"stdout":1}\nxx',
        b'{"stdout":-1,"stderr":2}\nx',
        b'{"stdout":true}\nx',
        b'{"stdout":1.0}\nx',
        b'{"../stdout":1}\nx',
        b"[1]\nx",
        b"\xff\n",
    ],
)
def test_an_object_that_nobody_wrote_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes instead of|not name keys|Expecting value|Extra data|can't decode"):
        load_part(data)


def test_an_object_is_named_after_its_execution() -> None:
    assert object_path("codeexec-sandbox", UID, "0-37") == f"codeexec-sandbox/{UID}/0-37"


@pytest.mark.parametrize(
    ("namespace", "uid", "part"),
    [
        ("..", UID, "0-1"),
        ("", UID, "0-1"),
        ("a/b", UID, "0-1"),
        ("A", UID, "0-1"),
        ("a\n", UID, "0-1"),
        ("a", "..", "0-1"),
        ("a", "", "0-1"),
        ("a", f"{UID}/..", "0-1"),
        ("a", f"{UID}\n", "0-1"),
        ("a", UID.upper(), "0-1"),
        ("a", UID, "0"),
        ("a", UID, "../0-1"),
        ("a", UID, "0-1\n"),
    ],
)
def test_no_other_names_are_made(namespace: str, uid: str, part: str) -> None:
    with pytest.raises(ValueError, match="no object of an output store has the name"):
        object_path(namespace, uid, part)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/a/b_c-d.e", "file:///mnt/store", "memory://x", "abfs://c"])
def test_a_store_is_named_by_a_url(url: str) -> None:
    assert check_store_url(url) == check_store_url(f"{url}/") == url


@pytest.mark.parametrize(
    "url",
    [
        "/mnt/store",
        "bucket",
        "s3://",
        "s3://key:secret@bucket",
        "s3://bucket?token=1",
        "s3://bucket#x",
        "simplecache::s3://bucket",
        "file:///mnt/../etc",
        "file:///mnt/./etc",
        "s3://bucket/a b",
        "s3://bucket/a\nb",
        "s3://" + "x" * 600,
    ],
)
def test_credentials_and_tricks_are_no_url_of_a_store(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of an output store"):
        check_store_url(url)
