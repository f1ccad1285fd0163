"""The harness of the attacks tells a refusal from an attack that proves nothing; the attacks are in tests/e2e."""

import errno
import os
import platform
import signal
import socket
import subprocess
import sys
import time

import pytest
from conformance.attacks import DEFENDED, FACTS, NOTHING, SUCCEEDED, SYSTEM_CALLS, outcomes, script, system_call


def gets_it():
    """get it"""
    return "it"


def finds_nothing():
    """find nothing"""
    return False


def is_not_permitted():
    """do what is not permitted"""
    raise PermissionError(errno.EPERM, "Operation not permitted")


def finds_no_file():
    """read what isn't there"""
    with open("absent") as file:
        return file.read()


def waits_by_its_own_clock():
    """read from somebody who says nothing, for a moment"""
    one, _other = socket.socketpair()
    one.settimeout(0.1)
    return one.recv(1)


def asks_by_its_number():
    """make a system call by its number, with a descriptor that is none (EBADF)"""
    return system_call("pidfd_getfd", os.pidfd_open(os.getpid()), 99999, 0) >= 0


def waits_for_ever():
    """wait for an answer that never comes"""
    while True:
        time.sleep(1)


def is_killed():
    """be killed"""
    os.kill(os.getpid(), signal.SIGKILL)


def calls_wrongly():
    """call with arguments that make no sense"""
    raise OSError(errno.EINVAL, "Invalid argument")


def fails_without_a_number():
    """fail in a way that the kernel had no part in"""
    raise OSError("something else")


def has_a_mistake():
    """be mistaken"""
    return FACTS["what nobody knows"]


def run(*attacks, **how):
    code = script(*attacks, seconds=2 if waits_for_ever in attacks else 60, **how)
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return outcomes(done.stdout)


def test_success_is_told_from_a_defence():
    found = run(gets_it, finds_nothing, is_not_permitted, finds_no_file)
    assert found.pop("gets_it") == SUCCEEDED
    assert found.pop("finds_nothing") == NOTHING
    assert all(outcome.startswith(DEFENDED) for outcome in found.values())
    assert [outcome.split(": ")[1] for outcome in found.values()] == ["EPERM", "ENOENT"]


def test_silence_is_a_defence_only_where_the_test_says_so():
    [outcome] = run(waits_by_its_own_clock, silence=True).values()
    assert outcome.startswith(DEFENDED)
    assert outcome.split(": ")[1] == "ETIMEDOUT"


@pytest.mark.parametrize(
    "attack",
    [
        waits_for_ever,
        waits_by_its_own_clock,
        is_killed,
        calls_wrongly,
        fails_without_a_number,
        has_a_mistake,
        asks_by_its_number,
    ],
)
def test_what_was_not_refused_does_not_count_as_defended(attack):
    """A hang, silence, a signal, a wrong call and a mistake prove nothing, so a test that meets one fails."""
    with pytest.raises(AssertionError, match=f"neither succeeded nor were they refused.*{attack.__name__}"):
        run(attack)


def test_every_machine_has_a_number_for_each_system_call():
    tables = list(SYSTEM_CALLS.values())
    assert platform.machine() in SYSTEM_CALLS
    assert all(table.keys() == tables[0].keys() for table in tables)
