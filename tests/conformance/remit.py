"""The remit, the proofs of its lines, and the page that tells which lines a run has proven."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
PROVEN, NOT_PROVEN = "proven", "NOT PROVEN"


@dataclass(frozen=True)
class Guarantee:
    """One line of the remit."""

    id: str
    title: str
    text: str


def guarantees() -> dict[str, Guarantee]:
    """Every line of `remit.toml` by its id, in order."""
    table = tomllib.loads((FOLDER / "remit.toml").read_text())
    return {id_: Guarantee(id_, entry["title"], entry["guarantee"]) for id_, entry in table.items()}


@dataclass
class Proof:
    """A test function with what its cases have shown in one run."""

    name: str
    file: str
    words: str
    ids: tuple[str, ...]
    cases: list[str] = field(default_factory=list)
    controls: list[str] = field(default_factory=list)
    runtimes: list[str] = field(default_factory=list)
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Proven if at least one case passed and none failed."""
        return PROVEN if self.passed and not self.failed else NOT_PROVEN


@dataclass(frozen=True)
class Line:
    """A guarantee with its proofs."""

    guarantee: Guarantee
    proofs: tuple[Proof, ...]

    @property
    def verdict(self) -> str:
        """Proven if there is a proof and all hold that the cluster allowed to be tried."""
        tried = [proof for proof in self.proofs if proof.passed or proof.failed]
        return PROVEN if tried and all(proof.verdict == PROVEN for proof in tried) else NOT_PROVEN


def lines(proofs: Iterable[Proof]) -> list[Line]:
    """Each guarantee with its proofs, in the order of the remit."""
    known = list(proofs)
    return [
        Line(guarantee, tuple(proof for proof in known if guarantee.id in proof.ids))
        for guarantee in guarantees().values()
    ]


def table(proven: Iterable[Line]) -> str:
    """What the terminal shows: a row for each line of the remit."""
    rows = [("id", "guarantee", "proofs", "verdict")]
    rows += [(line.guarantee.id, line.guarantee.title, _count(line), line.verdict) for line in proven]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def page(proven: list[Line], cluster: Mapping[str, str]) -> str:
    """`docs/security/conformance.md`: the same text for the same outcome, so that a second run changes nothing."""
    count = sum(line.verdict == PROVEN for line in proven)
    parts = [
        "# Conformance",
        "Written by `make conformance`; do not edit. Every guarantee of codeexec is tried by code that attacks it or "
        "fails, on a real cluster. Each proof has a control that ran in the same test: the same attack where nothing "
        "protects against it, and there it succeeded. A proof without one fails.",
        "The unprotected pod of the controls has the sandbox's image and the defaults of Kubernetes: root with "
        "capabilities, a token, no policy, no limits. The privileged pod has every capability besides.",
        "Run it: `make conformance` brings up a test cluster and writes this page anew; with `KUBECONFIG` set it uses "
        "that cluster, which must be for tests only. The proofs are in [tests/conformance]"
        "(../../tests/conformance/), a file for each guarantee.",
        f"**{count} of {len(proven)} guarantees are proven**, shown on:",
        _rows(("", "this cluster"), cluster.items()),
        "Where a proof names runtimes it ran under each of them; the others ran under the cluster's default. Left out "
        "under gVisor: limits of processor time and memory, which the test cluster doesn't enforce there "
        "([tests/cluster](../../tests/cluster/README.md)), and Landlock, which gVisor doesn't have.",
        _rows(
            ("id", "guarantee", "proofs", "verdict"),
            [
                (f"[{line.guarantee.id}](#{_anchor(line.guarantee)})", line.guarantee.text, _count(line), line.verdict)
                for line in proven
            ],
        ),
        *(_section(line) for line in proven),
    ]
    return "\n\n".join(parts) + "\n"


def _section(line: Line) -> str:
    heading = f"## {line.guarantee.id}: {line.guarantee.title}"
    return "\n\n".join([heading, f"{line.guarantee.text} **{line.verdict}**", "\n".join(map(_entry, line.proofs))])


def _entry(proof: Proof) -> str:
    text = f"- {proof.words} ([{Path(proof.file).name}](../../{proof.file}))"
    if proof.verdict != PROVEN:
        text += f" **{NOT_PROVEN if proof.failed else 'not tried here: ' + '; '.join(proof.skipped)}**"
    if proof.runtimes:
        text += f" Runtimes: {', '.join(proof.runtimes)}."
    if proof.cases:
        text += f" Cases: {'; '.join(proof.cases)}."
    return "\n".join([text, *(f"  - control: {control}" for control in proof.controls)])


def _rows(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ("---",) * len(head), *body])


def _count(line: Line) -> str:
    return str(len(line.proofs))


def _anchor(guarantee: Guarantee) -> str:
    text = f"{guarantee.id}: {guarantee.title}".lower().replace(" ", "-")
    return "".join(character for character in text if character.isalnum() or character == "-")
