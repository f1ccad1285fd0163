"""The probes that show a closed network: what answers is found, what doesn't answer isn't."""

import errno
import importlib.util
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SOURCE = Path(__file__).parents[3] / "operator" / "sandbox" / "egress.py"


@pytest.fixture(scope="module")
def egress() -> Any:
    spec = importlib.util.spec_from_file_location("sandbox_egress", SOURCE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_target(address: tuple[str, int], protocol: str = "TCP") -> dict[str, Any]:
    return {"name": "test", "address": address[0], "port": address[1], "protocol": protocol}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def silence() -> Iterator[dict[str, Any]]:
    """A TCP target that never answers: its queue of connections is full."""
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        yield a_target(server.getsockname())


@pytest.fixture
def closed() -> Iterator[tuple[str, int]]:
    """A port at which nobody listens, and which nobody else gets meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()


@pytest.fixture
def patient(egress: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers may get no CPU for a while. The wait ends with the answer."""
    monkeypatch.setattr(egress, "ATTEMPT_SECONDS", 20)


def test_a_server_that_listens_answers(egress: Any, listener: socket.socket) -> None:
    assert egress.prove_closed([a_target(listener.getsockname())], 0) == [True]


def test_a_port_that_is_closed_does_not(egress: Any, closed: tuple[str, int]) -> None:
    assert egress.prove_closed([a_target(closed)], 0) == [False]


def test_silence_is_no_answer_and_not_waited_for_long(egress: Any, silence: dict[str, Any]) -> None:
    started = time.monotonic()
    assert egress.prove_closed([silence], 60) == [False]
    assert time.monotonic() - started >= egress.ATTEMPTS * egress.ATTEMPT_SECONDS


def test_each_target_has_its_own_answer(egress: Any, listener: socket.socket, silence: dict[str, Any]) -> None:
    targets = [silence, a_target(listener.getsockname()), silence]
    assert egress.prove_closed(targets, 0) == [False, True, False]


def test_what_answers_while_the_rest_is_loaded_is_found(egress: Any, listener: socket.socket) -> None:
    listener.settimeout(10)
    heard = []

    def meanwhile() -> None:
        heard.append(listener.accept()[0])  # the first attempts are out
        listener.close()  # the next ones get no answer

    assert egress.prove_closed([a_target(listener.getsockname())], 0, meanwhile) == [True]
    assert len(heard) == 1
    heard[0].close()


@pytest.mark.parametrize("given_up_after", [0, 60])
def test_what_is_loaded_meanwhile_is_loaded_once_and_shortens_no_wait(
    egress: Any, silence: dict[str, Any], given_up_after: float, monkeypatch: Any
) -> None:
    clock, waits, loaded = [0.0], [], []
    monkeypatch.setattr(egress, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    class Waiting(egress.selectors.DefaultSelector):  # type: ignore[misc, name-defined]
        def select(self, timeout: float | None = None) -> Any:
            assert timeout is not None
            waits.append(round(timeout, 2))
            clock[0] += timeout
            return super().select(0)

    monkeypatch.setattr(egress.selectors, "DefaultSelector", Waiting)

    def meanwhile() -> None:
        loaded.append(len(waits))
        clock[0] += 0.05

    assert egress.prove_closed([silence], given_up_after, meanwhile) == [False]
    assert loaded == [0], "before the first wait"
    long = [wait for wait in waits if wait]
    assert long == [0.1, 0.15, 0.15], "of the first attempts, 0.05 s have passed"


def test_without_targets_what_is_to_be_loaded_is_loaded_all_the_same(egress: Any) -> None:
    loaded: list[bool] = []
    assert egress.prove_closed([], 60, lambda: loaded.append(True)) == []
    assert loaded == [True]


def test_without_targets_there_is_nothing_to_tell(egress: Any) -> None:
    assert egress.prove_closed([], 60) == []


@pytest.fixture
def name_server() -> Iterator[Callable[..., tuple[str, int]]]:
    servers = []

    def serve(answer: Callable[[bytes], bytes]) -> tuple[str, int]:
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("127.0.0.1", 0))
        servers.append(server)

        def run() -> None:
            try:
                while True:
                    question, sender = server.recvfrom(512)
                    server.sendto(answer(question), sender)
            except OSError:  # closed at the end of the test
                return

        threading.Thread(target=run, daemon=True).start()
        address: tuple[str, int] = server.getsockname()
        return address

    yield serve
    for server in servers:
        server.close()


@pytest.mark.usefixtures("patient")
def test_a_name_server_answers_a_question_that_it_understands(egress: Any, name_server: Any) -> None:
    asked = []

    def answer(question: bytes) -> bytes:
        asked.append(question)
        return question

    assert egress.prove_closed([a_target(name_server(answer), "UDP")], 0) == [True]
    number, flags, questions, *_ = struct.unpack(">6H", asked[0][:12])
    assert (number, flags, questions) == (1, 0x0100, 1)
    assert asked[0][12:].startswith(b"\x0akubernetes\x07default\x03svc")


def test_who_is_short_of_time_still_looks(egress: Any, listener: socket.socket, monkeypatch: Any) -> None:
    """As with hardly any CPU: whenever the clock is read again, the window is over already."""
    clock = itertools.count(step=100)
    monkeypatch.setattr(egress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert egress.prove_closed([a_target(listener.getsockname())], 0) == [True]


def test_one_silent_round_after_an_answer_is_not_enough(egress: Any, monkeypatch: Any) -> None:
    rounds = [[True], [False], [True], [False], [False]]
    monkeypatch.setattr(egress, "_round", lambda *_: rounds.pop(0))
    assert egress.prove_closed([{}], 60) == [False]
    assert rounds == []


def test_a_doubt_at_the_end_stands(egress: Any, monkeypatch: Any) -> None:
    rounds = [[True, False], [False, True]]
    clock = iter([0, 1, 61])
    monkeypatch.setattr(egress, "_round", lambda *_: rounds.pop(0))
    monkeypatch.setattr(egress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert egress.prove_closed([{}, {}], 60) == [True, True]


class Lacking(socket.socket):
    def connect(self, address: Any) -> None:
        raise OSError(errno.ENOBUFS, "No buffer space available")


def test_what_is_lacking_here_says_nothing_about_the_network(egress: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(egress.socket, "socket", Lacking)
    with pytest.raises(OSError, match="No buffer space"):
        egress.prove_closed([a_target(("127.0.0.1", 9))], 0)


def test_a_round_is_repeated_until_nothing_answers(egress: Any, listener: socket.socket) -> None:
    """As where a policy takes effect only after the pod has started."""
    listener.settimeout(10)

    def close_after_the_first() -> None:
        listener.accept()[0].close()
        listener.close()

    closing = threading.Thread(target=close_after_the_first)
    closing.start()
    assert egress.prove_closed([a_target(listener.getsockname())], 30) == [False]
    closing.join()
