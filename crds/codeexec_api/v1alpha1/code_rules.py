"""Rules for what code imports, and what they found."""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from codeexec_api.v1alpha1.base import Model, Status
from codeexec_api.v1alpha1.bounds import MAX_BLOCKS, MAX_CODE_RULES, MAX_FILES, MAX_IMPORTS, MODULE_PATTERN
from codeexec_api.v1alpha1.fields import SET


class CodeAction(StrEnum):
    """What the operator does with code that matches a code rule, from mildest to strictest."""

    NOTE = "Note"
    """Run the code and record the finding."""
    NEED_APPROVAL = "NeedApproval"
    """Wait for a human's approval."""
    DENY = "Deny"
    """Refuse the execution."""

    @property
    def severity(self) -> int:
        """A higher number is stricter."""
        return list(CodeAction).index(self)


class CodeFinding(Status):
    """CodeFinding is a match of a code rule. It holds module names from the policy, and no text from the code."""

    found: str = Field(
        max_length=128,
        description="found is what the rule found, such as `import os` or `unreadable Python`.",
    )
    action: CodeAction = Field(
        description="action is the strictest action of the rules that match: Note, NeedApproval or Deny."
    )
    places: tuple[Annotated[str, Field(max_length=32)], ...] = Field(
        max_length=4,
        description="places lists the blocks and files with the finding, such as spec.blocks[0]. At most four are "
        "listed.",
    )
    count: int = Field(
        ge=1, le=MAX_BLOCKS + MAX_FILES, description="count is the number of blocks and files with the finding."
    )

    def __str__(self) -> str:
        """What was found, and the number of further blocks and files with it."""
        return f"{self.found} (and in {self.count - 1} more)" if self.count > 1 else self.found

    @property
    def told(self) -> str:
        """Action and finding, for audit lines and spans."""
        return f"{self.action.value}: {self}"


class CodeRule(Model):
    """CodeRule defines what happens to Python code that imports one of the listed modules."""

    imports: tuple[Annotated[str, Field(max_length=64, pattern=MODULE_PATTERN)], ...] = Field(
        min_length=1,
        max_length=MAX_IMPORTS,
        description="imports lists module names. A module includes its submodules: os includes os.path. The operator "
        "reads Python blocks, and blocks and files with the extension .py, .pyc or .so.",
        json_schema_extra=SET,
    )
    action: CodeAction = Field(
        description="action is what happens to code that matches. Note: the code runs, and the status lists the "
        "finding. NeedApproval: the execution waits for approval. Deny: the execution is denied. If several rules "
        "match, the strictest applies. For unreadable Python, the strictest of all rules applies."
    )


def _each_action_once(rules: tuple[CodeRule, ...]) -> tuple[CodeRule, ...]:
    actions = [one.action.value for one in rules]
    if len(set(actions)) < len(actions):
        raise ValueError(f"action must differ from rule to rule, but they are {', '.join(actions)}: join their imports")
    return rules


CodeRules = Annotated[
    tuple[CodeRule, ...],
    Field(
        max_length=MAX_CODE_RULES,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["action"]},
    ),
    AfterValidator(_each_action_once),
]
