"""What `make images` signs and attests: in the forms that cosign reads, the same each time, and beside the image."""

import base64
import hashlib
import io
import json
import re
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cyclonedx.schema._res
import pytest
from cluster_tools import ROOT
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from factories import A_SIGNING_KEY, IMAGE
from image_release.contents import bill_of_materials, of_archive
from image_release.provenance import provenance, tree
from image_release.registry import Repository
from image_release.signing import CYCLONEDX, SigningKey, statement
from jsonschema import Draft7Validator
from referencing import Registry, Resource

from codeexec_api.image_signatures import SIGN_PREDICATE, Finding, examine, parse_keys

MANIFEST = b'{"schemaVersion":2}'
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
BUNDLE = A_SIGNING_KEY.sign(statement(IMAGE))
BASIC = 'Basic realm="registry"'
BEARER = 'Bearer realm="http://{host}/token",service="box",scope="push"'
LOGIN = base64.b64encode(b"robot:secret").decode()


class Played:
    """A registry with one image. It has the referrers API or not, and may want Docker's credentials."""

    def __init__(self, *, referrers: bool, challenge: str = "") -> None:
        self.referrers, self.challenge = referrers, challenge
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, bytes]] = {DIGEST: (OCI_MANIFEST, MANIFEST)}
        self.puts: list[str] = []

    @property
    def attached(self) -> list[dict[str, Any]]:
        """The manifests of what was put beside the image."""
        parsed = [json.loads(content) for name, (_, content) in self.manifests.items() if name.startswith("sha256:")]
        return [one for one in parsed if one.get("subject", {}).get("digest") == DIGEST]

    def answer(self, method: str, path: str, body: bytes, headers: Any) -> tuple[int, dict[str, str], bytes]:
        if self.challenge and (refusal := self._who(path, headers)):
            return refusal
        kind, _, name = path.removeprefix("/v2/team/box/").partition("/")
        if kind == "blobs":
            return self._blob(method, name, body)
        if method == "PUT":
            self.puts.append(name)
            self.manifests[name] = (headers["Content-Type"], body)
            subject = json.loads(body).get("subject")
            return 201, {"OCI-Subject": subject["digest"]} if subject and self.referrers else {}, b""
        if name not in self.manifests:
            return 404, {}, b"{}"
        media_type, content = self.manifests[name]
        return 200, {"Content-Type": media_type}, content

    def _who(self, path: str, headers: Any) -> tuple[int, dict[str, str], bytes] | None:
        if path == "/token?service=box&scope=push":
            known = headers["Authorization"] == f"Basic {LOGIN}"
            return (200, {}, b'{"token": "good"}') if known else (401, {}, b"{}")
        if headers["Authorization"] == (f"Basic {LOGIN}" if self.challenge == BASIC else "Bearer good"):
            return None
        return 401, {"WWW-Authenticate": self.challenge.format(host=headers["Host"])}, b""

    def _blob(self, method: str, name: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if method == "POST":
            return 202, {"Location": "/v2/team/box/blobs/uploads/1?state=x"}, b""
        if method == "PUT":
            digest = name.partition("digest=")[2]
            assert digest == f"sha256:{hashlib.sha256(body).hexdigest()}"
            self.blobs[digest] = body
            return 201, {}, b""
        return (200 if name in self.blobs else 404), {}, b""


Serve = Callable[[Played], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a registry; gives the reference of its image."""
    with ExitStack() as stack:
        yield lambda played: stack.enter_context(_served(played))


@contextmanager
def _served(played: Played) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            status, headers, content = played.answer(self.command, self.path, body, self.headers)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = _do  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"localhost:{server.server_port}/team/box@{DIGEST}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's credentials but those of a test."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "config.json"


@pytest.mark.parametrize("referrers", [True, False], ids=["OCI 1.1", "older"])
def test_a_bundle_stands_beside_the_image_as_its_referrer(serve: Serve, referrers: bool) -> None:
    played = Played(referrers=referrers)
    reference = serve(played)
    Repository(reference).attach(BUNDLE, SIGN_PREDICATE)
    [manifest] = played.attached
    assert manifest["artifactType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"
    assert manifest["subject"] == {"mediaType": OCI_MANIFEST, "digest": DIGEST, "size": len(MANIFEST)}
    assert manifest["annotations"]["dev.sigstore.bundle.predicateType"] == SIGN_PREDICATE
    [layer] = manifest["layers"]
    assert played.blobs[layer["digest"]] == BUNDLE.encode()
    assert played.blobs[manifest["config"]["digest"]] == b"{}"
    assert (DIGEST.replace(":", "-") in played.manifests) is not referrers, "a tag lists them where nothing else does"


def test_the_tag_of_an_older_registry_lists_all_of_them_once(serve: Serve) -> None:
    played = Played(referrers=False)
    repository = Repository(serve(played))
    for _ in range(2):
        repository.attach(BUNDLE, SIGN_PREDICATE)
        repository.attach(A_SIGNING_KEY.sign(statement(IMAGE, CYCLONEDX, {})), CYCLONEDX)
    _, content = played.manifests[DIGEST.replace(":", "-")]
    index = json.loads(content)
    kinds = [one["annotations"]["dev.sigstore.bundle.predicateType"] for one in index["manifests"]]
    assert kinds == [SIGN_PREDICATE, CYCLONEDX]
    assert {one["digest"] for one in index["manifests"]} == set(played.manifests) - {DIGEST, DIGEST.replace(":", "-")}


@pytest.mark.parametrize("challenge", [BASIC, BEARER], ids=["basic", "token"])
def test_docker_s_credentials_are_used(serve: Serve, docker_config: Path, challenge: str) -> None:
    played = Played(referrers=True, challenge=challenge)
    reference = serve(played)
    with pytest.raises(SystemExit, match=r"does not show .*401 Unauthorized"):
        Repository(reference).attach(BUNDLE, SIGN_PREDICATE)
    docker_config.write_text(json.dumps({"auths": {reference.partition("/")[0]: {"auth": LOGIN}}}))
    Repository(reference).attach(BUNDLE, SIGN_PREDICATE)
    assert played.attached


def test_a_name_without_a_registry_is_refused() -> None:
    with pytest.raises(SystemExit, match="names no registry"):
        Repository(f"team/box@{DIGEST}")


def test_an_image_that_is_not_there_is_told(serve: Serve) -> None:
    reference = serve(Played(referrers=True)).replace(DIGEST, f"sha256:{'0' * 64}")
    with pytest.raises(SystemExit, match=f"does not show .*{'0' * 64} .404 Not Found.: push the image first"):
        Repository(reference).attach(BUNDLE, SIGN_PREDICATE)


# --- keys and bundles -----------------------------------------------------------------------------------------------


def test_the_same_statement_gives_the_same_bundle() -> None:
    """So that signing an image again changes nothing in its registry."""
    assert A_SIGNING_KEY.sign(statement(IMAGE)) == BUNDLE


def test_a_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    made = SigningKey.at(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.at(path).public_pem == made.public_pem
    assert examine(made.sign(statement(IMAGE)), parse_keys(made.public_pem)) == Finding(IMAGE.partition("sha256:")[2])


def test_a_key_with_a_password(tmp_path: Path) -> None:
    path = tmp_path / "mine.key"
    pem = A_SIGNING_KEY.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
    path.write_bytes(pem)
    assert SigningKey.load(path, "word").hint == A_SIGNING_KEY.hint
    for wrong in (None, "other"):
        with pytest.raises(SystemExit, match="can't be read as a signing key"):
            SigningKey.load(path, wrong)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.key"
    key = SigningKey(ec.generate_private_key(ec.SECP384R1())).key
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")))
    with pytest.raises(
        SystemExit, match=r"is a key of another kind \(allowed: PEM \(PKCS#8\) of an ECDSA key on P-256"
    ):
        SigningKey.load(path, "word")


def test_the_command_signs_what_is_in_a_registry_and_says_where_the_signature_is(serve: Serve, tmp_path: Path) -> None:
    played = Played(referrers=True)
    reference, key = serve(played), tmp_path / "mine.key"
    SigningKey.at(key)
    done = _command("sign", reference, CODEEXEC_SIGNING_KEY=str(key), CODEEXEC_SIGNATURES=str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    bundle = Path(done.stdout.strip()).read_text()
    keys = parse_keys((tmp_path / "out" / "signing.pub").read_text())
    assert examine(bundle, keys) == Finding(DIGEST.removeprefix("sha256:"))
    assert played.blobs[played.attached[0]["layers"][0]["digest"]] == bundle.encode()
    assert not (tmp_path / "out" / "signing.key").exists(), "none is made where one is given"


def test_the_command_takes_digests_only() -> None:
    done = _command("sign", "localhost:5001/team/box:1")
    assert done.returncode == 2
    assert "is no reference by digest (NAME@sha256:…)" in done.stderr


def _command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    support = str(ROOT / "tests" / "support")
    return subprocess.run(
        [sys.executable, "-m", "image_release", *arguments],
        env={"PYTHONPATH": support, "PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "utf-8", **environment},
        capture_output=True,
        text=True,
    )


# --- what is attested -----------------------------------------------------------------------------------------------

STATUS = """Package: bash
Status: install ok installed
Architecture: amd64
Version: 5.2.15-2+b7
Description: a shell
 of many lines

Package: libgcc-s1
Status: install ok installed
Source: gcc-12 (12.2.0-14)
Architecture: amd64
Version: 12.2.0-14+deb12u1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
FILES = {
    "./var/lib/dpkg/status": STATUS,
    "usr/lib/os-release": 'ID=debian\nVERSION_ID="12"\n',
    "opt/codeexec/packages/typing_extensions-4.16.0.dist-info/METADATA": (
        "Metadata-Version: 2.4\nName: typing_extensions\nVersion: 4.16.0\n\nText\n"
    ),
    "usr/share/METADATA": "Name: none\nVersion: 1\n",
}


def archive(files: dict[str, str]) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    stream.seek(0)
    return stream


def test_what_an_image_holds_is_read_from_its_own_lists() -> None:
    assert {str(one) for one in of_archive(archive(FILES)).packages} == {
        "pkg:deb/debian/bash@5.2.15-2%2Bb7?arch=amd64&distro=debian-12",
        "pkg:deb/debian/libgcc-s1@12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12&upstream=gcc-12%4012.2.0-14",
        "pkg:pypi/typing-extensions@4.16.0",
    }


def test_the_bill_of_materials_follows_the_schema_and_is_the_same_each_time() -> None:
    created = datetime(2026, 11, 21, 12, 0, 0, 5, tzinfo=UTC)
    document = bill_of_materials(IMAGE, of_archive(archive(FILES)), created)
    assert bill_of_materials(IMAGE, of_archive(archive(FILES)), created) == document
    folder = Path(next(iter(cyclonedx.schema._res.__path__)))
    schemas = [
        json.loads(path.read_text())
        for path in (folder / "spdx.SNAPSHOT.schema.json", folder / "jsf-0.82.SNAPSHOT.schema.json")
    ]
    registry = Registry().with_resources((one["$id"], Resource.from_contents(one)) for one in schemas)
    schema = Draft7Validator(json.loads((folder / "bom-1.6.SNAPSHOT.schema.json").read_text()), registry=registry)
    assert not [error.message for error in schema.iter_errors(document)]
    about = document["metadata"]["component"]
    assert f"{about['name']}@{about['version']}" == IMAGE.rpartition("/")[2]
    mirrored = IMAGE.replace("registry.example", "mirror.example/team")
    assert bill_of_materials(mirrored, of_archive(archive(FILES)), created) == document
    assert document["metadata"]["timestamp"] == "2026-11-21T12:00:00+00:00"


def test_the_provenance_names_commit_base_and_locks() -> None:
    base = f"python:3.11@sha256:{'e' * 64}"
    made = provenance(
        "sandbox", "0123", base, {"requirements/sandbox.txt": b"x"}, "c0ffee", True, "2026-11-21T12:00:00Z"
    )
    build = made["buildDefinition"]
    assert build["externalParameters"] == {"image": "sandbox"}
    source, of, lock = build["resolvedDependencies"]
    assert (source["digest"], source["annotations"]) == ({"gitCommit": "c0ffee"}, {"uncommittedChanges": True})
    assert (of["uri"], of["digest"]) == (base, {"sha256": "e" * 64})
    assert lock == {"name": "requirements/sandbox.txt", "digest": {"sha256": hashlib.sha256(b"x").hexdigest()}}
    assert made["runDetails"]["builder"]["id"].startswith(build["buildType"])


def test_the_tree_says_whether_what_went_in_is_committed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        named = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *named, *arguments], check=True, capture_output=True)

    assert tree(tmp_path, ["in"]) == ("", False), "no git tree"
    git("init")
    for name in ("in", "out"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    commit, dirty = tree(tmp_path, ["in"])
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert not dirty
    (tmp_path / "out").write_text("2")
    assert tree(tmp_path, ["in"]) == (commit, False)
    (tmp_path / "in").write_text("2")
    assert tree(tmp_path, ["in"]) == (commit, True)
