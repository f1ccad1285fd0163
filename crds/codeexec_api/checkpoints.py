"""Checkpoints of the audit log: signed statements of how far each chain went, and what a log is held against. Pure.

A chain's last line has the hash of the line before it, and so on, so its hash stands for the whole chain up to there.
A checkpoint names the last lines that its signer saw, with their hashes. Whoever rewrites a line of a chain changes all
later hashes, and can't change what was signed. Checkpoints of one signer are numbered, and each has the SHA-256 of the
one before it.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple, Self, TypeAlias

from codeexec_api.audit import GENESIS, in_utc, is_in_utc
from codeexec_api.audit_coverage import Coverage
from codeexec_api.audit_findings import CLOCKS_APART, Chain, FindingKind, Found
from codeexec_api.digests import sha256_hex
from codeexec_api.signed_note import VerifyingKey

_FORMAT: Final = "codeexec audit checkpoint 1"
_FILE: Final = re.compile(r"[0-9]{10}\.checkpoint")
_HEAD: Final = re.compile(r"head (\S+) ([0-9a-f]{32}) ([1-9][0-9]{0,15}) ([0-9a-f]{64}) (\S+)")
_TEXT: Final = re.compile(
    rf"{_FORMAT}\norigin (\S+)\nnumber ([1-9][0-9]{{0,9}})\ntime (\S+)\nprevious ([0-9a-f]{{64}})\n((?:head .+\n)+)"
)
ALL: Final = "the checkpoints"
"""Where findings are that concern no single one."""


class Head(NamedTuple):
    """The last line of a chain that a signer saw."""

    namespace: str
    chain: str
    sequence: int
    """Its number, and so the number of lines of the chain."""
    hash: str
    time: str
    """Of the line, by the operator's clock."""


@dataclass(frozen=True)
class Checkpoint:
    """What is signed."""

    origin: str
    """Name of the signer's key: which installation this is about."""
    number: int
    time: str
    """By the signer's clock, RFC 3339 in UTC."""
    previous: str
    """SHA-256 of the whole checkpoint before it."""
    heads: tuple[Head, ...]

    @property
    def file(self) -> str:
        """Name of its file or object."""
        return f"{self.number:010}.checkpoint"

    @property
    def text(self) -> str:
        """The text of its signed note."""
        fields = {"origin": self.origin, "number": self.number, "time": self.time, "previous": self.previous}
        lines = [_FORMAT, *(f"{name} {value}" for name, value in fields.items())]
        lines += [f"head {' '.join(map(str, head))}" for head in self.heads]
        return "".join(f"{line}\n" for line in lines)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From its text.

        Raises:
            ValueError: it is none, or none of this format.
        """
        if found := _TEXT.fullmatch(text):
            origin, number, time, previous, rest = found.groups()
            parts = [one.groups() for one in map(_HEAD.fullmatch, rest.splitlines()) if one]
            heads = tuple(Head(namespace, chain, int(line), *more) for namespace, chain, line, *more in parts)
            checkpoint = cls(origin, int(number), time, previous, heads)
            if checkpoint.text == text and is_in_utc(time):
                return checkpoint
        first = text.partition("\n")[0]
        raise ValueError(f"it is not a checkpoint that this codeexec knows: {first[:80]!r} (allowed: {_FORMAT!r})")


class Witness(NamedTuple):
    """Checkpoints that a log is held against."""

    files: Mapping[str, bytes]
    """By name. Those of other names are left alone."""
    key: VerifyingKey


def checkpoint_files(names: Iterable[str]) -> list[str]:
    """Those of these names that are checkpoints', in order."""
    return sorted(name for name in names if _FILE.fullmatch(name))


def following(last: tuple[Checkpoint, bytes] | None, origin: str, heads: Iterable[Head], now: datetime) -> Checkpoint:
    """The checkpoint after the last one, which is given with its file.

    The node keeps only the end of a log. So what the log shows nothing of keeps its head: a namespace where nothing
    happened.
    """
    seen = sorted(heads)
    if last is None:
        return Checkpoint(origin, 1, in_utc(now), GENESIS, tuple(seen))
    before, file = last
    shown = {head.namespace for head in seen}
    kept = [head for head in before.heads if head.namespace not in shown]
    return Checkpoint(origin, before.number + 1, in_utc(now), sha256_hex(file), tuple(sorted([*seen, *kept])))


# --- the checkpoints alone ---


def read_checkpoints(witness: Witness, found: Found) -> tuple[Checkpoint, ...]:
    """Those that are signed and in order, oldest first. What is wrong with the others is found."""
    names = checkpoint_files(witness.files)
    if not names:
        found.say(FindingKind.MISSING, ALL, "there is none: look for files such as 0000000001.checkpoint elsewhere")
        return ()
    fine: list[Checkpoint] = []
    for name in names:
        try:
            fine.append(_read(name, witness))
        except ValueError as error:
            found.say(FindingKind.CHECKPOINT_INVALID, name, str(error))
    if (first := int(names[0].partition(".")[0])) > 1:
        found.wonder(FindingKind.MISSING, names[0], f"checkpoints 1 to {first - 1} are not there")
    for before, after in pairwise(names):
        first, last = int(before.partition(".")[0]) + 1, int(after.partition(".")[0]) - 1
        if first <= last:
            which = f"checkpoint {first} is" if first == last else f"checkpoints {first} to {last} are"
            found.say(FindingKind.MISSING, after, f"{which} missing before it")
    for one, other in pairwise(fine):
        if other.number == one.number + 1:
            _check_order(one, other, witness.files[one.file], found)
    return tuple(fine)


def _read(name: str, witness: Witness) -> Checkpoint:
    checkpoint = Checkpoint.parse(witness.key.open(witness.files[name]))
    if checkpoint.file != name:
        raise ValueError(f"it is checkpoint {checkpoint.number}, whose name is {checkpoint.file}")
    if checkpoint.origin != witness.key.name:
        raise ValueError(f"its origin is {checkpoint.origin!r}, but its key is that of {witness.key.name!r}")
    return checkpoint


def _check_order(one: Checkpoint, other: Checkpoint, file: bytes, found: Found) -> None:
    if other.previous != sha256_hex(file):
        found.say(FindingKind.CHECKPOINT_INVALID, other.file, f"it does not follow {one.file}")
    heads = {head.chain: head for head in one.heads}
    for head in other.heads:
        before = heads.get(head.chain, head)
        if before.sequence > head.sequence or (before.sequence == head.sequence and before != head):
            message = f"line {head.sequence} of chain {head.chain} contradicts line {before.sequence} in {one.file}"
            found.say(FindingKind.CHECKPOINT_INVALID, other.file, message)


# --- the lines ---

_Seen: TypeAlias = tuple[Head, Checkpoint]


def compare(chains: Mapping[str, Chain], coverage: Coverage, checkpoints: Sequence[Checkpoint], found: Found) -> None:
    """Hold chains against what checkpoints saw of them: one finding for each chain, the first contradiction."""
    seen: defaultdict[str, dict[Head, Checkpoint]] = defaultdict(dict)
    for checkpoint in checkpoints:
        for head in checkpoint.heads:
            seen[head.chain].setdefault(head, checkpoint)
    for name, heads in seen.items():
        ordered = sorted(heads.items(), key=lambda one: one[0].sequence)
        if chain := chains.get(name):
            _check_chain(chain, ordered, coverage, found)
        else:
            _absent(*ordered[-1], coverage, found)


def _check_chain(chain: Chain, heads: Sequence[_Seen], coverage: Coverage, found: Found) -> None:
    first = min(chain)
    for head, checkpoint in heads:
        line, after = chain.get(head.sequence), chain.get(head.sequence + 1)
        told = f"line {head.sequence} of chain {head.chain}"
        if head.sequence > max(chain):
            message = (
                f"chain {head.chain} ends with line {max(chain)} in the given logs, but {checkpoint.file}, of "
                f"{checkpoint.time}, saw line {head.sequence}: give a newer copy of the log, or its end was cut off"
            )
            return found.say(FindingKind.MISSING, chain[max(chain)].where, message)
        if line and (line.body["hash"], line.body["namespace"]) != (head.hash, head.namespace):
            message = f"{told} is not the one that {checkpoint.file}, of {checkpoint.time}, saw"
            return found.say(FindingKind.REWRITTEN, line.where, message)
        if not line and after and after.body["previous"] != head.hash:
            message = f"it does not follow {told}, as {checkpoint.file}, of {checkpoint.time}, saw it"
            return found.say(FindingKind.REWRITTEN, after.where, message)
        if head.sequence < first and not after and coverage.covers(head.namespace, head.time):
            message = f"{told}, which {checkpoint.file}, of {checkpoint.time}, saw, is missing before it"
            return found.say(FindingKind.MISSING, chain[first].where, message)
    return _check_times(chain, heads, found)


def _check_times(chain: Chain, heads: Sequence[_Seen], found: Found) -> None:
    """What follows a head was written after its first checkpoint was signed, which saw the head as the last line.

    Later checkpoints may repeat a head because the node had dropped what followed. The copy of the log that was signed
    may have been behind, so it can't be told whether a line that is older was inserted.
    """
    numbers = sorted(chain)
    ends = [*(head.sequence for head, _ in heads[1:]), numbers[-1]]
    for (head, checkpoint), end in zip(heads, ends, strict=True):
        signed = datetime.fromisoformat(checkpoint.time)
        for number in numbers[bisect_right(numbers, head.sequence) : bisect_right(numbers, end)]:
            line = chain[number]
            if signed - line.moment > CLOCKS_APART:
                message = (
                    f"line {number} of chain {head.chain} is of {line.body['time']}, but {checkpoint.file}, of "
                    f"{checkpoint.time}, saw line {head.sequence} as the last one"
                )
                return found.wonder(FindingKind.MISDATED, line.where, message)
    return None


def _absent(head: Head, checkpoint: Checkpoint, coverage: Coverage, found: Found) -> None:
    message = (
        f"chain {head.chain} of namespace {head.namespace} is not in the given logs, but {checkpoint.file}, of "
        f"{checkpoint.time}, saw its line {head.sequence}, of {head.time}"
    )
    if coverage.covers(head.namespace, head.time):
        found.say(FindingKind.MISSING, checkpoint.file, f"{message}, a time that the logs cover")
    else:
        found.wonder(FindingKind.MISSING, checkpoint.file, message)
