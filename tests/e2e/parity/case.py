"""What a case of the parity suite is: what is run, and what each executor is seen to give."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from parity.parties import Party

Seen: TypeAlias = Mapping[str, Any]
"""What could be seen of an executor: names of one or two words, plain values."""
Block: TypeAlias = str | tuple[str, str]
"""Python, or language and code."""
Scenario: TypeAlias = Callable[[Party], Awaitable[Seen]]


def gives(exit_code: int, output: str) -> Seen:
    """A result with this output."""
    return {"exit code": exit_code, "output": output}


def says(exit_code: int, *words: str) -> Seen:
    """A result whose output holds these words, of those that the case looks for."""
    return {"exit code": exit_code, "says": list(words)}


def raises(kind: str, message: str) -> Seen:
    """An exception of this class, with the first line of its message."""
    return {"raises": kind, "message": message}


@dataclass(frozen=True, kw_only=True)
class Case:
    """The same thing done with each executor.

    The reference is AutoGen's Docker executor. `local` and `ours` are given where they differ from it; where ours
    does, `why` says for what reason.
    """

    id: str
    about: str
    """For the page: what is run."""
    docker: Seen
    local: Seen | None = None
    ours: Seen | None = None
    why: str = ""
    blocks: tuple[Block, ...] = ()
    looks_for: tuple[str, ...] = ()
    """If given, only these words are looked for in the output of `blocks`; the rest may vary."""
    scenario: Scenario | None = None
    """In place of `blocks`."""

    def expected(self, party: str) -> Seen:
        """What this executor has to give, exactly."""
        given = {"Local": self.local, "Docker": self.docker, "ours": self.ours}[party]
        return self.docker if given is None else given

    async def run(self, party: Party) -> Seen:
        """What this executor gives. An exception is an observation, too."""
        try:
            if self.scenario:
                return await self.scenario(party)
            result = await party.run(*self.blocks)
        except (Exception, asyncio.CancelledError) as error:
            lines = party.normalised(str(error)).splitlines()
            return raises(type(error).__name__, lines[0] if lines else "")
        if self.looks_for:
            return says(result.exit_code, *(words for words in self.looks_for if words in result.output))
        return gives(result.exit_code, party.normalised(result.output))


@dataclass(frozen=True)
class Group:
    """Cases about one thing; a table of the page."""

    title: str
    cases: tuple[Case, ...]
