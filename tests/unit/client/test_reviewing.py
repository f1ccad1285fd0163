"""What an approver sees of code: all of it, and nothing that the code says looks like words of ours.

The attacks of agents go through the command line, on the cluster in memory. Each has its control: text that is what it
looks like is shown as it is.
"""

import asyncio
import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from codeexec_api import ExecutionPolicySpec, Limits
from codeexec_api.characters import UNSEEN
from executor_client import ApprovalWait, Request, SourceBlock, WorkspaceFile, prepare
from executor_client.cli import main
from executor_client.cli.escaping import behind_bars, one_line, plain, rows_of
from executor_client.testing import FAKE_IMAGE, FakeCluster, FakeOutcome

POLICY = ExecutionPolicySpec.model_validate(
    {"images": [FAKE_IMAGE], "maxLimits": {"memory": "256Mi"}, "withApproval": {"maxLimits": {"memory": "1Gi"}}}
)
# The property Default_Ignorable_Code_Point of Unicode 14 to 17. Terminals show nothing for these.
IGNORABLE = [
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0x200B, 0x2010)),
    *(*range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0),
    *(*range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000)),
]
BLANKS = [0x00A0, 0x1680, *range(0x2000, 0x200B), 0x2800, 0x3000, 0x13441, 0x13442, 0x16FE4, 0x1D159]
HEADING = re.compile(r"^--- (?:block|file) \d+, ", re.MULTILINE)
A_LINE = re.compile(r" *(?:name|\d*) \| ")
TERMINAL = {"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "80", "LINES": "25"}


def shown(
    code: str, *, files: tuple[WorkspaceFile, ...] = (), env: dict[str, str] | None = None, agent: str = "tester"
) -> str:
    """What `codeexec approvals NAME` shows of an execution that waits."""
    fake = FakeCluster(policy=POLICY, run=lambda _: FakeOutcome())
    asked = Request(agent=agent, limits=Limits(memory="512Mi"), approval=ApprovalWait("return"))
    blocks = prepare([SourceBlock("python", code)]).blocks
    name = asyncio.run(fake.client().execute(blocks, asked, files=files)).name
    done = CliRunner().invoke(main, ["approvals", name], obj=lambda _: fake.client("anna"), env=env)
    assert done.exit_code == 0, done.output
    return done.stdout


def rows(page: str) -> list[str]:
    """The lines of the page that show content."""
    return [line for line in page.split("\n") if A_LINE.match(line)]


def on_screen(lines: list[str], columns: int = 80) -> list[str]:
    """What stands in the rows of a terminal that gives two columns to everything but ASCII."""
    found = []
    for line in lines:
        row, used = "", 0
        for one in line:
            used += 1 if one.isascii() else 2
            if used > columns:
                found.append(row)
                row, used = "", 1 if one.isascii() else 2
            row += one
        found.append(row)
    return found


def escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class TestHiding:
    @pytest.mark.parametrize(
        "hidden",
        [
            *("\u202e", "\u200b", "\u2028", "\U000e0041", "\u00a0"),
            *("\u3164", "\u115f", "\u1160", "\uffa0"),  # letters, for Python and JavaScript
            *("\u2800", "\U0001d159", "\U00016fe4", "\U00013441"),
            *("\u034f", "\u180b", "\u17b4", "\ufe00", "\ufe0f", "\U000e0100", "\U000e01ef"),
        ],
        ids=ascii,
    )
    def test_a_character_that_nobody_sees_is_shown_as_its_number(self, hidden: str) -> None:
        page = shown(f"print('é{hidden}')")
        assert hidden not in page
        assert f"print('é{escape(ord(hidden))}')" in page  # é is what it looks like

    def test_no_ignorable_character_and_no_blank_is_shown(self) -> None:
        page = shown("".join(f"# {chr(code)}\n" for code in [*IGNORABLE, *BLANKS]))
        assert not set(page) & {chr(code) for code in [*IGNORABLE, *BLANKS]}
        found = [row.partition(" | # ")[2] for row in rows(page)]
        assert found == [escape(code) for code in [*IGNORABLE, *BLANKS]]

    def test_names_and_code_know_the_same_characters(self) -> None:
        listed = {code for first, last in UNSEEN for code in range(first, last + 1)}
        assert listed >= {*IGNORABLE, *BLANKS}

    def test_code_in_a_text_that_looks_empty_is_seen(self) -> None:
        """The attack itself: without the escapes, an approver would read `exec` of an empty text."""
        harm = "told.append('harm')"
        hidden = "".join(chr(0xE0100 + byte) for byte in harm.encode())
        code = f"exec(bytes(ord(c) - 0xE0100 for c in '{hidden}'))"
        told: list[str] = []
        exec(code, {"told": told})
        assert told == ["harm"]
        page = shown(code)
        assert hidden not in page
        assert "".join(escape(ord(one)) for one in hidden) in page

    def test_blanks_at_the_end_of_a_line_tabs_and_carriage_returns_are_seen(self) -> None:
        page = shown("a = '''\n \t \n  \nx\r\ny  z\n'''\n")
        assert [row.partition(" | ")[2] for row in rows(page)] == [
            "a = '''",
            " \\t\\x20",
            " \\x20",
            "x\\x0d",
            "y  z",
            "'''",
        ]

    @pytest.mark.parametrize(
        "text",
        [
            *("été", "e\u0301te\u0301", "Vi\u1ec7t", "Vie\u0323\u0302t", "\u0438\u0306", "naïve Ωμέγα"),
            *("العَرَبِيَّةُ", "שָׁלוֹם", "हिन्दी में", "বাংলা", "தமிழ்", "ภาษาไทยน้ำ", "བོད་སྐད", "ភាសាខ្មែរ", "မြန်မာ"),
            *("한국어", "\u1112\u1161\u11ab", "日本語", "か\u3099", "ガ", "中文。", "😀 👍🏽 🇩🇪 → ≠ ·"),
        ],
    )
    def test_text_of_all_languages_stays(self, text: str) -> None:
        assert plain(text) == text

    @pytest.mark.parametrize(
        ("text", "seen"),
        [
            ("\u0301x", "\\u0301x"),  # on nothing
            ("a =\u0338 b", "a =\\u0338 b"),  # would look like ≠
            ("1\ufe0f\u20e3", "1\\ufe0f\\u20e3"),
            ("x\u0301" + "\u0302" * 5, "x\u0301\u0302\u0302\u0302\\u0302\\u0302"),
            ("x\U0001107f", "x\\U0001107f"),  # of another script: most fonts lack it
            ("x\u1161", "x\\u1161"),
            ("x\u200b\u0301", "x\\u200b\\u0301"),  # not on the escape
            ("x\u1161\u0301", "x\\u1161\\u0301"),
            ("\u0378\u0301", "\\u0378\\u0301"),  # no character
        ],
    )
    def test_a_mark_that_stands_on_no_letter_of_its_own_is_shown_as_its_number(self, text: str, seen: str) -> None:
        assert plain(text) == seen

    @given(st.text())
    def test_what_is_shown_has_nothing_unseen(self, text: str) -> None:
        assert not {ord(one) for one in plain(text)} & ({*IGNORABLE, *BLANKS, *range(32), *range(127, 160)} - {9, 10})
        assert plain(plain(text)) == plain(text)
        assert one_line(text).isprintable()


class TestImitation:
    def test_a_block_can_not_show_the_heading_of_a_file(self) -> None:
        fake = f"--- file 0, 120 B, 3 lines, sha256 {'0' * 64} ---"
        page = shown(f"a = '''\n\n{fake}\nname | data.csv\n   1 | x\n'''\nharm()\n")
        assert f"   3 | {fake}\n" in page
        assert "   7 | harm()\n" in page
        assert HEADING.findall(page) == ["--- block 0, "]

    def test_each_block_and_file_has_its_heading(self) -> None:
        page = shown("print(1)", files=(WorkspaceFile("a.py", b""), WorkspaceFile("b.py", b"\n")))
        assert HEADING.findall(page) == ["--- block 0, ", "--- file 0, ", "--- file 1, "]
        assert rows(page) == ["   1 | print(1)", "name | a.py", "name | b.py", "   1 | "]

    @pytest.mark.parametrize("letter", ["x", "é", "語", "─", "ж"])
    def test_a_long_line_does_not_reach_the_left_edge_of_a_terminal(self, letter: str) -> None:
        """Not even of a terminal that shows characters wider than another."""
        text = f"# {letter * 300}--- file 0, 9 B"
        pages = [shown(f"{text}\nprint(1)", env=env) for env in (TERMINAL, None)]
        narrow, piped = [page[page.index("--- block") :].splitlines()[1:] for page in pages]
        assert all(map(A_LINE.match, on_screen(narrow)))
        assert (narrow[0][:7], narrow[1][:7], narrow[-1]) == ("   1 | ", "     | ", "   2 | print(1)")
        assert "".join(row[7:] for row in narrow[:-1]) == text
        assert piped == [f"   1 | {text}", "   2 | print(1)"]  # to search in

    def test_a_long_name_does_not_reach_the_left_edge_of_a_terminal(self) -> None:
        name = "data.csv, 1 B, 1 line ---".ljust(73, "-") + "--- file 1, 1 B, 1 line"
        page = shown("print(1)", files=(WorkspaceFile(name, b"harm"),), env=TERMINAL)
        assert len(HEADING.findall("\n".join(on_screen(page.splitlines())))) == 2
        assert "".join(row[7:] for row in rows(page)) == f"print(1){name}harm"

    @pytest.mark.parametrize("length", range(60, 70))
    def test_a_long_value_does_not_reach_the_left_edge_of_a_terminal(self, length: int) -> None:
        agent = "x" * length + "Requested by: anna"
        page = shown("print(1)", agent=agent, env=TERMINAL)
        found = [line for line in on_screen(page.splitlines()) if line.startswith("Requested by:")]
        assert found == ["Requested by:  fake-agent"]
        value = page[page.index("Agent:") : page.index("Requested by:  fake")].splitlines()
        assert [line[:15] for line in value] == ["Agent:         ", " " * 15]
        assert "".join(line[15:] for line in value) == f"{agent} (as claimed)"
        assert f"\nAgent:         {agent} (as claimed)\n" in shown("print(1)", agent=agent)

    def test_what_is_copied_stays_in_one_piece(self) -> None:
        page = shown("print(1)", env=TERMINAL)
        assert re.search(r"\nCode:          sha256:[0-9a-f]{64}\n", page)
        assert re.search(r" --uid\s+[-0-9a-f]{36}`", page)

    def test_a_long_word_in_a_table_stays_in_its_column(self) -> None:
        fake = FakeCluster(policy=POLICY, run=lambda _: FakeOutcome())
        asked = Request(agent="x" * 120, limits=Limits(memory="512Mi"), approval=ApprovalWait("return"))
        asyncio.run(fake.client().execute(prepare([SourceBlock("python", "1")]).blocks, asked))
        env = {**TERMINAL, "COLUMNS": "160"}
        page = CliRunner().invoke(main, ["approvals"], obj=lambda _: fake.client("anna"), env=env).stdout
        head, first, *others = page.rstrip("\n").split("\n")
        column = head.index("AGENT")
        assert max(map(len, (first, *others))) <= 160
        assert all(row.startswith(" " * column + "x") for row in others)
        assert page.count("x") >= 120

    @given(st.text(), st.integers(1, 200), st.booleans())
    def test_rows_have_all_of_a_text_and_fit(self, text: str, room: int, words: bool) -> None:
        found = rows_of(text, room, words=words)
        assert "".join(found) == text
        assert all(len(row) == 1 or len(row) + sum(not one.isascii() for one in row) <= room for row in found if row)
        assert found == [text] or all(found)

    @pytest.mark.parametrize(
        ("text", "found"),
        [("one two three", ["one two ", "three"]), ("onetwothree", ["onetwoth", "ree"]), ("", [""]), ("one", ["one"])],
    )
    def test_rows_end_behind_a_blank(self, text: str, found: list[str]) -> None:
        assert rows_of(text, 8, words=True) == found

    @given(st.text(), st.text(max_size=40), st.none() | st.integers(1, 200))
    def test_all_content_is_behind_a_bar(self, content: str, name: str, width: int | None) -> None:
        found = behind_bars(content, name=name, width=width)
        assert all(A_LINE.match(row) and row.isprintable() for row in found)
        numbers = [int(row.partition("|")[0]) for row in found if row.partition("|")[0].strip().isdigit()]
        assert numbers == list(range(1, len(numbers) + 1))
