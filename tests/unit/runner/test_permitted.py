"""What code can do inside the second layer where something was permitted to it, and what still not.

Each attempt succeeds where the layer isn't. Nothing but loopback is used.
"""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parents[3] / "operator" / "sandbox"
PRELUDE = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(action):
    try:
        return action() or "done"
    except OSError as error:
        return error.strerror
def say_hello(address, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.connect(address)
        return one.recv(16).decode()
def fast_open(port, call):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        call(one, ("127.0.0.1", port), 0x20000000)
        return one.recv(16).decode()
"""
DENIED, NOT_PERMITTED = "Permission denied", "Operation not permitted"


def landlock_version() -> int:
    code = "import confinement; print(confinement.landlock_version())"
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=SOURCES, capture_output=True, text=True, check=True)
    return int(done.stdout)


knows_ports = pytest.mark.skipif(landlock_version() < 4, reason="the kernel's Landlock knows no ports")


def outside(code: str) -> str:
    """The same code in a process that nobody has confined."""
    python = ["/usr/bin/env", "python3", "-I", "-c", PRELUDE + code]
    return subprocess.run(python, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def servers() -> Iterator[tuple[int, int]]:
    """Two ports of loopback where somebody says `hello`."""

    def greet(listening: socket.socket) -> None:
        while True:
            try:
                peer, _ = listening.accept()
            except OSError:
                return
            with peer:
                peer.sendall(b"hello")

    with ExitStack() as stack:
        ports = []
        for _ in range(2):
            listening = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
            stack.callback(listening.shutdown, socket.SHUT_RDWR)
            threading.Thread(target=greet, args=[listening], daemon=True).start()
            ports.append(listening.getsockname()[1])
        yield ports[0], ports[1]


@knows_ports
def test_tcp_leads_to_the_permitted_port_and_to_no_other(servers: tuple[int, int], run: Any) -> None:
    permitted, other = servers
    code = f"print(*(attempt(lambda: say_hello(('127.0.0.1', port))) for port in ({permitted}, {other})), sep=', ')"
    assert outside(code) == "hello, hello\n"
    assert run(PRELUDE + code, egress={"tcp": [permitted], "udp": []}).text() == f"hello, {DENIED}\n"
    assert run(PRELUDE + code).text() == f"{DENIED}, {DENIED}\n", "control: without a permit there is none"


@knows_ports
@pytest.mark.parametrize(
    "call",
    [
        "lambda one, address, flags: one.sendto(b'x', flags, address)",
        "lambda one, address, flags: one.sendmsg([b'x'], [], flags, address)",
    ],
    ids=["sendto", "sendmsg"],
)
def test_a_send_opens_no_connection(call: str, servers: tuple[int, int], run: Any) -> None:
    """TCP Fast Open connects without `connect`, where Landlock of many kernels doesn't look."""
    permitted, other = servers
    code = f"print(attempt(lambda: fast_open({other}, {call})))"
    assert outside(code) == "hello\n"
    assert run(PRELUDE + code, egress={"tcp": [permitted], "udp": []}).text() == f"{NOT_PERMITTED}\n"


@knows_ports
def test_a_connection_that_is_put_off_is_looked_at_when_it_is_asked_for(servers: tuple[int, int], run: Any) -> None:
    """TCP_FASTOPEN_CONNECT lets `connect` return before anything is sent; Landlock has looked by then."""
    permitted, other = servers
    code = f"""
def put_off(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.IPPROTO_TCP, 30, 1)
        one.connect(("127.0.0.1", port))
        one.send(b"x")
        return one.recv(16).decode()
print(*(attempt(lambda: put_off(port)) for port in ({permitted}, {other})), sep=", ")
"""
    assert outside(code) == "hello, hello\n"
    assert run(PRELUDE + code, egress={"tcp": [permitted], "udp": []}).text() == f"hello, {DENIED}\n"


@knows_ports
def test_nobody_listens_on_a_port_of_their_choice(run: Any) -> None:
    code = "print(attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).bind(('127.0.0.1', 0))))"
    assert outside(code) == "done\n"
    assert run(PRELUDE + code, egress={"tcp": [443], "udp": []}).text() == f"{DENIED}\n"


MPTCP, SCTP, UDPLITE = 262, 132, 136
KINDS = {
    "TCP": "socket.AF_INET, socket.SOCK_STREAM",
    "TCP by its number": "socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP",
    "TCP with flags": "socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC",
    "UDP": "socket.AF_INET, socket.SOCK_DGRAM",
    "UDP by its number": "socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_UDP",
    "UNIX": "socket.AF_UNIX, socket.SOCK_SEQPACKET",
}
NEVER = {
    "multipath TCP": f"socket.AF_INET, socket.SOCK_STREAM, {MPTCP}",
    "raw": "socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP",
    "ping": "socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP",
    "SCTP": f"socket.AF_INET, socket.SOCK_STREAM, {SCTP}",
    "SCTP in packets": f"socket.AF_INET, socket.SOCK_SEQPACKET, {SCTP}",
    "UDP-Lite": f"socket.AF_INET, socket.SOCK_DGRAM, {UDPLITE}",
    "packets": "socket.AF_PACKET, socket.SOCK_RAW",
    "the kernel": "socket.AF_NETLINK, socket.SOCK_RAW",
    "the host of a virtual machine": "socket.AF_VSOCK, socket.SOCK_STREAM",
    "the kernel's cryptography": "socket.AF_ALG, socket.SOCK_SEQPACKET",
}


@pytest.mark.parametrize(
    ("egress", "kinds"),
    [
        (None, {"UNIX"}),
        ({"tcp": [443], "udp": []}, {"UNIX", "TCP", "TCP by its number", "TCP with flags"}),
        ({"tcp": [], "udp": [53]}, {"UNIX", "UDP", "UDP by its number"}),
        ({"tcp": [443], "udp": [53]}, set(KINDS)),
    ],
    ids=["nothing", "TCP", "UDP", "both"],
)
def test_sockets_are_of_the_permitted_kinds(egress: Any, kinds: set[str], run: Any) -> None:
    every = KINDS | NEVER
    code = "\n".join(f"print(attempt(lambda: socket.socket({kind}) and None))" for kind in every.values())
    expected = ["done" if name in kinds else DENIED for name in every]
    without = dict(zip(every, outside(code).splitlines(), strict=True))
    assert {without[name] for name in (*KINDS, "multipath TCP", "UDP-Lite", "the kernel")} == {"done"}, "control"
    assert run(PRELUDE + code, **({"egress": egress} if egress else {})).text().splitlines() == expected


@pytest.mark.parametrize("attempt", ["os.kill(1, 0)", "os.setpriority(os.PRIO_USER, os.getuid(), 19)"])
def test_all_else_is_refused_as_ever(attempt: str, run: Any) -> None:
    code = f"print(attempt(lambda: {attempt}))"
    for egress in ({}, {"egress": {"tcp": [443], "udp": [53]}}):
        assert run(PRELUDE + code, **egress).text() == f"{NOT_PERMITTED}\n"


def test_an_address_family_with_high_bits_is_the_one_of_the_low_ones(run: Any) -> None:
    """The kernel looks at the lower half of an argument only, and so does the filter."""
    code = "print(ctypes.CDLL(None).socket(ctypes.c_long(1 << 32 | 16), 3, 0))"
    assert run(PRELUDE + code, egress={"tcp": [443], "udp": []}).text() == "-1\n"


def test_the_runner_says_which_layers_hold_where_something_is_permitted(sandbox: Any) -> None:
    with sandbox.connect() as connection:
        egress = {"tcp": [443], "udp": []}
        connection.say({"report": True, "pids": 64, "memoryBytes": 2**20, "egress": egress})
        layers = connection.hear("ready").frames[-1]["layers"]
        assert layers == ["Seccomp", "Landlock"] + ["LandlockPorts"] * (landlock_version() >= 4)
        connection.say({"report": True})
        assert connection.hear("ready").frames[-1]["layers"] == ["Seccomp", "Landlock"]
        connection.run("print(1)", session=False)
        connection.say({"ack": "job"})


@knows_ports
def test_a_python_that_waits_is_not_used_for_code_with_permits(servers: tuple[int, int], sandbox: Any) -> None:
    """It was confined when nothing was permitted, so the permit would have no effect; the other way would be worse."""
    permitted, other = servers
    code = PRELUDE + f"print(attempt(lambda: say_hello(('127.0.0.1', {permitted}))))"
    with sandbox.connect() as connection:
        connection.say({"report": True, "pids": 64, "memoryBytes": 256 * 2**20})
        connection.hear("ready")
        assert connection.run(code, egress={"tcp": [permitted], "udp": []}).text() == "hello\n"
        assert connection.run(code).text() == f"{DENIED}\n", "it goes with its job"
        assert connection.run(code, egress={"tcp": [other], "udp": []}).text() == f"{DENIED}\n"
        connection.run(session=False)
        connection.say({"ack": "job"})
