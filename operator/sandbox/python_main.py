"""A Python that starts without its script, so that the script is no file that other code could have changed.

    python_main.py DESCRIPTOR SOURCE

Confined as user code is, and without any of it until the path of a script comes on the descriptor, ended by a NUL. From
then on it is what `python3 PATH` is: the interpreter itself runs what the descriptor SOURCE holds, in an emptied
`__main__`. It doesn't look at what stands under the path.
"""

import _ctypes
import os
import sys

_KEPT = ("__annotations__", "__builtins__", "__doc__", "__loader__", "__name__", "__package__", "__spec__")


class _Pointer(_ctypes._SimpleCData):
    _type_ = "P"


class _Text(_ctypes._SimpleCData):
    _type_ = "z"


class _Number(_ctypes._SimpleCData):
    _type_ = "i"


class _Opening(_ctypes.CFuncPtr):
    _flags_, _restype_ = _ctypes.FUNCFLAG_CDECL, _Pointer


class _Running(_ctypes.CFuncPtr):
    _flags_, _restype_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_PYTHONAPI, _Number


def _await_path(orders):
    """The path that the script has; None if none will come."""
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
    orders, source = map(int, sys.argv[1:])
    # What `ctypes` does, without the time that its import takes: 3 ms of 18.
    library = _ctypes.dlopen(None, 0)
    open_file, open_source = (_Opening(_ctypes.dlsym(library, name)) for name in ("fopen", "fdopen"))
    open_file.argtypes, open_source.argtypes = (_Text, _Text), (_Number, _Text)
    run_file = _Running(_ctypes.dlsym(library, "PyRun_SimpleFileExFlags"))  # what `python3 PATH` calls
    run_file.argtypes = (_Pointer, _Text, _Number, _Pointer)
    nothing = open_file(os.devnull.encode(), b"rb")
    if nothing:  # an empty script, so that what runs one is in memory
        run_file(nothing, os.devnull.encode(), 1, None)
    path = _await_path(orders)
    if path is None:
        return
    whole = os.path.abspath(path)
    name = os.fsencode(whole)
    file = open_source(source, b"rb")
    if not file:
        raise OSError("the source of the block can't be opened")
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
