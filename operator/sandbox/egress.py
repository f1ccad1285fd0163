"""The proof that the network is closed, from inside: tries to reach targets that answer anyone who may reach them.

Run by the runner before there is any user code in the pod. Standard library only.
"""

import contextlib
import errno
import selectors
import socket
import struct
import time

ATTEMPTS = 3
ATTEMPT_SECONDS = 0.15
"""What is reachable in a cluster answers within milliseconds; each attempt is a packet of its own, so that one lost
packet doesn't look like a closed network."""
LOCAL_ERRORS = (errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What says nothing about the network; the runner doesn't start then."""

# Address of kubernetes.default.svc.cluster.local: any answer counts, also that there is no such name.
_DNS_QUESTION = (
    struct.pack(">6H", 1, 0x0100, 1, 0, 0, 0)
    + b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\x00"
    + struct.pack(">2H", 1, 1)
)


def _nothing():
    """There is nothing to do while answers are waited for."""


def prove_closed(targets, give_up_after, meanwhile=_nothing):
    """Probe until no target answers, because some networks apply a policy only after the pod has started.

    After a round in which one answered, two silent ones in a row are needed.

    Args:
        targets: [{"name", "address", "port", "protocol": "TCP"|"UDP"}]; a UDP target is a name server.
        give_up_after: seconds after which the last round stands, whatever it says.
        meanwhile: is called once, when the first attempts are out. What it takes shortens no wait for an answer:
            answers that come meanwhile are found afterwards.

    Returns:
        For each target, whether it answered in the last round, or in the one before if time is up.

    Raises:
        OSError: something is lacking here, so that nothing can be told about the network.
    """
    deadline = time.monotonic() + give_up_after
    doubt = []
    while True:
        answered = _round(targets, meanwhile)
        meanwhile = _nothing
        if not any(answered) and not any(doubt):
            return answered
        if time.monotonic() >= deadline:
            return [now or before for now, before in zip(answered, doubt or answered, strict=True)]
        doubt = answered


def _round(targets, meanwhile):
    """Try each target a few times at once; wait until the time is over or all have answered."""
    answered = [False] * len(targets)
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as sockets:
        for _ in range(ATTEMPTS):
            for index, target in enumerate(targets):
                if not answered[index]:
                    _attempt(target, index, selector, sockets)
            # Counted from when the attempts are out: a pod that is short of CPU gets its whole window, too.
            until = time.monotonic() + ATTEMPT_SECONDS
            meanwhile()
            meanwhile, left = _nothing, ATTEMPT_SECONDS
            while left > 0 and not all(answered):
                left = until - time.monotonic()
                for key, _ in selector.select(max(0, left)):  # at least once
                    selector.unregister(key.fileobj)
                    answered[key.data] = answered[key.data] or _has_answered(key.fileobj)
    return answered


def _attempt(target, index, selector, sockets):
    family = socket.AF_INET6 if ":" in target["address"] else socket.AF_INET
    udp = target["protocol"] == "UDP"
    probe = sockets.enter_context(socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM))
    probe.setblocking(False)
    try:
        with contextlib.suppress(BlockingIOError):  # the connection is under way
            probe.connect((target["address"], target["port"]))
        if udp:
            probe.send(_DNS_QUESTION)
    except OSError as error:
        if error.errno in LOCAL_ERRORS:
            raise
        return  # refused at once
    selector.register(probe, selectors.EVENT_READ if udp else selectors.EVENT_WRITE, index)


def _has_answered(probe):
    if probe.type == socket.SOCK_DGRAM:
        with contextlib.suppress(OSError):
            return len(probe.recv(512)) >= len(_DNS_QUESTION)
        return False
    return probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
