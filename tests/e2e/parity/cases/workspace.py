"""Files between blocks and calls, and what else one block leaves for the next."""

from cluster_tools import a_name
from parity.case import Case, Group, Scenario, Seen, gives
from parity.parties import WORKSPACE, Party, living, whether_it_lives

WITH_THE_BLOCK = "What a block has started ends with the block, so that it can't change what the next block runs."
AWAIT = "for i in $(seq 60); do [ -e %s ] && break; sleep 0.1; done"


def _calls(*calls: str | tuple[str, str]) -> Scenario:
    """Each block as a call of its own, by the same executor."""

    async def scenario(party: Party) -> Seen:
        executor = await party.shared()
        results = [await party.run(call, at=executor) for call in calls]
        return {
            "exit codes": [result.exit_code for result in results],
            "output": party.normalised("".join(result.output for result in results)),
        }

    return scenario


async def _two_executors(party: Party) -> Seen:
    one, other = await party.shared(), await party.started()
    await party.run(("sh", "echo secret >private"), at=one)
    return {"files": (await party.run(("sh", "ls private 2>&1 || true"), at=other)).output.count("No such file")}


async def _seen_by_client(party: Party) -> Seen:
    folder = party.work_dir
    await party.run(("sh", "echo 1 >made"), at=await party.shared(work_dir=folder))
    return {"in work_dir": (folder / "made").exists()}


async def _changed_by_client(party: Party) -> Seen:
    executor = await party.shared(work_dir=party.work_dir)
    (party.work_dir / "sub").mkdir(exist_ok=True)
    given, outputs = party.work_dir / "sub" / "changes", []
    for text in ("one", "two"):
        given.write_text(text)
        outputs.append((await party.run(("sh", "cat sub/changes"), at=executor)).output)
    return {"code saw": outputs}


async def _given_by_client(party: Party) -> Seen:
    folder = party.work_dir
    (folder / "given").write_text("1")
    result = await party.run(("sh", "test -e given"), at=await party.shared(work_dir=folder))
    return {"in the workspace": result.exit_code == 0}


async def _source_kept(party: Party) -> Seen:
    folder = party.work_dir
    code = "# filename: kept.py\nprint(1)"
    await party.run(code, at=await party.shared(work_dir=folder))
    return {"is kept": (folder / "kept.py").exists()}


async def _after_restart(party: Party) -> Seen:
    executor = await party.shared()
    await party.run(("sh", "echo 1 >before"), at=executor)
    await executor.restart()
    return {"file is there": (await party.run(("sh", "test -e before"), at=executor)).exit_code == 0}


async def _large_file(party: Party) -> Seen:
    executor = await party.shared()
    await party.run("open('large', 'wb').write(bytes(range(256)) * 20_000)", at=executor)
    code = "import hashlib; print(hashlib.sha256(open('large', 'rb').read()).hexdigest()[:12])"
    return {"output": (await party.run(code, at=executor)).output}


FILES = Group(
    "Files between blocks and calls",
    (
        Case(
            id="file-between-blocks",
            about="a file that one block writes and the next reads",
            blocks=("open('between-blocks', 'w').write('text')", ("sh", "cat between-blocks")),
            docker=gives(0, "text"),
        ),
        Case(
            id="file-between-calls",
            about="a file that one call writes and the next reads",
            scenario=_calls("open('between-calls', 'w').write('text')", ("sh", "cat between-calls")),
            docker={"exit codes": [0, 0], "output": "text"},
        ),
        Case(
            id="import-between-calls",
            about="a call imports a named block of the call before",
            scenario=_calls(
                "# filename: earlier.py\ndef f(): return 42",
                "try:\n    from earlier import f\nexcept ImportError:\n    print('is gone')\nelse:\n    print(f())",
            ),
            local={"exit codes": [0, 0], "output": "is gone\n"},
            docker={"exit codes": [0, 0], "output": "42\n"},
        ),
        Case(
            id="file-of-failed-call",
            about="a file of a call that failed",
            scenario=_calls(("sh", "echo kept >of-failed; exit 3"), ("sh", "cat of-failed")),
            docker={"exit codes": [3, 0], "output": "kept\n"},
        ),
        Case(
            id="file-replaced-and-removed",
            about="files that later calls replace and remove",
            scenario=_calls(
                ("sh", "echo 1 >first; echo 1 >second"),
                ("sh", "echo 2 >first; rm second"),
                ("sh", "cat first; test -e second"),
            ),
            docker={"exit codes": [0, 0, 1], "output": "2\n"},
        ),
        Case(
            id="large-file",
            about="a file of 5 MB in the next call",
            scenario=_large_file,
            docker={"output": "13fbe33cdd58\n"},
        ),
        Case(
            id="folders-between-calls",
            about="folders, links and modes in the next call",
            scenario=_calls(
                ("sh", "mkdir -p d/e; echo 1 >d/e/f; ln -s d/e/f link; echo 'echo ran' >run; chmod 700 run"),
                ("sh", "cat link; ./run"),
            ),
            docker={"exit codes": [0, 0], "output": "1\nran\n"},
        ),
        Case(
            id="executors-apart",
            about="a file of one executor, looked for by another",
            scenario=_two_executors,
            docker={"files": 1},
        ),
        Case(
            id="workspace-is-current",
            about="the current folder, and whether code may write to it and to `/tmp`",
            blocks=("import os\nprint(os.getcwd())\nfor folder in ('.', '/tmp'): print(os.access(folder, os.W_OK))",),
            docker=gives(0, f"{WORKSPACE}\nTrue\nTrue\n"),
        ),
        Case(
            id="source-kept",
            about="the source of a named block in the client's `work_dir`, after the call",
            scenario=_source_kept,
            local={"is kept": False},
            docker={"is kept": True},
        ),
        Case(
            id="file-seen-by-client",
            about="a file that code makes, in the client's `work_dir`",
            scenario=_seen_by_client,
            docker={"in work_dir": True},
        ),
        Case(
            id="file-given-by-client",
            about="a file that the client puts in `work_dir`, seen by code",
            scenario=_given_by_client,
            docker={"in the workspace": True},
        ),
        Case(
            id="file-changed-by-client",
            about="a file in a folder of `work_dir`, which the client changes between two calls",
            scenario=_changed_by_client,
            docker={"code saw": ["one", "two"]},
        ),
        Case(
            id="file-after-restart",
            about="a file of before `restart()`",
            scenario=_after_restart,
            docker={"file is there": True},
            ours={"file is there": False},
            why="`restart()` gives a fresh workspace. The Docker executor's is a folder of the client, which stays.",
        ),
    ),
)


async def _background_of_last_call(party: Party) -> Seen:
    executor, mark = await party.shared(), a_name("child")
    code = f"{living(mark)} >/dev/null 2>&1 &\nuntil [ -e {mark} ]; do sleep 0.05; done"
    await party.run(("bash", code), at=executor)
    seen = (await party.run(("sh", whether_it_lives(mark)), at=executor)).output.strip()
    party.release(executor, mark)
    return {"process": seen}


STATE = Group(
    "What else stays",
    (
        Case(
            id="variables",
            about="a variable of a Python block, in the next block",
            blocks=("x = 1", "print('x' in globals())"),
            docker=gives(0, "False\n"),
        ),
        Case(
            id="current-folder",
            about="`cd` in one block, the folder of the next",
            blocks=(("sh", "cd /tmp"), ("sh", "pwd")),
            docker=gives(0, f"{WORKSPACE}\n"),
        ),
        Case(
            id="environment",
            about="`export` in one block, the variable in the next",
            blocks=(("sh", "export KEPT=1"), ("sh", "echo [$KEPT]")),
            docker=gives(0, "[]\n"),
        ),
        Case(
            id="environment-of-client",
            about="a variable of the client's environment",
            blocks=(("sh", "echo [$OF_THE_CLIENT]"),),
            local=gives(0, "[1]\n"),
            docker=gives(0, "[]\n"),
        ),
        Case(
            id="background-process-in-next-block",
            about="a process in the background that answers to the next block of the same call",
            blocks=(
                ("bash", f"({AWAIT % 'asked'}; echo answer >answer.new; mv answer.new answer) >/dev/null 2>&1 &"),
                ("sh", f"touch asked; {AWAIT % 'answer'}; cat answer 2>/dev/null || echo nobody answered"),
            ),
            docker=gives(0, "answer\n"),
            ours=gives(0, "nobody answered\n"),
            why=WITH_THE_BLOCK,
        ),
        Case(
            id="background-process-in-next-call",
            about="a process in the background, in the next call",
            scenario=_background_of_last_call,
            docker={"process": "alive"},
            ours={"process": "dead"},
            why=WITH_THE_BLOCK,
        ),
    ),
)

GROUPS = (FILES, STATE)
