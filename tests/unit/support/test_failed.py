"""The last lines of `make test` name what failed."""

from pathlib import Path

from failed import failures, skips

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_passes"/>
<testcase classname="tests.unit.test_a" name="test_fails[1]">
<failure message="assert 1 == 2&#10;  where 1 = f()"/></testcase>
<testcase classname="tests.unit.test_b" name="test_ends_badly"><error message="teardown failed"/></testcase>
<testcase classname="tests.unit.test_b" name="test_elsewhere"><skipped message="no Docker"/></testcase>
</testsuite></testsuites>"""


def test_each_failure_is_a_line_with_its_file_name_and_message(tmp_path: Path) -> None:
    (tmp_path / "unit.xml").write_text(REPORT)
    assert list(failures(["unit"], tmp_path)) == [
        "unit/test_a.py::test_fails[1]: assert 1 == 2 where 1 = f()",
        "unit/test_b.py::test_ends_badly: teardown failed",
    ]


def test_a_tier_that_did_not_get_to_its_end_is_a_failure(tmp_path: Path) -> None:
    assert list(failures(["e2e"], tmp_path)) == ["e2e: no report, so this tier did not get to its end"]


def test_a_test_that_was_skipped_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "unit.xml").write_text(REPORT)
    assert list(skips(["unit", "e2e"], tmp_path)) == ["unit/test_b.py::test_elsewhere: no Docker"]
