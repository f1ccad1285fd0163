"""Names of files that programs of the caller act on unasked: the one place that says which.

The principle: a name is refused if its purpose is to steer programs that look for it by themselves, wherever they are
started or a folder is shown. A name that a program acts on only when the caller starts that program on that folder,
such as `Makefile`, is an ordinary result. See docs/executor.md and ADR 0028.
"""

import re
import unicodedata
from typing import Final

_PART: Final = re.compile(
    r"""(?:
      \.(?!\.?$).*                                 # hidden: .git, .envrc, .vscode, .bashrc; not the folders . and ..
    | head | _darcs | _fossil_                     # with HEAD, any folder is a Git repository; folders of other systems
    | mise | mise(?:\..+)?\.toml                   # read when a shell enters the folder
    | _g?vimrc | _exrc | _netrc                    # hidden files as Windows spells them
    | desktop\.ini | autorun\.inf                  # read when the folder is shown
    | (?:site|user)customize(?:\..*)?              # read by Python at its start
    | pyvenv\.cfg | conda-meta | site-packages | dist-packages
    | __pycache__                                  # run instead of the source that the caller sees
    | node_modules                                 # read by the plugins of editors
    | appdata | launchagents | launchdaemons | (?:.*_)?profile\.ps1  # read when the caller logs in
    # instructions of coding assistants
    | (?:agents?|claude|codex|crush|gemini|qwen|warp|copilot-instructions)(?:\..+)?\.md
    | (?:crush|opencode)\.jsonc?                   # settings of coding assistants, which run the commands in them
    | [^.]{1,8}~[0-9]+(?:\..{0,3})?                # NTFS's short name of any other: git~1 is .git
    )[. ]*""",  # Windows leaves out dots and blanks at the end
    re.VERBOSE,
)
_FILE: Final = re.compile(
    r""".*\.(?:
      lnk | url | scf | desktop | library-ms | searchconnector-ms    # read when the folder is shown
    | com | exe | bat | cmd | vb[se] | jse | ws[fh] | msc  # cmd.exe looks for each command in the current folder first
    )[. ]*""",
    re.VERBOSE,
)


def acted_on(path: str) -> str:
    """The first part of a path that a program acts on unasked, or nothing.

    A name counts as any file system of the caller's may take it: in any case and normalization, with an NTFS stream.
    """
    *_, last = parts = path.split("/")
    for part in parts:
        for piece in unicodedata.normalize("NFKC", part).casefold().split(":"):
            if _PART.fullmatch(piece) or (part is last and _FILE.fullmatch(piece)):
                return part
    return ""
