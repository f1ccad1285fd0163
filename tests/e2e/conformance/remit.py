"""The remit, the proofs of its lines, and the page that tells which lines a run has proven."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PROVEN, NOT_PROVEN = "proven", "NOT PROVEN"
HELD = "held so far"
"""Of a run of some of its proofs: none failed, but the others were not tried."""


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

    file: str
    words: str
    ids: tuple[str, ...]
    cases: list[str] = field(default_factory=list)
    controls: list[str] = field(default_factory=list)
    runtimes: list[str] = field(default_factory=list)
    planned: int = 0
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Proven if at least one case passed and none failed."""
        return PROVEN if self.passed and not self.failed else NOT_PROVEN

    @property
    def whole(self) -> bool:
        """Every case has run, or was skipped for a reason."""
        return self.passed + self.failed + len(self.skipped) == self.planned

    def add(self, case: str, shown: Mapping[str, Any]) -> None:
        """Take down what one case has shown."""
        if shown["skipped"]:
            self.skipped.append(f"{case}: {shown['skipped']}" if case else shown["skipped"])
            return
        if case and case not in self.cases:
            self.cases.append(case)
        self.passed += shown["passed"]
        self.failed += not shown["passed"]
        self.controls += [one for one in shown["controls"] if one not in self.controls]
        self.runtimes += [one for one in shown["runtimes"] if one not in self.runtimes]


def proofs(planned: Mapping[str, Mapping[str, Any]], shown: Mapping[str, Mapping[str, Any]]) -> list[Proof]:
    """The proofs that were collected, in their order, with what those of their cases have shown that ran."""
    found: dict[str, Proof] = {}
    for node, test in planned.items():
        proof = found.setdefault(node.split("[")[0], Proof(test["file"], test["words"], tuple(test["ids"])))
        proof.planned += 1
        if node in shown:
            proof.add(test["case"], shown[node])
    return list(found.values())


@dataclass(frozen=True)
class Line:
    """A guarantee with its proofs."""

    guarantee: Guarantee
    proofs: tuple[Proof, ...]
    complete: bool
    """All proofs that there are were collected."""

    @property
    def verdict(self) -> str:
        """Proven if there is a proof, all have run, and all hold that the cluster allowed to be tried."""
        tried = [proof for proof in self.proofs if proof.passed or proof.failed]
        if any(proof.failed for proof in tried):
            return NOT_PROVEN
        if not self.complete or not all(proof.whole for proof in self.proofs):
            return HELD if tried else NOT_PROVEN
        return PROVEN if tried else NOT_PROVEN


def lines(known: Iterable[Proof], *, complete: bool) -> list[Line]:
    """Each guarantee with its proofs, in the order of the remit."""
    listed = list(known)
    return [
        Line(guarantee, tuple(proof for proof in listed if guarantee.id in proof.ids), complete)
        for guarantee in guarantees().values()
    ]


def table(found: Iterable[Line]) -> str:
    """What the terminal shows: a row for each line of the remit; in a run of some proofs, for each that was tried."""
    shown = [line for line in found if line.complete or any(proof.passed or proof.failed for proof in line.proofs)]
    rows = [("id", "guarantee", "proofs", "verdict")]
    rows += [(line.guarantee.id, line.guarantee.title, _ran(line), line.verdict) for line in shown]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def page(proven: list[Line], cluster: Mapping[str, str]) -> str:
    """`docs/security/conformance.md`: the same text for the same outcome, so that a second run changes nothing."""
    count = sum(line.verdict == PROVEN for line in proven)
    parts = [
        "# Conformance",
        "`make conformance` writes this page; do not edit it. Attack code tests each guarantee on a real cluster. Each "
        "proof has a control in the same test: the same attack on an unprotected target, where it must succeed. A "
        "proof without a control fails.",
        "The unprotected pod has the sandbox's image and Kubernetes' defaults: root with capabilities, a "
        "service-account token, no NetworkPolicy and no limits. The privileged pod also has every capability. "
        "The careless pod also shares processes, network and folders with the node. If a proof shows that a request is "
        "rejected, its control is a similar request that must be accepted.",
        "`make conformance` creates a test cluster, or uses the one in `KUBECONFIG`, which must be for tests only. The "
        "proofs are in [tests/e2e/conformance](../../tests/e2e/conformance/).",
        f"**{count} of {len(proven)} guarantees are proven** on:",
        rows(("", "this cluster"), cluster.items()),
        "A proof that names runtimes ran under each of them, any other proof under the cluster's default runtime. Not "
        "tested under gVisor: limits on CPU time and memory, which the test cluster doesn't enforce there "
        "([tests/cluster](../../tests/cluster/README.md)), and Landlock, which gVisor doesn't have.",
        rows(
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
    if proof.failed:
        text += f" **{NOT_PROVEN}**"
    if proof.skipped:
        text += f" **not tried here: {'; '.join(proof.skipped)}**"
    if proof.runtimes:
        text += f" Runtimes: {', '.join(proof.runtimes)}."
    if proof.cases:
        text += f" Cases: {'; '.join(proof.cases)}."
    return "\n".join([text, *(f"  - control: {control}" for control in proof.controls)])


def rows(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> str:
    """A table of Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ("---",) * len(head), *body])


def _count(line: Line) -> str:
    return str(len(line.proofs))


def _ran(line: Line) -> str:
    ran = sum(bool(proof.passed or proof.failed) for proof in line.proofs)
    return str(ran) if ran == len(line.proofs) and line.complete else f"{ran} of {len(line.proofs)}"


def _anchor(guarantee: Guarantee) -> str:
    text = f"{guarantee.id}: {guarantee.title}".lower().replace(" ", "-")
    return "".join(character for character in text if character.isalnum() or character == "-")
