"""codeexec without `async`: the same calls, which wait.

    from codeexec import sync as codeexec

    with codeexec.Client(agent="analyst") as client:
        print(client.run("print(6 * 7)").stdout)
        with client.session() as session:
            session.run("x = 41")
            print(session.run("x + 1").text)

A client runs its calls in an event loop of its own, in a thread. It may be used from several threads, and where an
event loop runs already, as in a notebook. Ctrl-C stops the code of the call that waits.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from codeexec import _client, _files, _records, _session
from codeexec._loop import LoopThread

__all__ = ["Approvals", "Client", "Executions", "Files", "Session", "Sessions"]

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")


class _Waiting(Generic[Inner]):
    """Has the calls of something asynchronous, each of which waits."""

    def __init__(self, inner: Inner, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop


def _waits(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Waiting[Any], P], T]:
    """The method, but it waits."""

    @functools.wraps(method)
    def call(self: _Waiting[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.call(method, self._inner, *args, **kwargs)

    return call


def _iterates(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[_Waiting[Any], P], Iterator[T]]:
    """The method, but what it gives is iterated over with `for`."""

    @functools.wraps(method)
    def call(self: _Waiting[Any], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._loop.iterate(method(self._inner, *args, **kwargs))

    return call


def _like(method: Callable[Concatenate[Any, P], Any]) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Has the arguments and the description of another method."""

    def copy(function: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        return functools.wraps(method)(function)

    return copy


class Files(_Waiting[_files.Files]):
    """The files of a session's workspace: `session.files`. See `codeexec.Session.files`."""

    read = _waits(_files.Files.read)
    read_text = _waits(_files.Files.read_text)
    read_many = _waits(_files.Files.read_many)
    write = _waits(_files.Files.write)
    write_many = _waits(_files.Files.write_many)
    list = _waits(_files.Files.list)
    stat = _waits(_files.Files.stat)
    exists = _waits(_files.Files.exists)
    remove = _waits(_files.Files.remove)


class Session(_Waiting[_session.Session]):
    """A workspace that several calls share, one after the other. See `codeexec.Session`."""

    def __init__(self, inner: _session.Session, loop: LoopThread) -> None:
        super().__init__(inner, loop)
        self.name = inner.name
        self.files = Files(inner.files, loop)

    def __enter__(self) -> Self:
        self._loop.call(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call(self._inner.__aexit__, kind, error, trace)

    start = _waits(_session.Session.start)
    end = _waits(_session.Session.end)
    run = _waits(_session.Session.run)


class Executions(_Waiting[_records.Executions]):
    """The records of what has run in the namespace: `client.executions`. See `codeexec.Client.executions`."""

    list = _iterates(_records.Executions.list)
    get = _waits(_records.Executions.get)
    result = _waits(_records.Executions.result)
    output = _iterates(_records.Executions.output)
    file = _waits(_records.Executions.file)
    cancel = _waits(_records.Executions.cancel)


class Sessions(_Waiting[_records.Sessions]):
    """The sessions of the namespace: `client.sessions`. See `codeexec.Client.sessions`."""

    list = _iterates(_records.Sessions.list)
    get = _waits(_records.Sessions.get)
    end = _waits(_records.Sessions.end)

    @_like(_records.Sessions.attach)
    def attach(self, name: str) -> Session:
        """See `codeexec.Client.sessions`."""
        return Session(self._loop.call(self._inner.attach, name), self._loop)


class Approvals(_Waiting[_records.Approvals]):
    """What waits for the decision of a human in the namespace: `client.approvals`. See `codeexec.Client.approvals`."""

    list = _iterates(_records.Approvals.list)
    get = _waits(_records.Approvals.get)
    code = _waits(_records.Approvals.code)
    approve = _waits(_records.Approvals.approve)
    deny = _waits(_records.Approvals.deny)
    revoke = _waits(_records.Approvals.revoke)


class Client(_Waiting[_client.Client]):
    """Runs code of agents in the sandboxes of a cluster. Use it as `with`, or call `close`. See `codeexec.Client`."""

    @_like(_client.Client.__init__)
    def __init__(self, **options: Any) -> None:
        super().__init__(_client.Client(**options), LoopThread())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and end the thread. Sessions that are still open end within a minute.

        This waits for the callbacks of this client. In a callback, this waits for no callback, and not for the end of
        the thread. A thread that a callback has started does not count as the callback. A later call opens connections
        again.
        """
        try:
            self._loop.call(self._inner.close)
        finally:
            self._loop.stop()

    run = _waits(_client.Client.run)

    @_like(_client.Client.session)
    def session(self, **options: Any) -> Session:
        """See `codeexec.Client.session`."""
        return Session(self._inner.session(**options), self._loop)

    @property
    def executions(self) -> Executions:
        """The records of what has run in the namespace.

        Raises:
            NotSupported: the code does not run in a cluster.
        """
        return Executions(self._inner.executions, self._loop)

    @property
    def sessions(self) -> Sessions:
        """The sessions of the namespace.

        Raises:
            NotSupported: the code does not run in a cluster.
        """
        return Sessions(self._inner.sessions, self._loop)

    @property
    def approvals(self) -> Approvals:
        """What waits for the decision of a human in the namespace.

        Raises:
            NotSupported: the code does not run in a cluster.
        """
        return Approvals(self._inner.approvals, self._loop)
