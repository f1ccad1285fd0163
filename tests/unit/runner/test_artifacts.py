"""What a job leaves in the workspace: listed, digested, sent; and nothing that a link leads to."""

import hashlib
import json
import os
import subprocess
from typing import Any

import pytest

from codeexec_api.paths import check_workspace_path

CHANGED = {"list": "Changed", "fetch": []}
ALL = {"list": "All", "fetch": []}
MIB = 2**20


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_new_and_changed_files_are_listed_with_size_and_digest(session: Any) -> None:
    session.run("open('same', 'w').write('1'); open('changed', 'w').write('1'); open('renamed', 'w').write('1')")
    code = "import os; open('changed', 'w').write('2'); os.makedirs('d/e'); open('d/e/new', 'w').write('new')"
    report = session.run(f"{code}; os.rename('renamed', 'other')", artifacts=CHANGED)
    assert report.artifacts == {"changed": (1, sha(b"2")), "d/e/new": (3, sha(b"new")), "other": (1, sha(b"1"))}
    assert report.sent == {}
    assert report.totals["artifactsOmitted"] == 0


def test_what_the_runner_wrote_is_no_change_but_what_code_made_of_it_is(session: Any) -> None:
    report = session.run("print(1)", files={"data": b"1", "other": b"1"}, artifacts=CHANGED)
    assert report.artifacts == {}
    report = session.run("open('data', 'a').write('2')", files={"data": b"1"}, artifacts=CHANGED)
    assert list(report.artifacts) == ["data"]


WITHIN_A_TICK = "workspace._look = lambda found: (found.st_size, found.st_mtime_ns, found.st_ino)"
"""As where files change twice within a tick of the clock: `st_ctime_ns` stays the same."""


@pytest.mark.parametrize("path", ["data", "block0.py"])
def test_a_change_within_the_tick_of_the_clock_in_which_a_file_was_put_is_seen(path: str, sandbox: Any) -> None:
    code = f"""
import os
when, content = os.stat({path!r}).st_ctime_ns, open({path!r}, "rb").read()
open({path!r}, "wb").write(content)
os.utime({path!r}, ns=(when, when))
"""
    report = sandbox.run(code, files={"data": b"1"}, artifacts=CHANGED, before=WITHIN_A_TICK)
    assert list(report.artifacts) == [path]


def test_a_change_that_hides_its_time_is_seen(session: Any) -> None:
    session.run("open('x', 'w').write('1')")
    code = (
        "import os; was = os.stat('x'); open('x', 'w').write('2'); os.utime('x', ns=(was.st_atime_ns, was.st_mtime_ns))"
    )
    assert session.run(code, artifacts=CHANGED).artifacts == {"x": (1, sha(b"2"))}


def test_all_files_or_none(session: Any) -> None:
    session.run("open('x', 'w'); open('y', 'w')")
    assert list(session.run(artifacts=ALL).artifacts) == ["block0.py", "x", "y"]
    assert session.run(artifacts={"list": "None", "fetch": []}).artifacts == {}


@pytest.mark.parametrize(
    ("patterns", "paths"),
    [
        (["a.txt"], ["a.txt"]),
        (["*.txt"], ["a.txt", "d/b.txt"]),
        (["d/*"], ["d/[c].bin", "d/b.txt"]),
        (["d/[c].bin"], ["d/[c].bin"]),
        (["d/[[]c].bin"], ["d/[c].bin"]),
        (["d/[ab].txt"], ["d/b.txt"]),
        (["?.TXT", "nothing"], []),
        (["../*", "/etc/passwd"], []),
    ],
)
def test_files_are_sent_by_name_or_pattern(patterns: list[str], paths: list[str], session: Any) -> None:
    files = {"a.txt": b"a", "d/b.txt": b"", "d/[c].bin": bytes(range(256)) * 2048}
    report = session.run(files=files, artifacts={"list": "None", "fetch": patterns})
    assert report.sent == {path: files[path] for path in paths}
    assert report.artifacts == {path: (len(files[path]), sha(files[path])) for path in paths}


def test_a_file_is_sent_behind_its_name_in_pieces(session: Any) -> None:
    content = os.urandom(600_000)
    report = session.run(files={"x": content, "y": b""}, artifacts={"list": "All", "fetch": ["*"]})
    kinds = [(set(frame) & {"artifact", "file", "done"}).pop() for frame in report.frames]
    assert kinds == ["artifact", "file", "file", "file", "artifact", "file", "done"]
    assert report.sent == {"x": content, "y": b""}


PLANTED = """
import os, socket
open("plain", "w").write("plain")
os.symlink("/etc/passwd", "link")
os.symlink("/etc", "folder-link")
os.symlink(".", "loop")
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
os.mkdir("closed", 0o300)
open("unreadable", "w"); os.chmod("unreadable", 0)
"""


def test_only_plain_files_and_no_links_are_read(session: Any) -> None:
    report = session.run(PLANTED, artifacts={"list": "All", "fetch": ["*"]})
    listed = report.artifacts
    assert set(listed) == {"block0.py", "plain", "unreadable"}
    if os.geteuid() == 0:  # then code runs as another user, who isn't root
        assert listed["unreadable"] == (0, None)
        assert report.totals["artifactsOmitted"] == 1  # the closed folder
    assert b"root" not in b"".join(report.sent.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="code is root of its own user namespace, and looks at all")
def test_files_of_a_folder_that_can_be_listed_and_not_entered_are_counted(session: Any) -> None:
    code = "import os; os.mkdir('d'); open('d/x', 'w').write('x'); open('d/y', 'w'); os.chmod('d', 0o444)"
    for wanted in (ALL, CHANGED):
        report = session.run(code.partition("; os.mkdir")[0] if wanted is CHANGED else code, artifacts=wanted)
        assert not [path for path in report.artifacts if path.startswith("d/")]
        assert report.totals["artifactsOmitted"] == 2
    session.run("import os; os.chmod('d', 0o755)")


def test_odd_names_are_counted_and_good_ones_taken(session: Any) -> None:
    code = r"""
import os
for name in (b"\xff", b"a\nb", "\u202etxt.exe".encode(), b" blank", b"back\\slash", b"-", "täst 1.txt".encode()):
    open(name, "w")
folder = "f" * 100
os.makedirs(f"{folder}/{folder}/{folder}")
open(f"{folder}/{folder}/{folder}/deep", "w")
"""
    report = session.run(code, artifacts=CHANGED)
    assert list(report.artifacts) == ["-", "täst 1.txt"]
    assert report.totals["artifactsOmitted"] == 6


def test_the_runner_refuses_the_names_that_the_api_refuses(sandbox: Any) -> None:
    names = ["a/b", "", "a//b", "../a", "a/.", " a", "a ", "a/ b", "n" * 255, "n" * 256, "é" * 128, "\u3000a"]
    code = "import paths, json, sys; names = json.load(sys.stdin)"
    code += "; print(json.dumps([paths.is_telling(name) for name in names]))"
    # Planes 0, 1 and 14 have characters of all kinds; each of the others has those of one kind, or none.
    points = {*range(0x20000), *range(0x20000, 0x110000, 251), *range(0xE0000, 0xE1000), 0x10FFFF}
    names += [f"a{chr(point)}b" for point in sorted(points)]
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-B", "-c", code],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        check=True,
        cwd=sandbox.folder / "runner",
    )

    def accepted(name: str) -> bool:
        try:
            return bool(check_workspace_path(name))
        except ValueError:
            return False

    assert json.loads(done.stdout) == [accepted(name) for name in names]


def test_large_files_are_listed_without_a_digest_and_not_sent(session: Any) -> None:
    code = f"open('large', 'wb').truncate({16 * MIB + 1}); open('fits', 'wb').truncate({16 * MIB})"
    report = session.run(code, artifacts={"list": "Changed", "fetch": ["large", "fits"]})
    assert report.artifacts["large"] == (16 * MIB + 1, None)
    assert report.artifacts["fits"] == (16 * MIB, sha(bytes(16 * MIB)))
    assert {path: len(content) for path, content in report.sent.items()} == {"fits": 16 * MIB}


def test_what_does_not_fit_any_more_is_listed_but_not_sent(session: Any) -> None:
    code = f"for name in 'ab': open(name, 'wb').truncate({9 * MIB})\nopen('c', 'w').write('small')"
    report = session.run(code, artifacts={"list": "Changed", "fetch": ["?"]})
    assert {path: len(content) for path, content in report.sent.items()} == {"a": 9 * MIB, "c": 5}
    assert report.artifacts["b"] == (9 * MIB, sha(bytes(9 * MIB)))


def test_what_was_asked_for_first_is_sent_first(session: Any) -> None:
    code = f"for name in ('a1', 'a2', 'named'): open(name, 'wb').truncate({6 * MIB})"
    for fetch, sent in ((["named", "a*"], {"a1", "named"}), (["a*", "named"], {"a1", "a2"}), (["[an]*"], {"a1", "a2"})):
        report = session.run(code, artifacts={"list": "Changed", "fetch": fetch})
        assert set(report.sent) == sent, fetch
        assert {path: size for path, (size, _) in report.artifacts.items()} == dict.fromkeys(
            ("a1", "a2", "named"), 6 * MIB
        )
    names = "for n in range(300): open(f'a{n:03}', 'w')"
    report = session.run(names, artifacts={"list": "None", "fetch": ["named", "a*"]})
    assert len(report.artifacts) == 256
    assert "named" in report.sent


def test_more_is_sent_where_the_operator_has_place_for_more(session: Any) -> None:
    code = f"open('large', 'wb').truncate({24 * MIB}); open('unasked', 'wb').truncate({17 * MIB})"
    wanted = {"list": "Changed", "fetch": ["large"]}
    report = session.run(code, artifacts=wanted, fetchBytes=24 * MIB)
    assert report.artifacts == {"large": (24 * MIB, sha(bytes(24 * MIB))), "unasked": (17 * MIB, None)}
    assert {path: len(content) for path, content in report.sent.items()} == {"large": 24 * MIB}
    again = session.run("open('large', 'ab').write(b'x')", artifacts=wanted, fetchBytes=24 * MIB)
    assert again.artifacts == {"large": (24 * MIB + 1, None)}


def test_digests_are_made_of_64_mib_at_most(session: Any) -> None:
    code = f"for name in 'abcdef': open(name, 'wb').truncate({15 * MIB})"
    report = session.run(code, artifacts=CHANGED)
    assert [digest is not None for _, digest in report.artifacts.values()] == [True] * 4 + [False] * 2


def test_256_are_listed_those_to_send_first(session: Any) -> None:
    code = "for n in range(300): open(f'{n:03}', 'w')"
    report = session.run(code, artifacts={"list": "Changed", "fetch": ["299", "280"]})
    assert list(report.artifacts) == [f"{n:03}" for n in (*range(254), 280, 299)]
    assert set(report.sent) == {"280", "299"}
    assert report.totals["artifactsOmitted"] == 44


def test_a_tree_deeper_than_any_name_is_counted_as_one(session: Any) -> None:
    code = "import os\nfor _ in range(200):\n    os.mkdir('d'); os.chdir('d')\nopen('x', 'w')"
    report = session.run(code, artifacts=CHANGED)
    assert report.artifacts == {}
    assert report.totals["artifactsOmitted"] == 1


CHANGES_MEANWHILE = """
real = os.pread
def pread(descriptor, size, offset):
    data = real(descriptor, size, offset)
    {change}
    return data
workspace.os = type(os)("os")
vars(workspace.os).update(vars(os), pread=pread)
"""


@pytest.mark.parametrize(
    "change",
    ["os.truncate(f'{workspace.WORKSPACE}/x', 10)", "open(f'{workspace.WORKSPACE}/x', 'ab').write(b'more')"],
)
def test_a_file_that_changes_while_it_is_sent_is_told(change: str, sandbox: Any) -> None:
    """Nothing runs then; it is tried all the same, by a change after each piece that is read."""
    bounded = f"pread.left -= 1\n    if pread.left >= 0: {change}"
    with sandbox.connect(before=CHANGES_MEANWHILE.format(change=bounded) + "\npread.left = 3\n") as connection:
        report = connection.run(files={"x": b"x" * 600_000}, artifacts={"list": "All", "fetch": ["*"]})
        end = report.totals
        if "fault" in end:
            assert end["fault"] == {"reason": "FileRefused", "message": "x: changed while it was read"}
        else:
            [(size, digest)] = report.artifacts.values()
            assert (len(report.sent["x"]), sha(report.sent["x"])) == (size, digest)
        assert "done" in connection.run("print('on')").totals
