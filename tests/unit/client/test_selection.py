"""Which files an entry of `fetch` selects."""

import random

import pytest

from codeexec_api import File
from codeexec_api.paths import MAX_PATH_BYTES, check_workspace_path
from executor_client.model.results import Artifact
from executor_client.model.selection import as_sent, literally, selected


@pytest.mark.parametrize("path", ["a", "data[1].csv", "a*b", "?", "[!a]", "[]]", "[*]?", "d/[a-z]/]["])
def test_a_path_can_be_asked_for_literally(path: str) -> None:
    entry = literally(path)
    assert check_workspace_path(entry) == entry
    assert selected(path, [entry])
    chance = random.Random(1)
    for _ in range(2_000):
        other = "".join(chance.choices("adt1[]*?!-z/.b", k=len(path)))
        assert selected(other, [entry]) == (other == path), other


def test_an_entry_that_would_be_too_long_is_the_path_itself_which_always_selects_itself() -> None:
    path = "[" * (MAX_PATH_BYTES // 3)
    assert literally(path) != path
    longest = "[" * MAX_PATH_BYTES
    assert literally(longest) == longest
    assert selected(longest, [longest])


@pytest.mark.parametrize(
    ("sha256", "unchanged"), [("a" * 64, True), ("b" * 64, False), (None, True)], ids=["same", "changed", "unknown"]
)
def test_what_was_sent_is_unchanged_unless_its_digest_says_otherwise(sha256: str | None, unchanged: bool) -> None:
    """A record lacks digests if other files have used up the room for them."""
    sent = [File(path="sent", sha256="a" * 64, size_bytes=1)]
    artifacts = [Artifact("sent", 1, sha256), Artifact("made", 1, sha256)]
    assert as_sent(artifacts, [], sent) == ({"sent"} if unchanged else set())
