"""Digests that an auditor can recompute with standard tools."""

import hashlib

from factories import a_raw_block, a_raw_file, a_spec

from codeexec_api.digests import code_digest, sha256_hex


def test_sha256_is_the_usual_one() -> None:
    assert sha256_hex(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_code_digest_follows_the_documented_formula() -> None:
    one, two = hashlib.sha256(b"one").hexdigest(), hashlib.sha256(b"two").hexdigest()
    expected = hashlib.sha256(f"python {one}\nsh {two}\n".encode()).hexdigest()
    assert code_digest([("python", one), ("sh", two)]) == f"sha256:{expected}"


def test_an_executions_digest_covers_blocks_then_files() -> None:
    spec = a_spec(
        blocks=[a_raw_block(b"one"), a_raw_block(b"two", language="bash")],
        files=[a_raw_file("in/data.csv", b"three")],
    )
    lines = [("python", b"one"), ("bash", b"two"), ("./in/data.csv", b"three")]
    text = "".join(f"{label} {hashlib.sha256(content).hexdigest()}\n" for label, content in lines)
    assert spec.code_digest == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def test_a_file_is_never_taken_for_a_block_nor_one_name_for_another() -> None:
    code, data = a_raw_block(b"code"), a_raw_block(b"data", language="bash")
    both = [code, a_raw_block(b"more")]
    requests = [
        a_spec(blocks=[code, data]),
        a_spec(blocks=[code], files=[a_raw_file("bash", b"data")]),
        a_spec(blocks=[both[0] | {"filename": "json.py"}, both[1]]),
        a_spec(blocks=[both[0] | {"filename": "other.py"}, both[1]]),
        a_spec(blocks=both),
        a_spec(blocks=[code], files=[a_raw_file("python ./a.py", b"more")]),
        a_spec(blocks=[code, a_raw_block(b"more") | {"filename": "a.py"}]),
    ]
    assert len({one.code_digest for one in requests}) == len(requests)


def test_order_language_and_content_count() -> None:
    one, two = a_raw_block(b"one"), a_raw_block(b"two")
    digests = {
        a_spec(blocks=blocks).code_digest
        for blocks in ([one, two], [two, one], [one], [one | {"language": "sh"}, two], [one, a_raw_block(b"twO")])
    }
    assert len(digests) == 5
