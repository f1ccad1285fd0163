"""Rules for Python code by what it imports: which parts are looked at, what is found, and what follows from it.

Advice to whoever reads or decides, and no isolation: see docs/code-gate.md. Pure. `Inquiry` makes what a child process
is told, and understands what it answers; operator and client start it, each in its own way. The code itself is read in
`imports.py`, by that process alone.
"""

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from codeexec_api import imports
from codeexec_api.digests import code_digest
from codeexec_api.v1alpha1.bounds import MAX_CODE_BYTES
from codeexec_api.v1alpha1.code_rules import CodeAction, CodeFinding, CodeRule
from codeexec_api.v1alpha1.execution import CodeExecutionSpec

UNREADABLE: Final = "unreadable Python"
"""What is found in code of which nothing can be told."""
WALL_SECONDS: Final = 10.0
"""How long the child process may take. Its CPU time is limited more tightly; this is for a machine that is busy."""
_LISTED: Final = 8
_PLACES: Final = 4
_SUFFIXES: Final = (".py", ".pyc", ".so")
"""Of what can be imported. What is no text can't be read, and counts as that."""


@dataclass(frozen=True)
class Hit:
    """Something that was found, and where."""

    module: str
    """As the rule has it; empty: Python can't read the code."""
    places: tuple[str, ...]
    """The first four of the blocks and files that it is in."""
    count: int


@dataclass(frozen=True)
class Reading:
    """What is known of the code of an execution. Holds names that rules list, and nothing of the code."""

    digest: str
    """Of all that was to be read."""
    modules: frozenset[str]
    """What was looked for."""
    hits: tuple[Hit, ...]

    def tells(self, spec: CodeExecutionSpec, rules: Iterable[CodeRule]) -> bool:
        """True if it is of exactly this code, and of all that these rules list."""
        return self.digest == _digest(parts(spec)) and self.modules >= modules_of(rules)


Part = tuple[str, str]
"""Where it stands in the spec, and the SHA-256 of its content."""


def parts(spec: CodeExecutionSpec) -> tuple[Part, ...]:
    """What is looked at: Python blocks, and blocks and files that can be imported from the workspace."""
    return tuple((place, sha256) for place, sha256, read in _all_parts(spec) if read)


def _all_parts(spec: CodeExecutionSpec) -> Iterator[tuple[str, str, bool]]:
    for index, block in enumerate(spec.blocks):
        read = block.language == "python" or (block.filename or "").endswith(_SUFFIXES)
        yield f"spec.blocks[{index}]", block.sha256, read
    for index, file in enumerate(spec.files or ()):
        yield f"spec.files[{index}]", file.sha256, file.path.endswith(_SUFFIXES)


def _digest(of: Iterable[Part]) -> str:
    return code_digest(list(of))


def modules_of(rules: Iterable[CodeRule]) -> frozenset[str]:
    """All that rules list."""
    return frozenset(module for rule in rules for module in rule.imports)


def unread(spec: CodeExecutionSpec, rules: Collection[CodeRule], reading: Reading | None) -> bool:
    """True if the code has to be read before anything can be said of it."""
    return bool(rules) and bool(parts(spec)) and (reading is None or not reading.tells(spec, rules))


def find(spec: CodeExecutionSpec, rules: Collection[CodeRule], reading: Reading | None) -> tuple[CodeFinding, ...]:
    """What rules have against the code, the strictest first. Code that wasn't read counts as code that can't be.

    Args:
        spec: whose code it is.
        rules: those that count for it.
        reading: what is known of the code; of other code, or of other modules, it is worth nothing.
    """
    if not rules:
        return ()
    known = reading.hits if reading and reading.tells(spec, rules) else _unreadable(place for place, _ in parts(spec))
    found = [(action, hit) for hit in known if (action := _action(hit.module, rules))]
    return tuple(
        CodeFinding(
            found=f"import {hit.module}" if hit.module else UNREADABLE,
            action=action,
            places=hit.places,
            count=hit.count,
        )
        for action, hit in sorted(found, key=lambda one: (-one[0].severity, one[1].module))
    )


def _action(module: str, rules: Iterable[CodeRule]) -> CodeAction | None:
    """The strictest of the rules that list it; of all rules for what can't be read."""
    actions = [rule.action for rule in rules if not module or module in rule.imports]
    return max(actions, key=lambda one: one.severity, default=None)


def demanded(finding: CodeFinding, rules: Iterable[CodeRule]) -> str:
    """What is allowed instead of what was found."""
    if finding.found == UNREADABLE:
        text = f"valid Python without IPython commands, at most {MAX_CODE_BYTES} bytes"
    else:
        listed = sorted(module for rule in rules if rule.action is finding.action for module in rule.imports)
        more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
        text = f"code that imports none of {', '.join(listed[:_LISTED])}{more}"
    return f"{text}; with approval: this code as well" if finding.action is CodeAction.NEED_APPROVAL else text


def _unreadable(places: Iterable[str]) -> tuple[Hit, ...]:
    return _hits({"": list(places)})


def _hits(found: dict[str, list[str]]) -> tuple[Hit, ...]:
    return tuple(
        Hit(module, tuple(places[:_PLACES]), len(places)) for module, places in sorted(found.items()) if places
    )


class Inquiry:
    """What a child process is asked about the code of an execution, and what its answer means.

    Args:
        spec: what is announced.
        blocks: content of each block, as announced.
        files: content of each file, as announced.
        rules: those that count for it.
    """

    def __init__(
        self, spec: CodeExecutionSpec, blocks: Sequence[bytes], files: Sequence[bytes], rules: Iterable[CodeRule]
    ) -> None:
        self._modules = sorted(modules_of(rules))
        self._parts = parts(spec)
        contents = zip(_all_parts(spec), (*blocks, *files), strict=True)
        self._sources = [content for (_, _, read), content in contents if read]

    @staticmethod
    def command() -> tuple[str, ...]:
        """Program and arguments: a Python that knows no environment, no packages and no folder of ours."""
        return (sys.executable, "-I", "-S", "-B", "-W", "ignore", str(Path(imports.__file__).resolve()))

    @property
    def most(self) -> int:
        """Bytes that an answer can have at most."""
        return len(self._parts) * (len(str(list(range(len(self._modules))))) + 8)

    def message(self) -> Iterator[bytes]:
        """For its stdin, in pieces: modules, sizes, and code. What is too large isn't sent."""
        sent = [source for source in self._sources if len(source) <= MAX_CODE_BYTES]
        yield f"{' '.join(self._modules)}\n{' '.join(str(len(one)) for one in sent)}\n".encode()
        yield from sent

    def reading(self, answer: bytes) -> Reading:
        """What its stdout means. It gives a line for each part, as far as it came; what is missing is unreadable."""
        lines = iter(answer.splitlines())
        found: dict[str, list[str]] = {"": []}
        for (place, _), source in zip(self._parts, self._sources, strict=True):
            line = next(lines, b"") if len(source) <= MAX_CODE_BYTES else b""
            for module in self._named(line):
                found.setdefault(module, []).append(place)
        return Reading(_digest(self._parts), frozenset(self._modules), _hits(found))

    def _named(self, line: bytes) -> list[str]:
        """Modules of one line; the empty name if it says that there is nothing to say, or isn't what was asked for."""
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            return [""]
        if not isinstance(told, list) or not all(type(one) is int for one in told):
            return [""]
        proper = told == sorted(set(told)) and all(0 <= one < len(self._modules) for one in told)
        return [self._modules[index] for index in told] if proper else [""]
