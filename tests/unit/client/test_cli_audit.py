"""`codeexec audit` on a cluster in memory: lists, a timeline, the check of the log, and the page."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from audit_scene import HOSTILE, MARKER, a_busy_day, a_day, log_of, write_report
from click.testing import CliRunner, Result

from executor_client.cli import main
from executor_client.client import request
from executor_client.testing import FakeCluster


@pytest.fixture(scope="module")
def fake() -> FakeCluster:
    return a_day()


@pytest.fixture
def codeexec(fake: FakeCluster) -> Callable[..., Result]:
    def call(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, ["audit", *arguments], input=stdin, obj=lambda ref: fake.client())

    return call


@pytest.fixture
def log(fake: FakeCluster, tmp_path: Path) -> Path:
    return log_of(fake, tmp_path)


# --- list ---


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ([], 13),
        (["--agent", "planner"], 8),
        (["--requested-by", "anna@example.org"], 5),
        (["--phase", "Denied"], 3),
        (["--approver", "olga@example.org"], 2),
        (["--approver", "olga@example.org", "--phase", "Denied"], 1),
        (["--since", "2026-01-01T01:00:00Z"], 7),
        (["--since", "2026-01-02"], 0),
    ],
)
def test_list_shows_what_is_asked_for(codeexec, options: list[str], count: int) -> None:
    done = codeexec("list", *options)
    assert (done.exit_code, len(done.stdout.splitlines()) - 1) == (0, count)
    assert len(json.loads(codeexec("list", "-o", "json", *options).stdout)["items"]) == count


def test_since_is_a_time_or_how_long_ago(codeexec) -> None:
    assert codeexec("list", "--since", "36500d").stdout.count("\n") == 14
    done = codeexec("list", "--since", "yesterday")
    assert done.exit_code == 2
    assert "'yesterday' is not a time: use 30m, 24h, 7d" in done.stderr


# --- show ---


def test_show_tells_what_happened_when_and_by_which_lines(codeexec, fake, log) -> None:
    [approved] = [one for one in fake.executions if one.status.approval and one.status.approval.decision == "Approve"]
    done = codeexec("show", approved.metadata.name, "--log", str(log))
    assert done.exit_code == 0
    rows = [line.split("   ") for line in done.stdout.splitlines()]
    assert "approval asked for" in done.stdout
    assert "Approve by olga@example.org" in done.stdout
    assert approved.status.audit.hash in done.stdout
    said = [cells[2].strip() for cells in rows if len(cells) > 2 and " to " in cells[2]]
    assert [one for one in re.findall(r"\w+ to \w+ \(\w+\)", done.stdout)] == [
        "Pending to AwaitingApproval (ApprovalRequired)",
        "AwaitingApproval to Approved (Approved)",
        "Approved to Starting (PodRequested)",
        "Starting to Running (CodeStarted)",
        "Running to Succeeded (Completed)",
    ], said


def test_show_a_session_and_as_json(codeexec, fake, log) -> None:
    [session] = fake.sessions
    done = json.loads(codeexec("show", session.metadata.name, "--log", str(log), "-o", "json").stdout)
    assert done["record"]["kind"] == "CodeSession"
    assert [one["said"] for one in done["lines"]][-1] == "Ready to Ended (EndRequested)"


def test_show_leaves_out_a_line_that_is_nested_deeply(codeexec, fake, log) -> None:
    name = fake.executions[0].metadata.name
    before = codeexec("show", name, "--log", str(log)).stdout
    with log.open("a") as file:
        file.write(f'{{"audit": {{"chain": "a", "sequence": 1, "x": {"[" * 900}{"]" * 900}}}}}\n')
    assert codeexec("show", name, "--log", str(log)).stdout == before


def test_show_nothing_of_that_name(codeexec) -> None:
    done = codeexec("show", "nobody")
    assert done.exit_code == 1
    assert "nobody" in done.stderr


# --- verify ---


def test_an_honest_log_is_fine(codeexec, log) -> None:
    done = codeexec("verify", str(log), "--complete")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "ok: 0 findings")
    assert "13 records agree with the log" in done.stdout
    assert codeexec("verify", "-", stdin=log.read_text()).exit_code == 0
    alone = codeexec("verify", str(log), "--no-cluster")
    assert alone.exit_code == 0
    assert "agree with the log" not in alone.stdout


def edit(log: Path, change: Callable[[list[str]], None]) -> None:
    lines = log.read_text().splitlines()
    change(lines)
    log.write_text("\n".join(lines) + "\n")


def change_one(lines: list[str]) -> None:
    lines[5] = lines[5].replace('"phase":"', '"phase":"X')


def drop_one(lines: list[str]) -> None:
    del lines[5]


def swap_two(lines: list[str]) -> None:
    lines[5], lines[6] = lines[6], lines[5]


@pytest.mark.parametrize(
    ("change", "kind", "where"),
    [(change_one, "Changed", 6), (drop_one, "Missing", 6), (swap_two, "Reordered", 7)],
)
def test_what_was_done_to_a_log_is_found_and_said_where(codeexec, log, change, kind: str, where: int) -> None:
    edit(log, change)
    done = codeexec("verify", str(log))
    assert done.exit_code == 1
    assert re.search(rf"^{kind} +operator\.log:{where}\b", done.stdout, re.MULTILINE), done.stdout
    assert "FAILED: " in done.stdout
    found = json.loads(codeexec("verify", str(log), "-o", "json").stdout)
    assert (found["ok"], kind in {one["kind"] for one in found["findings"]}) == (False, True)


def test_a_record_that_an_administrator_has_changed_is_found(log) -> None:
    fake = a_day()
    log_of(fake, log.parent)
    victim = fake.executions[2]
    store = fake._simulation.state.executions
    store.put(victim.model_copy(update={"status": victim.status.model_copy(update={"exit_code": 0})}))
    done = CliRunner().invoke(main, ["audit", "verify", str(log)], obj=lambda ref: fake.client())
    assert done.exit_code == 1
    assert f"CodeExecution {victim.metadata.name}" in done.stdout
    assert "exitCode is 0, but was 3" in done.stdout


@pytest.mark.parametrize("parts", [(slice(8, None), slice(8)), (slice(10), slice(5, None))], ids=["newest", "overlap"])
def test_log_files_of_the_same_name_are_told_apart(codeexec, log, parts: tuple[slice, slice], tmp_path: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    files = [tmp_path / folder / "0.log" for folder in ("one", "two")]
    for file, part in zip(files, parts, strict=True):
        file.parent.mkdir()
        file.write_text("".join(lines[part]))
    paths = [*map(str, files)]
    done = codeexec("verify", "--complete", *paths)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "ok: 0 findings"), done.output
    assert codeexec("verify", "--complete", *paths, paths[0]).exit_code == 0, "the same file twice is one file"
    files[1].write_text("".join(lines[parts[1]]).replace('"phase":"', '"phase":"X'))
    found = json.loads(codeexec("verify", *paths, "-o", "json").stdout)["findings"]
    assert {one["where"].rpartition(":")[0] for one in found if one["kind"] == "Changed"} == {paths[1]}


def test_a_log_without_audit_lines_is_no_proof(codeexec, tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.write_text("")
    done = codeexec("verify", str(empty))
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (1, "FAILED: 1 finding, 13 notes")
    assert codeexec("verify", str(empty), "--no-cluster").exit_code == 1


def test_a_log_can_not_control_the_terminal_of_who_checks_it(fake, log) -> None:
    body = json.loads(log.read_text().splitlines()[-1])["audit"]
    record = body["record"] | {"uid": "another", "name": "\x1b[2J\x1b[Hok: 0 findings\n\x1b[8m"}
    log.write_text(f"{log.read_text()}{json.dumps({'audit': body | {'chain': 'f' * 32, 'record': record}})}\n")
    call = ["audit", "verify", str(log)]
    done = CliRunner().invoke(main, call, obj=lambda ref: fake.client(), color=True)
    assert "not in the cluster any more" in done.stdout, "control: it is shown"
    assert "\x1b[2J" not in done.stdout
    assert "\x1b[8m" not in done.stdout


def test_a_log_that_is_not_there_is_an_error(codeexec, tmp_path: Path) -> None:
    done = codeexec("verify", str(tmp_path / "none"))
    assert done.exit_code == 1
    assert "can't read" in done.stderr


# --- report ---


class Elements(HTMLParser):
    """All that a page has elements and attributes of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def test_the_page_says_who_asked_for_what_and_loads_nothing(fake, tmp_path: Path) -> None:
    text = write_report(fake, tmp_path).read_text()
    elements = Elements()
    elements.feed(text)
    assert elements.tags.isdisjoint({"script", "img", "link", "iframe", "object", "form", "b>", "base"})
    assert not [
        (name, value)
        for name, value in elements.attributes
        if name in ("src", "style", "action") or name[:2] == "on" or (name == "href" and value[:1] != "#")
    ]
    [policy] = [value for name, value in elements.attributes if value.startswith("default-src")]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    for said in ("olga@example.org", "the table is large", "spec.limits.memory=2Gi", "PolicyViolation", "No finding."):
        assert said in text, said
    assert all(one.spec.code_digest in text for one in fake.executions)
    assert "&lt;script&gt;" in text
    assert HOSTILE not in text
    assert "<b>not</b>" not in text


def test_the_page_hides_nothing_and_turns_nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "check_agent", lambda _: None)  # records of an older version have such names
    text = write_report(a_day("größe\u202e\u3164"), tmp_path).read_text()
    assert "größe\\u202e\\u3164</" in text
    assert not {"\u202e", "\u3164"} & set(text)


def test_each_link_leads_to_an_anchor_and_each_anchor_is_there_once(tmp_path: Path) -> None:
    fake = a_busy_day(calls=60)
    text = write_report(fake, tmp_path).read_text()
    elements = Elements()
    elements.feed(text)
    anchors = [value for name, value in elements.attributes if name == "id"]
    links = {value.removeprefix("#") for name, value in elements.attributes if name == "href"}
    assert len(anchors) == len(set(anchors))
    assert links <= set(anchors)
    rows = {f"execution-{one.metadata.name}" for one in fake.executions}
    rows |= {f"session-{one.metadata.name}" for one in fake.sessions}
    assert rows <= set(anchors)


def test_problems_come_first_and_are_not_told_by_colour_alone(tmp_path: Path) -> None:
    text = write_report(a_busy_day(), tmp_path).read_text()
    assert text.index('id="look"') < text.index('id="numbers"') < text.index('id="records"')
    look = text[text.index('id="look"') : text.index('id="numbers"')]
    titles = re.findall(r'<span class="mark bad"><span aria-hidden="true">✕ </span>([^<]+)</span>', look)
    assert titles == ["Network open", "Denied or expired", "Failed to run", "Timed out", "Out of memory", "Failed"]
    assert '<span class="mark bad"><span aria-hidden="true">✕ </span>Network open</span>' in text
    assert '<span class="mark good"><span aria-hidden="true">✓ </span>Network closed</span>' in text


def test_a_record_that_was_changed_is_the_first_problem(tmp_path: Path) -> None:
    fake = a_day()
    victim = fake.executions[2]
    status = victim.status.model_copy(update={"exit_code": 0})
    fake._simulation.state.executions.put(victim.model_copy(update={"status": status}))
    text = write_report(fake, tmp_path).read_text()
    [finding] = re.findall(r"<b>Record changed</b> <span>(.*?)</span>", text)
    anchor = f"execution-{victim.metadata.name}"
    assert finding == f'<a href="#{anchor}">CodeExecution {victim.metadata.name}</a>'
    assert text.index("look-log") < text.index("look-open")
    row = text[text.index(f'id="{anchor}"') :]
    assert "Differs from the audit log" in row[: row.index("</summary>")]
    assert text.count("Differs from the audit log") == 1


def test_neither_the_page_nor_the_log_holds_code_output_or_names_of_files(fake, tmp_path: Path) -> None:
    assert any(MARKER in (one.status.stdout.text if one.status.stdout else "") for one in fake.executions), "control"
    busy = a_busy_day()
    assert any(MARKER in one.path for execution in busy.executions for one in execution.status.artifacts), "control"
    for some in (fake, busy):
        assert MARKER not in write_report(some, tmp_path).read_text()
        assert MARKER not in "".join(some.audit_log)


def test_the_page_of_some_records_says_which(codeexec, tmp_path: Path) -> None:
    page = tmp_path / "some.html"
    done = codeexec("report", "-o", str(page), "--agent", "analyst")
    assert done.stdout == f"4 records are in {page}\n"
    text = page.read_text()
    assert "records with agent analyst" in text
    assert "The audit log was not checked" in text
    empty = codeexec("report", "-o", "-", "--agent", "nobody").stdout
    assert "There are no records." in empty
    assert "No request was refused." in empty


def test_a_page_that_can_not_be_written_is_an_error(codeexec, tmp_path: Path) -> None:
    done = codeexec("report", "-o", str(tmp_path / "no" / "page.html"))
    assert done.exit_code == 1
    assert "can't write" in done.stderr


@pytest.mark.parametrize("since", ["1000000d", f"{10**12}d", "\u00b2d", "", "9" * 5000 + "d"])
def test_a_time_that_is_none_is_a_usage_error(since: str) -> None:
    done = CliRunner().invoke(main, ["audit", "list", "--since", since])
    assert done.exit_code == 2
    assert "is not a time: use 30m, 24h, 7d, 2026-11-21" in done.stderr
