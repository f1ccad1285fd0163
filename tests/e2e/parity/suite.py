"""All cases, in the order of the page."""

from parity.case import Case
from parity.cases import agents, component, functions, lifecycle, results, timing, workspace

GROUPS = (
    *results.GROUPS,
    *timing.GROUPS,
    *workspace.GROUPS,
    *functions.GROUPS,
    *lifecycle.GROUPS,
    *component.GROUPS,
    *agents.GROUPS,
)
PARTIES = ("Local", "Docker", "ours")
REFERENCE, OURS = "Docker", "ours"


def all_cases() -> list[Case]:
    """The cases of all groups."""
    return [case for group in GROUPS for case in group.cases]


def explains_itself(case: Case) -> str:
    """What is wrong with a case's account of how ours differs from the reference; empty if it is right."""
    if case.ours is not None and case.ours == case.docker:
        return "`ours` is given, but equals `docker`: leave it out"
    if case.ours is not None and not case.why:
        return "ours differs from Docker's, and `why` doesn't say for what reason"
    if case.ours is None and case.why:
        return "`why` explains a difference that is not there"
    if case.local is not None and case.local == case.docker:
        return "`local` is given, but equals `docker`: leave it out"
    return ""
