"""Which names of files in the workspace are told to the operator. Standard library only.

The same rules as in `paths.py` and `characters.py` of `crds/codeexec_api`, which the image doesn't have; a test holds
them together.
"""

import re

MAX_PATH_BYTES = 255

_REFUSED = (
    "[\\x00-\\x1f\\\\\\x7f-\\xa0\\xad\\u034f\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890-\\u0891\\u08e2"
    "\\u115f-\\u1160\\u1680\\u17b4-\\u17b5\\u180b-\\u180f\\u2000-\\u200f\\u2028-\\u202f\\u205f-\\u206f\\u2800\\u3000"
    "\\u3164\\ud800-\\uf8ff\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\uffff\\U000110bd\\U000110cd"
    "\\U00013430-\\U0001343f\\U00013441-\\U00013442\\U00016fe4\\U0001bca0-\\U0001bca3\\U0001d159"
    "\\U0001d173-\\U0001d17a\\U00040000-\\U0010ffff]"
)


def is_telling(path):
    """Whether a path in the workspace may be named in a record: nothing invisible, nothing that misleads."""
    return (
        not _is_refused(path)
        and len(path.encode()) <= MAX_PATH_BYTES
        and all(part not in ("", ".", "..") and part == part.strip(" ") for part in path.split("/"))
    )


def _is_refused(path):
    """Whether it holds such a character. Only other names than those of ASCII need the pattern, which costs a start."""
    if path.isascii():
        return not path.isprintable() or "\\" in path
    return re.search(_REFUSED, path) is not None
