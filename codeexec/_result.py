"""What a caller gets back from code: output, displays, files, and the error that the code ended with. Pure."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from codeexec_api import Block, File, Phase, Reason
from executor_client.exceptions import CodeExecError, Timeout
from executor_client.model.results import ExecutionResult
from executor_client.model.selection import as_sent, selected

DISPLAY_PATTERN: Final = "output-[0-9]*-[0-9]*.[hjpst]*"
"""Selects the files in which a workspace holds displays, and few others: one entry of the 64 that a call may fetch."""
_DISPLAY: Final = re.compile(r"output-(\d{1,9})-(\d{1,9})\.(png|jpg|svg|html|json|txt)")
_MIME_TYPES: Final = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "svg": "image/svg+xml",
    "html": "text/html",
    "json": "application/json",
    "txt": "text/plain",
}
_HEADING: Final = re.compile(
    r"^(?:\S.*|  \+ Exception Group )?Traceback \(most recent call last\):?$|^  (?:File|Cell In)\b.*$", re.MULTILINE
)
"""A traceback of Python or of IPython, or a syntax error, which has none."""
_CHAINED: Final = re.compile(
    r"^(?:During handling of the above|The above exception was the direct) .*:\n", re.MULTILINE
)
_ENDING: Final = re.compile(r"^(?P<group>  \| )?(?:\w+\.)*(?P<name>[A-Za-z_]\w*)(?:: ?(?P<message>.*))?$", re.MULTILINE)


@dataclass(frozen=True)
class Display:
    """Something to look at that the code has shown, such as a plot.

    A session that keeps variables shows figures, images, SVG and HTML like a notebook. Other code shows something by
    writing a file `output-NUMBER-NUMBER.EXTENSION` to its workspace.
    """

    mime_type: str
    """`image/png`, `image/jpeg`, `image/svg+xml`, `text/html`, `application/json` or `text/plain`."""
    data: bytes = field(repr=False)
    path: str
    """Path of the file in the workspace."""

    @property
    def png(self) -> bytes | None:
        """The image; None if this is none of type `image/png`."""
        return self._if("image/png")

    @property
    def jpeg(self) -> bytes | None:
        """The image; None if this is none of type `image/jpeg`."""
        return self._if("image/jpeg")

    @property
    def svg(self) -> str | None:
        """The image; None if this is none of type `image/svg+xml`."""
        return self._text_if("image/svg+xml")

    @property
    def html(self) -> str | None:
        """The page or fragment; None if this isn't of type `text/html`. Code wrote it: don't trust it."""
        return self._text_if("text/html")

    @property
    def text(self) -> str | None:
        """The text; None if this isn't of type `text/plain`."""
        return self._text_if("text/plain")

    @property
    def json(self) -> Any:
        """The parsed value; None if this isn't of type `application/json`.

        Raises:
            ValueError: the code has written something else under that type, or what is nested too deeply.
        """
        content = self._if("application/json")
        try:
            return None if content is None else json.loads(content)
        except RecursionError:
            raise ValueError(
                f"{self.path} is nested too deeply to be parsed: use data, and parse it yourself"
            ) from None

    def _if(self, mime_type: str) -> bytes | None:
        return self.data if self.mime_type == mime_type else None

    def _text_if(self, mime_type: str) -> str | None:
        content = self._if(mime_type)
        return None if content is None else content.decode(errors="replace")


@dataclass(frozen=True)
class CodeError:
    """How code failed."""

    name: str
    """Of the Python exception without its module, such as `ZeroDivisionError`. If there was none, or if the sandbox
    ended the code, the reason in the record, such as `NonZeroExit`, `DeadlineExceeded` or `CancelRequested`;
    docs/troubleshooting.md has them all."""
    message: str
    """What the exception says, or the message of the record."""
    traceback: str = field(default="", repr=False)
    """The traceback as Python has printed it; empty if there was none."""


@dataclass(frozen=True)
class Result(ExecutionResult):
    """The outcome of one call: what the code did, how it ended, and the name of its record.

    Code that fails, runs out of time or memory, or is refused by the policy gives a result, too; `error` says why,
    and `raise_for_error` makes an exception of it.
    """

    displays: tuple[Display, ...] = ()
    """What the call has shown, in order. What doesn't fit beside the files of `fetch` stands in `artifacts` only."""

    @classmethod
    def of(
        cls,
        result: ExecutionResult,
        fetch: Sequence[str],
        blocks: Iterable[Block],
        files: Iterable[File],
        more: Mapping[str, bytes] | None = None,
    ) -> Self:
        """This result with what was shown.

        Args:
            result: what came out.
            fetch: what the caller has asked for: paths and patterns. Other files are only looked at for displays.
            blocks: what was sent. What the code has left as it was sent is no display.
            files: the same.
            more: content by path of further files, to look at for displays.
        """
        unchanged = as_sent(result.artifacts, blocks, files)
        asked = {path: content for path, content in result.files.items() if selected(path, fetch)}
        named = tuple(one for one in result.artifacts if one.path not in unchanged or selected(one.path, fetch))
        new = {path: content for path, content in {**result.files, **(more or {})}.items() if path not in unchanged}
        return cls(**vars(result) | {"files": asked, "artifacts": named}, displays=displays_of(new))

    @property
    def execution(self) -> str:
        """Name of the CodeExecution, the record of this call."""
        return self.name

    @property
    def text(self) -> str:
        """What the call has shown as text: stdout without the end of its last line.

        In a session that keeps variables, the value of the last expression comes last in it, as in a notebook.
        """
        return self.stdout.removesuffix("\n")

    @property
    def error(self) -> CodeError | None:
        """Why the call did not succeed; None if it did.

        The exception is read from stderr, which code can write to: use it to explain a failure, not to decide
        whether there was one.
        """
        if self.phase is Phase.SUCCEEDED:
            return None
        # Python ends with 1 when nothing catches an exception. What stands before another exit code was only logged.
        raised = self.reason == Reason.NON_ZERO_EXIT.value and self.exit_code == 1
        found = exception_in(self.stderr) if raised else None
        return found or CodeError(self.reason, self.message)

    def raise_for_error(self) -> Self:
        """This result, if the call succeeded.

        Raises:
            CodeTimeout: the code took longer than `timeout`.
            CodeDenied: the policy or an approver refused the call, or nobody approved it in time; nothing was run.
            CodeNotApproved: the call waits for approval; nothing was run yet.
            CodeFailed: the code failed, was cancelled, or ran out of memory.
        """
        if error := self.error:
            raise _KINDS.get(self.phase, CodeFailed)(error, self)
        return self


class CodeFailed(CodeExecError):
    """The call did not succeed. Only `Result.raise_for_error` raises this."""

    def __init__(self, error: CodeError, result: Result) -> None:
        super().__init__(f"execution {result.execution}: {error.name}: {error.message}")
        self.error: Final = error
        self.result: Final = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.error, self.result)


class CodeTimeout(CodeFailed, Timeout):
    """The code took longer than `timeout`. Only `Result.raise_for_error` raises this."""


class CodeDenied(CodeFailed):
    """The policy or an approver refused the call, or nobody approved it; nothing was run.

    Only `Result.raise_for_error` raises this.
    """


class CodeNotApproved(CodeFailed):
    """The call waits for the decision of a human, and nothing was run yet: see `ApprovalWait(mode="return")`.

    When the call is approved, its code runs: `client.executions.result` waits for that. Only `Result.raise_for_error`
    raises this.
    """


_KINDS: Final[Mapping[Phase, type[CodeFailed]]] = {
    Phase.TIMED_OUT: CodeTimeout,
    Phase.DENIED: CodeDenied,
    Phase.EXPIRED: CodeDenied,
    Phase.AWAITING_APPROVAL: CodeNotApproved,
}


def is_display(path: str) -> bool:
    """True for the name of a file in which a workspace holds a display."""
    return _DISPLAY.fullmatch(path) is not None


def displays_of(files: Mapping[str, bytes]) -> tuple[Display, ...]:
    """The displays among these files, in the order in which they were shown."""
    found = [match for match in map(_DISPLAY.fullmatch, files) if match]
    found.sort(key=lambda one: (int(one[1]), int(one[2]), one[3]))
    return tuple(Display(_MIME_TYPES[one[3]], files[one[0]], one[0]) for one in found)


def exception_in(stderr: str) -> CodeError | None:
    """The Python exception at the end of stderr, as Python or IPython prints it; None if there is none.

    Of chained exceptions the last counts; `traceback` has all.
    """
    headings = list(_HEADING.finditer(stderr))
    ending = _ENDING.search(stderr, headings[-1].end()) if headings else None
    if ending is None:
        return None
    after = "" if ending["group"] else stderr[ending.end() :]
    begin = headings.pop()
    for earlier in reversed(headings):  # its other frames, and the tracebacks that it is chained to
        between = stderr[earlier.end() : begin.start()]
        if _ENDING.search(between) and not _CHAINED.search(between):
            break
        begin = earlier
    message = f"{ending['message'] or ''}{after}".strip()
    return CodeError(ending["name"], message, stderr[begin.start() :].strip("\n"))
