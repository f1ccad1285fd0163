"""Runs a seccomp program as the kernel does, so that a filter can be asked without making a call."""

import operator
from collections.abc import Callable, Sequence

LOAD, AND, JUMP, RETURN = 0x20, 0x54, 0x05, 0x06
TESTS: dict[int, Callable[[int, int], int]] = {0x15: operator.eq, 0x35: operator.ge, 0x45: operator.and_}
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_MASK = 0xFFFF_FFFF


def verdict(
    program: Sequence[tuple[int, int, int, int]], machine: str, number: int, arguments: Sequence[int] = (0,) * 6
) -> int:
    """The error that a call fails with; 0: it is allowed."""
    words = {0: number & _MASK, 4: AUDIT_ARCH[machine]}
    for position, value in enumerate((*arguments, *[0] * (6 - len(arguments)))):
        words[16 + 8 * position] = value & _MASK
        words[20 + 8 * position] = value >> 32 & _MASK
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, constant = program[at]
        at += 1
        if code == RETURN:
            assert constant == ALLOW or constant & 0xFFFF_0000 == ERRNO, hex(constant)
            return 0 if constant == ALLOW else constant & 0xFFFF
        if code == LOAD:
            accumulator = words[constant]
        elif code == AND:
            accumulator &= constant
        elif code == JUMP:
            at += constant
        else:
            at += if_true if TESTS[code](accumulator, constant) else if_false
