"""Languages, file names, exit codes and output: what one call gives."""

import hashlib

from autogen_core.code_executor import CodeResult
from fake_cases import WRITE
from parity.case import Case, Group, Seen, gives, raises, says
from parity.parties import Party

SURVIVES = (
    "An unknown language is a result with exit code 1, as in AutoGen's Local executor: an agent can read it and go on."
)
FIXED = "Languages are a fixed set, so that a policy can name them."
EXTENSION = "The extension is the usual one, so that editors, linters and `python -m` know the file."
BAD_NAME = (
    "A file name that can't be used is a result that says what is wrong with it, so that an agent can correct it."
)


def _unknown(id_: str, language: str) -> Case:
    return Case(
        id=id_,
        about=f"a block of language `{language}`" if language else "a block without a language",
        blocks=((language, "say hello"),),
        looks_for=(f"unknown language {language}", f"Unsupported language: {language}"),
        local=says(1, f"unknown language {language}"),
        docker=raises("ValueError", f"Unsupported language: {language}"),
        ours=says(1, f"unknown language {language}", f"Unsupported language: {language}"),
        why=SURVIVES,
    )


def _no_powershell(language: str) -> Case:
    return Case(
        id=language,
        about=f"a block of language `{language}`, on a client and in an image without PowerShell",
        blocks=((language, "Write-Output 1"),),
        looks_for=("unknown language pwsh", "Powershell or pwsh is not installed"),
        docker=raises("ValueError", "Powershell or pwsh is not installed. Please install one of them."),
        ours=says(1, "unknown language pwsh", "Powershell or pwsh is not installed"),
        why="What counts is whether the image has the program, not whether the client has; and see `javascript`.",
    )


LANGUAGES = Group(
    "Languages",
    (
        Case(id="python", about="`python`", blocks=("print(6 * 7)",), docker=gives(0, "42\n")),
        Case(
            id="python-in-any-case",
            about="`Python`, `PYTHON`, `pYthon`",
            blocks=(("Python", "print(1)"), ("PYTHON", "print(2)"), ("pYthon", "print(3)")),
            docker=gives(0, "1\n2\n3\n"),
        ),
        Case(id="py", about="`py`, `PY`", blocks=(("py", "print(1)"), ("PY", "print(2)")), docker=gives(0, "1\n2\n")),
        Case(
            id="python3",
            about="`python3`",
            blocks=(("python3", "print(1)"),),
            local=gives(1, "\nunknown language python3"),
            docker=gives(0, "1\n"),
        ),
        Case(
            id="python3.11",
            about="`python3.11`, the version that the image has",
            blocks=(("python3.11", "print(1)"),),
            looks_for=("1\n", "unknown language python3.11"),
            local=says(1, "unknown language python3.11"),
            docker=says(0, "1\n"),
            ours=says(1, "unknown language python3.11"),
            why=FIXED,
        ),
        Case(
            id="bash",
            about="`bash`, with what only bash has",
            blocks=(("bash", "a=(x y z); [[ ${a[1]} == y ]] && echo ${#a[@]}"),),
            docker=gives(0, "3\n"),
        ),
        Case(
            id="shells-in-any-case",
            about="`Bash`, `sh`, `SH`, `shell`, `Shell`",
            blocks=tuple((name, f"echo {name}") for name in ("Bash", "sh", "SH", "shell", "Shell")),
            docker=gives(0, "Bash\nsh\nSH\nshell\nShell\n"),
        ),
        Case(
            id="languages-mixed",
            about="Python, then bash, then sh",
            blocks=("print('python')", ("bash", "echo bash"), ("sh", "echo sh")),
            docker=gives(0, "python\nbash\nsh\n"),
        ),
        _unknown("rust", "rust"),
        _unknown("javascript", "javascript"),
        _unknown("no-language", ""),
        _no_powershell("pwsh"),
        _no_powershell("powershell"),
        _no_powershell("ps1"),
        Case(
            id="unknown-language-second",
            about="a block that prints, one of an unknown language, one that prints",
            blocks=("print('first')", ("rust", "x"), "print('third')"),
            looks_for=("first", "unknown language rust", "Unsupported language: rust", "third"),
            local=says(1, "first", "unknown language rust"),
            docker=raises("ValueError", "Unsupported language: rust"),
            ours=says(1, "first", "unknown language rust", "Unsupported language: rust"),
            why=SURVIVES,
        ),
        Case(
            id="blanks-around-language",
            about="` python `, with blanks around it",
            blocks=((" python ", "print(1)"),),
            local=gives(1, "\nunknown language  python "),
            docker=raises("ValueError", "Unsupported language:  python "),
            ours=gives(0, "1\n"),
            why="Blanks around the name are leftovers of a model's fence and change nothing.",
        ),
        Case(
            id="pip-silenced-in-shell",
            about="`pip install` at the start of a line of bash, sh and shell gets `-qqq`",
            blocks=tuple(
                (name, f'pip() {{ echo {name} "$@"; }}\npip install one\npip install -qqq two\n  pip install three\n')
                for name in ("bash", "sh", "shell")
            ),
            docker=gives(
                0,
                "".join(
                    f"{name} install -qqq one\n{name} install -qqq two\n{name} install three\n"
                    for name in ("bash", "sh", "shell")
                ),
            ),
        ),
        Case(
            id="pip-silenced-in-python",
            about="`!pip install` at the start of a line of `python` gets `-qqq`, of `py` not",
            blocks=(
                'print("""\n!pip install one\n! pip install two""")',
                ("py", 'print("""\n!pip install one""")'),
            ),
            docker=gives(0, "\n!pip install -qqq one\n! pip install -qqq two\n\n!pip install one\n"),
        ),
    ),
)

CODE = Group(
    "Code on its way",
    (
        Case(
            id="shell-code-as-it-is",
            about="quotes, `$`, backticks, backslashes and here-documents in bash",
            blocks=(("bash", "x=1; cat <<'EOF'\n$x `date` \\n \"q\" 'q' ${HOME}\nEOF\necho \"$x\" `echo 2`\n"),),
            docker=gives(0, "$x `date` \\n \"q\" 'q' ${HOME}\n1 2\n"),
        ),
        Case(
            id="python-code-as-it-is",
            about="`$`, backticks, backslashes, triple quotes and a line `EOF` in Python",
            blocks=("print(r'''$HOME `id` \\n\nEOF\n\"\"\" %s {}''')",),
            docker=gives(0, '$HOME `id` \\n\nEOF\n""" %s {}\n'),
        ),
        Case(
            id="unicode-code",
            about="names, texts and output beyond ASCII",
            blocks=("größe = '✓ 日本 😀'\nprint(größe)", ("bash", "echo '✓ 日本 😀'")),
            docker=gives(0, "✓ 日本 😀\n✓ 日本 😀\n"),
        ),
        Case(
            id="surrogate-in-code",
            about="code with half a surrogate pair, which no file can hold",
            blocks=("print('\ud800')",),
            docker=raises(
                "UnicodeEncodeError",
                "'utf-8' codec can't encode character '\\ud800' in position 7: surrogates not allowed",
            ),
        ),
        Case(
            id="byte-order-mark",
            about="code with a byte order mark",
            blocks=("\ufeffprint(1)",),
            docker=gives(0, "1\n"),
        ),
        Case(
            id="windows-line-ends",
            about="Python with Windows line ends",
            blocks=("if True:\r\n    print(1)\r\n",),
            docker=gives(0, "1\n"),
        ),
        Case(id="empty-code", about="an empty block", blocks=("",), docker=gives(0, "")),
        Case(
            id="comment-only",
            about="nothing but a comment, without a final newline",
            blocks=(("bash", "# nothing"), "# nothing"),
            docker=gives(0, ""),
        ),
        Case(
            id="long-code",
            about="300 kB of code",
            blocks=("#" * 300_000 + "\nprint(1)",),
            docker=gives(0, "1\n"),
        ),
        Case(
            id="many-blocks",
            about="eight blocks in one call",
            blocks=tuple(("sh", f"echo {number}") for number in range(8)),
            docker=gives(0, "".join(f"{number}\n" for number in range(8))),
        ),
    ),
)

NAMES = Group(
    "File names",
    (
        Case(
            id="named-file",
            about="`# filename: named.py`",
            blocks=("# filename: named.py\nprint(__file__)",),
            docker=gives(0, "/workspace/named.py\n"),
        ),
        Case(
            id="named-shell-file",
            about="`# filename: named.sh` in bash",
            blocks=(("bash", "# filename: named.sh\nbasename $0"),),
            docker=gives(0, "named.sh\n"),
        ),
        Case(
            id="default-name-python",
            about="Python without a file name",
            blocks=("print(__file__)",),
            local=gives(0, "/workspace/tmp_code_….py\n"),
            docker=gives(0, "/workspace/tmp_code_….python\n"),
            ours=gives(0, "/workspace/tmp_code_….py\n"),
            why=EXTENSION,
        ),
        Case(
            id="default-name-bash",
            about="bash without a file name",
            blocks=(("bash", "basename $0"),),
            docker=gives(0, "tmp_code_….bash\n"),
            ours=gives(0, "tmp_code_….sh\n"),
            why=EXTENSION,
        ),
        Case(
            id="default-name-sh",
            about="sh without a file name",
            blocks=(("sh", "basename $0"),),
            docker=gives(0, "tmp_code_….sh\n"),
        ),
        Case(
            id="file-name-in-missing-folder",
            about="`# filename: new/deep/x.py`, where there is no such folder",
            blocks=("# filename: new/deep/x.py\nprint(__file__)",),
            docker=raises("FileNotFoundError", "[Errno 2] No such file or directory: '/workspace/new/deep/x.py'"),
            ours=gives(0, "/workspace/new/deep/x.py\n"),
            why="Folders that are missing are made: what the block wants is clear.",
        ),
        Case(
            id="file-name-in-folder-of-the-block-before",
            about="`# filename: made/x.py`, where the block before has made the folder",
            blocks=(("sh", "mkdir -p made"), "# filename: made/x.py\nprint(__file__)"),
            docker=gives(0, "/workspace/made/x.py\n"),
        ),
        Case(
            id="file-name-outside",
            about="`# filename: ../x.py`",
            blocks=("# filename: ../x.py\nprint(1)",),
            docker=gives(1, "Filename is not in the workspace"),
            ours=gives(
                1,
                "Filename is not in the workspace: '../x.py' has the part '..'; give a path relative to the workspace",
            ),
            why=BAD_NAME,
        ),
        Case(
            id="file-name-outside-second",
            about="a block that prints, then one with `# filename: /etc/x.py`",
            blocks=("print('first')", "# filename: /etc/x.py\nprint(1)"),
            looks_for=("first", "Filename is not in the workspace"),
            local=says(1, "Filename is not in the workspace"),
            docker=says(1, "first", "Filename is not in the workspace"),
        ),
        Case(
            id="file-name-absolute",
            about="`# filename: /workspace/x.py`: in the container it would be the workspace",
            blocks=("# filename: /workspace/x.py\nprint(1)",),
            looks_for=("Filename is not in the workspace",),
            docker=says(1, "Filename is not in the workspace"),
        ),
        Case(
            id="file-name-through-parent",
            about="`# filename: a/../x.py`, which stays in the workspace",
            blocks=("# filename: a/../through.py\nprint(__file__)",),
            docker=gives(0, "/workspace/through.py\n"),
            ours=gives(
                1,
                "Filename is not in the workspace: 'a/../through.py' has the part '..'; "
                "give a path relative to the workspace",
            ),
            why="A path is taken as it is written and never resolved: what is announced is what is there.",
        ),
        Case(
            id="file-name-empty",
            about="`# filename:` and nothing else",
            blocks=("# filename:\nprint(1)",),
            docker=raises("IsADirectoryError", "[Errno 21] Is a directory: '/workspace'"),
            ours=gives(
                1, "Filename is not in the workspace: '' has the part ''; give a path relative to the workspace"
            ),
            why=BAD_NAME,
        ),
        Case(
            id="file-name-dot",
            about="`# filename: .`",
            blocks=("# filename: .\nprint(1)",),
            docker=raises("IsADirectoryError", "[Errno 21] Is a directory: '/workspace'"),
            ours=gives(
                1, "Filename is not in the workspace: '.' has the part '.'; give a path relative to the workspace"
            ),
            why=BAD_NAME,
        ),
        Case(
            id="file-name-too-long",
            about="a file name of 300 characters",
            blocks=(f"# filename: {'x' * 300}\nprint(1)",),
            looks_for=("Filename is not in the workspace", "at most 255"),
            docker=raises("OSError", f"[Errno 36] File name too long: '/workspace/{'x' * 300}'"),
            ours=says(1, "Filename is not in the workspace", "at most 255"),
            why=BAD_NAME,
        ),
        Case(
            id="file-name-on-second-line",
            about="`# filename: second.py` on the second line is a comment",
            blocks=("import os.path\n# filename: second.py\nprint(os.path.exists('second.py'))",),
            docker=gives(0, "False\n"),
        ),
        Case(
            id="file-name-marks",
            about="`#filename:` and `# Filename:` are comments",
            blocks=(
                "#filename: mark1.py\nimport os\nprint(os.path.exists('mark1.py'))",
                "# Filename: mark2.py\nimport os\nprint(os.path.exists('mark2.py'))",
            ),
            docker=gives(0, "False\nFalse\n"),
        ),
        Case(
            id="file-name-to-second-colon",
            about="`# filename: colon.py : main script`",
            blocks=("# filename: colon.py : main script\nprint(__file__)",),
            docker=gives(0, "/workspace/colon.py\n"),
        ),
        Case(
            id="file-name-with-blank-and-unicode",
            about="`# filename: my größe.py`",
            blocks=("# filename: my größe.py\nprint(__file__)",),
            docker=gives(0, "/workspace/my größe.py\n"),
        ),
        Case(
            id="file-name-like-an-option",
            about="`# filename: -i.py`",
            blocks=("# filename: -i.py\nprint('ran')",),
            looks_for=("ran", "Unknown option"),
            local=says(0, "ran"),
            docker=says(2, "Unknown option"),
            ours=says(0, "ran"),
            why="A file name is never read as an option of the interpreter.",
        ),
        Case(
            id="file-name-twice",
            about="two blocks of the same file name: each runs what it says",
            blocks=("# filename: twice.py\nprint(1)", "# filename: twice.py\nprint(2)"),
            docker=gives(0, "1\n2\n"),
        ),
        Case(
            id="file-name-imported",
            about="a block imports the one before by its file name",
            blocks=("# filename: imported.py\ndef f(): return 42", "from imported import f\nprint(f())"),
            docker=gives(0, "42\n"),
        ),
    ),
)


def _ends(id_: str, about: str, language: str, code: str, exit_code: int, **others: Seen | str) -> Case:
    """A block that is known by its exit code, followed by one that prints."""
    return Case(
        id=id_,
        about=about,
        blocks=((language, code), ("sh", "echo next")),
        looks_for=("next",),
        docker=says(exit_code),
        **others,  # type: ignore[arg-type]
    )


EXIT_CODES = Group(
    "Exit codes",
    (
        _ends("exit-3", "`sys.exit(3)`; the block after it doesn't run", "python", "import sys; sys.exit(3)", 3),
        _ends("exit-text", "`sys.exit('text')`", "python", "import sys; sys.exit('text')", 1),
        _ends("exit-minus-1", "`sys.exit(-1)`", "python", "import sys; sys.exit(-1)", 255),
        _ends("exit-255", "`exit 255` in bash", "bash", "exit 255", 255),
        Case(
            id="exit-256",
            about="`sys.exit(256)`, which is 0 for the system; the next block runs",
            blocks=("import sys; sys.exit(256)", ("sh", "echo next")),
            docker=gives(0, "next\n"),
        ),
        _ends("unknown-command", "an unknown command is the last of a shell block", "sh", "no-such-command", 127),
        _ends("not-executable", "a file that may not be executed", "sh", "./tmp_code_*.sh", 126),
        Case(
            id="failure-inside-shell",
            about="a command fails inside a shell block, which goes on",
            blocks=(("bash", "false; echo on"),),
            docker=gives(0, "on\n"),
        ),
        _ends("sigkill", "code killed by SIGKILL", "bash", "kill -KILL $$", 137, local=says(-9)),
        _ends("sigterm", "code killed by SIGTERM", "bash", "kill -TERM $$", 143, local=says(-15)),
        _ends(
            "sigsegv",
            "code that reads where there is no memory",
            "python",
            "import ctypes; ctypes.string_at(0)",
            139,
            local=says(-11),
        ),
        _ends("abort", "code that aborts", "python", "import os; os.abort()", 134, local=says(-6)),
        Case(
            id="traceback",
            about="an exception that nobody catches",
            blocks=("print('before')\n1 / 0",),
            looks_for=("before", "Traceback (most recent call last)", "ZeroDivisionError"),
            docker=says(1, "before", "Traceback (most recent call last)", "ZeroDivisionError"),
        ),
        Case(
            id="syntax-error",
            about="a syntax error",
            blocks=("print('before')\nif",),
            looks_for=("before", "SyntaxError"),
            docker=says(1, "SyntaxError"),
        ),
        Case(
            id="user-exits-124",
            about="`exit 124` by the code itself",
            blocks=(("bash", "echo mine; exit 124"),),
            local=gives(124, "mine\n"),
            docker=gives(124, "mine\n\n Timeout"),
            ours=gives(124, "mine\n"),
            why="Whether time ran out is known from what happened, not from a number that code may use, too.",
        ),
        Case(
            id="stops-at-first-failure",
            about="three blocks of which the second fails",
            blocks=("print('one')", "print('two'); exit(3)", "print('three')"),
            docker=gives(3, "one\ntwo\n"),
        ),
        Case(
            id="no-blocks",
            about="an empty list of blocks",
            blocks=(),
            local=gives(0, ""),
            docker=raises("ValueError", "No code blocks to execute."),
        ),
    ),
)

_LARGE = "for i in range(%d):\n    print('x' * 99)\n"


def _digest(text: str) -> Seen:
    return {"bytes": len(text.encode()), "SHA-256": hashlib.sha256(text.encode()).hexdigest()[:12]}


def _whole(code: str):
    async def scenario(party: Party) -> Seen:
        result = await party.run(code)
        return {"exit code": result.exit_code, **_digest(result.output)}

    return scenario


async def _both_streams_large(party: Party) -> Seen:
    code = """
import sys, threading
def write(stream, character):
    for _ in range(25_000):
        stream.write(character * 99 + "\\n")
threads = [threading.Thread(target=write, args=pair) for pair in ((sys.stdout, "o"), (sys.stderr, "e"))]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    output = (await party.run(code)).output
    return {character: output.count(character) for character in "oe\n"}


async def _beyond_autogen(party: Party) -> Seen:
    result = await party.run("import sys\nprint('out')\nprint('err', file=sys.stderr)")
    names = ("stdout", "stderr", "reason")
    return {name: getattr(result, name) for name in names if hasattr(result, name)}


async def _truncated(party: Party) -> Seen:
    limit = {"output_bytes": 1024} if party.name == "ours" else {}
    output = (await party.run("print('x' * 5000)", at=await party.started(**limit))).output
    return {"x": output.count("x") - output.count("codeexec"), "says truncated": "truncated" in output}


OUTPUT = Group(
    "Output",
    (
        Case(
            id="both-streams-in-order",
            about="stdout and stderr in turn",
            blocks=(
                (
                    "python",
                    f"{WRITE}\nfor stream, text in ((1, '1\\n'), (2, '2\\n'), (1, '3\\n')): write(stream, text)",
                ),
            ),
            local=gives(0, "2\n1\n3\n"),
            docker=gives(0, "1\n2\n3\n"),
        ),
        Case(
            id="stderr-of-success",
            about="stderr of a block that succeeds",
            blocks=(("sh", "echo warning >&2"),),
            docker=gives(0, "warning\n"),
        ),
        Case(
            id="joined-without-separators",
            about="blocks that print without a final newline",
            blocks=(("sh", "printf A"), "print('B', end='')", ("bash", "printf C")),
            docker=gives(0, "ABC"),
        ),
        Case(id="no-output", about="no output", blocks=(("sh", ":"), "x = 1"), docker=gives(0, "")),
        Case(
            id="controls-in-output",
            about="NUL, ANSI colours, carriage returns, tabs, form feed, Unicode separators",
            blocks=(r"import sys; sys.stdout.write('a\0b\x1b[31mred\x1b[0m\r1%\r2%\r\n\t\f\v\x85\u2028end')",),
            docker=gives(0, "a\0b\x1b[31mred\x1b[0m\r1%\r2%\r\n\t\f\v\x85\u2028end"),
        ),
        Case(
            id="invalid-utf-8",
            about="bytes that are no UTF-8",
            blocks=("import sys; sys.stdout.buffer.write(b'a\\xffb')",),
            docker=raises(
                "UnicodeDecodeError", "'utf-8' codec can't decode byte 0xff in position 1: invalid start byte"
            ),
            ours=gives(0, "a\N{REPLACEMENT CHARACTER}b"),
            why="Bytes that are no UTF-8 become U+FFFD, and the rest is kept; an exception would lose all of it.",
        ),
        Case(
            id="character-in-two-writes",
            about="the bytes of one character, written one by one",
            blocks=(
                "import sys, time\nfor byte in '€😀'.encode():\n"
                "    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush(); time.sleep(0.02)",
            ),
            docker=gives(0, "€😀"),
        ),
        Case(
            id="no-input",
            about="`input()`",
            blocks=("try:\n    input()\nexcept EOFError:\n    print('no input')",),
            docker=gives(0, "no input\n"),
        ),
        Case(
            id="no-terminal",
            about="whether streams are terminals",
            blocks=("import sys\nprint(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())",),
            docker=gives(0, "False False False\n"),
        ),
        Case(
            id="line-of-10-mb",
            about="one line of 10 MB",
            scenario=_whole("print('x' * 10_000_000)"),
            docker={"exit code": 0, **_digest("x" * 10_000_000 + "\n")},
        ),
        Case(
            id="short-lines",
            about="100,000 short lines",
            scenario=_whole("for number in range(100_000): print(number)"),
            docker={"exit code": 0, **_digest("".join(f"{number}\n" for number in range(100_000)))},
        ),
        Case(
            id="both-streams-large",
            about="2.5 MB on each stream at the same time",
            scenario=_both_streams_large,
            docker={"o": 2_475_000, "e": 2_475_000, "\n": 50_000},
        ),
        Case(
            id="more-than-the-limit",
            about="5,000 characters, where our executor is told to keep 1,024",
            scenario=_truncated,
            docker={"x": 5000, "says truncated": False},
            ours={"x": 1024, "says truncated": True},
            why="Output has a limit that a caller sets (16 MiB by default), so that code can't fill the cluster's "
            "store; what is missing is marked.",
        ),
        Case(
            id="late-output-of-a-background-process",
            about="a background process prints five seconds after the block has ended",
            blocks=(("bash", "(sleep 5; echo late) & echo now"),),
            local=gives(0, "now\nlate\n"),
            docker=gives(0, "now\n"),
        ),
        Case(
            id="more-than-exit-code-and-output",
            about="what else the result tells",
            scenario=_beyond_autogen,
            docker={},
            ours={"stdout": "out\n", "stderr": "err\n", "reason": "Completed"},
            why="The streams are there one by one, too, and why the execution ended.",
        ),
    ),
)


async def _type_of_result(party: Party) -> Seen:
    result = await party.run("print(1)")
    result.output = "changed"  # CodeExecutorAgent does it
    return {"a CodeResult": isinstance(result, CodeResult), "output": result.output}


async def _code_file(party: Party) -> Seen:
    folder = party.work_dir
    result = await party.run("# filename: main.py\n", "# filename: second.py\n", at=await party.shared(work_dir=folder))
    return {
        "is main.py in work_dir": result.code_file == str(folder / "main.py"),  # type: ignore[attr-defined]
        "is there": (folder / "main.py").exists(),
    }


async def _code_file_of_refused(party: Party) -> Seen:
    return {"code_file": (await party.run("# filename: ../x.py\n")).code_file}  # type: ignore[attr-defined]


RESULTS = Group(
    "Results",
    (
        Case(
            id="type-of-result",
            about="type of the result, and whether it can be changed, which AutoGen's agent does",
            scenario=_type_of_result,
            docker={"a CodeResult": True, "output": "changed"},
        ),
        Case(
            id="code-file",
            about="`code_file` of two blocks, with `work_dir` set",
            scenario=_code_file,
            local={"is main.py in work_dir": True, "is there": False},
            docker={"is main.py in work_dir": True, "is there": True},
        ),
        Case(
            id="code-file-of-refused",
            about="`code_file` where no block could be run",
            scenario=_code_file_of_refused,
            docker={"code_file": None},
        ),
    ),
)

GROUPS = (LANGUAGES, CODE, NAMES, EXIT_CODES, OUTPUT, RESULTS)
