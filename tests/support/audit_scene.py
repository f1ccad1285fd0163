"""Records of a day, for tests and the picture of the audit report: made by the fake cluster, with its audit log.

`python tests/support/audit_scene.py FILE.png` writes that picture.
"""

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from click.testing import CliRunner

from codeexec_api import ExecutionPolicySpec, Limits, Reason
from executor_client.cli import main
from executor_client.client.approvals import ApprovalWait
from executor_client.client.client import CodeExecutionClient
from executor_client.client.request import Request
from executor_client.exceptions import CodeExecError
from executor_client.model.blocks import PreparedBlock, SourceBlock, prepare
from executor_client.testing import FAKE_IMAGE, FakeBlock, FakeCluster, FakeOutcome

HOSTILE = "<script>document.title='taken over'</script><img src=x onerror=\"document.title='taken over'\">"
"""What an agent may call itself."""
MARKER = "PLANTED-IN-CODE-AND-OUTPUT"
_OTHER_IMAGE = f"sandbox.example/other@sha256:{1:064x}"


def behave(block: FakeBlock) -> FakeOutcome:
    """By the first word of the code."""
    block.files[f"{MARKER}.txt"] = MARKER.encode()
    word = block.code.split()[0]
    return {
        "fail": FakeOutcome(stderr=MARKER, exit_code=3, takes=0.4),
        "wait": FakeOutcome(takes=1000),
        "fill": FakeOutcome(out_of_memory=True, takes=2),
    }.get(word, FakeOutcome(stdout=MARKER, takes=0.2))


def a_day(odd_one: str = HOSTILE) -> FakeCluster:
    """A cluster where all that an auditor asks about has happened. One of the agents calls itself `odd_one`."""
    policy = ExecutionPolicySpec.model_validate(
        {
            "images": [FAKE_IMAGE],
            "maxTimeoutSeconds": 60,
            "maxLimits": {"memory": "1Gi"},
            "withApproval": {"maxLimits": {"memory": "4Gi"}},
        }
    )
    fake = FakeCluster(policy=policy, run=behave)
    asyncio.run(_live(fake, odd_one))
    return fake


def a_busy_day(odd_one: str = HOSTILE, *, calls: int = 0) -> FakeCluster:
    """The same, and sessions: long ones, one that is refused, one without room; and `calls` that go well."""
    fake = a_day(odd_one)
    asyncio.run(_work(fake, calls))
    return fake


async def _live(fake: FakeCluster, odd_one: str) -> None:
    builder, analyst = fake.client("system:serviceaccount:agents:builder"), fake.client("anna@example.org")
    for code, agent, client in (
        ("good", "planner", builder),
        ("good", "planner", builder),
        ("fail", "planner", builder),
        ("good", "analyst", analyst),
        ("wait", "analyst", analyst),
        ("fill", "planner", builder),
        ("good", odd_one, builder),
    ):
        await _submit(client, code, Request(agent=agent))
        fake.advance(700)
    await _submit(builder, "good", Request(agent="planner", timeout_seconds=600))
    await _ask(fake, builder, "")
    await _ask(fake, analyst, "<b>not</b> without a ticket" if odd_one == HOSTILE else "not without a ticket")
    fake.open_network()
    await _submit(builder, "good", Request(agent="planner"))
    fake.recover()
    session = await analyst.open_session(Request(agent="analyst"), wait=True)
    await session.execute(_code("good"))
    await session.end()


async def _work(fake: FakeCluster, calls: int) -> None:
    builder, analyst = fake.client("system:serviceaccount:agents:builder"), fake.client("anna@example.org")
    session = await analyst.open_session(Request(agent="analyst"), wait=True)
    await session.upload({f"{MARKER}.csv": MARKER.encode()})
    for word in ("good", "good", "fail", "good"):
        await session.execute(_code(word))
        fake.advance(40)
    await session.list_files()
    await session.download([f"{MARKER}*"])
    await session.end()
    await _in_vain(builder, Request(agent="planner", image=_OTHER_IMAGE))
    fake.fail_to_start(Reason.START_TIMEOUT, "the pod did not start within 60 s: 0/1 nodes: Insufficient cpu")
    await _in_vain(builder, Request(agent="planner"))
    fake.recover()
    for count in range(calls):
        await _submit(builder, "good", Request(agent=f"planner-{count % 3}"))
        fake.advance(20)


async def _in_vain(client: CodeExecutionClient, request: Request) -> None:
    """Run something in a session that doesn't come."""
    session = await client.open_session(request)
    with suppress(CodeExecError):
        await session.execute(_code("good"))


def _code(word: str) -> Sequence[PreparedBlock]:
    return prepare([SourceBlock("python", f"{word} {MARKER}")]).blocks


async def _submit(client: CodeExecutionClient, word: str, request: Request) -> str:
    execution = await client.submit(_code(word), request)
    return execution.name


async def _ask(fake: FakeCluster, client: CodeExecutionClient, why_not: str) -> None:
    """Ask for more memory than the policy allows by itself; it is denied for a reason, or approved."""
    request = Request(agent="planner", limits=Limits(memory="2Gi"), approval=ApprovalWait())
    name = await _submit(client, "good", request)
    human = fake.client("olga@example.org")
    fake.advance(90)
    execution = await human.get(name)
    if why_not:
        await human.deny(execution, reason=why_not)
    else:
        await human.approve(execution, reason="the table is large", valid=timedelta(minutes=15))


def log_of(fake: FakeCluster, folder: Path) -> Path:
    """The operator's log, in a file."""
    path = folder / "operator.log"
    path.write_text("\n".join(['{"message": "a line of somebody else"}', *fake.audit_log]) + "\n")
    return path


def write_report(fake: FakeCluster, folder: Path) -> Path:
    """The report of a cluster."""
    page = folder / "report.html"
    arguments = ["audit", "report", "-o", str(page), "--log", str(log_of(fake, folder))]
    done = CliRunner().invoke(main, arguments, obj=lambda ref: fake.client())
    assert done.exit_code == 0, done.output
    return page


def chromium() -> str:
    """The browser.

    Raises:
        FileNotFoundError: there is none.
    """
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    raise FileNotFoundError(
        "there is no Chromium on the PATH: `tests/cluster/tools.sh chromium` installs Debian's (`make e2e` runs it)"
    )


def browse(page: Path, *options: str, anchor: str = "") -> str:
    """What headless Chromium says of a page, without a network; `anchor` is followed as if it was clicked."""
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium(), "--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--no-sandbox"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}", *options]
        command.append(f"{page.as_uri()}#{anchor}" if anchor else page.as_uri())
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def page_of_width(page: Path, width: int, folder: Path) -> Path:
    """A page that shows another one at this width, and takes what that posts as its title.

    A window can't be as narrow as a phone.
    """
    frame = folder / f"frame-{width}.html"
    frame.write_text(
        "<!doctype html><style>body { margin: 0 } iframe { border: 0; height: 100vh }</style>"
        "<script>onmessage = told => { document.title = told.data; }</script>"
        f'<iframe src="{page.as_uri()}" width="{width}"></iframe>'
    )
    return frame


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = write_report(a_busy_day("reviewer", calls=30), Path(folder))
        print(browse(made, "--window-size=1280,2700", f"--screenshot={Path(sys.argv[1]).resolve()}"))
