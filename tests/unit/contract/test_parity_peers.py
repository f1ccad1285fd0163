"""What AutoGen's executors gave was observed with the versions and the cases that the project has now."""

import pytest
from parity import observed
from parity.observed import Basis

BASIS = Basis("3.11", {"autogen-core": "0.7.5", "docker": "7.1.0"}, "a" * 64)


def test_the_last_observation_is_of_these_versions_and_cases():
    last = observed.last()
    assert last.differences(observed.locked(last.python)) == [], (
        "run `make parity`, which runs AutoGen's executors anew"
    )


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (Basis("3.12", BASIS.packages, BASIS.cases), "Python was 3.11 and is 3.12"),
        (Basis("3.11", {**BASIS.packages, "docker": "8"}, BASIS.cases), "docker was 7.1.0 and is 8"),
        (Basis("3.11", BASIS.packages, "b" * 64), f"the digest of the cases was {'a' * 12} and is {'b' * 12}"),
    ],
)
def test_whatever_an_observation_depends_on_is_noticed(now, said):
    assert BASIS.differences(now) == [said]
    assert BASIS.differences(BASIS) == []


def test_a_change_of_any_case_is_noticed(tmp_path):
    (tmp_path / "cases").mkdir()
    for name in ("case.py", "parties.py", "cases/one.py"):
        (tmp_path / name).write_text("x = 1\n")
    digests = [observed.digest(tmp_path)]
    for name in ("case.py", "parties.py", "cases/one.py", "cases/new.py"):
        (tmp_path / name).write_text("x = 2\n")
        digests.append(observed.digest(tmp_path))
    assert len(set(digests)) == 5


def test_what_is_written_is_what_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(observed, "RECORD", tmp_path / "observed.toml")
    observed.RECORD.write_text(observed.here().written())
    assert observed.last() == observed.here()
