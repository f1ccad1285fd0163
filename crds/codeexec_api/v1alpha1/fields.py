"""Types of fields that several kinds share, and how a rule of a field is written."""

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from codeexec_api.characters import UNSEEN, character_class
from codeexec_api.names import NODE_RUNTIME
from codeexec_api.paths import MAX_PATH_BYTES, REFUSED_CHARACTERS, check_workspace_path
from codeexec_api.v1alpha1.bounds import CIDR_PATTERN, IMAGE_PATTERN


def rule(cel: str, message: str, *, field: str | None = None) -> dict[str, str]:
    """One entry of `x-kubernetes-validations`. The API server reports a violation at `field`."""
    entry = {"rule": cel, "message": message}
    return entry | {"fieldPath": field} if field else entry


def rules(*entries: dict[str, str]) -> dict[str, Any]:
    """The keyword of a schema that holds these rules."""
    return {"x-kubernetes-validations": list(entries)}


_WORD: Final = r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
"""The form of a condition's reason in Kubernetes."""
Word = Annotated[str, Field(max_length=64, pattern=rf"^{_WORD}$")]
OptionalWord = Annotated[str, Field(max_length=64, pattern=rf"^({_WORD})?$")]
OptionalName = Annotated[str, Field(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]
"""Name of an object; empty if there is none."""
Generation = Annotated[int, Field(ge=0, le=2**53)]
Count = Annotated[int, Field(ge=0, le=2**53)]
CidrText = Annotated[str, Field(max_length=49, pattern=CIDR_PATTERN)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

_WORKSPACE_PATH_RULES: Final = (  # the same rules as check_workspace_path
    rule(
        "!self.split('/').exists(part, part == '' || part == '.' || part == '..')",
        "must be a relative path inside the workspace: not absolute, without '.', '..' or empty parts",
    ),
    rule(
        "!self.split('/').exists(part, part.startsWith(' ') || part.endsWith(' '))",
        "must not have parts that begin or end with a blank",
    ),
    rule(
        f"!self.matches(r'{REFUSED_CHARACTERS}')",
        "must not hold backslashes, controls, private or invisible characters, or spaces other than U+0020",
    ),
    rule(f"bytes(self).size() <= {MAX_PATH_BYTES}", f"must not have more than {MAX_PATH_BYTES} bytes in UTF-8"),
)
WorkspacePath = Annotated[
    str,
    # The API server estimates the cost of the rules from the maximum length.
    Field(min_length=1, max_length=MAX_PATH_BYTES, json_schema_extra=rules(*_WORKSPACE_PATH_RULES)),
    AfterValidator(check_workspace_path),
]

AgentName = Annotated[
    str,
    # kubectl shows the name, and prints a tab as the end of a cell. The model doesn't check it, to read older records.
    Field(
        min_length=1,
        max_length=128,
        json_schema_extra=rules(
            rule(
                f"!self.matches(r'{character_class(UNSEEN)}')",
                "must not hold controls, private or invisible characters, or spaces other than U+0020",
            ),
            rule("!self.contains('  ')", "must not hold two blanks in a row"),
        ),
    ),
]
"""Name of an agent, which can't pass for several columns of a table."""

ImageReference = Annotated[
    str,
    Field(
        max_length=280,
        pattern=IMAGE_PATTERN,
        description="Image reference by digest (name@sha256:…). Tags are refused, because they can change.",
    ),
]

ImageSignature = Annotated[
    str,
    Field(
        min_length=1,
        max_length=16_384,
        description="Signature of an image by a key: a Sigstore bundle (JSON), as `cosign sign --bundle` writes it.",
    ),
]

SET: Final[dict[str, Any]] = {"x-kubernetes-list-type": "set"}
"""For lists without order. Several appliers can add entries, and there are no duplicates. Other lists are atomic."""

LanguageName = Literal["python", "bash", "sh", "javascript", "pwsh"]

UserName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=512,
        description="Name of a user or service account, as `kubectl auth whoami` prints it.",
    ),
]

RuntimeClassName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description=f"Name of a RuntimeClass, such as gvisor, or {NODE_RUNTIME} for the node's default runtime.",
    ),
]

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
