"""The page of `codeexec audit report` in a real browser: it shows what it says, and runs nothing of what agents say.

Needs Chromium (`make e2e` sees to it), and no cluster: the records are those of the fake.
"""

from pathlib import Path

import pytest
from audit_scene import HOSTILE, a_day, browse, write_report

pytestmark = pytest.mark.e2e

TAKEN_OVER = "<title>taken over</title>"


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    return write_report(a_day(), tmp_path_factory.mktemp("report"))


def test_a_page_that_does_not_escape_is_taken_over(tmp_path):
    """The control: this browser runs what a page holds."""
    careless = tmp_path / "careless.html"
    careless.write_text(f"<!doctype html><title>fine</title>{HOSTILE}")
    assert TAKEN_OVER in browse(careless, "--dump-dom")


def test_what_an_agent_calls_itself_is_shown_and_not_run(page):
    seen = browse(page, "--dump-dom")
    assert TAKEN_OVER not in seen
    assert "<title>codeexec audit report: codeexec-sandbox</title>" in seen
    assert seen.count("&lt;script&gt;document.title='taken over'&lt;/script&gt;") == 2, "in a table and in a row"
    assert "<script" not in seen


def test_a_page_that_somebody_adds_a_script_to_does_not_run_it(page, tmp_path):
    """The page's own policy forbids it, whatever a template may overlook one day."""
    careless = tmp_path / "careless.html"
    careless.write_text(page.read_text().replace("<h1>", f"{HOSTILE}<h1>"))
    assert HOSTILE.split("<img")[0] in careless.read_text()
    assert TAKEN_OVER not in browse(careless, "--dump-dom")


def test_its_style_is_used_and_its_bars_have_lengths(page, tmp_path):
    """By what a browser makes of it: without a style the picture is another one."""
    pictures = []
    for name, text in (("styled", page.read_text()), ("bare", page.read_text().replace("sha256-", "sha256-0"))):
        made, picture = tmp_path / f"{name}.html", tmp_path / f"{name}.png"
        made.write_text(text)
        browse(made, "--window-size=1060,1240", f"--screenshot={picture}")
        pictures.append(picture.read_bytes())
    assert all(one.startswith(b"\x89PNG") and len(one) > 20_000 for one in pictures)
    assert pictures[0] != pictures[1]
