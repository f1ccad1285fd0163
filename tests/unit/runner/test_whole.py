"""The whole workspace of a session that sleeps: told exactly or not at all, and put back as it was."""

import base64
import os
from typing import Any

import pytest

MODES = "import os; os.makedirs('d/empty'); open('d/x', 'wb').write(b'x' * 100_000); open('d/none', 'w')"
PLANT = f"{MODES}; os.chmod('d/x', 0o754); os.chmod('d/empty', 0o700); os.chmod('d', 0o555)"


def whole(*, fetch: bool = True, most: int = 100) -> dict[str, Any]:
    return {"list": "Whole", "fetch": fetch, "most": most}


def told(report: Any) -> list[tuple[str, int, int, str | None]]:
    return [(one["path"], one["mode"], one["size"], one["sha256"]) for one in report.frames if "artifact" in one]


def put_back(session: Any, report: Any) -> None:
    for path, mode, _, _ in told(report):
        content = report.sent.get(path, b"")
        data = base64.b64encode(content).decode()
        session.say({"put": path, "data": data[:80_000], "append": False, "mode": mode})
        if data[80_000:]:
            session.say({"put": path, "data": data[80_000:], "append": True})


@pytest.fixture(autouse=True)
def plain_umask() -> Any:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_all_is_told_and_comes_back_with_content_and_modes(sandbox: Any) -> None:
    with sandbox.connect() as first:
        first.run(PLANT)
        report = first.run(artifacts=whole())
        assert report.totals["whole"] is True
        assert [(path, oct(mode)) for path, mode, _, _ in told(report)] == [
            ("block0.py", "0o644"),
            ("d/", "0o555"),
            ("d/empty/", "0o700"),
            ("d/none", "0o644"),
            ("d/x", "0o754"),
        ]
        assert report.sent["d/x"] == b"x" * 100_000
        assert report.sent["d/none"] == b""
        first.run("import os, shutil; os.chmod('d', 0o755); shutil.rmtree('d'); os.remove('block0.py')")
    assert list(sandbox.workspace.iterdir()) == []
    with sandbox.connect() as second:
        put_back(second, report)
        again = second.run(artifacts=whole(fetch=False))
        assert told(again) == told(report)
        assert again.sent == {}
        assert (
            second.run(
                "print(open('d/x').read(3), oct(os.stat('d').st_mode & 0o777))".replace("print", "import os; print")
            ).text()
            == "xxx 0o555\n"
        )
        second.run("import os; os.chmod('d', 0o755)")


def test_an_empty_workspace_is_one_too(session: Any) -> None:
    report = session.run(artifacts=whole())
    assert (told(report), report.totals["whole"]) == ([], True)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os.symlink('/etc/passwd', 'a')", "a: is a link, a pipe, a socket or a device"),
        ("os.symlink('nowhere', 'a')", "a: is a link, a pipe, a socket or a device"),
        ("os.mkfifo('a')", "a: is a link, a pipe, a socket or a device"),
        ("open('a', 'w'); os.link('a', 'b')", "has another hard link"),
        ("open('a', 'w'); os.chmod('a', 0)", "a: can't be read"),
        ("os.mkdir('a'); os.chmod('a', 0)", "a: is a folder that can't be read"),
        ("open('a\\u202eb', 'w')", "a\\u202eb: has a name that can't be recorded"),
        ("open(b'a\\xff', 'w')", "a\\udcff: has a name that can't be recorded"),
        (
            "os.mkdir('x'); open('x/a: ok\\n  Ph:\\t\\x1b', 'w')",
            r"x/a: ok\n  Ph:\t\x1b: has a name that can't be recorded",
        ),
        (
            "os.mkdir('a'); open('a/b: ok\\n  Ph:\\t\\x1b[2J\\u202e', 'w'); os.chmod('a', 0o444)",
            r"a/b: ok\n  Ph:\t\x1b[2J\u202e: has a name that can't be recorded",
        ),
        ("os.mkdir('a'); open('a/\u00e4', 'w'); os.chmod('a', 0o444)", "a/\u00e4: can't be looked at"),
        ("[open(f'{one}', 'w') for one in range(100)]", "is one of more than 100 files and folders"),
        ("open('a', 'wb').truncate(2_000)", "a: makes the files larger than 1000 bytes together"),
    ],
)
def test_what_can_not_be_made_again_is_a_fault_that_names_it(session: Any, code: str, words: str) -> None:
    if os.geteuid() != 0 and "can't be read" in words:
        pytest.skip("code is root of its own user namespace, and reads all")
    session.run(f"import os; {code}")
    report = session.run(artifacts=whole(), fetchBytes=1000)
    assert report.totals["fault"]["reason"] == "FileRefused"
    assert words in report.totals["fault"]["message"]
    assert not report.sent
    session.run("import os; os.path.isdir('a') and os.chmod('a', 0o700)")


def test_a_folder_that_stands_where_a_file_is_and_a_path_outside_are_refused(session: Any) -> None:
    for path in ("a/", "../b/", "/c/"):
        session.run("open('a', 'w')")
        session.say({"put": path, "data": "", "append": False, "mode": 0o755})
        assert path in session.run(artifacts=whole()).totals["fault"]["message"]


def test_a_folder_has_a_mode(session: Any) -> None:
    session.say({"put": "a/", "data": "", "append": False})
    assert "a/: is not a path inside the workspace" in session.run(artifacts=whole()).totals["fault"]["message"]


def test_a_mode_sets_no_other_bits_than_permissions(session: Any) -> None:
    session.say({"put": "a", "data": "", "append": False, "mode": 0o6711})
    code = "import os; print(oct(os.stat('a').st_mode & 0o7777))"
    assert session.run(code).text() == "0o711\n"


def test_without_a_mode_a_file_has_that_of_a_new_one(session: Any) -> None:
    session.run(files={"a": b""})
    assert session.run("import os; print(oct(os.stat('a').st_mode & 0o777))").text() == "0o644\n"


def test_a_name_may_have_quotes_and_letters_of_any_language(session: Any) -> None:
    session.run("open('\\u00e4 \"b\"', 'w').write('1')")
    assert 'ä "b"' in {path for path, *_ in told(session.run(artifacts=whole()))}


def test_a_special_mode_is_a_fault(sandbox: Any, session: Any) -> None:
    session.run("open('a', 'w')")
    (sandbox.workspace / "a").chmod(0o4755)  # code can't
    fault = session.run(artifacts=whole()).totals["fault"]
    assert fault["message"] == "a: has a mode with the setuid, setgid or sticky bit"


def test_what_was_put_back_in_vain_is_put_back_again_whatever_modes_it_has(sandbox: Any) -> None:
    with sandbox.connect() as first:
        first.run(f"{MODES}; os.chmod('d/x', 0o444); os.chmod('d', 0o555)")
        report = first.run(artifacts=whole())
        first.run("import os, shutil; os.chmod('d', 0o755); shutil.rmtree('d'); os.remove('block0.py')")
    for _ in range(2):
        with sandbox.connect() as next_one:
            put_back(next_one, report)
            assert told(next_one.run(artifacts=whole(fetch=False))) == told(report)
