"""A Python that has started before its script is known, so that the script doesn't wait for that.

    standby_python.py DESCRIPTOR

Confined as user code is, and without any of it until the path of a script comes on the descriptor, ended by a NUL. From
then on it is what `python3 PATH` is: the interpreter runs the file itself, in an emptied `__main__`.
"""

import ctypes
import os
import sys

_KEPT = ("__annotations__", "__builtins__", "__doc__", "__loader__", "__name__", "__package__", "__spec__")


def _await_path(orders):
    """The path that is to be run; None if none will come."""
    name = b""
    while not name.endswith(b"\0"):
        piece = os.read(orders, 4096)
        if not piece:
            return None
        name += piece
    os.close(orders)
    return os.fsdecode(name[:-1])


def main():
    """Wait, then run the script; how that ends is the end of this program."""
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    run_file = ctypes.pythonapi.PyRun_SimpleFileExFlags  # what `python3 PATH` calls
    run_file.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p)
    nothing = libc.fopen(os.devnull.encode(), b"rb")
    if nothing:  # an empty script, so that what runs one is in memory
        run_file(nothing, os.devnull.encode(), 1, None)
    path = _await_path(int(sys.argv[1]))
    if path is None:
        return
    whole = os.path.abspath(path)
    name = os.fsencode(whole)
    file = libc.fopen(name, b"rb")
    if not file:
        sys.stderr.write(f"{sys.executable}: can't open file {whole!r}\n")
        raise SystemExit(2)
    sys.argv[:] = [path]
    sys.orig_argv[:] = [sys.orig_argv[0], path]
    sys.path[0] = os.path.dirname(whole)
    # From here on there are only local names: the others are the script's.
    state, interrupt, leave = vars(sys), KeyboardInterrupt, SystemExit
    variables = sys.modules["__main__"].__dict__
    for variable in [one for one in variables if one not in _KEPT]:
        del variables[variable]
    variables["__doc__"] = None
    failed = run_file(file, name, 1, None)
    if failed and state.get("last_type") is not interrupt:  # of that the interpreter takes care itself
        raise leave(1)


main()
