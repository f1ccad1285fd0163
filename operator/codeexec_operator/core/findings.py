"""What decisions find out and pass on: how something ends, and what was shown of a pod."""

from dataclasses import dataclass
from typing import Any

from codeexec_api import Condition, EgressProof, Event, Reason


@dataclass(frozen=True)
class Ending:
    """How something ends, in the words of the record."""

    event: Event
    reason: Reason | None
    message: str


@dataclass(frozen=True)
class Proven:
    """What is known of a pod whose runner has reported, for the record."""

    condition: Condition
    proof: EgressProof
    facts: dict[str, Any]
    """Fields of the status."""
    weaker: str = ""
    """Why its isolation is weaker than its RuntimeClass promises, if it is."""

    @property
    def closed(self) -> bool:
        """True if it was shown that nothing leaves the sandbox but what was permitted."""
        return self.proof.verdict.holds
