"""Files of exported records: what each holds, how it follows the one before it, and what is read from them. Pure.

A file is JSON lines. The first line is its header. Then there is a line for each record, `{"record": …}`, with the
object as the API server has it, and a line for each audit line, as the operator's log has it. A record is identified by
its UID and resource version. Files are numbered, never replaced, and each has the SHA-256 of the one before it.

An export is as many files as it takes. The last one says up to which resource version every finished record was written
(`upTo`). So an export that was cut off is one whose last file doesn't say so, and the next one goes on from there.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self, TypeAlias

from codeexec_api.audit import GENESIS, in_utc
from codeexec_api.audit_findings import FindingKind, Found, LogLine
from codeexec_api.digests import SHA256_HEX, sha256_hex
from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL

FORMAT: Final = 1
MOST_FILES: Final = 10**10 - 1
_FILE: Final = re.compile(r"[0-9]{10}\.jsonl")

Versions: TypeAlias = Mapping[str, int]
"""A resource version for each kind of record, by its plural."""
Identity: TypeAlias = tuple[str, str]
"""UID and resource version of a record."""


@dataclass(frozen=True)
class Header:
    """What the first line of a file says."""

    namespace: str
    number: int = 1
    previous: str = GENESIS
    """SHA-256 of the file before it."""
    time: str = ""
    up_to: Versions | None = None
    """None: more files of the same export follow."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """Last line of each chain that was written, in this file or before."""
    own: tuple[str, str] | None = None
    """Name and SHA-256 of the last file before it that its export has written, both empty if there is none.

    None: that is the file before it. If others have added files to the storage, it is not.
    """

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"{self.number:010}.jsonl"

    @property
    def text(self) -> str:
        """The line, without its end."""
        body: dict[str, Any] = {
            "format": FORMAT,
            "namespace": self.namespace,
            "number": self.number,
            "previous": self.previous,
            "time": self.time,
            "lines": dict(self.lines),
        }
        if self.own is not None:
            body["own"] = list(self.own)
        return _dumped({"export": body if self.up_to is None else body | {"upTo": dict(self.up_to)}})

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Of a file.

        Raises:
            ValueError: it is none, or none of this format.
        """
        first = content.partition(b"\n")[0]
        try:
            found = json.loads(first)["export"]
            up_to, own = found.get("upTo"), found.get("own")
            header = cls(
                namespace=str(found["namespace"]),
                number=int(found["number"]),
                previous=str(found["previous"]),
                time=str(found["time"]),
                up_to=None if up_to is None else {str(plural): int(version) for plural, version in up_to.items()},
                lines={str(chain): int(number) for chain, number in found["lines"].items()},
                own=None if own is None else (str(own[0]), str(own[1])),
            )
            if found["format"] == FORMAT and SHA256_HEX.fullmatch(header.previous):
                return header
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            pass
        raise ValueError(f"it does not begin as an export that this codeexec knows: {first[:80]!r}")

    def checked(self, name: str, content: bytes, namespace: str, sha256: str) -> Self:
        """This header, of the file `name` of an export of this namespace; `sha256` is known of the file, or empty.

        Raises:
            ValueError: the file is another one.
        """
        if self.file != name:
            raise ValueError(f"its header says that it is {self.file}")
        if self.namespace != namespace:
            raise ValueError(f"it is of namespace {self.namespace!r}, not of {namespace!r}")
        if sha256 and sha256_hex(content) != sha256:
            raise ValueError(
                f"its SHA-256 is {sha256_hex(content)}, but {sha256} was written. Somebody has changed the file: keep "
                "all files for an investigation, and export to another place"
            )
        return self

    def before(self, names: Sequence[str]) -> tuple[str, str]:
        """Name and SHA-256 of the last of these files, in order, that its export had written. Empty: none."""
        if self.own is not None:
            return self.own if self.own[0] in names and self.own[0] < self.file else ("", "")
        earlier = [name for name in names if name < self.file]
        return (earlier[-1], self.previous) if earlier else ("", "")

    def following(self, content: bytes, now: datetime) -> "Header":
        """Of the file after this one; `content` is this one's."""
        sha256 = sha256_hex(content)
        return Header(self.namespace, self.number + 1, sha256, in_utc(now), lines=self.lines)


@dataclass(frozen=True)
class Cursor:
    """How far an export got, as the ConfigMap `codeexec-export` says. Only the job that exports may write it."""

    versions: Versions = field(default_factory=dict)
    """Every finished record up to these resource versions was written."""
    file: str | None = None
    """The last file that was written; empty: no file yet. None: a codeexec that notes no files has written this."""
    sha256: str = ""
    """Of that file."""

    @classmethod
    def parse(cls, data: Mapping[str, str]) -> Self:
        """From the data of the ConfigMap. A version that is no number counts as none."""
        found = {plural: data.get(plural, "") for plural in (EXECUTION_PLURAL, SESSION_PLURAL)}
        versions = {plural: int(version) for plural, version in found.items() if version.isdecimal()}
        return cls(versions, data.get("file"), data.get("sha256", ""))

    @property
    def data(self) -> dict[str, str]:
        """Of the ConfigMap."""
        versions = {plural: str(version) for plural, version in self.versions.items()}
        return versions | {"file": self.file or "", "sha256": self.sha256}

    def own(self, names: Sequence[str]) -> list[str]:
        """Those of these files, in order, that the export has written for certain."""
        if self.file is None and self.versions:
            return list(names)
        return list(names[: names.index(self.file) + 1]) if self.file in names else []


def export_files(names: Iterable[str]) -> list[str]:
    """Those of these names that are exports', in order."""
    return sorted(name for name in names if _FILE.fullmatch(name))


def render(header: Header, records: Iterable[Mapping[str, Any]], lines: Iterable[str] = ()) -> bytes:
    """A file. `lines` are audit lines as the operator's log has them."""
    texts = [header.text, *(_dumped({"record": one}) for one in records), *lines]
    return "".join(f"{text}\n" for text in texts).encode()


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def identity_of(record: Mapping[str, Any]) -> Identity:
    """Of a record as it is stored."""
    return record["metadata"]["uid"], record["metadata"]["resourceVersion"]


def records_in(content: bytes) -> Iterator[Mapping[str, Any]]:
    """The records of a file.

    Raises:
        ValueError: a line is no JSON.
    """
    for text in content.splitlines():
        if text.startswith(b'{"record":'):
            yield json.loads(text)["record"]


@dataclass(frozen=True)
class Exported:
    """What was read from the files of an export."""

    records: tuple[Mapping[str, Any], ...]
    """The newest version of each record."""
    lines: tuple[LogLine, ...]


def read_export(files: Mapping[str, bytes], found: Found) -> Exported:
    """Read files, by their name, and check that each is the one that the next one names."""
    records: dict[str, Mapping[str, Any]] = {}
    lines: list[LogLine] = []
    before: tuple[Header, bytes] | None = None
    for name in export_files(files):
        content = files[name]
        try:
            header = Header.parse(content)
            for record in records_in(content):
                uid, version = identity_of(record)
                if not all(isinstance(one, str) for one in (record["kind"], record["metadata"]["name"], uid, version)):
                    raise ValueError("the kind, name, UID or version of a record is not a string")
                if uid not in records or int(version) >= int(records[uid]["metadata"]["resourceVersion"]):
                    records[uid] = record
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            found.say(FindingKind.EXPORT_INVALID, name, f"it can't be read: {error}")
            continue
        _follows(name, header, before, found)
        texts = content.decode(errors="replace").split("\n")  # text of an agent may hold other ends of lines
        lines += [
            LogLine(name, at, text, True) for at, text in enumerate(texts, 1) if not text.startswith('{"record":')
        ]
        before = header, content
    if not files:
        found.say(FindingKind.EXPORT_INVALID, "the export", "there is no file")
    return Exported(tuple(records.values()), tuple(lines))


def _follows(name: str, header: Header, before: tuple[Header, bytes] | None, found: Found) -> None:
    last, content = before or (None, b"")
    first, expected = (last.number + 1 if last else 1), (sha256_hex(content) if last else GENESIS)
    if header.file != name:
        found.say(FindingKind.EXPORT_INVALID, name, f"it says that it is {header.file}")
    elif header.number > first:
        tell = found.say if last else found.wonder  # the oldest ones may be elsewhere
        tell(FindingKind.EXPORT_INVALID, name, f"files {first} to {header.number - 1} are not there")
    elif header.previous != expected:
        found.say(FindingKind.EXPORT_INVALID, name, "the file before it is not the one that it names")
