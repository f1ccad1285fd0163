"""Files go into the workspace of a session and come back: whole, regular files only, and each transfer is on record."""

import base64
import gzip
import hashlib
import json
import os
import stat
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from cluster_tools import SANDBOX
from release_fixtures import operator_log

from codeexec_api.names import CLIENT_LABEL
from executor_client import ClusterRef, CodeExecutionClient, FileMissing, FileTransferError, Limits, Request

SMALL = Limits(cpu="100m", memory="128Mi")
TOKEN = CancellationToken()


@pytest.fixture
def work_dir(tmp_path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def make(make_executor, work_dir):
    """Executors with a session each, and a local folder."""
    defaults = {"session": "per-executor", "limits": SMALL, "timeout": 30, "work_dir": work_dir}
    return lambda **options: make_executor(**{**defaults, **options})


async def run(executor, code, language="python"):
    result = await executor.execute_code_blocks([CodeBlock(code, language)], TOKEN)
    assert result.exit_code == 0, result.output
    return result


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def regular_files(folder: Path) -> dict[str, bytes]:
    """Content of all that is below a folder; fails if there is anything but folders and regular files."""
    found = {}
    for parent, folders, names in os.walk(folder):
        for name in folders:
            assert stat.S_ISDIR((Path(parent) / name).lstat().st_mode)
        for name in names:
            path = Path(parent) / name
            assert stat.S_ISREG(path.lstat().st_mode), path
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


SUMS = """
import hashlib, os
for name in sorted(os.listdir()):
    if not name.startswith("tmp_code"):
        print(hashlib.sha256(open(name, "rb").read()).hexdigest(), name)
"""


async def test_files_arrive_and_come_back_as_they_were(make, work_dir):
    contents = {
        "bytes.bin": bytes(range(256)) * 40,
        "empty": b"",
        "größe 日本.csv": "a,b\r\nä,1\r\n".encode(),
        "three-megabytes": os.urandom(3_000_000),
        "-rf": b"an option, to careless programs",
    }
    for name, content in contents.items():
        (work_dir / name).write_bytes(content)
    executor = make()
    await executor.upload_files(list(contents), TOKEN)
    seen = dict(line.split(" ", 1)[::-1] for line in (await run(executor, SUMS)).output.splitlines())
    assert seen == {name: sha256(content) for name, content in contents.items()}
    assert set(contents) <= set(await executor.get_file_list(TOKEN))
    for name in contents:
        (work_dir / name).unlink()
    paths = await executor.download_files(list(contents), TOKEN)
    assert paths == [str(work_dir / name) for name in contents]
    assert {name: (work_dir / name).read_bytes() for name in contents} == contents


async def test_work_dir_goes_there_by_itself(make, work_dir, admin):
    (work_dir / "sub").mkdir()
    contents = {"data": os.urandom(3_000_000), "sub/more": b"more", ".env": b"hidden"}
    for name, content in contents.items():
        (work_dir / name).write_bytes(content)
    (work_dir / "link").symlink_to("/etc/passwd")
    executor = make()
    listing = "find . -type f -o -type l | sort | grep -v tmp_code; sha256sum <data"
    result = await run(executor, listing, "sh")
    assert result.output == f"./data\n./sub/more\n{sha256(contents['data'])}  -\n"
    sent = admin.execution(result.execution)["spec"]["files"]
    assert [(one["path"], one["sizeBytes"]) for one in sent] == [("data", 3_000_000), ("sub/more", 4)]
    (work_dir / "sub/more").write_text("changed")
    result = await run(executor, "cat sub/more; echo from inside >data", "sh")
    assert result.output == "changed"
    assert (work_dir / "data").read_text() == "from inside\n"
    result = await run(executor, "cat data", "sh")
    assert result.output == "from inside\n"
    assert "files" not in admin.execution(result.execution)["spec"]


async def test_fifteen_megabytes_go_there_and_back(make, work_dir):
    content = os.urandom(15_000_000)
    (work_dir / "large").write_bytes(content)
    executor = make(limits=Limits(cpu="500m", memory="192Mi"))
    await executor.upload_files([work_dir / "large"], TOKEN)
    assert (await run(executor, "sha256sum < large", "sh")).output.split()[0] == sha256(content)
    (work_dir / "large").unlink()
    await executor.download_files(["large"], TOKEN)
    assert sha256((work_dir / "large").read_bytes()) == sha256(content)


async def test_folders_are_kept_on_the_way_back(make, work_dir):
    executor = make()
    result = await run(executor, "mkdir -p a/b; printf one > a/b/one; printf two > a/two", "sh")
    assert {one.path for one in result.artifacts if one.fetched} == {"a/b/one", "a/two"}
    assert (work_dir / "a/b/one").read_text() == "one"  # changed files need no call
    (work_dir / "a/b/one").unlink()
    assert await executor.download_files(["a/b/one"], TOKEN) == [str(work_dir / "a/b/one")]
    assert (work_dir / "a/b/one").read_text() == "one"


async def test_without_a_work_dir_downloads_go_into_a_folder_of_the_executor(make):
    executor = make(work_dir=None)
    await run(executor, "printf one > one", "sh")
    [path] = await executor.download_files(["one"], TOKEN)
    assert Path(path).read_text() == "one"
    assert Path(path).parent.stat().st_mode & 0o077 == 0


async def test_too_large_is_said_and_nothing_is_lost(make, work_dir):
    executor = make(upload_work_dir=False)
    (work_dir / "small").write_text("small")
    with (work_dir / "huge").open("wb") as file:
        file.truncate(16_000_001)
    await executor.upload_files(["small"], TOKEN)
    (work_dir / "other").write_text("other")
    with pytest.raises(FileTransferError, match="16000001 bytes; at most 16000000"):
        await executor.upload_files(["other", "huge"], TOKEN)
    await run(executor, "truncate -s 17M sparse", "sh")
    with pytest.raises(FileTransferError, match=r"sparse \(17825792 bytes\)"):
        await executor.download_files(["sparse"], TOKEN)
    there = await executor.get_file_list(TOKEN)
    assert {"small", "sparse"} <= set(there)
    assert not {"other", "huge"} & set(there)
    (work_dir / "small").unlink()
    await executor.download_files(["small"], TOKEN)
    assert (work_dir / "small").read_text() == "small"


async def test_what_is_no_file_is_said(make, work_dir):
    executor = make()
    (work_dir / "folder").mkdir()
    with pytest.raises(FileMissing, match="absent does not exist"):
        await executor.upload_files(["absent"], TOKEN)
    with pytest.raises(FileTransferError, match="not a regular file"):
        await executor.upload_files(["folder"], TOKEN)
    await run(executor, "mkdir folder; printf one > folder/one", "sh")
    for name in ("absent", "folder"):
        with pytest.raises(FileNotFoundError, match=f"not in the workspace: {name}; there are: folder/one"):
            await executor.download_files([name], TOKEN)


async def test_cancelled_transfer_is_said(make, work_dir):
    executor, token = make(), CancellationToken()
    (work_dir / "one").write_text("one")
    token.cancel()
    with pytest.raises(FileTransferError, match="cancelled"):
        await executor.upload_files(["one"], token)
    assert "one" not in await executor.get_file_list(TOKEN)


PLOT = """
import matplotlib.pyplot as plt
import pandas as pd
table = pd.DataFrame({"x": [1, 2], "y": [3, 4]})
table.to_csv("table.csv", index=False)
table.plot(x="x")
plt.savefig("plot.png")
"""


@pytest.mark.parametrize("session", ["per-executor", "per-call"])
async def test_plot_and_table_come_back_by_themselves(make, admin, work_dir, session):
    executor = make(session=session, limits=Limits(cpu="400m", memory="256Mi"), timeout=60)
    result = await run(executor, PLOT)
    found = {path: content for path, content in regular_files(work_dir).items() if not path.startswith("tmp_code")}
    assert set(found) == {"plot.png", "table.csv"}
    assert found["table.csv"] == b"x,y\n1,3\n2,4\n"
    assert found["plot.png"].startswith(b"\x89PNG")
    assert {one.path: (one.size_bytes, one.sha256, one.fetched) for one in result.artifacts} == {
        path: (len(content), sha256(content), True) for path, content in found.items()
    }
    recorded = {one["path"]: one for one in admin.execution(result.execution)["status"]["artifacts"]}
    assert {path: recorded[path]["sha256"] for path in found} == {
        path: sha256(content) for path, content in found.items()
    }


HOSTILE = """
import os, socket
open("honest", "w").write("honest")
os.symlink("/etc/passwd", "passwd")
os.symlink("/etc", "etc")
os.symlink("honest", "link-to-a-file")
os.symlink(".", "loop")
os.mkdir("deep")
os.symlink("..", "deep/up")
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
for name in (
    b"line\\nbreak", b"\\x1b[31mred", b"\\xff\\xfe", "turned\\u202etxt.exe".encode(), b" blank", b"back\\\\slash"
):
    open(name, "wb").write(b"hostile name")
for name in ("NUL", "con.txt", "..dots", "...", "~root", "$HOME"):
    open(name, "w").write("odd but good")
for number in range(300):
    open(f"deep/{number:03}", "w").write(str(number))
"""
TAR = """
import tarfile
with tarfile.open("/tmp/all.tar", "w") as tar:
    tar.add(".")
for one in tarfile.open("/tmp/all.tar"):
    if not one.isreg() and not one.isdir():
        print(one.name, one.linkname)
"""


async def test_hostile_workspace_gives_out_regular_files_only(make, admin, tmp_path, work_dir, agent_kubeconfig):
    executor = make()
    result = await run(executor, HOSTILE)
    # The control: who packs the same folder up gets the links and all.
    packed = (await run(executor, TAR)).output
    assert {"./passwd /etc/passwd", "./loop .", "./fifo ", "./etc /etc"} <= set(packed.splitlines())

    brought = regular_files(tmp_path)
    assert b"odd but good" in brought.values()
    assert all(path.startswith("work/") for path in brought)
    assert not [path for path, content in brought.items() if b"root:" in content or content == b"hostile name"]
    recorded = admin.execution(result.execution)["status"]
    assert len(recorded["artifacts"]) == 256
    assert recorded["artifactsOmitted"] > 50

    there = await executor.get_file_list(TOKEN)
    assert 254 <= len(there) <= 256, "`...` and `..dots` are hidden"
    assert not [name for name in there if name.startswith(".")]
    for name in (
        "passwd",
        "etc/passwd",
        "link-to-a-file",
        "fifo",
        "socket",
        "loop/honest",
        "deep/up/honest",
    ):
        assert name not in there
        with pytest.raises(FileMissing):
            await executor.download_files([name], TOKEN)
    with pytest.raises(FileTransferError, match=r"'\.\./honest' has the part '\.\.'"):
        await executor.download_files(["../honest"], TOKEN)

    client = CodeExecutionClient(ClusterRef(SANDBOX, agent_kubeconfig))
    session = await client.join_session(
        admin.execution(result.execution)["spec"]["sessionRef"]["name"], Request(agent="e2e")
    )
    odd = ("NUL", "con.txt", "..dots", "...", "~root", "$HOME")
    fetched = await session.download([*odd, "passwd", "etc/*", "loop*", "deep/up*", "fifo"])
    for outside in ("/etc/passwd", "../*"):
        with pytest.raises(FileTransferError, match=r"give a (path relative to the workspace|relative path)"):
            await session.download([*odd, outside])
    await client.close()
    assert fetched == dict.fromkeys(odd, b"odd but good")


async def test_link_in_the_local_folder_is_not_followed(make, tmp_path, work_dir):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    (work_dir / "result").symlink_to(outside / "precious")
    (work_dir / "folder").symlink_to(outside)
    (work_dir / "folder" / "control").write_text("who just writes gets out")
    assert (outside / "control").exists()
    executor = make()
    result = await run(executor, "mkdir folder; echo new > result; echo new > folder/new", "sh")
    assert {one.path: one.fetched for one in result.artifacts} == {"folder/new": False, "result": True}
    assert (outside / "precious").read_text() == "precious"
    assert not (outside / "new").exists()
    assert not (work_dir / "result").is_symlink()
    assert (work_dir / "result").read_text() == "new\n"
    with pytest.raises(FileTransferError, match="leads out of"):
        await executor.download_files(["folder/new"], TOKEN)
    assert not (outside / "new").exists()


@pytest.mark.suspect
async def test_each_transfer_is_on_record_without_the_content(make, admin, work_dir):
    executor, marker = make(), os.urandom(16).hex().encode()
    (work_dir / "secret").write_bytes(marker)
    await executor.upload_files(["secret"], TOKEN)
    await executor.get_file_list(TOKEN)
    await executor.download_files(["secret"], TOKEN)

    ran = (await run(executor, "true", "sh")).execution
    client = f"{CLIENT_LABEL}={admin.execution(ran)['metadata']['labels'][CLIENT_LABEL]}"
    records = [one for one in admin.list("codeexecution", labels=client) if one["metadata"]["name"] != ran]
    [upload] = [one for one in records if "files" in one["spec"]]
    assert upload["spec"]["files"] == [{"path": "secret", "sha256": sha256(marker), "sizeBytes": len(marker)}]
    [download] = [one for one in records if one["spec"]["artifacts"].get("fetch")]
    [artifact] = download["status"]["artifacts"]
    assert artifact == {"path": "secret", "sha256": sha256(marker), "sizeBytes": len(marker), "fetched": True}
    listings = [one for one in records if one["spec"]["artifacts"]["list"] == "All"]
    assert listings
    assert {one["status"]["phase"] for one in records} == {"Succeeded"}
    assert {one["spec"]["blocks"] == [] for one in records} == {True}

    forms = (marker.decode(), base64.b64encode(marker).decode())
    [ref] = download["status"]["outputRefs"]
    stored = admin.get("configmap", ref["name"])["binaryData"]
    assert gzip.decompress(base64.b64decode(stored["artifact-0.gz"])) == marker  # the control: this is where it is
    forms += (stored["artifact-0.gz"],)
    log = operator_log(admin)
    assert upload["metadata"]["name"] in log
    for form in forms:
        assert form not in json.dumps(records)
        assert form not in log
    assert upload["metadata"]["name"] not in json.dumps(admin.list("secret"))  # test_sealing: that is where it would be
