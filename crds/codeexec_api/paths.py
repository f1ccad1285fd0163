"""Names of files in the workspace: the one place that says which are taken.

Client and models call `check_workspace_path`; the CRD holds the same rules in CEL (`v1alpha1.fields.WorkspacePath`).
"""

from typing import Final

from codeexec_api.characters import UNSEEN, character_class, pattern

MAX_PATH_BYTES: Final = 255
"""Of the whole path in UTF-8. No part can then be longer than file systems take."""

_BACKSLASH: Final = (0x005C, 0x005C)  # separates folders on Windows
_REFUSED: Final = sorted((*UNSEEN, _BACKSLASH))
REFUSED_CHARACTERS: Final = character_class(_REFUSED)
"""Class of the characters that no path may hold, as a regular expression of the API server (RE2)."""
_REFUSED_HERE: Final = pattern(_REFUSED)


def check_workspace_path(path: str) -> str:
    """The path itself, if it is that of a file in the workspace, whatever stands there.

    Such a path is relative and has no part that is empty, `.` or `..`, or begins or ends with a space. It has at most
    MAX_PATH_BYTES bytes and no character that is a control, a separator, private or invisible. Names that differ in
    case or in Unicode normalization are different files; nothing is normalized.

    Raises:
        ValueError: names the path and what is wrong with it.
    """
    if found := _REFUSED_HERE.search(path):
        raise ValueError(f"{path!r} contains U+{ord(found[0]):04X}; use letters, digits, punctuation and plain spaces")
    if (size := len(path.encode())) > MAX_PATH_BYTES:
        raise ValueError(f"{path!r} has {size} bytes; at most {MAX_PATH_BYTES} are allowed")
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise ValueError(f"{path!r} has the part {part!r}; give a path relative to the workspace")
        if part != part.strip(" "):
            raise ValueError(f"{path!r} has the part {part!r}; no part may begin or end with a space")
    return path
