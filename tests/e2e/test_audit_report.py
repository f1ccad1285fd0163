"""The page of `codeexec audit report` in a real browser: it shows what it says, and runs nothing of what agents say.

Needs Chromium (`make e2e` sees to it), and no cluster: the records are those of the fake. The unit tier has no browser,
so each test here is about what a browser makes of the page; unit/client/test_cli_audit.py reads its text.
"""

import html
import json
import re
from pathlib import Path

import pytest
from audit_scene import HOSTILE, a_busy_day, a_day, browse, page_of_width, write_report

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
    assert seen.count("&lt;script&gt;document.title='taken over'&lt;/script&gt;") == 2, "as an agent and in a row"
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
        browse(made, "--window-size=1280,1240", f"--screenshot={picture}")
        pictures.append(picture.read_bytes())
    assert all(one.startswith(b"\x89PNG") and len(one) > 20_000 for one in pictures)
    assert pictures[0] != pictures[1]


# --- folds ---


def test_a_link_to_what_is_folded_opens_its_session(tmp_path):
    fake = a_busy_day()
    page = write_report(fake, tmp_path)
    [failed] = [one for one in fake.executions if one.spec.session_ref and one.status.reason == "NonZeroExit"]
    session, anchor = f"session-{failed.spec.session_ref.name}", f"execution-{failed.metadata.name}"
    opened = rf'<details class="row session look" id="{session}" open="">'
    assert f'href="#{anchor}"' in page.read_text()
    assert opened not in browse(page, "--dump-dom"), "control"
    assert opened in browse(page, "--dump-dom", anchor=anchor)


# --- nothing is cut off ---

LONG = "an-agent-with-a-very-long-name-" + "x" * 97
"""As long as the name of an agent can be, without a place to break it."""
MEASURE = """<script>
addEventListener('load', () => {
  const wide = () => [...document.querySelectorAll('body *')].filter(one => {
    const style = getComputedStyle(one), box = one.getBoundingClientRect();
    return box.right > innerWidth + 0.5 || (style.overflowX !== 'visible' && one.scrollWidth > one.clientWidth);
  }).map(one => one.outerHTML.slice(0, 80));
  const thin = () => [...document.querySelectorAll('.row > summary > *, .problems > li > *')].filter(one => {
    const box = one.getBoundingClientRect();
    return box.width < 60 && box.height > 45;
  }).map(one => one.outerHTML.slice(0, 80));
  const found = [];
  for (const open of [false, true]) {
    document.querySelectorAll('details').forEach(one => { one.open = open; });
    found.push({page: document.scrollingElement.scrollWidth, window: innerWidth, wide: wide(), thin: thin()});
  }
  parent.postMessage('measured ' + JSON.stringify(found), '*');
});
</script>"""
"""Folded and unfolded: how wide the page is, which elements reach beyond the window or are cut, and which columns are
too thin to read."""


def measured(page: str, width: int, folder: Path) -> list[dict[str, object]]:
    """What a browser makes of a page at this width; its policy against scripts is taken out for that."""
    copy = folder / f"measured-{width}.html"
    copy.write_text(re.sub(r"<meta http-equiv=[^>]*>", MEASURE, page, count=1))
    seen = browse(page_of_width(copy, width, folder), "--dump-dom")
    title = re.search(r"<title>measured (.*?)</title>", seen)
    assert title, seen[:300]
    return json.loads(html.unescape(title[1]))


@pytest.fixture(scope="module")
def busy(tmp_path_factory) -> str:
    return write_report(a_busy_day(LONG, calls=60), tmp_path_factory.mktemp("busy")).read_text()


@pytest.mark.parametrize("width", [1280, 980, 400])
def test_nothing_reaches_beyond_the_window(busy, tmp_path, width: int):
    for state in measured(busy, width, tmp_path):
        assert state == {"page": width, "window": width, "wide": [], "thin": []}


def test_what_is_too_wide_is_noticed(busy, tmp_path):
    """The control: a table that can't wrap, as the report once had."""
    table = f"<div style='overflow-x: auto'><table style='white-space: nowrap'><td>{'wide ' * 300}</table></div>"
    [folded, _] = measured(busy.replace("<main>", f"<main>{table}"), 1280, tmp_path)
    assert folded["wide"]
    [folded, _] = measured(busy.replace("<main>", f"<main><pre>{'wide ' * 300}</pre>"), 1280, tmp_path)
    assert folded["page"] > 1280
    squeezed = busy.replace("</style>", ".row > summary { grid-template-columns: repeat(5, 1rem) 1fr; }</style>")
    [folded, _] = measured(squeezed, 1280, tmp_path)
    assert folded["thin"]
